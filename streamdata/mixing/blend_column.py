"""A sequence of numbers that are computed when asked for."""

from collections.abc import Callable, Iterator, Sequence
from operator import index as as_int
from typing import Any, overload

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]
_CHUNK = 1 << 16


class BlendColumn:
    """Indexed by an int, a slice or an array of integers; `numpy.asarray` computes all.

    Args:
        size: How many.
        compute: Positions in [0, size), int64 (m,), to values (m,).
        dtype: Of the values.
    """

    def __init__(self, size: int, compute: Callable[[Positions], npt.NDArray[Any]], dtype: npt.DTypeLike) -> None:
        self._size, self._compute, self.dtype = size, compute, np.dtype(dtype)

    @property
    def shape(self) -> tuple[int]:
        """As that of an array of one dimension."""
        return (self._size,)

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, key: int) -> int: ...

    @overload
    def __getitem__(self, key: slice | Sequence[int] | npt.NDArray[np.integer[Any]]) -> npt.NDArray[Any]: ...

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self._compute(np.arange(*key.indices(self._size), dtype=np.int64))
        if np.ndim(key) == 0:
            return int(self._compute(np.array([position_of(key, self._size)]))[0])
        return self._compute(positions_of(key, self._size))

    def __iter__(self) -> Iterator[int]:
        # In chunks: whoever iterates over 10**9 samples must not need the memory of all.
        for start in range(0, self._size, _CHUNK):
            yield from self[start : start + _CHUNK].tolist()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self[:].astype(self.dtype if dtype is None else dtype, copy=False)

    def __repr__(self) -> str:
        return f"BlendColumn(size={self._size}, dtype={self.dtype})"


def position_of(index: Any, size: int) -> int:
    """An index of a sequence, from its end where it is negative, as a position in [0, size).

    Raises:
        IndexError: It is outside.
        TypeError: It is no integer.
    """
    position = as_int(index)
    if not -size <= position < size:
        raise IndexError(f"index {position} is out of range for {size} samples")
    return position % size


def positions_of(indices: Any, size: int) -> Positions:
    """Indices, some of them perhaps negative, as positions in [0, size), int64 (m,).

    Raises:
        IndexError: One is outside, or they are no integers.
    """
    given = np.asarray(indices)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise IndexError(f"expected integers, got an array of {given.dtype} with shape {given.shape}")
    positions = given.astype(np.int64)
    outside = np.flatnonzero((positions < -size) | (positions >= size))
    if outside.size:
        raise IndexError(f"index {given[outside[0]]} is out of range for {size} samples")
    return np.where(positions < 0, positions + size, positions)
