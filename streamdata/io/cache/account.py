"""How full a page cache is, and which pages are worth room: `page → room → written → published, or given up`.

One file holds the sum, and byte ranges of it are the locks: one for the sum, one that whoever uses the cache shares,
and one for each page that is being fetched. The kernel lets go of them when a process dies, however it dies, so that
nothing has to be found out about processes; and a fork inherits none.

As each epoch reads everything once, a node that reads all of it can have no more hits in an epoch than it had pages at
its start: no page makes room for another of the same source, and the hit rate is the cached fraction, the best there
is. A page of which this node reads nothing for some epochs makes room for one that it reads before that.
"""

import fcntl
import math
import os
import shutil
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from random import SystemRandom
from typing import Final, NamedTuple, Protocol

from streamdata.io.cache.pages import (
    PAGE_BYTES,
    PageKey,
    charge_of,
    file_size_of,
    files_below,
    key_of,
    reserve,
    write_page,
)

_ACCOUNT: Final = "account"
_MAGIC: Final = b"sdpages1"
_SUM, _USERS, _FIRST_PAGE = range(3)  # bytes of the file that are locks
_FREE_SHARE: Final = 10
_COUNT_AGAIN_S: Final = 300.0
_RANDOM: Final = SystemRandom()  # the module's own is the user's
_SAMPLED: Final = 16
_UNUSED_S: Final = 3600.0


class _Sum(NamedTuple):
    """The content of the account's file."""

    magic: bytes = _MAGIC
    used: int = 0
    bound: int = 0
    said: int = 0


_FORMAT: Final = struct.Struct("<8sqqQ")


class PageList:
    """A set of pages from which some can be drawn at random in constant time."""

    def __init__(self) -> None:
        self._pages: list[PageKey] = []
        self._at: dict[PageKey, int] = {}

    def __len__(self) -> int:
        return len(self._pages)

    def __iter__(self) -> Iterator[PageKey]:
        return iter(self._pages)

    def add(self, page: PageKey) -> None:
        """Add a page; one that is listed already stays."""
        if page not in self._at:
            self._at[page] = len(self._pages)
            self._pages.append(page)

    def discard(self, page: PageKey) -> None:
        """Remove a page if it is listed."""
        at = self._at.pop(page, None)
        if at is not None:
            last = self._pages.pop()
            if last != page:
                self._pages[at], self._at[last] = last, at

    def some(self, number: int) -> list[PageKey]:
        """Draw at most `number` different pages at random."""
        return _RANDOM.sample(self._pages, min(number, len(self._pages)))


