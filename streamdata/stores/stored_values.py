"""The values of an array, out of its file, checked: by positioned reads, or through a map where that is asked for.

A file that is cut short while it is read gives an error here; under a map it ends the process. So maps are for those
who own the files. Published files do not change, so that open ones may be shared with forked workers.

Sums of a file's blocks, in `<file>.sums` beside it: damage is seen when a block is read, not only by `verify`.

    8 bytes  the magic, which ends with the version of the format
    uint64   bytes per block, 4,096: what a read takes out of the page cache anyway
    uint64   bytes in the file
    uint32   per block, the last of which may be shorter: the low half of its XXH3 of 64 bits

Numbers are little-endian. XXH3 needs no secret: sums show damage, and do not protect against an attacker.
"""

import mmap
import os
import struct
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from xxhash import xxh3_64_intdigest

from streamdata.errors import StoreError
from streamdata.io.storage import LocalShard
from streamdata.recipe.limits import open_regular
from streamdata.run.per_process import Recent
from streamdata.run.publish import publish_made
from streamdata.stores.dtypes import Values
from streamdata.stores.segments import StoredArray

BLOCK: Final = 4096
SUMS: Final = ".sums"
_MAGIC = b"sdsums\n\x01"
_HEADER = struct.Struct("<8sQQ")
_SUM = np.dtype("<u4")
_LOW_HALF = (1 << 32) - 1
CHUNK_SUMS: Final = 1024
SUMS_CHUNK: Final = CHUNK_SUMS * BLOCK
"""Bytes of a file that these are of."""
MAX_CHUNKS: Final = 128
"""Bytes that share a sum: the sums of 512 MiB, a shard by default, take 512 KiB."""
_KEPT_BLOCKS = 1024
_KEPT_VALUES = 512

_kept: Recent[tuple[StoredArray, int], Values] = Recent(_KEPT_BLOCKS)


def has_sums(file: str) -> bool:
    """Whether sums lie beside a file."""
    return os.path.exists(file + SUMS)


def write_sums(file: Path, path: Path) -> None:
    """Write the sums of a file to `path`."""
    size_bytes = file.stat().st_size
    with path.open("wb") as out, open_regular(file, StoreError) as data:
        out.write(_HEADER.pack(_MAGIC, BLOCK, size_bytes))
        while chunk := data.read(SUMS_CHUNK):
            sums = [xxh3_64_intdigest(chunk[at : at + BLOCK]) & _LOW_HALF for at in range(0, len(chunk), BLOCK)]
            out.write(np.array(sums, _SUM).tobytes())


def publish_sums(file: str) -> None:
    """Write the sums of a file beside it, in one step. Damage that it has now is not noticed from then on.

    Raises:
        OSError: The directory cannot be written.
    """
    publish_made(Path(file + SUMS), partial(write_sums, Path(file)))


