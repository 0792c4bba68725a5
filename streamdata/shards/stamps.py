"""Stamps of many files, asked for at the same time."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from streamdata.shards.storage import FileStamp, is_remote, local_path, stamp_of

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
        return {url: stamp_of(url) for url in files if Path(local_path(url)).is_file()}
    with ThreadPoolExecutor(_MAX_REQUESTS) as pool:
        stamps = pool.map(_stamp_if_there, files)
        return {url: stamp for url, stamp in zip(files, stamps, strict=True) if stamp is not None}


def _stamp_if_there(url: str) -> FileStamp | None:
    try:
        return stamp_of(url)
    except FileNotFoundError:
        return None
