"""Stamps of many files, asked for at the same time."""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from streamdata.io.held import ANY_VERSION
from streamdata.io.remote import network
from streamdata.io.storage import FileStamp, is_remote, kept_as, local_path, stamp_of, submit_question

_MAX_REQUESTS = 16


def stamps_of(urls: Sequence[str]) -> list[FileStamp]:
    """The stamps of many files; remote ones are asked for at the same time."""
    if not any(map(is_remote, urls)):
        return [stamp_of(url) for url in urls]
    with ThreadPoolExecutor(_MAX_REQUESTS) as pool:
        return list(pool.map(stamp_of, urls))


def stamps_there(urls: Iterable[str]) -> dict[str, FileStamp]:
    """The stamps of those of the files that there are; remote ones are asked for at the same time."""
    files = list(urls)
    if not any(map(is_remote, files)):
        return {url: stamp_of(url) for url in files if os.path.isfile(local_path(url))}
    with ThreadPoolExecutor(_MAX_REQUESTS) as pool:
        stamps = pool.map(_stamp_if_there, files)
        return {url: stamp for url, stamp in zip(files, stamps, strict=True) if stamp is not None}


def _stamp_if_there(url: str) -> FileStamp | None:
    try:
        return stamp_of(url)
    except FileNotFoundError:
        return None


def learn_versions(files: Iterable[tuple[str, FileStamp]]) -> set[str]:
    """Ask which versions there are of those remote files that may have any, of which none was met yet.

    Returns:
        The files that were asked.

    Raises:
        ShardError: There is no such file, or it has another size.
    """
    asked = {
        url: submit_question(url, stamp)
        for url, stamp in files
        if stamp.version == ANY_VERSION and not kept_as(url, stamp).version
    }
    try:
        with network().waiting():
            for answer in asked.values():
                answer.result()
    finally:
        for answer in asked.values():
            answer.cancel()
    return set(asked)