class Sums(dict[int, memoryview]):
    """The sums of an open file, by chunks, which are read when they are first asked for; some are kept.

    Args:
        file: Its path.
        size_bytes: Of the file as it is now.

    Raises:
        StoreError: The sums are gone, damaged, or those of a file of another size.
    """

    def __init__(self, file: str, size_bytes: int) -> None:
        super().__init__()
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
            expected = f"{expected_bytes} bytes, as when its sums of blocks of {block} were made"
            remedy = "It was cut short: copy both again. Or it was written anew: remove its sums."
            raise StoreError.mismatch(f"file '{file}'", expected, f"{size_bytes} and blocks of {BLOCK}", remedy)
        self._num_sums = -(size_bytes // -BLOCK)
        size_of_sums = _HEADER.size + self._num_sums * _SUM.itemsize
        if self._sums.size != size_of_sums:
            raise self._damage(f"{size_of_sums} bytes", str(self._sums.size))

    def check(self, blocks: Sequence[memoryview], low: int) -> None:
        """Compare consecutive blocks, the first of which lies at byte `low` of the file, with their sums.

        Raises:
            StoreError: They differ.
        """
        number, chunk_sums = low // BLOCK, CHUNK_SUMS
        for block in blocks:
            if xxh3_64_intdigest(block) & _LOW_HALF != self[number // chunk_sums][number % chunk_sums]:
                raise StoreError(
                    f"file '{self._file}': expected the block of {BLOCK} bytes at {number * BLOCK} to be as it was "
                    "written, got another\n  It, or its sum, was damaged: copy both again; verify=False reads what is "
                    "there. Or it was written anew: remove its sums."
                )
            number += 1

    def __missing__(self, number: int) -> memoryview:
        """Read chunk `number`."""
        first = number * CHUNK_SUMS
        size_bytes = min(CHUNK_SUMS, self._num_sums - first) * _SUM.itemsize
        data = self._sums.read(size_bytes, _HEADER.size + first * _SUM.itemsize)
        if len(data) < size_bytes:
            raise self._damage(f"{size_bytes} bytes of sum {first} on", str(len(data)))
        while len(self) >= MAX_CHUNKS:
            del self[next(iter(self))]
        chunk = self[number] = np.frombuffer(data, _SUM).astype(np.uint32).data  # in this machine's order of bytes
        return chunk

    def _damage(self, expected: str, got: str) -> StoreError:
        remedy = f"Copy it again; without it '{self._file}' is read unchecked."
        return StoreError.mismatch(f"file '{self._path}'", expected, got, remedy)


class StoredValues:
    """Reads like a numpy array of one dimension, by slices and ints, in the dtype on disk.

    A bounded number of files is open in a thread. Each has two file descriptors, or three if mapped; opening one again
    takes 20 µs.

    Bool is uint8, since a byte may be any. A slice is read from the file whenever it is asked for. An int is taken out
    of the 512 values around it, which are kept, a bounded number of them: searches in offsets ask for ints, and probe
    the same ones again and again.

    Args:
        array: Which.
        verify: Compare what is read with the file's sums, where it has them.
        mapped: Read through a map.

    Raises:
        StoreError: The file is shorter than it was, or is not what its sums say.
    """

    def __init__(self, array: StoredArray, *, verify: bool, mapped: bool) -> None:
        assert array.offset is not None, f"dataset {array.dataset!r} is read through its library"
        self._array, self._count, self._begin = array, array.count, array.offset
        self.dtype = np.dtype(np.uint8) if array.dtype.kind == "b" else array.dtype
        self._item_bytes = self.dtype.itemsize
        self._file = LocalShard(array.file)
        self._sums = Sums(array.file, self._file.size) if verify and array.has_sums else None
        check_size(array, self._file.size)
        self._blocks = -1 if self._sums is None else -BLOCK  # rounds down to the blocks that sums are of
        self._map = None
        if mapped:  # nothing cannot be mapped
            self._map = memoryview(mmap.mmap(self._file.fd, 0, access=mmap.ACCESS_READ) if self._file.size else b"")

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, key: int | slice) -> Any:
        if not isinstance(key, slice):
            block, index = divmod(range(self._count)[key], _KEPT_VALUES)
            return _kept.get((self._array, block), self._block).item(index)
        first, last, step = key.indices(self._count)
        assert step == 1, f"values are read in their order, not by {key}"
        return self.read(first, last)

    def read(self, first: int, last: int) -> Values:
        """Values first to last, which are not to be written to."""
        if first >= last:
            return np.empty(0, self.dtype)
        begin, end = self._begin + first * self._item_bytes, self._begin + last * self._item_bytes
        low, high = begin & self._blocks, (end + ~self._blocks) & self._blocks
        data = self._file.read(high - low, low) if self._map is None else self._map[low:high]
        if len(data) < end - low:  # but for the rest of its last block
            cut = "It was cut short while it was read: copy it again."
            raise StoreError.mismatch(f"file '{self._array.file}'", f"{end - low} bytes at {low}", len(data), cut)
        if self._sums is not None:
            view = memoryview(data)
            self._sums.check([view[at : at + BLOCK] for at in range(0, len(view), BLOCK)], low)
        return np.frombuffer(data, self.dtype, last - first, begin - low)

    def read_into(self, rows: Values, begins: Iterable[tuple[int, int]], start: int) -> None:
        """Fill rows.

        Args:
            rows: (rows, length), contiguous, of this dtype.
            begins: Numbers of rows, and of each the position of the first value that goes into it.
            start: The position of value 0.
        """
        length, item_bytes, sums = rows.shape[1], self._item_bytes, self._sums
        size_bytes = length * item_bytes
        if self._map is not None:
            for number, first in begins:
                rows[number] = self.read(first - start, first - start + length)
            return
        fill, zero = self._file.read_into, self._begin - start * item_bytes
        if sums is None:  # nothing to check: the file is read straight into the rows
            fd = self._file.fd
            for number, first in begins:
                try:
                    got = os.preadv(fd, (rows[number],), zero + first * item_bytes)
                except OSError:
                    got = 0  # the next reading says where
                if got < size_bytes:
                    rows[number] = self.read(first - start, first - start + length)
            return
        # One loop with little in it, since batches of windows are read here. All are read into the same few blocks,
        # which stay in the processor's cache until they are checked and copied.
        read, copies = np.empty((2 - size_bytes // -BLOCK) * BLOCK, np.uint8), rows.view(np.uint8)
        memory = read.data
        blocks = [memory[at : at + BLOCK] for at in range(0, len(memory), BLOCK)]
        for number, first in begins:
            begin = zero + first * item_bytes
            low = begin & -BLOCK
            num_blocks = (begin + size_bytes - low + BLOCK - 1) // BLOCK
            if fill(memory[: num_blocks * BLOCK], low) == num_blocks * BLOCK:
                sums.check(blocks[:num_blocks], low)
                copies[number] = read[begin - low : begin - low + size_bytes]
            else:  # the last block of a file, or what is not there any more
                rows[number] = self.read(first - start, first - start + length)

    def _block(self, key: tuple[StoredArray, int]) -> Values:
        first = key[1] * _KEPT_VALUES
        values: Values = self[first : first + _KEPT_VALUES]
        return values.copy()  # not a view of a map, or of more than is kept


def check_size(array: StoredArray, size_bytes: int) -> None:
    """Raise StoreError unless a file of this size holds the array."""
    assert array.offset is not None, f"dataset {array.dataset!r} is read through its library"
    needed = array.offset + array.count * array.dtype.itemsize
    if size_bytes < needed:
        expected = f"{needed} bytes for {array.count} values of {array.dtype.name}"
        raise StoreError.mismatch(f"file '{array.file}'", expected, size_bytes, "It was cut short: copy it again.")
