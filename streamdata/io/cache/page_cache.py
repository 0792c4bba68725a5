"""Pages of remote shards on the node's disk: `bytes of a shard → from its pages there, else fetched, once on the node`.

A shard is divided into aligned pages of 4 MiB. What is wanted of a page that is in the cache is read there. Of another
one the whole page is fetched and kept where that pays, else what is wanted alone: the known order says whether the node
will read the page again (see `PageWorth`).
"""

import logging
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import accumulate, compress, groupby
from pathlib import Path
from typing import Final, NamedTuple

from streamdata.errors import ShardError
from streamdata.io.cache.account import CacheAccount, Outlook, PageWorth
from streamdata.io.cache.pages import PAGE_BYTES, PageDamageError, PageFiles, PageKey, Piece, shard_key
from streamdata.io.remote.requests import then

_MOUNTS: Final = Path("/proc/self/mountinfo")
_KINDS: Final = frozenset((
    "9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "orangefs", "panfs",
    "pvfs2", "smb3", "smbfs", "vastnfs", "wekafs",
))  # fmt: skip
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
_LOCAL_FUSE: Final = ("fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.ntfs", "fuse.ntfs-3g", "fuse.exfat")
logger = logging.getLogger(__name__)
Fetch = Callable[[int, int], "Future[bytes]"]
"""Asks for the bytes [begin, end) of one version of a shard; fails if the shard is of another one."""
_MAX_THREADS: Final = 16
_POLL_S: Final = 0.01
_PAUSE_S: Final = 300.0
_DAMAGED, _UNWRITABLE, _NETWORK_DISK, _UNVERSIONED = range(4)  # what is said once


