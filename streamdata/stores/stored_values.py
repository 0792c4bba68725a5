"""The values of an array, out of its file: by positioned reads, or through a map where that is asked for.

A file that is cut short while it is read gives an error here; under a map it ends the process. So maps are for those
who own the files. Published files do not change, so that open ones may be shared with forked workers.
"""

import mmap
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from streamdata.errors import StoreError, note_place
from streamdata.run.recent import Recent, open_files
from streamdata.shards.storage import LocalShard
from streamdata.stores.bounds import StoredArray
from streamdata.stores.dtypes import Values
from streamdata.stores.sums import BLOCK, Sums

_KEPT_BLOCKS = 1024
_KEPT_VALUES = 512

_kept: Recent[tuple[StoredArray, int], Values] = Recent(_KEPT_BLOCKS)


def opened_values(array: StoredArray, make: Callable[[StoredArray], "StoredValues"]) -> "StoredValues":
    """The values of an array, one of a bounded number of files that are open in a thread.

    Each has two file descriptors, or three if mapped; opening one again takes 20 µs.
    """
    values: StoredValues = open_files.get(array, make)
    return values


class StoredValues:
    """Reads like a numpy array of one dimension, by slices and ints, in the dtype on disk.

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
        self._map = memoryview(_mapped(self._file)) if mapped else None

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
        try:
            data = os.pread(self._file.fd, high - low, low) if self._map is None else self._map[low:high]
        except OSError as error:
            note_place(error, self._array.file, low, high)
            raise
        if len(data) < high - low:
            data = self._read_on(low, high, end)
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
        if sums is None:  # nothing to check: the file is read straight into the rows
            fd, zero = self._file.fd, self._begin - start * item_bytes
            for number, first in begins:
                begin = zero + first * item_bytes
                try:
                    got = os.preadv(fd, (rows[number],), begin)
                except OSError as error:
                    note_place(error, self._array.file, begin, begin + size_bytes)
                    raise
                if got < size_bytes:
                    rows[number] = self.read(first - start, first - start + length)
            return
        # One loop with little in it, since batches of windows are read here. All are read into the same few blocks,
        # which stay in the processor's cache until they are checked and copied.
        fd = self._file.fd
        read, copies = np.empty((2 - size_bytes // -BLOCK) * BLOCK, np.uint8), rows.view(np.uint8)
        memory = read.data
        blocks = [memory[at : at + BLOCK] for at in range(0, len(memory), BLOCK)]
        zero = self._begin - start * item_bytes
        for number, first in begins:
            begin = zero + first * item_bytes
            low = begin & -BLOCK
            num_blocks = (begin + size_bytes - low + BLOCK - 1) // BLOCK
            read_bytes = num_blocks * BLOCK
            try:
                got = os.preadv(fd, (memory[:read_bytes],), low)
            except OSError as error:
                note_place(error, self._array.file, low, low + read_bytes)
                raise
            if got == read_bytes:
                sums.check(blocks[:num_blocks], low)
                copies[number] = read[begin - low : begin - low + size_bytes]
            else:  # the last block of a file, or what is not there any more
                rows[number] = self.read(first - start, first - start + length)

    def _block(self, key: tuple[StoredArray, int]) -> Values:
        first = key[1] * _KEPT_VALUES
        values: Values = self[first : first + _KEPT_VALUES]
        return values.copy()  # not a view of a map, or of more than is kept

    def _read_on(self, low: int, high: int, end: int) -> bytes | memoryview:
        """What one call does not read: more than 2 GiB, the last block of a file, or what is not there any more."""
        if self._map is not None:
            return self._map[low:high]
        data = self._file.read(high - low, low)
        if len(data) < end - low:
            raise StoreError(
                f"file '{self._array.file}': expected {end - low} bytes at {low}, got {len(data)}\n"
                "  It was cut short while it was read: copy it again."
            )
        return data


def _mapped(file: LocalShard) -> mmap.mmap | bytes:
    return mmap.mmap(file.fd, 0, access=mmap.ACCESS_READ) if file.size else b""  # nothing cannot be mapped


def check_size(array: StoredArray, size_bytes: int) -> None:
    """Raise StoreError unless a file of this size holds the array."""
    assert array.offset is not None, f"dataset {array.dataset!r} is read through its library"
    needed = array.offset + array.count * array.dtype.itemsize
    if size_bytes < needed:
        raise StoreError(
            f"file '{array.file}': expected {needed} bytes for {array.count} values of {array.dtype.name}, "
            f"got {size_bytes}\n  It was cut short: copy it again."
        )
