"""The files of a page cache: `bytes of a shard's page → a file that is published by rename → its bytes, checked`.

A page file is the page, then a checksum for each 16 KiB of it, so that whoever wants few bytes checks few. What is
being written has a name of its own, which says what it is to become: that page's lock is free where its writer died.
"""

import hashlib
import os
import re
import secrets
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

PAGE_BYTES = 4 << 20
_CHUNK_BYTES = 16 << 10
_CHECKSUM_BYTES = 8
_DISK_BLOCK = 4096
_SPREAD = 0x9E3779B97F4A7C15  # 2**64 by the golden ratio
_TOUCHED_AGAIN_S = 600
_PAGE = re.compile(r"([0-9a-f]{24})-([0-9]+)\.page")
_TEMPORARY = re.compile(r"\.([0-9a-f]{24}-[0-9]+)\.[0-9a-f]+\.tmp")


class PageDamageError(Exception):
    """A page file is not what was written."""


class PageKey(NamedTuple):
    """Which page it is: the shard, as `shard_key` names it, and its number there."""

    shard: str
    number: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.shard}-{self.number}.page"

    @property
    def seed(self) -> int:
        """62 bits, of its checksums and its lock: a page under the name of another one is damaged."""
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
    """What a file takes of the bound: whole blocks of the disk, and its entry in the directory."""
    return -(-(file_size + 128) // _DISK_BLOCK) * _DISK_BLOCK


def file_size_of(page_size: int) -> int:
    """The size of the file of a page."""
    return page_size + _CHECKSUM_BYTES * -(-page_size // _CHUNK_BYTES)


def key_of(name: str) -> PageKey | None:
    """The page that a file is, by its name; None for another file."""
    match = _PAGE.fullmatch(name)
    return PageKey(match[1], int(match[2])) if match else None


def key_of_temporary(name: str) -> PageKey | None:
    """The page that a temporary file is to become; None for another file."""
    match = _TEMPORARY.fullmatch(name)
    return key_of(f"{match[1]}.page") if match else None


def reserve(folder: Path, key: PageKey, page_size: int) -> Path:
    """Make the temporary file of a page, from now on as large as it will be.

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
    """Write a page into its temporary file, and publish it.

    Nothing is synced: what a power cut leaves is damaged, which its checksums tell.

    Raises:
        OSError: The disk is full, or failed.
    """
    view = memoryview(data)
    sums = _checksums(view, key)
    with open(temporary, "r+b", buffering=0) as file:
        for part in (view, memoryview(sums).cast("B")):
            done = 0
            while done < len(part):
                done += file.write(part[done:])
    os.replace(temporary, temporary.with_name(key.name))


def read_page(folder: str, key: PageKey, page_size: int, begin: int, end: int) -> bytes | None:
    """The bytes [begin, end) of a page; None where it is not in the cache.

    Raises:
        PageDamageError: The file is not what was written.
    """
    try:
        fd = os.open(f"{folder}/{key.name}", os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        _touch(fd)
        return _checked(fd, key, page_size, begin, end)
    except OSError as error:  # a sector that cannot be read
        raise PageDamageError(str(error)) from error
    finally:
        os.close(fd)


def _checked(fd: int, key: PageKey, page_size: int, begin: int, end: int) -> bytes:
    """The bytes [begin, end), and what their chunks have beside them looked at with them."""
    first, last = begin // _CHUNK_BYTES, -(-end // _CHUNK_BYTES)
    at, stop = first * _CHUNK_BYTES, min(last * _CHUNK_BYTES, page_size)
    # In one piece, that is delivered as it is: to copy it takes longer than to check it.
    data = os.pread(fd, end - begin, begin)
    head = os.pread(fd, begin - at, at) if at < begin else b""
    tail = os.pread(fd, stop - end, end) if end < stop else b""
    sums = os.pread(fd, (last - first) * _CHECKSUM_BYTES, page_size + first * _CHECKSUM_BYTES)
    if len(head) + len(data) + len(tail) < stop - at or len(sums) < (last - first) * _CHECKSUM_BYTES:
        raise PageDamageError("it is cut short")
    _check(memoryview(data), memoryview(head), memoryview(tail), memoryview(sums).cast("Q").tolist(), key.seed + first)
    return data


def _check(data: memoryview, head: memoryview, tail: memoryview, sums: Sequence[int], seed: int) -> None:
    """Raise PageDamageError unless the data, with what is before and after it in its chunks, are what was written."""
    size, before = len(data), len(head)
    for chunk, expected in enumerate(sums):
        begin = chunk * _CHUNK_BYTES - before  # in the data
        end = begin + _CHUNK_BYTES
        if begin >= 0 and end <= size:
            found = xxh3_64_intdigest(data[begin:end], seed + chunk)
        else:
            digest = xxh3_64(head if begin < 0 else b"", seed + chunk)
            digest.update(data[max(0, begin) : end])
            digest.update(tail if chunk == len(sums) - 1 else b"")
            found = digest.intdigest()
        if found != expected:
            raise PageDamageError(f"chunk {chunk} of what was read is not what was written")


class _Scratch(threading.local):
    """Where the rest of the first and the last chunk of a piece goes; it is looked at once."""

    def __init__(self) -> None:
        self.head, self.tail = (memoryview(bytearray(_CHUNK_BYTES)) for _ in range(2))


_scratch = _Scratch()


class OpenPage:
    """A page in the cache, several pieces of which are read; it closes itself with its last reference.

    Args:
        folder: Of the cache.
        key: The page.
        page_size: Its bytes.

    Raises:
        FileNotFoundError: It is not there.
        PageDamageError: The file is not what was written.
    """

    def __init__(self, folder: str, key: PageKey, page_size: int) -> None:
        self._fd = -1
        self._fd = os.open(f"{folder}/{key.name}", os.O_RDONLY)
        self.key, self._size, self._seed = key, page_size, key.seed
        _touch(self._fd)
        sums = os.pread(self._fd, file_size_of(page_size) - page_size, page_size)
        if len(sums) < file_size_of(page_size) - page_size:
            raise PageDamageError("it is cut short")
        self._sums = memoryview(sums).cast("Q")

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def read_into(self, memory: memoryview, begin: int) -> None:
        """Fill the memory with the bytes from `begin` on.

        Raises:
            PageDamageError: They are not those that were written.
        """
        end = begin + len(memory)
        first, last = begin // _CHUNK_BYTES, -(-end // _CHUNK_BYTES)
        at, stop = first * _CHUNK_BYTES, min(last * _CHUNK_BYTES, self._size)
        head, tail = _scratch.head[: begin - at], _scratch.tail[: stop - end]
        try:
            size = os.preadv(self._fd, (head, memory, tail), at)
        except OSError as error:  # a sector that cannot be read
            raise PageDamageError(str(error)) from error
        if size < stop - at:
            raise PageDamageError("it is cut short")
        _check(memory, head, tail, self._sums[first:last].tolist(), self._seed + first)


def _touch(fd: int) -> None:
    """Let whoever needs room see that a page is in use."""
    if time.time() - os.fstat(fd).st_mtime > _TOUCHED_AGAIN_S:
        os.utime(fd)


def _checksums(data: memoryview, key: PageKey) -> "array[int]":
    starts = range(0, len(data), _CHUNK_BYTES)
    pieces = (data[start : start + _CHUNK_BYTES] for start in starts)
    return array("Q", (xxh3_64_intdigest(piece, key.seed + chunk) for chunk, piece in enumerate(pieces)))


def files_below(folder: Path) -> Iterator[tuple[str, str, int]]:
    """All files and directories below a directory: path, name and size; those that vanish meanwhile are left out."""
    waiting = [os.fspath(folder)]
    while waiting:
        with suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    yield entry.path, entry.name, entry.stat(follow_symlinks=False).st_size
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
