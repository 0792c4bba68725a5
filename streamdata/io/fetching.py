"""Ranges of shards, read while something else runs: `url, range, stamp → Future of the bytes`."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from streamdata.io.storage import FileStamp, cut_short, is_remote, opened_anew, submit_range

Submit = Callable[[str, int, int, FileStamp], "Future[bytes]"]
"""Ask for the bytes of a shard from `begin` to `end`, of the version that was indexed; the answer has all of them."""


class FetchThreads:
    """Threads that read ranges: a disk or a server is asked for several at the same time."""

    def __init__(self, num_threads: int) -> None:
        self._pool = ThreadPoolExecutor(num_threads, "streamdata-fetch")

    def submit(self, url: str, begin: int, end: int, stamp: FileStamp) -> "Future[bytes]":
        """Ask for a range."""
        if is_remote(url):
            return submit_range(url, begin, end, stamp)
        return self._pool.submit(_local_range, url, begin, end, stamp)


def _local_range(url: str, begin: int, end: int, stamp: FileStamp) -> bytes:
    # Opened anew: what each of the threads kept open would be thousands of files.
    file = opened_anew(url)
    data = file.read(end - begin, begin)
    file.check(stamp)
    return _whole(url, begin, end, data)


def _whole(url: str, begin: int, end: int, data: bytes) -> bytes:
    if len(data) != end - begin:
        raise cut_short(url, begin, end - begin, len(data))
    return data
