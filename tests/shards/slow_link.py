"""A link to a store, simulated: each request waits, and then gets its bytes at the rate of its connection."""

import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import fsspec

from streamdata.io.storage import local_path
from streamdata.run.per_process import PerProcess


class SlowLink:
    """Serves ranges of files, as what read-ahead sits on does, and notes what was asked for.

    Args:
        delay: Seconds from a request to its first byte.
        rate: Bytes per second of the whole link.
        num_connections: Served at the same time.
        failing: Part of urls whose requests fail.
    """

    def __init__(
        self, delay: float = 0.0, rate: float = 1e12, num_connections: int = 64, failing: str | None = None
    ) -> None:
        self._delay, self._rate, self._failing = delay, rate, failing
        # In a forked process its parent's threads are not there: what is given to them would never be answered.
        self._pool, self._lock = PerProcess(partial(ThreadPoolExecutor, num_connections)), PerProcess(threading.Lock)
        self._free_at = 0.0
        self.requests: list[tuple[str, int, int]] = []
        self.num_cancelled = 0

    def submit(self, url: str, begin: int, end: int, stamp: object) -> "Future[bytes]":
        """Ask for a range."""
        self.requests.append((url, begin, end))
        future = self._pool.get().submit(self._get, url, begin, end)
        future.add_done_callback(self._note)
        return future

    def _note(self, future: "Future[bytes]") -> None:
        self.num_cancelled += future.cancelled()

    def _get(self, url: str, begin: int, end: int) -> bytes:
        with self._lock.get():
            now = time.monotonic()
            self._free_at = max(now + self._delay, self._free_at) + (end - begin) / self._rate
            until = self._free_at
        time.sleep(max(0.0, until - now))
        if self._failing is not None and self._failing in url:
            raise OSError(f"no answer for {url}")
        if "://" in url and not url.startswith("file://"):
            filesystem, path = fsspec.core.url_to_fs(url)
            return filesystem.cat_file(path, begin, end)
        with open(local_path(url), "rb") as file:
            file.seek(begin)
            return file.read(end - begin)

    def twice(self) -> dict[tuple[str, int, int], int]:
        """The requests that were made more than once."""
        return {request: count for request, count in Counter(self.requests).items() if count > 1}
