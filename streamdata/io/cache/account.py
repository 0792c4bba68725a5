"""How full a page cache is, agreed on by all processes of a node: `room for a page → written → published, or given up`.

One file holds the sum, and byte ranges of it are the locks: one for the sum, one that whoever uses the cache shares,
and one for each page that is being fetched. The kernel lets go of them when a process dies, however it dies, so that
nothing has to be found out about processes; and a fork inherits none.
"""

import fcntl
import math
import os
import shutil
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom
from typing import Final, NamedTuple

from streamdata.io.cache.files import (
    PageKey,
    charge_of,
    file_size_of,
    files_below,
    key_of,
    key_of_temporary,
    reserve,
    write_page,
)

_ACCOUNT: Final = "account"
_MAGIC: Final = b"sdpages1"
_SUM, _USERS, _FIRST_PAGE = range(3)  # bytes of the file that are locks
_FREE_SHARE: Final = 10
_COUNT_AGAIN_S: Final = 300.0
_RANDOM: Final = SystemRandom()  # the module's own is the user's


class _Sum(NamedTuple):
    """What the file holds."""

    magic: bytes = _MAGIC
    used: int = 0
    bound: int = 0
    said: int = 0


_FORMAT: Final = struct.Struct("<8sqqQ")


class PageList:
    """Pages of which some can be drawn at random, however many there are."""

    def __init__(self) -> None:
        self._pages: list[PageKey] = []
        self._at: dict[PageKey, int] = {}

    def __len__(self) -> int:
        return len(self._pages)

    def add(self, page: PageKey) -> None:
        """Add one that is not there."""
        if page not in self._at:
            self._at[page] = len(self._pages)
            self._pages.append(page)

    def discard(self, page: PageKey) -> None:
        """Remove one, if it is there."""
        at = self._at.pop(page, None)
        if at is not None:
            last = self._pages.pop()
            if last != page:
                self._pages[at], self._at[last] = last, at

    def some(self, number: int) -> list[PageKey]:
        """So many of them at most, no two the same."""
        return _RANDOM.sample(self._pages, min(number, len(self._pages)))

    def of_shards(self, is_wanted: Callable[[str], bool]) -> list[PageKey]:
        """Those of the shards that the function tells."""
        return [page for page in self._pages if is_wanted(page.shard)]


class CacheAccount:
    """The bytes below a directory, of which those of pages may be used again.

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
        self._threads = threading.Lock()
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
        """Bytes below the directory, with those that are reserved."""
        return self._sum().used

    def try_page(self, key: PageKey) -> bool:
        """Lock a page that nobody fetches."""
        with self._threads:
            return self._try_page(key)

    def release_page(self, key: PageKey) -> None:
        """Unlock it."""
        with self._threads:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _FIRST_PAGE + key.seed)
            self._fetched.discard(key)

    def reserve(self, key: PageKey, page_size: int, victims: Iterator[PageKey]) -> Path | None:
        """Make room for a page, whose lock the caller has, and take it.

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
        """Write a page, and let all read it.

        Raises:
            OSError: The disk is full, or failed.
        """
        write_page(temporary, key, data)
        with self._threads:
            self.pages.add(key)

    def give_up(self, temporary: Path) -> None:
        """Remove a temporary file that is not to be published."""
        with self._locked():
            self._unlink(temporary)

    def remove(self, key: PageKey) -> None:
        """Remove a page."""
        with self._locked():
            self._remove(key)

    def count_again(self) -> bool:
        """Look for what others published, and for what was left by those that were killed; return whether it did.

        It does so now and then: to look at all files takes seconds where there are a million.
        """
        if time.monotonic() - self._counted < _COUNT_AGAIN_S:
            return False
        with self._locked():
            self._count()
        return True

    def say(self, kind: int) -> bool:
        """Whether nobody has said it since the cache came into use: a bit for each thing to say."""
        with self._locked():
            known = self._sum()
            self._write(known._replace(said=known.said | 1 << kind))
        return not known.said >> kind & 1

    def _count(self) -> None:
        """Add up what is there, and remove the temporary files whose writers have died."""
        used, pages = os.stat(self.folder).st_size, PageList()
        for path, name, size in files_below(self.folder):
            key = key_of_temporary(name)
            if key is not None and self._try_page(key):
                Path(path).unlink(missing_ok=True)
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _FIRST_PAGE + key.seed)
                self._fetched.discard(key)
                continue
            used += charge_of(size)
            if (page := key_of(name)) is not None:
                pages.add(page)
        self.pages, self._counted = pages, time.monotonic()
        self._write(self._sum()._replace(used=used))

    def _try_page(self, key: PageKey) -> bool:
        if key in self._fetched or not self._try(fcntl.LOCK_EX, _FIRST_PAGE + key.seed):
            return False
        self._fetched.add(key)
        return True

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
