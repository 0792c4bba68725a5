"""Pages of remote shards on the node's disk: `bytes of a shard → from its pages there, else fetched, once on the node`.

A shard is divided into aligned pages of 4 MiB. What is wanted of pages that are in the cache is a slice of a map. Of
others the whole page is fetched and kept while there is room, and then what is wanted alone.
"""

import fcntl
import logging
import mmap
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Final

from streamdata.io.cache.room import Room
from streamdata.io.cache.shard_file import PAGE_BYTES, CachedShard, ShardFile, pages_of
from streamdata.io.remote.requests import STALL_S
from streamdata.run.per_process import open_files

logger = logging.getLogger(__name__)
Memory = bytes | mmap.mmap
"""The bytes that were asked for; or a map of a file that has them where they lie in the shard."""
Fetch = Callable[[int, int], "Future[Memory]"]
"""Asks for the bytes [begin, end) of one version of a shard; fails if the shard is of another one."""
_MAX_FETCHED: Final = 16
"""Pages that a process fetches at the same time: what it holds of them is beside what readers asked for."""
_MAX_THREADS: Final = 64
_POLL_S: Final = 0.01


class PageCache:
    """A directory of pages that the processes of a node share; it may be deleted while no process uses it.

    Args:
        path: The directory.
        max_bytes: What the pages of all processes may take, at any moment; by default a tenth of what is free. Pages
            that are in use stay where others were given more.

    Attributes:
        reads: Pieces of shards that were wanted and there.
        hits: Their bytes.

    Raises:
        OSError: The directory cannot be written.
    """

    def __init__(self, path: str, max_bytes: int | None) -> None:
        self.path, self.reads, self.hits = path, 0, 0
        self._room, self._said = Room(Path(path), max_bytes), set[str]()
        self._threads, self._num_threads = threading.Condition(), 0
        self._waiting = deque[Callable[[], None]]()
        """Reads that no thread has begun."""
        self._checked: dict[str, bytearray] = {}
        """By shard, a mark for each chunk that this process has written or found sound."""
        self._fetched = set[str]()
        """The pages that this process fetches now."""
        if max_bytes is None:
            logger.info("cache '%s': at most %.1f GB, a tenth of what was free", path, self._room.max_bytes / 1e9)

    def read(self, shard: str, size: int, begin: int, end: int, fetch: Fetch) -> "Memory | Future[Memory]":
        """The bytes [begin, end) of a shard: at once if all of them are in the cache, else by `fetch`.

        Args:
            shard: As `shard_key` names it.
            size: Of the shard, in bytes.
            begin: The first byte.
            end: What follows the last one.
            fetch: Asks for bytes of this version.
        """
        file = ShardFile(self.path, shard, size)
        if (whole := self._found(file, begin, end)) is not None:
            self.reads, self.hits = self.reads + 1, self.hits + end - begin
            return whole
        is_kept = "off" not in self._said and self._room.may_fit(min(size, PAGE_BYTES))
        if not is_kept and not any(self._found(file, *one) for one in _by_page(begin, end)):
            return fetch(begin, end)
        answer = Future[Memory]()
        with self._threads:
            self._waiting.append(partial(self._gather, answer, file, begin, end, fetch, is_kept=is_kept))
            if self._num_threads < _MAX_THREADS:
                # No exit waits for it. Where none can be started, nobody waits for the answer either.
                threading.Thread(target=self._work, name="streamdata cache", daemon=True).start()
                self._num_threads += 1
        return answer

    def _work(self) -> None:
        """Do what waits; a thread ends when nothing does."""
        while True:
            with self._threads:
                if not self._waiting:
                    self._num_threads -= 1
                    return
                gather = self._waiting.popleft()
            gather()

    def _found(self, file: ShardFile, begin: int, end: int) -> mmap.mmap | None:
        """The map of a shard if it has these bytes."""
        self._room.hold(file.shard)
        try:
            opened: CachedShard = open_files.get(file, CachedShard)
        except FileNotFoundError:
            return None
        if opened.has(begin, end):
            if (page := opened.damaged_page(begin, end, self._checked_of(file))) is None:
                return opened.memory
            file.drop(page)
            self._say("damaged", f"page {page} of {file.path} is not what was written; such pages are fetched again")
        return None

    def _checked_of(self, file: ShardFile) -> bytearray:
        return self._checked.get(file.shard) or self._checked.setdefault(file.shard, bytearray(file.num_chunks))

    def _gather(
        self, answer: "Future[Memory]", file: ShardFile, begin: int, end: int, fetch: Fetch, *, is_kept: bool
    ) -> None:
        """Answer with bytes of pages, one after the other: those that are kept are fetched whole."""
        try:
            parts = list[bytes | memoryview]()
            for first, last in _by_page(begin, end):
                if (found := self._found(file, first, last)) is not None:
                    self.reads, self.hits = self.reads + 1, self.hits + last - first
                    parts.append(memoryview(found)[first:last])
                elif is_kept:
                    parts.append(self._of_page(answer, file, first, last, fetch))
                else:
                    parts.append(fetch(first, last).result()[:])
            finish = partial(answer.set_result, b"".join(parts))
        except BaseException as error:
            finish = partial(answer.set_exception, error)
        if answer.set_running_or_notify_cancel():
            finish()

    def _of_page(self, answer: "Future[Memory]", file: ShardFile, first: int, last: int, fetch: Fetch) -> bytes:
        """Bytes of one page, which is fetched whole and kept if there is room, unless somebody else does that.

        Once the answer is cancelled, none: who has gone neither fetches a page nor waits for one.
        """
        begin = first - first % PAGE_BYTES
        end, name, times_refused = min(file.size, begin + PAGE_BYTES), f"{file.shard}-{begin}", 0
        while not answer.cancelled():
            is_locked = self._lock(name)
            try:
                if (found := self._found(file, first, last)) is not None:
                    return found[first:last]
                if is_locked:
                    data = fetch(begin, end).result()
                    if "off" not in self._said:
                        self._keep(file, begin // PAGE_BYTES, memoryview(data))
                    return data[first - begin : last - begin]
            finally:
                if is_locked:
                    with self._threads:
                        self._fetched.remove(name)
                        self._room.lock(name, fcntl.LOCK_UN)
                        self._threads.notify_all()
            times_refused += is_locked is None
            if times_refused > STALL_S / _POLL_S:  # the process that fetches it may be suspended
                return fetch(first, last).result()[:]
            with self._threads:
                self._threads.wait(_POLL_S)
        return b""

    def _lock(self, name: str) -> bool | None:
        """Take the lock of a page, if this process fetches neither that nor as many as it may.

        Returns:
            Whether the caller has it now; None if another process has it.
        """
        with self._threads:
            if name in self._fetched or len(self._fetched) >= _MAX_FETCHED:
                return False
            if not self._room.lock(name):
                return None
            self._fetched.add(name)
            return True

    def _keep(self, file: ShardFile, page: int, data: memoryview) -> None:
        """Publish a page if there is room for it."""
        try:
            with file.open() as opened:
                if self._room.reserve(len(data), partial(file.allocate, opened, page)):
                    chunks = file.write(opened, page, data)
                    # What checksums are for is a crash, which this process would not have outlived.
                    self._checked_of(file)[chunks.start : chunks.stop] = b"\1" * len(chunks)
        except OSError as error:
            self._say("off", f"it cannot be written: {error}; what is not there yet is read without it")

    def _say(self, kind: str, what: str) -> None:
        """Log a warning, unless this process or another one of the node that is alive has said this kind of it."""
        if kind not in self._said and self._room.lock(kind):
            logger.warning("cache '%s': %s", self.path, what)
        self._said.add(kind)


def _by_page(begin: int, end: int) -> list[tuple[int, int]]:
    """Cut bytes of a shard where pages begin."""
    return [(max(begin, page * PAGE_BYTES), min(end, (page + 1) * PAGE_BYTES)) for page in pages_of(begin, end)]