class DaemonThreads:
    """A pool of daemon threads: the process may exit while they work, with the same effect as a kill."""

    def __init__(self, most: int) -> None:
        self._most, self._started = most, 0
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task, which must not raise, in one of the threads."""
        self._tasks.put(task)
        if not self._idle.acquire(blocking=False) and self._started < self._most:
            self._started += 1
            threading.Thread(target=self._work, name="streamdata cache", daemon=True).start()

    def _work(self) -> None:
        while True:
            self._tasks.get()()
            self._idle.release()


def network_disk_of(path: str, mounts: str | None = None) -> str | None:
    """The type of the network file system on which a path lies; None for local disks, or if it is not known.

    Args:
        path: A directory that exists.
        mounts: What is mounted, in the format of /proc/self/mountinfo (see proc_pid_mountinfo(5)); by default that.
    """
    try:
        text = _MOUNTS.read_text("utf-8", "surrogateescape") if mounts is None else mounts
    except OSError:  # not Linux
        return None
    real = os.path.realpath(path)
    best, found = -1, ""
    for line in text.splitlines():
        mount, _, after = line.partition(" - ")
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), mount.split(" ")[4])
        if len(point) >= best and os.path.commonpath([real, point]) == point:
            best, found = len(point), after.split(" ")[0]  # the last one mounted at a point hides the others
    is_network = found in _KINDS or (found.startswith("fuse.") and found not in _LOCAL_FUSE)
    return found if is_network else None


class CacheCounts:
    """Counts of what this process read through a page cache.

    Attributes:
        reads: How often all that was wanted was there.
        hits: Bytes that were there.
        misses: Bytes that were wanted and not there.
        fetched: Bytes that were fetched, those of whole pages included.
    """

    def __init__(self) -> None:
        self.reads = self.hits = self.misses = self.fetched = 0


class _Wanted(NamedTuple):
    """The bytes of one page that a read wants."""

    key: PageKey
    page_size: int
    begin: int  # within the page
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin

    @property
    def at(self) -> int:
        """Where the page begins in its shard."""
        return self.key.number * PAGE_BYTES


class _Fetching(NamedTuple):
    piece: _Wanted
    temporary: Path
    answer: "Future[bytes]"


class PageCache:
    """A directory of pages that the processes of a node share; it may be deleted while no process uses it.

    Args:
        path: The directory.
        max_bytes: What may lie below it, at any moment; None as `CacheAccount` has it.

    Raises:
        OSError: The directory cannot be written.
    """

    def __init__(self, path: str, max_bytes: int | None) -> None:
        self.account = CacheAccount(Path(path), max_bytes)
        self.path, self.counts, self._files = path, CacheCounts(), PageFiles(path)
        self._worth = PageWorth(self.account)
        self._paused_until = 0.0
        self._threads = DaemonThreads(_MAX_THREADS)
        if max_bytes is None:
            logger.info("cache '%s': at most %.1f GB, a tenth of what was free", path, self.account.max_bytes / 1e9)
        if (kind := network_disk_of(path)) is not None:
            self._say(
                _NETWORK_DISK,
                f"it lies on a network file system ({kind}), where reading it may take as long as the shards themselves"
                "\n  Name a directory on a disk of the node.",
            )

    def expect(self, shards: Iterable[str], outlook: Outlook) -> None:
        """Tell the cache when a source's shards will be read again; shards are named by `shard_key`, in their order.

        The name of one whose version is not known yet is "".
        """
        self._worth.expect(shards, outlook)

    def read(self, url: str, version: str, size: int, begin: int, end: int, fetch: Fetch) -> "Future[bytes]":
        """The bytes [begin, end) of a shard, from the cache or by `fetch`.

        Missing pages are fetched by a thread. Reading a shard's first byte from the cache asks its server whether
        this is still its version: each pass reads that byte once, on some node, so that is one request per shard and
        pass.

        Args:
            url: Of the shard, without query and user.
            version: What its server calls it; "" where it does not say, and then nothing is kept.
            size: Of the shard.
            begin: The first byte.
            end: What follows the last one.
            fetch: Asks for bytes of this version.
        """
        if not version:
            self._say(_UNVERSIONED, f"shard '{url}' has no version by its server, and is not kept")
            return fetch(begin, end)
        pieces = list(_pieces(shard_key(url, version, size), size, begin, end))
        found: list[bytes | memoryview | None] = [self._found(piece) for piece in pieces]
        if None in found:
            result: Future[bytes] = Future()
            self._threads.submit(lambda: self._fill(result, pieces, found, fetch))
            return result
        self.counts.reads += 1
        data = _joined(found)
        if not begin:
            return then(fetch(0, 1), lambda _: data)
        done: Future[bytes] = Future()
        done.set_result(data)
        return done

    def has(self, shard: str, pages: Iterable[int]) -> bool:
        """Whether the cache holds all of these pages of a shard (named by `shard_key`) now."""
        return all(os.access(f"{self.path}/{PageKey(shard, number).name}", os.F_OK) for number in pages)

    def read_into(self, shard: str, size: int, pieces: Sequence[Piece]) -> list[bool]:
        """Fill each piece of memory with bytes of a shard if they are cached; return, for each, whether they were.

        Args:
            shard: As `shard_key` names it.
            size: Of the shard.
            pieces: Begin, end and memory of each.
        """
        by_page: dict[int, list[Piece]] = {}
        for piece in pieces:
            begin, end, memory = piece
            number = begin // PAGE_BYTES
            if end <= (number + 1) * PAGE_BYTES:
                by_page.setdefault(number, []).append(piece)
            else:
                for page in range(number, -(-end // PAGE_BYTES)):  # a part for each page
                    first, last = max(begin, page * PAGE_BYTES), min(end, (page + 1) * PAGE_BYTES)
                    by_page.setdefault(page, []).append((first, last, memory[first - begin : last - begin]))
        missing = {number for number, parts in by_page.items() if not self._read_page(shard, size, number, parts)}
        found = [True] * len(pieces)
        if missing:
            found = [missing.isdisjoint(range(begin // PAGE_BYTES, -(-end // PAGE_BYTES))) for begin, end, _ in pieces]
        self.counts.hits += sum(end - begin for begin, end, _ in compress(pieces, found))
        self.counts.reads += sum(found)
        return found

    def _read_page(self, shard: str, size: int, number: int, pieces: list[Piece]) -> bool:
        """Fill each memory with its bytes, which are of one page; whether it is there."""
        key = PageKey(shard, number)
        try:
            self._files.read_into(key, min(PAGE_BYTES, size - number * PAGE_BYTES), pieces)
        except FileNotFoundError:
            return False
        except PageDamageError as damage:
            self._remove_damaged(key, damage)
            return False
        return True

    def _found(self, piece: _Wanted) -> bytes | None:
        try:
            data = self._files.read(piece.key, piece.page_size, piece.begin, piece.end)
        except FileNotFoundError:
            return None
        except PageDamageError as damage:
            self._remove_damaged(piece.key, damage)
            return None
        self.counts.hits += piece.size
        return data

    def _remove_damaged(self, key: PageKey, damage: PageDamageError) -> None:
        self.account.remove(key)
        self._say(_DAMAGED, f"page {key.name} is damaged: {damage}; such pages are fetched again")

    def _fill(
        self, result: "Future[bytes]", pieces: list[_Wanted], found: list[bytes | memoryview | None], fetch: Fetch
    ) -> None:
        """Fetch what was not found; pages are kept after the result is there."""
        if not result.set_running_or_notify_cancel():
            return
        fetching: list[_Fetching] = []
        try:
            self._begin(pieces, found, fetch, fetching)
            rest = self._fetch_missing(pieces, found, fetch, {one.piece.key for one in fetching})
            for one in fetching:
                page = _checked_size(one.answer.result(), one.piece.page_size, one.piece.key)
                found[one.piece.key.number - pieces[0].key.number] = page[one.piece.begin : one.piece.end]
            for first, number, answer in rest:
                run = pieces[first : first + number]
                data = _checked_size(answer.result(), sum(piece.size for piece in run), run[0].key)
                for at, piece in zip(accumulate((piece.size for piece in run), initial=0), run, strict=False):
                    found[piece.key.number - pieces[0].key.number] = data[at : at + piece.size]
            result.set_result(_joined(found))
        except BaseException as error:
            result.set_exception(error)
        finally:
            for one in fetching:
                self._keep(one)

    def _begin(
        self, pieces: list[_Wanted], found: list[bytes | memoryview | None], fetch: Fetch, fetching: list[_Fetching]
    ) -> None:
        """Begin to fetch the pages that are to be kept; wait for those that another process or thread fetches."""
        for number, piece in enumerate(pieces):
            if found[number] is not None:
                continue
            # A read holds pages of one shard alone, and takes them in ascending order: no two wait for each other.
            while not self.account.try_page(piece.key):
                time.sleep(_POLL_S)
            temporary = None
            try:
                found[number] = self._found(piece)
                if found[number] is None:
                    self.counts.misses += piece.size
                    temporary = self._room(piece)
                if temporary is not None:
                    fetching.append(_Fetching(piece, temporary, fetch(piece.at, piece.at + piece.page_size)))
                    self.counts.fetched += piece.page_size
            finally:
                if not fetching or fetching[-1].piece is not piece:
                    if temporary is not None:
                        self.account.give_up(temporary)
                    self.account.release_page(piece.key)

    def _fetch_missing(
        self, pieces: list[_Wanted], found: list[bytes | memoryview | None], fetch: Fetch, kept: set[PageKey]
    ) -> list[tuple[int, int, "Future[bytes]"]]:
        """Ask for what is wanted of pages that are not kept, of neighbours at once: first piece, number, answer."""
        missing = [number for number, piece in enumerate(pieces) if found[number] is None and piece.key not in kept]
        asked = []
        for _, group in groupby(enumerate(missing), lambda pair: pair[1] - pair[0]):
            numbers = [number for _, number in group]
            first, last = pieces[numbers[0]], pieces[numbers[-1]]
            begin, end = first.at + first.begin, last.at + last.end
            asked.append((numbers[0], len(numbers), fetch(begin, end)))
            self.counts.fetched += end - begin
        return asked

    def _keep(self, fetching: _Fetching) -> None:
        """Publish a page that was fetched, or give it up."""
        piece, temporary, answer = fetching
        try:
            # It is asked again, not what the read found: another answer of that may have failed first.
            is_there = answer.done() and not answer.cancelled() and answer.exception() is None
            if is_there and len(answer.result()) == piece.page_size:
                self.account.publish(temporary, piece.key, answer.result())
            else:
                self.account.give_up(temporary)
        except OSError as error:
            self._pause(error)
            with suppress(OSError):
                self.account.give_up(temporary)
        finally:
            self.account.release_page(piece.key)

    def _room(self, piece: _Wanted) -> Path | None:
        """Take room for a page; None where it is not to be kept, or there is none."""
        if time.monotonic() < self._paused_until:
            return None
        worth = self._worth
        paid_in = worth.paid_in(piece.key, piece.page_size, piece.size)
        if paid_in is None:
            return None
        # Where less than half of a page is wanted, to fetch the rest of it costs more than another page's room gains.
        is_little = 2 * piece.size < piece.page_size
        try:
            while True:
                victims = worth.victims(piece.key, paid_in, only_strangers=is_little)
                temporary = self.account.reserve(piece.key, piece.page_size, victims)
                if temporary is not None or not self.account.count_again():
                    return temporary
        except OSError as error:
            self._pause(error)
            return None

    def _pause(self, error: OSError) -> None:
        self._paused_until = time.monotonic() + _PAUSE_S
        self._say(_UNWRITABLE, f"it cannot be written: {error}; what is not there yet is read without it")

    def _say(self, kind: int, what: str) -> None:
        if self.account.say(kind):
            logger.warning("cache '%s': %s", self.path, what)


def _pieces(shard: str, size: int, begin: int, end: int) -> Iterator[_Wanted]:
    for number in range(begin // PAGE_BYTES, -(-end // PAGE_BYTES)):
        at = number * PAGE_BYTES
        page_size = min(PAGE_BYTES, size - at)
        yield _Wanted(PageKey(shard, number), page_size, max(begin - at, 0), min(end - at, page_size))


def _checked_size(data: bytes, expected: int, key: PageKey) -> memoryview:
    if len(data) != expected:
        raise ShardError(f"cache: expected {expected} bytes for page {key.name}, got {len(data)}\n  Try again.")
    return memoryview(data)


def _joined(found: Sequence[bytes | memoryview | None]) -> bytes:
    """Join what was found to bytes: slices of these are bytes, which records are made of."""
    parts = [part for part in found if part is not None]
    assert len(parts) == len(found), "all was found or fetched"
    return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
