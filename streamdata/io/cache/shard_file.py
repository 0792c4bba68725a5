"""The file of a cached shard: `pages, each written once with its checksums → a map of the shard, checked`.

A shard's pages lie in one sparse file, each where it lies in the shard; after them come a checksum for each chunk of
64 KiB and a mark for each page that is there. What is read of a page is a slice of the map of that file. A chunk is
checked when a process that did not write it reads it first. Nobody truncates a file or writes a page again: what makes
room is removed, and lives on in the maps of it.
"""

import hashlib
import io
import mmap
import os
from contextlib import suppress
from functools import lru_cache
from typing import Final, NamedTuple

from xxhash import xxh3_64_digest

PAGE_BYTES: Final = 4 << 20
SUFFIX: Final = ".shard"
FOLDER, URL, VERSION = slice(0, 12), slice(0, 24), slice(24, 36)
"""The parts of a shard's key, which names its file, that say its folder, its url and its version."""
_CHUNK_BYTES: Final = 64 << 10
_CHECKSUM_BYTES: Final = 8
DISK_BLOCK: Final = 4096


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


def pages_of(begin: int, end: int) -> range:
    """The numbers of the pages that have the bytes [begin, end) of a shard."""
    return range(begin // PAGE_BYTES, -(-end // PAGE_BYTES))


def charge_of(page_size: int) -> int:
    """The bytes by which a page counts towards the cache's bound: its blocks, and those of its checksums and marks."""
    return (-(-page_size // DISK_BLOCK) + 4) * DISK_BLOCK


class ShardFile(NamedTuple):
    """The file of one version of a shard in the directory of a cache.

    Attributes:
        folder: The directory.
        shard: As `shard_key` names it.
        size: Of the shard, in bytes.
    """

    folder: str
    shard: str
    size: int

    @property
    def path(self) -> str:
        """The file's path."""
        return f"{self.folder}/{self.shard}{SUFFIX}"

    @property
    def num_chunks(self) -> int:
        """How many chunks it has, each with a checksum."""
        return -(-self.size // _CHUNK_BYTES)

    @property
    def marks(self) -> int:
        """Where the marks of pages begin, after the shard and the checksums of its chunks."""
        return self.size + _CHECKSUM_BYTES * self.num_chunks

    @property
    def end(self) -> int:
        """The file's size."""
        return self.marks + len(pages_of(0, self.size))

    @property
    def seed(self) -> int:
        """A 62-bit number that, with a chunk's number, seeds its checksum: a renamed file counts as damaged."""
        return int(self.shard, 16) % (1 << 62)

    def open(self) -> io.BufferedRandom:
        """Open the file to add pages; it is made if there is none."""
        return open(self.path, "r+b", opener=lambda path, flags: os.open(path, flags | os.O_CREAT, 0o666))

    def allocate(self, file: io.BufferedRandom, page: int) -> None:
        """Take the blocks of a page.

        Raises:
            OSError: The disk is full, or failed.
        """
        # The marks have blocks before anybody maps the file: on a full tmpfs, to read a hole of a map ends the process.
        os.posix_fallocate(file.fileno(), self.marks, self.end - self.marks)
        os.posix_fallocate(file.fileno(), page * PAGE_BYTES, min(PAGE_BYTES, self.size - page * PAGE_BYTES))

    def write(self, file: io.BufferedRandom, page: int, data: memoryview) -> range:
        """Write a page whose blocks were taken, and mark it as there; return the numbers of its chunks.

        Nothing is synced: what a power cut leaves is damaged, which its checksums tell.

        Raises:
            OSError: The disk failed.
        """
        first, chunks = page * PAGE_BYTES // _CHUNK_BYTES, range(0, len(data), _CHUNK_BYTES)
        sums = [xxh3_64_digest(data[at : at + _CHUNK_BYTES], self.seed + first + n) for n, at in enumerate(chunks)]
        file.seek(page * PAGE_BYTES)
        file.write(data)
        file.seek(self.size + first * _CHECKSUM_BYTES)
        file.write(b"".join(sums))
        file.seek(self.marks + page)  # the last: whoever is killed leaves none
        file.write(b"\1")
        return range(first, first + len(chunks))

    def drop(self, page: int) -> None:
        """Take back that a page is there."""
        with suppress(FileNotFoundError), open(self.path, "r+b") as file:
            file.seek(self.marks + page)
            file.write(b"\0")


class CachedShard:
    """A map of a shard's file, which lasts as long as someone reads from it.

    Raises:
        FileNotFoundError: There is no file, or it is just being made.
    """

    def __init__(self, file: ShardFile) -> None:
        self._size, self._marks, self._seed = file.size, file.marks, file.seed
        with open(file.path, "rb") as opened:
            if os.fstat(opened.fileno()).st_size < file.end:
                raise FileNotFoundError(file.path)
            self.memory = mmap.mmap(opened.fileno(), file.end, access=mmap.ACCESS_READ)
        self._view = memoryview(self.memory)

    def has(self, begin: int, end: int) -> bool:
        """Whether all pages with the bytes [begin, end) are there."""
        pages = pages_of(begin, end)
        return self.memory.find(b"\0", self._marks + pages.start, self._marks + pages.stop) < 0

    def damaged_page(self, begin: int, end: int, checked: bytearray) -> int | None:
        """The first page with a chunk of these bytes that is not what was written; what is marked is not looked at."""
        # All at once, and now: a fault when a record is copied would hold the lock of the interpreter.
        self.memory.madvise(mmap.MADV_WILLNEED, begin - begin % mmap.PAGESIZE, end - begin)
        first, last = begin // _CHUNK_BYTES, -(-end // _CHUNK_BYTES)
        while (number := checked.find(0, first, last)) >= 0:
            at, sum_at = number * _CHUNK_BYTES, self._size + number * _CHECKSUM_BYTES
            digest = xxh3_64_digest(self._view[at : min(self._size, at + _CHUNK_BYTES)], self._seed + number)
            if digest != self._view[sum_at : sum_at + _CHECKSUM_BYTES]:
                return at // PAGE_BYTES
            checked[number] = 1
        return None
