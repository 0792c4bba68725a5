"""Read-only maps of files, a bounded number of them in a process.

Published files never change, so a map may be shared with forked workers, and its pages with every process.
"""

import mmap
import os
from typing import Final

import numpy as np

from streamdata.errors import StoreError
from streamdata.shards.recent import Recent
from streamdata.stores.bounds import StoredArray
from streamdata.stores.dtypes import Values

MAX_MAPS: Final = 256
"""Each holds a descriptor, of which a process may often have 1,024; opening one again takes some 20 µs."""

_maps: Recent[StoredArray, Values] = Recent(MAX_MAPS)


def mapped(array: StoredArray) -> Values:
    """The values, read-only; bool as uint8, since a byte on disk may be any.

    Raises:
        StoreError: The file is shorter than it was.
    """
    return _maps.get(array, _map)


def _map(array: StoredArray) -> Values:
    dtype = np.dtype(np.uint8) if array.dtype.kind == "b" else array.dtype
    if not array.count:
        return np.empty(0, dtype)
    begin = _position(array)
    with open(array.file, "rb") as file:
        check_size(array, os.fstat(file.fileno()).st_size)
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(memory, dtype, array.count, begin)


def _position(array: StoredArray) -> int:
    assert isinstance(array.where, int), f"dataset {array.where!r} cannot be mapped"
    return array.where


def check_size(array: StoredArray, size_bytes: int) -> None:
    """Raise StoreError unless a file of this size holds the array."""
    needed = _position(array) + array.count * array.dtype.itemsize
    if size_bytes < needed:
        raise StoreError(
            f"file '{array.file}': expected {needed} bytes for {array.count} values of {array.dtype.name}, "
            f"got {size_bytes}\n  It was cut short: copy it again."
        )
