"""Sums of a file's blocks, in `<file>.sums` beside it: damage is seen when a block is read, not only by `verify`.

    8 bytes  the magic, which ends with the version of the format
    uint64   bytes per block, 4,096: what a read takes out of the page cache anyway
    uint64   bytes in the file
    uint32   per block, the last of which may be shorter: the low half of its XXH3 of 64 bits

Numbers are little-endian. XXH3 needs no secret: sums show damage, and do not protect against an attacker.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from xxhash import xxh3_64_intdigest

from streamdata.errors import StoreError
from streamdata.recipe.regular_files import open_regular
from streamdata.run.publish import publish_made
from streamdata.shards.storage import LocalShard

BLOCK: Final = 4096
SUMS: Final = ".sums"
_MAGIC = b"sdsums\n\x01"
_HEADER = struct.Struct("<8sQQ")
_SUM = np.dtype("<u4")
_LOW_HALF = (1 << 32) - 1
CHUNK_SUMS: Final = 1024
_CHUNK = CHUNK_SUMS * BLOCK  # bytes of a file
MAX_CHUNKS: Final = 128
"""So the sums of 512 MiB, a shard by default, are kept in 512 KiB."""


def has_sums(file: str) -> bool:
    """Whether sums lie beside a file."""
    return os.path.exists(file + SUMS)


def write_sums(file: Path, path: Path) -> None:
    """Write the sums of a file to `path`."""
    size_bytes = file.stat().st_size
    with path.open("wb") as out, open_regular(file, StoreError) as data:
        out.write(_HEADER.pack(_MAGIC, BLOCK, size_bytes))
        while chunk := data.read(_CHUNK):
            sums = [xxh3_64_intdigest(chunk[at : at + BLOCK]) & _LOW_HALF for at in range(0, len(chunk), BLOCK)]
            out.write(np.array(sums, _SUM).tobytes())


def publish_sums(file: str) -> None:
    """Write the sums of a file beside it, in one step.

    Raises:
        OSError: The directory cannot be written.
    """
    publish_made(Path(file + SUMS), partial(write_sums, Path(file)))


def damaged_blocks(file: str) -> Iterator[str]:
    """What is wrong between a file and its sums: at most one message for each 4 MiB."""
    data = LocalShard(file)
    try:
        sums = Sums(file, data.size)
    except StoreError as error:
        yield str(error)
        return
    for begin in range(0, data.size, _CHUNK):
        chunk = memoryview(data.read(_CHUNK, begin))
        try:
            sums.check([chunk[at : at + BLOCK] for at in range(0, len(chunk), BLOCK)], begin)
        except StoreError as error:
            yield str(error)


class Sums(dict[int, memoryview]):
    """The sums of an open file, by chunks, which are read when they are first asked for; some are kept.

    Args:
        file: Its path.
        size_bytes: Of the file as it is now.
        chunk_sums: Sums in a chunk.
        max_chunks: How many chunks are kept.

    Raises:
        StoreError: The sums are gone, damaged, or those of a file of another size.
    """

    def __init__(self, file: str, size_bytes: int, chunk_sums: int = CHUNK_SUMS, max_chunks: int = MAX_CHUNKS) -> None:
        super().__init__()
        self._chunk_sums, self._max_chunks = chunk_sums, max_chunks
        self._file, self._path = file, file + SUMS
        try:
            self._sums = LocalShard(self._path)
        except FileNotFoundError:
            raise self._damage(f"the sums of '{file}', which were there", "no file") from None
        head = self._sums.read(_HEADER.size, 0)
        if head[: len(_MAGIC)] != _MAGIC or len(head) < _HEADER.size:
            raise self._damage(f"sums that begin with {_MAGIC!r}", repr(head[: len(_MAGIC)]))
        _, block, expected_bytes = _HEADER.unpack(head)
        if (block, expected_bytes) != (BLOCK, size_bytes):
            raise StoreError(
                f"file '{file}': expected {expected_bytes} bytes, as when its sums of blocks of {block} were made, "
                f"got {size_bytes} and blocks of {BLOCK}\n"
                "  It was cut short: copy both again. Or it was written anew: remove its sums."
            )
        expected = _HEADER.size - size_bytes // -BLOCK * _SUM.itemsize
        if self._sums.size != expected:
            raise self._damage(f"{expected} bytes", str(self._sums.size))
        self._num_sums = -(size_bytes // -BLOCK)

    def check(self, blocks: Sequence[memoryview], low: int) -> None:
        """Compare consecutive blocks, the first of which lies at byte `low` of the file, with their sums.

        Raises:
            StoreError: They differ.
        """
        number, chunk_sums = low // BLOCK, self._chunk_sums
        for block in blocks:
            if xxh3_64_intdigest(block) & _LOW_HALF != self[number // chunk_sums][number % chunk_sums]:
                raise self._changed(number)
            number += 1

    def __missing__(self, number: int) -> memoryview:
        """Read chunk `number`."""
        first = number * self._chunk_sums
        size_bytes = min(self._chunk_sums, self._num_sums - first) * _SUM.itemsize
        data = self._sums.read(size_bytes, _HEADER.size + first * _SUM.itemsize)
        if len(data) < size_bytes:
            raise self._damage(f"{size_bytes} bytes of sum {first} on", str(len(data)))
        while len(self) >= self._max_chunks:
            del self[next(iter(self))]
        chunk = self[number] = np.frombuffer(data, _SUM).astype(np.uint32).data  # in this machine's order of bytes
        return chunk

    def _changed(self, number: int) -> StoreError:
        return StoreError(
            f"file '{self._file}': expected the block of {BLOCK} bytes at {number * BLOCK} to be as it was written, "
            "got another\n  It, or its sum, was damaged: copy both again; verify=False reads what is there. Or it was "
            "written anew: remove its sums."
        )

    def _damage(self, expected: str, got: str) -> StoreError:
        return StoreError(
            f"file '{self._path}': expected {expected}, got {got}\n"
            f"  Copy it again; without it '{self._file}' is read unchecked."
        )
