"""Ranges of remote files, for what is read before a process forks: no thread and no event loop of ours stays behind."""

from collections.abc import Sequence
from typing import NamedTuple

import fsspec

from streamdata.shards.storage import FileStamp, remote_facts


class Piece(NamedTuple):
    """Some bytes of a remote file, and which version of it they are of."""

    data: bytes
    stamp: FileStamp
    tag: str


def fetch(url: str, begin: int, end: int) -> Piece | None:
    """The bytes [begin, end) of a file, fewer at its end; None where there is no such file."""
    filesystem, path = fsspec.core.url_to_fs(url)
    try:
        stamp, tag = remote_facts(url)
        return Piece(filesystem.cat_file(path, begin, min(end, stamp.size)), stamp, tag)
    except (FileNotFoundError, PermissionError):  # some stores say the latter of what is not there
        return None


def fetch_many(url: str, spans: Sequence[tuple[int, int]], tag: str) -> list[bytes]:
    """Several ranges of one file of a known version."""
    filesystem, path = fsspec.core.url_to_fs(url)
    return [filesystem.cat_file(path, begin, end) for begin, end in spans]
