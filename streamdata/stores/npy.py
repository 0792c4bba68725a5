"""The header of numpy's `.npy`: `path → dtype, shape, where the values begin`, which are then read as others are."""

from math import prod
from typing import Any, Final, NamedTuple

import numpy as np

from streamdata.errors import StoreError
from streamdata.stores.bounds import StoredArray
from streamdata.stores.dtypes import stored_dtype

_MAGIC: Final = b"\x93NUMPY"


class NpyHeader(NamedTuple):
    """What a `.npy` says of its array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int  # the byte at which the values begin

    def stored(self, file: str) -> StoredArray:
        """The values of the file as one run."""
        return StoredArray(file, self.dtype, prod(self.shape), self.offset)


def read_npy_header(file: str) -> NpyHeader | None:
    """The header of a file; None where it does not begin with numpy's magic.

    Raises:
        FileNotFoundError: There is no such file.
        StoreError: The header is damaged, or its dtype is not one that a store can hold.
    """
    with open(file, "rb") as opened:
        if opened.read(len(_MAGIC)) != _MAGIC:
            return None
        opened.seek(0)
        try:
            version = np.lib.format.read_magic(opened)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(opened)
        except ValueError as error:
            raise StoreError(f"file '{file}': expected numpy's header, got {error}\n  Copy it again.") from error
        return NpyHeader(stored_dtype(dtype.str, f"file '{file}'"), shape, opened.tell())
