"""The files of a page cache: `bytes of a shard's page → a file with their checksums, published by rename`.

A page file is the page, then a checksum for each 16 KiB of it, so that whoever wants few bytes checks few. What is
being written has a name of its own, which says what it is to become: that page's lock is free where its writer died.
"""

import hashlib
import os
import re
import secrets
from array import array
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

PAGE_BYTES = 4 << 20
CHUNK_BYTES = 16 << 10
_CHECKSUM_BYTES = 8
_DISK_BLOCK = 4096
_SPREAD = 0x9E3779B97F4A7C15  # 2**64 by the golden ratio
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
    return page_size + _CHECKSUM_BYTES * -(-page_size // CHUNK_BYTES)


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


def _checksums(data: memoryview, key: PageKey) -> "array[int]":
    starts = range(0, len(data), CHUNK_BYTES)
    pieces = (data[start : start + CHUNK_BYTES] for start in starts)
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
