"""Pages of remote shards on the node's disk: `bytes of a shard → from its pages there, else fetched, once on the node`.

A shard is divided into aligned pages of 4 MiB. What is wanted of a page that is in the cache is read there. Of another
one the whole page is fetched and kept while there is room, and then what is wanted alone.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import compress, count
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import numpy as np

from streamdata.io.cache.pages import PAGE_BYTES, PageDamageError, PageKey, Piece, read_page, write_page
from streamdata.io.cache.room import Room
from streamdata.io.remote.requests import STALL_S, then

logger = logging.getLogger(__name__)
Fetch = Callable[[int, int], "Future[bytes]"]
"""Asks for the bytes [begin, end) of one version of a shard; fails if the shard is of another one."""
_MAX_FETCHED: Final = 8
"""Pages that a process fetches at the same time: what it holds of them is beside what readers asked for."""
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
        self._room, self._is_off, self._said = Room(Path(path), max_bytes), False, set[str]()
        self._lock, self._slots = threading.Lock(), threading.Semaphore(_MAX_FETCHED)
        self._fetched: dict[PageKey, tuple[Future[memoryview], list[Future[memoryview]]]] = {}
        """The pages that this process fetches now, and what was promised of each."""
        if max_bytes is None:
            logger.info("cache '%s': at most %.1f GB, a tenth of what was free", path, self._room.max_bytes / 1e9)

    def read(self, shard: str, size: int, begin: int, end: int, fetch: Fetch) -> "Future[bytes]":
        """The bytes [begin, end) of a shard, from the cache or by `fetch`.

        Reading a shard's first byte from the cache asks its server whether this is still its version: each pass reads
        that byte once, on some node, so that is one request per shard and pass.

        Args:
            shard: As `shard_key` names it.
            size: Of the shard.
            begin: The first byte.
            end: What follows the last one.
            fetch: Asks for bytes of this version.
        """
        pieces = [(first, last, _memory(last - first)) for first, last in _by_page(begin, end)]
        found = self.read_into(shard, size, pieces)
        if all(found) and not begin:
            return then(fetch(0, 1), lambda _: b"".join(memory for _, _, memory in pieces))
        is_kept = not self._is_off and self._room.may_fit(min(size, PAGE_BYTES))
        if not any(found) and not is_kept:
            return fetch(begin, end)
        ask = partial(self._fetch_page, shard, size, fetch) if is_kept else fetch
        parts = zip(pieces, found, strict=True)
        return _joined([_done(memory) if is_there else ask(first, last) for (first, last, memory), is_there in parts])

    def has(self, shard: str, pages: Iterable[int]) -> bool:
        """Whether the cache holds all of these pages of a shard (named by `shard_key`) now."""
        self._room.hold(shard)
        return all(os.access(f"{self.path}/{PageKey(shard, number).name}", os.F_OK) for number in pages)

    def read_into(self, shard: str, size: int, pieces: Sequence[Piece]) -> list[bool]:
        """Fill each piece of memory with bytes of a shard if they are cached; return, for each, whether they were.

        Args:
            shard: As `shard_key` names it.
            size: Of the shard.
            pieces: Begin, end and memory of each.
        """
        self._room.hold(shard)
        by_page: dict[int, list[Piece]] = {}
        for piece in pieces:
            begin, end, memory = piece
            number = begin // PAGE_BYTES
            if end <= (number + 1) * PAGE_BYTES:
                by_page.setdefault(number, []).append(piece)
                continue
            for first, last in _by_page(begin, end):
                part = first, last, memory[first - begin : last - begin]
                by_page.setdefault(first // PAGE_BYTES, []).append(part)
        missing = {number for number, parts in by_page.items() if not self._read_page(shard, size, number, parts)}
        found = [True] * len(pieces)
        if missing:
            found = [missing.isdisjoint(range(begin // PAGE_BYTES, -(-end // PAGE_BYTES))) for begin, end, _ in pieces]
        self.reads += sum(found)
        self.hits += sum(end - begin for begin, end, _ in compress(pieces, found))
        return found

    def _read_page(self, shard: str, size: int, number: int, pieces: Sequence[Piece]) -> bool:
        """Fill each memory with its bytes, which are of one page; whether it is there."""
        key = PageKey(shard, number)
        try:
            return read_page(self.path, key, min(PAGE_BYTES, size - number * PAGE_BYTES), pieces)
        except PageDamageError:
            Path(self.path, key.name).unlink(missing_ok=True)
            self._say("damaged", f"page {key.name} is not what was written; such pages are fetched again")
            return False

    def _fetch_page(self, shard: str, size: int, fetch: Fetch, begin: int, end: int) -> "Future[memoryview]":
        """Bytes of a page that this process fetches whole, once for all reads that want some of it."""
        key = PageKey(shard, begin // PAGE_BYTES)
        at = key.number * PAGE_BYTES
        with self._lock:
            if key not in self._fetched:
                page, parts = Future[memoryview](), list[Future[memoryview]]()
                page.set_running_or_notify_cancel()  # a read that is cancelled cancels nothing of others
                obtain = partial(self._obtain, key, size, fetch, page, parts)
                # No exit waits for it. Where no thread can be started, nobody is to wait for the page either.
                threading.Thread(target=obtain, name="streamdata cache", daemon=True).start()
                self._fetched[key] = page, parts
            page, parts = self._fetched[key]
            part = then(page, itemgetter(slice(begin - at, end - at)))
            parts.append(part)
        return part

    def _obtain(
        self, key: PageKey, size: int, fetch: Fetch, page: "Future[memoryview]", parts: "list[Future[memoryview]]"
    ) -> None:
        with self._slots:
            with self._lock:
                if all(part.cancelled() for part in parts):  # its readers have gone while it waited for its turn
                    del self._fetched[key]
                    return
            try:
                page.set_result(self._page(key, size, fetch))
            except BaseException as error:
                page.set_exception(error)
            finally:
                with self._lock:
                    del self._fetched[key]

    def _page(self, key: PageKey, size: int, fetch: Fetch) -> memoryview:
        """The whole of a page: fetched, and kept if there is room, unless another process does that meanwhile."""
        begin, end = key.number * PAGE_BYTES, min(size, (key.number + 1) * PAGE_BYTES)
        patience = time.monotonic() + STALL_S
        while not self._room.lock(key.name):
            if time.monotonic() > patience:  # the process that fetches it may be suspended
                return memoryview(fetch(begin, end).result())
            time.sleep(_POLL_S)
        try:
            if self.has(key.shard, [key.number]):
                memory = _memory(end - begin)
                if self._read_page(key.shard, size, key.number, [(begin, end, memory)]):
                    return memory
            data = memoryview(fetch(begin, end).result())
            self._keep(key, data)
        finally:
            self._room.unlock(key.name)
        return data

    def _keep(self, key: PageKey, data: memoryview) -> None:
        """Publish a page if there is room for it."""
        try:
            if not self._is_off and (temporary := self._room.reserve(key.name, len(data))) is not None:
                write_page(temporary, Path(self.path, key.name), key.seed, data)
        except OSError as error:
            self._is_off = True
            self._say("off", f"it cannot be written: {error}; what is not there yet is read without it")

    def _say(self, kind: str, what: str) -> None:
        """Log a warning, unless this process or another one of the node that is alive has said this kind of it."""
        if kind not in self._said and self._room.lock(kind):
            logger.warning("cache '%s': %s", self.path, what)
        self._said.add(kind)


def _by_page(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut bytes of a shard where pages begin."""
    for number in range(begin // PAGE_BYTES, -(-end // PAGE_BYTES)):
        yield max(begin, number * PAGE_BYTES), min(end, (number + 1) * PAGE_BYTES)


def _memory(size: int) -> memoryview:
    """Memory of any content, which takes no time if nothing is read into it."""
    return np.empty(size, np.uint8).data


def _done(data: memoryview) -> "Future[memoryview]":
    answer: Future[memoryview] = Future()
    answer.set_result(data)
    return answer


def _joined(parts: "list[Future[Any]]") -> "Future[bytes]":
    """Join answers, which are cancelled with the future that is returned, to bytes: slices of these make records."""
    result: Future[bytes] = Future()
    left = count(len(parts) - 1, -1)

    def arrive(_: "Future[Any]") -> None:
        if next(left) or not result.set_running_or_notify_cancel():
            return
        try:
            data = b"".join(part.result() for part in parts)
        except BaseException as error:
            result.set_exception(error)
        else:
            parts.clear()  # they would keep whole pages as long as the result is kept
            result.set_result(data)

    result.add_done_callback(lambda done: done.cancelled() and [part.cancel() for part in parts])
    for part in tuple(parts):
        part.add_done_callback(arrive)
    return result
