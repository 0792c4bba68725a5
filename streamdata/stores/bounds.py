"""Where records, items and documents begin in a key's values: offsets that stay on disk, or one length.

Positions are relative to the segment. What is read from disk is checked when it is used, so that a store of 10^8
documents starts as fast as one of ten; `streamdata.stores.verify` checks all of it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from streamdata.errors import StoreError
from streamdata.stores.dtypes import Int64s


@dataclass(frozen=True, eq=False, slots=True)
class StoredArray:
    """A 1-D array on disk.

    Attributes:
        file: Its path.
        dtype: Little-endian (h5: as the dataset has it).
        count: How many values.
        offset: At which byte they begin; None where only the format's library can find them, in `dataset`.
        checksum: See `streamdata.stores.spool.checksum`; None where the format keeps none.
        has_sums: Whether sums of its file's blocks lie beside it; see `streamdata.stores.sums`.
        dataset: Its name in an h5 file.
    """

    file: str
    dtype: np.dtype[Any]
    count: int
    offset: int | None = 0
    checksum: str | None = None
    has_sums: bool = False
    dataset: str = ""


Open = Callable[[StoredArray], Any]
"""What gives the values of a stored array, at least by indexing with ints and slices."""


class Bounds(Protocol):
    """Runs of consecutive values."""

    @property
    def count(self) -> int:
        """How many runs."""
        ...

    def span(self, index: int, open_: Open) -> tuple[int, int]:
        """Where run `index` begins and ends.

        Raises:
            StoreError: What is stored cannot be right.
        """
        ...

    @property
    def arrays(self) -> tuple[StoredArray, ...]:
        """What of it is on disk."""
        ...


class Starts(Protocol):
    """Where runs of values begin, and nothing else of them."""

    def starts(self, begin: int, end: int, open_: Open) -> Int64s:
        """Where runs begin strictly between two positions, rising."""
        ...

    @property
    def arrays(self) -> tuple[StoredArray, ...]:
        """What of it is on disk."""
        ...


@dataclass(frozen=True, slots=True)
class Even:
    """Runs of one length."""

    count: int
    length: int

    @property
    def arrays(self) -> tuple[StoredArray, ...]:
        return ()

    def span(self, index: int, open_: Open) -> tuple[int, int]:
        return index * self.length, (index + 1) * self.length

    def offsets(self, first: int, last: int, open_: Open) -> Int64s:
        return np.arange(first, last + 1, dtype=np.int64) * self.length

    def starts(self, begin: int, end: int, open_: Open) -> Int64s:
        if not self.length:
            return np.empty(0, np.int64)
        return np.arange((begin // self.length + 1) * self.length, end, self.length, dtype=np.int64)


@dataclass(frozen=True, eq=False, slots=True)
class Offsets:
    """Runs that lie one after another.

    Attributes:
        count: How many runs.
        values: int64 (count + 1,) from 0 to `end`, on disk or (in old meta.json files) listed.
        end: Of the last run.
        who: Whose they are, for errors.
    """

    count: int
    values: StoredArray | Int64s
    end: int
    who: str

    @property
    def arrays(self) -> tuple[StoredArray, ...]:
        return (self.values,) if isinstance(self.values, StoredArray) else ()

    def span(self, index: int, open_: Open) -> tuple[int, int]:
        offsets = self._offsets(open_)
        begin, end = int(offsets[index]), int(offsets[index + 1])
        if not 0 <= begin <= end <= self.end or not self._reaches(index, begin, index + 1, end):
            raise damaged(self.who, index, begin, end, self.end)
        return begin, end

    def offsets(self, first: int, last: int, open_: Open) -> Int64s:
        found = np.asarray(self._offsets(open_)[first : last + 1], np.int64)
        wrong = np.flatnonzero(np.diff(found) < 0)
        if len(wrong) or found[0] < 0 or found[-1] > self.end or not self._reaches(first, found[0], last, found[-1]):
            index = int(wrong[0]) if len(wrong) else 0
            raise damaged(self.who, first + index, int(found[index]), int(found[index + 1]), self.end)
        return found

    def starts(self, begin: int, end: int, open_: Open) -> Int64s:
        offsets = self._offsets(open_)
        first = bisect_right(offsets, begin)
        return rising(offsets[first : bisect_left(offsets, end, first)], begin, end, self.who)

    def _reaches(self, first: int, begin: int, last: int, end: int) -> bool:
        """Whether the first run begins where the values do, and the last ends where they do."""
        return (first > 0 or begin == 0) and (last < self.count or end == self.end)

    def _offsets(self, open_: Open) -> Any:
        return open_(self.values) if isinstance(self.values, StoredArray) else self.values


@dataclass(frozen=True, eq=False, slots=True)
class Ends:
    """Runs that lie one after another, by their ends alone: the first begins at 0.

    Attributes:
        count: How many runs.
        values: Where each ends, rising to `end`, uint64 (count,) on disk.
        end: Of the last run.
        who: Whose they are, for errors.
    """

    count: int
    values: StoredArray
    end: int
    who: str

    @property
    def arrays(self) -> tuple[StoredArray, ...]:
        return (self.values,)

    def span(self, index: int, open_: Open) -> tuple[int, int]:
        ends = open_(self.values)
        begin, end = int(ends[index - 1]) if index else 0, int(ends[index])
        if not 0 <= begin <= end <= self.end:
            raise damaged(self.who, index, begin, end, self.end)
        return begin, end

    def starts(self, begin: int, end: int, open_: Open) -> Int64s:
        ends = open_(self.values)
        first = bisect_right(ends, begin)
        return rising(ends[first : bisect_left(ends, end, first)], begin, end, self.who)


def damaged(who: str, index: int, begin: int, end: int, most: int) -> StoreError:
    """The error for a run that cannot lie where its offsets say."""
    return StoreError(
        f"{who}: expected run {index} within 0 to {most}, got {begin} to {end}\n"
        "  The offsets are damaged: copy the shard again, and check it with `streamdata verify`."
    )


def rising(found: Any, begin: int, end: int, who: str) -> Int64s:
    """The offsets found between two positions, each once.

    Raises:
        StoreError: They do not rise, or lie elsewhere.
    """
    starts = np.asarray(found, np.int64)
    if len(starts) and (int(starts[0]) <= begin or int(starts[-1]) >= end or bool((np.diff(starts) < 0).any())):
        raise StoreError(
            f"{who}: expected rising offsets between {begin} and {end}, got {starts[:8].tolist()}\n"
            "  The offsets are damaged: copy the shard again, and check it with `streamdata verify`."
        )
    return np.unique(starts) if len(starts) > 1 else starts