class CacheAccount:
    """Keeps the size of a cache directory within a bound, across processes; pages may be removed to make room.

    Args:
        folder: The directory; it is made.
        max_bytes: What may lie below it. None: what the process said that came first, by default a tenth of what is
            free there.

    Attributes:
        max_bytes: The bound.
        pages: Those that were found when this process last looked, and those that it published since.

    Raises:
        OSError: The directory cannot be written.
    """

    def __init__(self, folder: Path, max_bytes: int | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.pages = PageList()
        self._threads = threading.RLock()  # pages are locked also while files are counted
        self._fetched = set[PageKey]()  # by this process, which its own locks do not keep out
        self._counted = -math.inf
        # The only time that this process opens it: to close another descriptor of it would let go of its locks.
        self._fd = os.open(folder / _ACCOUNT, os.O_RDWR | os.O_CREAT, 0o666)
        with self._locked():
            known, is_first = self._sum(), self._try(fcntl.LOCK_EX, _USERS)
            is_known = known.magic == _MAGIC and not is_first
            self.max_bytes = max_bytes or (known.bound if is_known else 0) or self._default()
            if not is_known:
                self._write(_Sum(bound=self.max_bytes))
                self._count()
            while self.used > self.max_bytes and self.pages:
                self._remove(self.pages.some(1)[0])
            fcntl.lockf(self._fd, fcntl.LOCK_SH, 1, _USERS)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # at the end of the process there is no `os`
        if hasattr(self, "_fd"):
            close(self._fd)

    @property
    def used(self) -> int:
        """The bytes below the directory, reserved ones included."""
        return self._sum().used

    def try_page(self, key: PageKey) -> bool:
        """Lock a page unless another thread or process is fetching it; return whether it is locked now."""
        with self._threads:
            if key in self._fetched or not self._try(fcntl.LOCK_EX, _FIRST_PAGE + key.seed):
                return False
            self._fetched.add(key)
            return True

    def release_page(self, key: PageKey) -> None:
        """Unlock a page."""
        with self._threads:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _FIRST_PAGE + key.seed)
            self._fetched.discard(key)

    def reserve(self, key: PageKey, page_size: int, victims: Iterator[PageKey]) -> Path | None:
        """Make room for a page that the caller has locked, and reserve it.

        Args:
            key: The page.
            page_size: Its bytes.
            victims: Pages that may be removed for it, one after the other; asked for as long as there is no room.

        Returns:
            The temporary file, to be published or given up; None where there is no room.

        Raises:
            OSError: The directory cannot be written.
        """
        charge = charge_of(file_size_of(page_size))
        with self._locked():
            while self.used + charge > self.max_bytes:
                victim = next(victims, None)
                if victim is None:
                    return None
                self._remove(victim)
            # First the sum: whoever is killed between the two leaves too much in it, and not too little.
            self._add(charge)
            try:
                return reserve(self.folder, key, page_size)
            except OSError:
                self._add(-charge)
                raise

    def publish(self, temporary: Path, key: PageKey, data: bytes | memoryview) -> None:
        """Write a page to disk, and make it readable for all processes.

        Raises:
            OSError: The disk is full, or failed.
        """
        write_page(temporary, key, data)
        with self._threads:
            self.pages.add(key)

    def give_up(self, temporary: Path) -> None:
        """Remove a temporary file that will not be published."""
        with self._locked():
            self._unlink(temporary)

    def remove(self, key: PageKey) -> None:
        """Remove a page."""
        with self._locked():
            self._remove(key)

    def count_again(self) -> bool:
        """Count pages published by others and files left by killed processes, if it is time; return whether it was.

        It does so now and then: to look at all files takes seconds where there are a million.
        """
        if time.monotonic() - self._counted < _COUNT_AGAIN_S:
            return False
        with self._locked():
            self._count()
        return True

    def say(self, kind: int) -> bool:
        """Whether no process has logged this kind of message since the cache came into use; notes that one does now."""
        with self._locked():
            known = self._sum()
            self._write(known._replace(said=known.said | 1 << kind))
        return not known.said >> kind & 1

    def _count(self) -> None:
        """Add up what is there, and remove the temporary files whose writers have died."""
        used, pages = os.stat(self.folder).st_size, PageList()
        for path, name, size in files_below(self.folder):
            key = key_of(name, temporary=True)
            if key is not None and self.try_page(key):
                Path(path).unlink(missing_ok=True)
                self.release_page(key)
                continue
            used += charge_of(size)
            if (page := key_of(name)) is not None:
                pages.add(page)
        self.pages, self._counted = pages, time.monotonic()
        self._write(self._sum()._replace(used=used))

    def _default(self) -> int:
        own = sum(charge_of(size) for _, name, size in files_below(self.folder) if key_of(name))
        return (shutil.disk_usage(self.folder).free + own) // _FREE_SHARE

    def _remove(self, key: PageKey) -> None:
        self.pages.discard(key)
        self._unlink(self.folder / key.name)

    def _unlink(self, path: Path) -> None:
        try:
            fd = os.open(path, os.O_WRONLY)
        except FileNotFoundError:
            return  # whoever removed it has taken it off the sum
        try:
            size = os.fstat(fd).st_size
            path.unlink()
            os.ftruncate(fd, 0)  # else it would take its room for as long as somebody has it open
        finally:
            os.close(fd)
        self._add(-charge_of(size))

    def _add(self, charge: int) -> None:
        known = self._sum()
        self._write(known._replace(used=known.used + charge))

    def _write(self, known: _Sum) -> None:
        os.pwrite(self._fd, _FORMAT.pack(*known), 0)

    def _sum(self) -> _Sum:
        data = os.pread(self._fd, _FORMAT.size, 0)
        return _Sum._make(_FORMAT.unpack(data)) if len(data) == _FORMAT.size else _Sum(magic=b"")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._threads:
            fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, _SUM)
            try:
                yield
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _SUM)

    def _try(self, kind: int, byte: int) -> bool:
        try:
            fcntl.lockf(self._fd, kind | fcntl.LOCK_NB, 1, byte)
        except OSError:  # EACCES or EAGAIN: another process has it
            return False
        return True


