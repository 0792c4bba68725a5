"""The files of a page cache: `bytes of a page → a file with their checksums, published by rename → bytes, checked`.

A page file is the page, then a checksum for each 16 KiB of it, so that whoever wants few bytes checks few. Once it is
published nobody writes it again. So a chunk is checked when it is first read from the open file, and no more while the
time of the file's last change, which no writer can set, is what it was when the file was opened.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from xxhash import xxh3_64_digest

from streamdata.run.per_process import open_files

PAGE_BYTES: Final = 4 << 20
SUFFIX: Final = ".page"
FOLDER, URL, VERSION = slice(0, 12), slice(0, 24), slice(24, 36)
"""The parts of a shard's key, and of its pages' names, that say its folder, its url and its version."""
_CHUNK_BYTES: Final = 16 << 10
_CHECKSUM_BYTES: Final = 8
_AT_ONCE_BYTES: Final = 8 * _CHUNK_BYTES
_DISK_BLOCK: Final = 4096
_SPREAD: Final = 0x9E3779B97F4A7C15  # 2**64 by the golden ratio
Piece = tuple[int, int, memoryview]
"""Begin and end of some bytes, and where they go. Plain, since there is one for nearly every record."""


class PageDamageError(Exception):
    """The content of a page file differs from what was written."""


class PageKey(NamedTuple):
    """Identifies a page: its shard's `shard_key`, and the number of the page in the shard."""

    shard: str
    number: int

    @property
    def name(self) -> str:
        """The name of the page's file."""
        return f"{self.shard}-{self.number}{SUFFIX}"

    @property
    def seed(self) -> int:
        """A 62-bit number that seeds the page's checksums and selects its lock; a renamed page counts as damaged."""
        return (int(self.shard, 16) * _SPREAD + self.number) % (1 << 62)


@lru_cache(1 << 12)
def shard_key(url: str, version: str, size: int) -> str:
    """The name of one version of a shard, 36 hexadecimal digits.

    Args:
        url: Without query and user.
        version: What its server calls it.
        size: In bytes.
    """
    parts = url.rpartition("/")[0], url, f"{version} {size}"
    return "".join(hashlib.blake2b(part.encode(), digest_size=6).hexdigest() for part in parts)


def charge_of(file_size: int) -> int:
    """The bytes by which a file counts towards the cache's bound: whole disk blocks, and its directory entry."""
    return -(-(file_size + 128) // _DISK_BLOCK) * _DISK_BLOCK


def file_size_of(page_size: int) -> int:
    """The size of the file of a page."""
    return page_size + _CHECKSUM_BYTES * -(-page_size // _CHUNK_BYTES)


def write_page(temporary: Path, published: Path, seed: int, data: memoryview) -> None:
    """Write a page into a temporary file, and publish that.

    Nothing is synced: what a power cut leaves is damaged, which its checksums tell.

    Raises:
        OSError: The disk is full, or failed.
    """
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.write(_sums_of(data, seed))
        os.replace(temporary, published)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def read_page(folder: str, key: PageKey, page_size: int, pieces: Sequence[Piece]) -> bool:
    """Fill each piece of memory with bytes of a page, checked; whether the page is there.

    Its file stays open for this thread: a window is read in several takes, each of which wants some of most pages.

    Args:
        folder: Of the cache.
        key: The page.
        page_size: Its bytes.
        pieces: By their places in the shard.

    Raises:
        PageDamageError: The page's content is not what was written.
    """
    named = folder, key
    for _ in range(2):
        try:
            page: _OpenPage = open_files.get(named, lambda _: _OpenPage(f"{folder}/{key.name}", key, page_size))
        except FileNotFoundError:
            return False
        is_sound, is_same = page.read_into(pieces), page.is_unchanged()
        if is_sound and is_same:
            return True
        open_files.forget(named)  # if it was changed, there may be another one by now
        if is_same:
            raise PageDamageError
    return False


class _OpenPage:
    """A page that one thread reads; it closes itself with its last reference.

    Args:
        path: Of its file.
        key: The page.
        page_size: Its bytes.

    Raises:
        FileNotFoundError: It is not there.
    """

    def __init__(self, path: str, key: PageKey, page_size: int) -> None:
        self._fd = -1
        self._fd = os.open(path, os.O_RDONLY)
        self._start, self._seed, self._size = key.number * PAGE_BYTES, key.seed, page_size
        self._identity = self._now()
        self._sums = os.pread(self._fd, file_size_of(page_size) - page_size, page_size)
        self._unchecked = (1 << -(-page_size // _CHUNK_BYTES)) - 1  # a bit for each chunk

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # at the end of the process there is no `os`
        if self._fd >= 0:
            close(self._fd)

    def _now(self) -> tuple[int, int]:
        status = os.fstat(self._fd)
        return status.st_ctime_ns, status.st_size

    def is_unchanged(self) -> bool:
        """Whether nobody has removed, replaced or written the file since it was opened."""
        return self._now() == self._identity

    def read_into(self, pieces: Sequence[Piece]) -> bool:
        """Fill each piece of memory with bytes of the page; return whether they are what was written."""
        fd, start = self._fd, self._start
        try:
            for begin, end, memory in pieces:
                at, stop = begin - start, end - start
                first, last = at // _CHUNK_BYTES, (stop - 1) // _CHUNK_BYTES
                if self._unchecked and self._unchecked >> first & (2 << last - first) - 1:
                    if not self._read_checked(at, stop, memory):
                        return False
                elif os.preadv(fd, (memory,), at) < stop - at:
                    return False
        except OSError:  # a sector that cannot be read
            return False
        return True

    def _read_checked(self, begin: int, end: int, memory: memoryview) -> bool:
        """Read the chunks that have these bytes, some at once, and copy the bytes from those that are sound."""
        stop = min(self._size, -(-end // _CHUNK_BYTES) * _CHUNK_BYTES)
        for at in range(begin - begin % _CHUNK_BYTES, stop, _AT_ONCE_BYTES):
            size = min(_AT_ONCE_BYTES, stop - at)
            data, sums = memoryview(os.pread(self._fd, size, at)), self._sums[at // _CHUNK_BYTES * _CHECKSUM_BYTES :]
            if len(data) < size or not sums.startswith(_sums_of(data, self._seed + at // _CHUNK_BYTES)):
                return False
            self._unchecked &= ~((1 << -(-size // _CHUNK_BYTES)) - 1 << at // _CHUNK_BYTES)
            first, last = max(begin, at), min(end, at + size)
            memory[first - begin : last - begin] = data[first - at : last - at]
        return True


def _sums_of(data: memoryview, seed: int) -> bytes:
    """The checksums of chunks; the seed is that of the first one."""
    chunks = range(0, len(data), _CHUNK_BYTES)
    return b"".join(xxh3_64_digest(data[at : at + _CHUNK_BYTES], seed + n) for n, at in enumerate(chunks))
