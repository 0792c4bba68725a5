"""Which windows there are: `number of a window → where it begins`, computed, without a list of them."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from streamdata.stores.bounds import Even, Offsets
from streamdata.stores.dtypes import Int64s
from streamdata.stores.store import Store

_ROWS_PER_CHUNK = 512  # 4 KiB of offsets: one block of a file with sums


class WindowBegins(NamedTuple):
    """Where windows begin.

    Attributes:
        begins: The first token of each, in the whole store.
        at_row_end: Of each whether no token of its row follows that could be its last target; empty if none is so.
    """

    begins: Sequence[int]
    at_row_end: Sequence[bool] = ()


class FlatWindows:
    """Windows over tokens without borders; each needs one token more, for its last target.

    Args:
        num_tokens: That they are cut from.
        size: Of a window, in tokens.
        stride: Tokens from one window to the next.
        start: Where the tokens begin in the store.

    Attributes:
        unused: How many tokens at the end are in no window.
    """

    def __init__(self, num_tokens: int, size: int, stride: int, start: int = 0) -> None:
        self._count = 1 + (num_tokens - 1 - size) // stride if num_tokens > size else 0
        self._stride, self.start = stride, start
        self.unused = num_tokens - ((self._count - 1) * stride + size + 1 if self._count else 0)

    def __len__(self) -> int:
        return self._count

    def locate(self, numbers: Sequence[int]) -> WindowBegins:
        """Where these windows begin."""
        start, stride = self.start, self._stride
        return WindowBegins([start + number * stride for number in numbers])


class RowWindows:
    """Windows that lie in one packed row each; one that ends with its row lacks the last target.

    Where rows are equally long, as packing makes them, everything is computed. Otherwise their lengths are read once,
    and one number per 512 rows is kept.

    Attributes:
        unused: How many tokens at the ends of rows are in no window.
    """

    def __init__(self, store: Store, key: str, size: int, stride: int) -> None:
        column = store.column(key)
        parts = []
        for segment, start in zip(column.segments, column.starts, strict=True):
            assert segment.rows is not None, "windows in rows of a store without rows"
            parts.append(_SegmentWindows(store, segment.rows, start, size, stride))
        self._parts: Sequence[_SegmentWindows] = parts
        self._ends = list(accumulate(part.count for part in parts))
        self.unused = sum(part.unused for part in parts)

    def __len__(self) -> int:
        return self._ends[-1]

    def locate(self, numbers: Sequence[int]) -> WindowBegins:
        """Where these windows begin."""
        begins, at_row_end = [], []
        for number in numbers:
            index = bisect_right(self._ends, number)
            part = self._parts[index]
            begin, is_last = part.locate(number - self._ends[index] + part.count)
            begins.append(begin)
            at_row_end.append(is_last)
        return WindowBegins(begins, at_row_end if any(at_row_end) else ())


class _SegmentWindows:
    """The windows of one segment."""

    def __init__(self, store: Store, rows: Even | Offsets, start: int, size: int, stride: int) -> None:
        self._store, self._rows, self._start, self._size, self._stride = store, rows, start, size, stride
        self._chunk_ends: list[int] = []
        if isinstance(rows, Even):
            lengths = np.array([rows.length])
            self.count = int(self._counts(lengths)[0]) * rows.count
            self.unused = int(self._unused(lengths)) * rows.count
        else:
            self.unused, end = 0, 0
            for first in range(0, rows.count, _ROWS_PER_CHUNK):
                lengths = np.diff(self._offsets(first))
                end += int(self._counts(lengths).sum())
                self.unused += self._unused(lengths)
                self._chunk_ends.append(end)
            self.count = end

    def locate(self, number: int) -> tuple[int, bool]:
        rows = self._rows
        if isinstance(rows, Even):
            row, inner = divmod(number, 1 + (rows.length - self._size) // self._stride)
            begin, end = rows.span(row, self._store.values)
        else:
            chunk = bisect_right(self._chunk_ends, number)
            inner = number - (self._chunk_ends[chunk - 1] if chunk else 0)
            offsets = self._offsets(chunk * _ROWS_PER_CHUNK)
            ends = np.cumsum(self._counts(np.diff(offsets)))
            row = int(np.searchsorted(ends, inner, side="right"))
            inner -= int(ends[row - 1]) if row else 0
            begin, end = offsets[row : row + 2].tolist()
        begin += inner * self._stride
        return self._start + begin, begin + self._size == end

    def _counts(self, lengths: Int64s) -> Int64s:
        counts: Int64s = np.where(lengths < self._size, 0, 1 + (lengths - self._size) // self._stride)
        return counts

    def _unused(self, lengths: Int64s) -> int:
        counts = self._counts(lengths)
        used = np.where(counts > 0, (counts - 1) * self._stride + self._size + 1, 0)
        return int((lengths - np.minimum(used, lengths)).sum())

    def _offsets(self, first: int) -> Int64s:
        return self._rows.offsets(first, min(first + _ROWS_PER_CHUNK, self._rows.count), self._store.values)