class Outlook(Protocol):
    """When a source's shards will be read again, as its order says."""

    reads_all: bool
    """Whether this node reads everything in each epoch, so that all pages are worth the same."""

    def wanted(self, shard: int, begin: int, end: int) -> Sequence[float]:
        """The bytes of a range that the node still reads in this epoch, then those in each later epoch."""
        ...


class PageWorth:
    """Ranks cached pages by when this process will read them next.

    Args:
        account: Of all pages.
    """

    def __init__(self, account: CacheAccount) -> None:
        self._account = account
        self._outlooks: dict[str, tuple[Outlook, int]] = {}
        self._urls: set[str] = set()
        self._strangers_of: object = None
        self._stranger_pages: deque[PageKey] = deque()

    def expect(self, shards: Iterable[str], outlook: Outlook) -> None:
        """Add a source's outlook; see `PageCache.expect`."""
        for number, shard in enumerate(shards):
            if shard:  # pages of one whose version is met later are not those of an earlier one
                self._outlooks[shard] = outlook, number
                self._urls.add(_url_part(shard))
        self._strangers_of = None

    def paid_in(self, key: PageKey, page_size: int, wanted_size: int) -> int | None:
        """The number of epochs after which fetching a whole page, not only the wanted bytes, pays off; None: never."""
        outlook, shard = self._outlooks.get(key.shard, (None, 0))
        if outlook is None or outlook.reads_all:
            return 1
        wanted = outlook.wanted(shard, key.number * PAGE_BYTES, key.number * PAGE_BYTES + page_size)
        # What is wanted now may be among that: it is read ahead of what its lane has come to.
        saved = accumulate([max(0.0, wanted[0] - wanted_size), *wanted[1:]])
        extra = page_size - wanted_size
        return next((epochs for epochs, size in enumerate(saved) if size > extra), None)

    def victims(self, key: PageKey, paid_in: int, *, only_strangers: bool) -> Iterator[PageKey]:
        """Yield pages that may be removed to make room for a page that pays off in `paid_in` epochs."""
        outlook, _ = self._outlooks.get(key.shard, (None, 0))
        if outlook is None:
            return
        yield from self._strangers()
        if outlook.reads_all or only_strangers:
            return
        ranked: list[tuple[int, PageKey]] = []
        for page in self._account.pages.some(_SAMPLED):
            other, shard = self._outlooks.get(page.shard, (None, 0))
            if other is outlook:  # of another source the epochs are others
                wanted = outlook.wanted(shard, page.number * PAGE_BYTES, (page.number + 1) * PAGE_BYTES)
                ranked.append((next((epochs for epochs, size in enumerate(wanted) if size > 0), len(wanted)), page))
        yield from (page for wanted_in, page in sorted(ranked, reverse=True) if wanted_in > paid_in)

    def _strangers(self) -> Iterator[PageKey]:
        """Pages of earlier versions of what this process reads, and of shards that nobody has read for an hour."""
        if self._strangers_of is not self._account.pages:  # it was looked for others' pages
            self._strangers_of = self._account.pages
            self._stranger_pages = deque(page for page in self._account.pages if page.shard not in self._outlooks)
        for _ in range(min(_SAMPLED, len(self._stranger_pages))):
            page = self._stranger_pages.popleft()
            if page.shard in self._outlooks:  # since it was said what is known of it
                continue
            unused = 0.0
            with suppress(FileNotFoundError):
                unused = time.time() - (self._account.folder / page.name).stat().st_mtime
            if _url_part(page.shard) in self._urls or unused > _UNUSED_S:
                yield page
            else:
                self._stranger_pages.append(page)


def _url_part(shard: str) -> str:
    return shard[: len(shard) // 2]
