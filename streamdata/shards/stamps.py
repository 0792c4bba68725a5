"""Stamps of many files: asked for at the same time, or kept in columns."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from streamdata.shards.storage import FileStamp, is_remote, local_path, stamp_of

_MAX_REQUESTS = 16


class Stamps(Sequence[FileStamp]):
    """Stamps of many files: of 100,000 only those that are read become objects.

    Args:
        sizes: In bytes.
        versions: As in `FileStamp`.
    """

    def __init__(
        self, sizes: "np.ndarray[Any, np.dtype[np.int64]]", versions: "np.ndarray[Any, np.dtype[np.int64]]"
    ) -> None:
        self.sizes, self.versions = sizes, versions

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, file: Any) -> Any:
        return FileStamp(int(self.sizes[file]), int(self.versions[file]))


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
