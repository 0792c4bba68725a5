"""Page files as they are read: `key → open file → bytes, checked by their sums once per process`.

Whoever wants few bytes of a page checks the pieces of 16 KiB that hold them. What this process has checked it does not
check again while nothing of the file has changed: its inode, its size and the time of its last change, which no writer
can set.
"""

import os
import threading
import time
from typing import Final, NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from streamdata.remote.cache_files import CHUNK_BYTES, PageDamageError, PageKey, file_size_of

_MAX_CHECKED: Final = 1 << 14
_SETTLED_NS: Final = 50_000_000
"""A change within one tick of the clock, of at most 10 ms, does not show in a file's time."""
_TOUCHED_AGAIN_S: Final = 600


class _FileIdentity(NamedTuple):
    """What differs between a page file and another one under its name, or itself after a change."""

    inode: int
    changed_ns: int
    size: int


class CheckedPages:
    """Which chunks of page files were checked by this process, of those that it read last."""

    def __init__(self) -> None:
        self._known: dict[PageKey, tuple[_FileIdentity, int]] = {}

    def of(self, key: PageKey, identity: _FileIdentity) -> int:
        """A bit for each chunk, from the lowest on."""
        known, chunks = self._known.get(key, (None, 0))
        return chunks if known == identity else 0

    def note(self, key: PageKey, identity: _FileIdentity, chunks: int) -> None:
        """Note which were checked."""
        if len(self._known) >= _MAX_CHECKED:
            self._known.clear()
        self._known[key] = identity, chunks


class OpenPage:
    """A page in the cache, pieces of which are read; it closes itself with its last reference.

    Args:
        folder: Of the cache.
        key: The page.
        page_size: Its bytes.
        checked: What was checked before.

    Raises:
        FileNotFoundError: It is not there.
    """

    def __init__(self, folder: str, key: PageKey, page_size: int, checked: CheckedPages) -> None:
        self._fd = -1
        self._fd = os.open(f"{folder}/{key.name}", os.O_RDONLY)
        self.key, self._size, self._known = key, page_size, checked
        self._sums: memoryview | None = None
        status, now = os.fstat(self._fd), time.time_ns()
        if now - status.st_mtime_ns > _TOUCHED_AGAIN_S * 10**9:  # whoever needs room sees that it is in use
            os.utime(self._fd)
            status = os.fstat(self._fd)
        self._identity = _FileIdentity(status.st_ino, status.st_ctime_ns, status.st_size)
        self._is_settled = now - status.st_ctime_ns > _SETTLED_NS
        self._checked = checked.of(key, self._identity)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def read_into(self, memory: memoryview, begin: int) -> None:
        """Fill the memory with the bytes from `begin` on.

        Raises:
            PageDamageError: They are not those that were written.
        """
        end = begin + len(memory)
        unchecked = self._unchecked(begin, end)
        at, stop = self._bounds(begin, end, unchecked)
        head, tail = _scratch.head[: begin - at], _scratch.tail[: stop - end]
        try:
            size = os.preadv(self._fd, (head, memory, tail) if unchecked else (memory,), at)
        except OSError as error:  # a sector that cannot be read
            raise PageDamageError(str(error)) from error
        if size < stop - at:
            raise PageDamageError("it is cut short")
        if unchecked:
            self._check(memory, head, tail, begin, unchecked)

    def read(self, begin: int, end: int) -> bytes:
        """The bytes [begin, end), which are delivered as they are: to copy them takes longer than to check them.

        Raises:
            PageDamageError: They are not those that were written.
        """
        unchecked = self._unchecked(begin, end)
        at, stop = self._bounds(begin, end, unchecked)
        try:
            data = os.pread(self._fd, end - begin, begin)
            head, tail = os.pread(self._fd, begin - at, at), os.pread(self._fd, stop - end, end)
        except OSError as error:
            raise PageDamageError(str(error)) from error
        if len(head) + len(data) + len(tail) < stop - at:
            raise PageDamageError("it is cut short")
        if unchecked:
            self._check(memoryview(data), memoryview(head), memoryview(tail), begin, unchecked)
        return data

    def _unchecked(self, begin: int, end: int) -> int:
        """Which chunks that have some of these bytes were not checked, a bit for each."""
        return (1 << -(-end // CHUNK_BYTES)) - (1 << begin // CHUNK_BYTES) & ~self._checked

    def _bounds(self, begin: int, end: int, unchecked: int) -> tuple[int, int]:
        """What is read for these bytes: with the rest of the first and the last chunk, where that is to be checked."""
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
        sums, seed, size = self._sums_there(), self.key.seed, len(data)
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
        self._checked |= chunks
        if self._is_settled:
            self._known.note(self.key, self._identity, self._checked)

    def _sums_there(self) -> memoryview:
        """The checksums of all chunks."""
        if self._sums is None:
            expected = file_size_of(self._size) - self._size
            sums = os.pread(self._fd, expected, self._size)
            if len(sums) < expected:
                raise PageDamageError("it is cut short")
            self._sums = memoryview(sums).cast("Q")
        return self._sums


class _Scratch(threading.local):
    """Where the rest of the first and the last chunk of a piece goes; it is looked at once."""

    def __init__(self) -> None:
        self.head, self.tail = (memoryview(bytearray(CHUNK_BYTES)) for _ in range(2))


_scratch = _Scratch()
