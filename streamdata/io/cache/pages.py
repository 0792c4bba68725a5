"""The files of a page cache: `bytes of a page → a file with their checksums, published by rename → bytes, checked`.

A page file is the page, then a checksum for each 16 KiB of it, so that whoever wants few bytes checks few. What is
being written has a name of its own, which says what it is to become: that page's lock is free where its writer died.

What this process has checked it does not check again while nothing of the file has changed: its inode, its size and the
time of its last change, which no writer can set. This is looked at after each reading, so that a page may stay open:
whoever removes one cuts it to nothing.
"""

import errno
import hashlib
import os
import re
import secrets
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from xxhash import xxh3_64, xxh3_64_intdigest

from streamdata.run.per_process import open_files

PAGE_BYTES = 4 << 20
CHUNK_BYTES = 16 << 10
_CHECKSUM_BYTES = 8
_DISK_BLOCK = 4096
_SPREAD = 0x9E3779B97F4A7C15  # 2**64 by the golden ratio
_PAGE = re.compile(r"([0-9a-f]{24})-([0-9]+)\.page")
_TEMPORARY = re.compile(r"\.([0-9a-f]{24})-([0-9]+)\.[0-9a-f]+\.tmp")
_MAX_CHECKED: Final = 1 << 14
_SETTLED_NS: Final = 50_000_000
"""A change within one tick of the clock, of at most 10 ms, does not show in a file's time."""
_TOUCHED_AGAIN_NS: Final = 600 * 10**9
T = TypeVar("T")
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
        return f"{self.shard}-{self.number}.page"

    @property
    def seed(self) -> int:
        """A 62-bit number that seeds the page's checksums and selects its lock; a renamed page counts as damaged."""
        return (int(self.shard, 16) * _SPREAD + self.number) % (1 << 62)


@lru_cache(1 << 12)
def shard_key(url: str, version: str, size: int) -> str:
    """The name of one version of a shard, 24 hexadecimal digits, of which the first 12 are of the url alone.

    Args:
        url: Without query and user.
        version: What its server calls it.
        size: In bytes.
    """
    named, dated = (hashlib.blake2b(text.encode(), digest_size=6).hexdigest() for text in (url, f"{version} {size}"))
    return named + dated


def charge_of(file_size: int) -> int:
    """The bytes by which a file counts towards the cache's bound: whole disk blocks, and its directory entry."""
    return -(-(file_size + 128) // _DISK_BLOCK) * _DISK_BLOCK


def file_size_of(page_size: int) -> int:
    """The size of the file of a page."""
    return page_size + _CHECKSUM_BYTES * -(-page_size // CHUNK_BYTES)


def key_of(name: str, *, temporary: bool = False) -> PageKey | None:
    """The page that a file holds, or that a temporary file will become, by its name; None for other files."""
    match = (_TEMPORARY if temporary else _PAGE).fullmatch(name)
    return PageKey(match[1], int(match[2])) if match else None


def reserve(folder: Path, key: PageKey, page_size: int) -> Path:
    """Create the temporary file of a page, with its final size.

    Raises:
        OSError: The directory cannot be written.
    """
    temporary = folder / f".{key.name.removesuffix('.page')}.{secrets.token_hex(4)}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        os.ftruncate(fd, file_size_of(page_size))
    finally:
        os.close(fd)
    return temporary


def write_page(temporary: Path, key: PageKey, data: bytes | memoryview) -> None:
    """Write a page into its temporary file, and publish that.

    Nothing is synced: what a power cut leaves is damaged, which its checksums tell.

    Raises:
        OSError: The disk is full, or failed.
    """
    view = memoryview(data)
    pieces = (view[start : start + CHUNK_BYTES] for start in range(0, len(view), CHUNK_BYTES))
    sums = array("Q", (xxh3_64_intdigest(piece, key.seed + chunk) for chunk, piece in enumerate(pieces)))
    with open(temporary, "r+b", buffering=0) as file:
        for part in (view, memoryview(sums).cast("B")):
            done = 0
            while done < len(part):
                done += file.write(part[done:])
    os.replace(temporary, temporary.with_name(key.name))


def files_below(folder: Path) -> Iterator[tuple[str, str, int]]:
    """Yield path, name and size of all files and directories below a directory, except those that vanish meanwhile."""
    waiting = [os.fspath(folder)]
    while waiting:
        with suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    yield entry.path, entry.name, entry.stat(follow_symlinks=False).st_size
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)


class _FileIdentity(NamedTuple):
    """Tells a page file from another one under its name, and from itself after a change."""

    inode: int
    changed_ns: int
    size: int


_Checked = dict[PageKey, tuple[_FileIdentity, int]]
"""The chunks of page files that this process has checked, a bit for each; of those that it read last."""


class PageFiles:
    """The page files of a cache.

    Args:
        folder: Of the cache.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._checked: _Checked = {}

    def read_into(self, key: PageKey, page_size: int, pieces: Sequence[Piece]) -> None:
        """Fill each piece of memory with bytes of a page, and keep the page's file open for this thread.

        A window is read in several takes, each of which wants some records of most of its pages.

        Raises:
            FileNotFoundError: The page is not there.
            PageDamageError: The page's content is not what was written.
        """
        named = self._folder, key
        try:
            page: _OpenPage = open_files.get(named, lambda _: self._opened(key, page_size))
            page.read_into(pieces)
        except PageDamageError:
            open_files.forget(named)
            raise
        except FileNotFoundError:  # it was removed; there may be another one since
            open_files.forget(named)
            self._opened(key, page_size).read_into(pieces)

    def read(self, key: PageKey, page_size: int, begin: int, end: int) -> bytes:
        """The bytes [begin, end) of a page, checked.

        Raises:
            FileNotFoundError: The page is not there.
            PageDamageError: The page's content is not what was written.
        """
        return self._opened(key, page_size).read(begin, end)

    def _opened(self, key: PageKey, page_size: int) -> "_OpenPage":
        return _OpenPage(self._folder, key, page_size, self._checked)


class _OpenPage:
    """A page that one thread reads; it closes itself with its last reference.

    Args:
        folder: Of the cache.
        key: The page.
        page_size: Its bytes.
        checked: What was checked before, of all pages.

    Raises:
        FileNotFoundError: It is not there.
    """

    def __init__(self, folder: str, key: PageKey, page_size: int, checked: _Checked) -> None:
        self._fd = -1
        self._fd = os.open(f"{folder}/{key.name}", os.O_RDONLY)
        self._key, self._size, self._known = key, page_size, checked
        self._start, self._all = key.number * PAGE_BYTES, (1 << -(-page_size // CHUNK_BYTES)) - 1
        self._look_at(os.fstat(self._fd))

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # at the end of the process there is no `os`
        if self._fd >= 0:
            close(self._fd)

    def read_into(self, pieces: Sequence[Piece]) -> None:
        """Fill each piece of memory with bytes of the page; see `PageFiles.read_into`."""
        self._while_unchanged(lambda: self._fill(pieces))

    def read(self, begin: int, end: int) -> bytes:
        """Read the bytes [begin, end) of the page; see `PageFiles.read`."""
        return self._while_unchanged(lambda: self._read(begin, end))

    def _while_unchanged(self, read: Callable[[], T]) -> T:
        """Read until the file is afterwards as it was before; damage counts only then."""
        while True:
            damage = ""  # a text: an error that a frame of its own traceback holds would keep the page open
            try:
                found = read()
            except (OSError, PageDamageError) as error:  # also of a sector that cannot be read
                damage = str(error)
            status, known = os.fstat(self._fd), self._identity
            if status.st_ctime_ns != known.changed_ns or status.st_size != known.size:
                self._look_at(status)
                continue
            if damage:
                raise PageDamageError(damage)
            if time.time_ns() - status.st_mtime_ns > _TOUCHED_AGAIN_NS:
                self._look_at(status)
            return found

    def _look_at(self, status: os.stat_result) -> None:
        """Note how the file is now; whoever needs room sees by its time that it is in use."""
        if not status.st_nlink:
            raise FileNotFoundError(errno.ENOENT, "it was removed", self._key.name)
        if time.time_ns() - status.st_mtime_ns > _TOUCHED_AGAIN_NS:
            os.utime(self._fd)
            status = os.fstat(self._fd)
        self._identity = _FileIdentity(status.st_ino, status.st_ctime_ns, status.st_size)
        identity, chunks = self._known.get(self._key, (None, 0))
        self._checked = chunks if identity == self._identity else 0
        self._sums: memoryview | None = None

    def _fill(self, pieces: Sequence[Piece]) -> None:
        fd, start, checked = self._fd, self._start, self._checked
        for begin, end, memory in pieces:
            at, end_at = begin - start, end - start
            if checked == self._all or not (unchecked := self._unchecked(at, end_at)):
                if os.preadv(fd, (memory,), at) < end - begin:
                    raise PageDamageError("it is cut short")
                continue
            first, stop = self._bounds(at, end_at, unchecked)
            head, tail, is_settled = _scratch.head[: at - first], _scratch.tail[: stop - end_at], self._is_settled()
            if os.preadv(fd, (head, memory, tail), first) < stop - first:
                raise PageDamageError("it is cut short")
            self._check(memory, head, tail, at, unchecked)
            if is_settled:
                self._note(unchecked)

    def _read(self, begin: int, end: int) -> bytes:
        unchecked = self._unchecked(begin, end)
        (at, stop), is_settled = self._bounds(begin, end, unchecked), self._is_settled()
        data = os.pread(self._fd, end - begin, begin)
        head, tail = os.pread(self._fd, begin - at, at), os.pread(self._fd, stop - end, end)
        if len(head) + len(data) + len(tail) < stop - at:
            raise PageDamageError("it is cut short")
        if unchecked:
            self._check(memoryview(data), memoryview(head), memoryview(tail), begin, unchecked)
        if is_settled:
            self._note(unchecked)
        return data

    def _unchecked(self, begin: int, end: int) -> int:
        """Find the chunks with some of these bytes that were not checked, a bit for each."""
        return (1 << -(-end // CHUNK_BYTES)) - (1 << begin // CHUNK_BYTES) & ~self._checked

    def _bounds(self, begin: int, end: int, unchecked: int) -> tuple[int, int]:
        """Extend a range by the rest of its first and last chunk, where these are to be checked."""
        if unchecked >> begin // CHUNK_BYTES & 1:
            begin -= begin % CHUNK_BYTES
        if unchecked >> (last := (end - 1) // CHUNK_BYTES) & 1:
            end = min((last + 1) * CHUNK_BYTES, self._size)
        return begin, end

    def _check(self, data: memoryview, head: memoryview, tail: memoryview, begin: int, chunks: int) -> None:
        """Raise PageDamageError unless these chunks are what was written.

        Args:
            data: The bytes from `begin` on.
            head: What is before them in the first chunk.
            tail: What is after them in the last chunk.
            begin: Where in the page.
            chunks: Which chunks of these, a bit for each.
        """
        if self._sums is None:
            expected = file_size_of(self._size) - self._size
            read = os.pread(self._fd, expected, self._size)
            if len(read) < expected:
                raise PageDamageError("it is cut short")
            self._sums = memoryview(read).cast("Q")
        sums, seed, size = self._sums, self._key.seed, len(data)
        last = (begin + size - 1) // CHUNK_BYTES
        for chunk in range(begin // CHUNK_BYTES, last + 1):
            if not chunks >> chunk & 1:
                continue
            first = chunk * CHUNK_BYTES - begin  # in the data
            if first >= 0 and first + CHUNK_BYTES <= size:
                found = xxh3_64_intdigest(data[first : first + CHUNK_BYTES], seed + chunk)
            else:
                digest = xxh3_64(head if first < 0 else b"", seed + chunk)
                digest.update(data[max(0, first) : first + CHUNK_BYTES])
                if chunk == last:
                    digest.update(tail)
                found = digest.intdigest()
            if found != sums[chunk]:
                raise PageDamageError(f"chunk {chunk} is not what was written")

    def _is_settled(self) -> bool:
        return time.time_ns() - self._identity.changed_ns > _SETTLED_NS

    def _note(self, chunks: int) -> None:
        self._checked |= chunks
        if len(self._known) >= _MAX_CHECKED:
            self._known.clear()
        self._known[self._key] = self._identity, self._checked


class _Scratch(threading.local):
    """Where the rest of the first and the last chunk of a piece goes; it is looked at once."""

    def __init__(self) -> None:
        self.head, self.tail = (memoryview(bytearray(CHUNK_BYTES)) for _ in range(2))


_scratch = _Scratch()
