"""The one form in which every format is read: arrays on disk, runs of values in them, and per key a list of segments.

What is read from disk is checked when it is used, so that a store of 10^8 documents starts as fast as one of ten;
`streamdata.stores.factory` checks all of it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from streamdata.errors import StoreError, shown
from streamdata.stores.dtypes import Int64s

_MAX_EMPTY = 1 << 16  # no size of a file bounds how many they are, and a record gives each of its own


@dataclass(frozen=True, eq=False, slots=True)
class StoredArray:
    """A 1-D array on disk.

    Attributes:
        file: Its path.
        dtype: Little-endian (h5: as the dataset has it).
        count: How many values.
        offset: At which byte they begin; None where only the format's library can find them, in `dataset`.
        checksum: See `streamdata.stores.spool.checksum`; None where the format keeps none.
        has_sums: Whether sums of its file's blocks lie beside it; see `streamdata.stores.stored_values`.
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
"""Gives the values of a stored array, at least by indexing with ints and slices."""


@dataclass(frozen=True, slots=True)
class Even:
    """Runs of one length; positions are relative to the segment, as in all kinds of runs."""

    count: int
    length: int

    @property
    def arrays(self) -> tuple[StoredArray, ...]:
        """Those of their arrays that are on disk."""
        return ()

    def span(self, index: int, open_: Open) -> tuple[int, int]:
        """Where run `index` begins and ends."""
        return index * self.length, (index + 1) * self.length

    def spans(self, first: int, last: int, open_: Open) -> Int64s:
        """Where runs first to last begin, and the end of the last, int64 (last - first + 1,)."""
        return np.arange(first, last + 1, dtype=np.int64) * self.length

    def number_at(self, position: int, open_: Open) -> int:
        """The number of the run in which a position lies."""
        return position // self.length

    def starts(self, begin: int, end: int, open_: Open) -> Int64s:
        """Where runs begin strictly between two positions, rising."""
        if not self.length:
            return np.empty(0, np.int64)
        return np.arange((begin // self.length + 1) * self.length, end, self.length, dtype=np.int64)


@dataclass(frozen=True, eq=False, slots=True)
class Offsets:
    """Runs that lie one after another, by where each begins.

    Attributes:
        count: How many runs.
        values: On disk, or (in a `meta.json` of AstrAI) listed: int64 (count + 1,) from 0 to `end`.
        end: Of the last run.
        who: Whose they are, for errors.
        has_zero: Whether the values begin with the 0 of the first run; without it they say where each run ends.
    """

    count: int
    values: StoredArray | Int64s
    end: int
    who: str
    has_zero: bool = True

    @property
    def arrays(self) -> tuple[StoredArray, ...]:
        """Those of their arrays that are on disk."""
        return (self.values,) if isinstance(self.values, StoredArray) else ()

    def span(self, index: int, open_: Open) -> tuple[int, int]:
        """Where run `index` begins and ends.

        Raises:
            StoreError: What is stored cannot be right.
        """
        opened = self._opened(open_)
        begin, end = self.begin(index, opened), self.begin(index + 1, opened)
        if not 0 <= begin <= end <= self.end or not self._reaches(index, begin, index + 1, end):
            raise self.damaged(index, begin, end)
        return begin, end

    def spans(self, first: int, last: int, open_: Open) -> Int64s:
        """Where runs first to last begin, and the end of the last, int64 (last - first + 1,).

        Raises:
            StoreError: What is stored cannot be right.
        """
        begins = self.begins(first, last + 1, open_)
        wrong = np.flatnonzero(np.diff(begins) < 0)
        least, most = int(begins[0]), int(begins[-1])
        if len(wrong) or least < 0 or most > self.end or not self._reaches(first, least, last, most):
            index = int(wrong[0]) if len(wrong) else 0
            raise self.damaged(first + index, *begins[[index, -1] if not len(wrong) else [index, index + 1]].tolist())
        return begins

    def starts(self, begin: int, end: int, open_: Open) -> Int64s:
        """Where runs begin strictly between two positions, rising.

        Raises:
            StoreError: What is stored cannot be right.
        """
        place, first = partial(self.begin, opened=self._opened(open_)), self.number_at(begin, open_) + 1
        starts = self.begins(first, bisect_left(range(self.count), end, first, key=place), open_)
        if len(starts) and (int(starts[0]) <= begin or int(starts[-1]) >= end or bool((np.diff(starts) < 0).any())):
            raise self.damaged(first, int(starts[0]), int(starts[-1]))
        return np.unique(starts) if len(starts) > 1 else starts

    def number_at(self, position: int, open_: Open) -> int:
        """The number of the run in which a position lies."""
        return bisect_right(range(self.count), position, key=partial(self.begin, opened=self._opened(open_))) - 1

    def begin(self, index: int, opened: Any) -> int:
        """Where run `index` begins, by the opened values; of the one after the last, its end."""
        if not self.has_zero:
            index -= 1
        return int(opened[index]) if index >= 0 else 0

    def begins(self, first: int, last: int, open_: Open) -> Int64s:
        """Where runs first to the one before `last` begin."""
        skipped = 0 if self.has_zero else 1
        found = np.asarray(self._opened(open_)[max(first - skipped, 0) : max(last - skipped, 0)], np.int64)
        return found if skipped <= first or not last else np.concatenate(([0], found))

    def damaged(self, index: int, begin: int, end: int) -> StoreError:
        """The error for a run that cannot lie where its offsets say."""
        remedy = "The offsets are damaged: copy the shard again, and check it with `streamdata verify`."
        return StoreError.mismatch(self.who, f"run {index} within 0 to {self.end}", f"{begin} to {end}", remedy)

    def _opened(self, open_: Open) -> Any:
        return open_(self.values) if isinstance(self.values, StoredArray) else self.values

    def _reaches(self, first: int, begin: int, last: int, end: int) -> bool:
        """Whether the first run begins where the values do, and the last ends where they do."""
        return (first > 0 or begin == 0) and (last < self.count or end == self.end)


Runs: TypeAlias = Even | Offsets


@dataclass(frozen=True, eq=False, slots=True)
class Segment:
    """Consecutive values of a key.

    Attributes:
        data: The values.
        records: In values, or in items where there are such.
        items: Of keys whose records are lists: in values.
        rows: What windows must not cross.
        documents: Where documents begin, if that is recorded.
        is_undivided: Nothing says where its records begin, and all of it is taken for one.
    """

    data: StoredArray
    records: Runs
    items: Runs | None = None
    rows: Runs | None = None
    documents: Runs | None = None
    is_undivided: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.items, Even) and not self.items.length and self.items.count > _MAX_EMPTY:
            most = f"at most {_MAX_EMPTY} items without a value"
            raise StoreError.mismatch(f"file '{self.data.file}'", most, self.items.count, "Copy the shard again.")

    @property
    def levels(self) -> list[Runs]:
        """All kinds of runs in it, each once."""
        return list(dict.fromkeys(runs for runs in (self.records, self.items, self.documents) if runs is not None))

    @property
    def arrays(self) -> list[StoredArray]:
        """All that is on disk, each once."""
        return list(dict.fromkeys([self.data, *(array for runs in self.levels for array in runs.arrays)]))


@dataclass(frozen=True, eq=False, slots=True)
class Shard:
    """The arrays of one shard, by key.

    Attributes:
        name: Its file, for errors.
        segments: Per key.
        train_types: What it was written for; None where it does not say.
    """

    name: str
    segments: dict[str, list[Segment]]
    train_types: tuple[str, ...] | None = None


class Column:
    """All segments of a key.

    Attributes:
        dtype: Of what is delivered.
        raw_dtype: Of what is on disk, bool as uint8; `dtype` where shards differ.
        starts: Where each segment begins, in values.
        ends: Where each segment ends, in values.
        record_ends: Where each segment ends, in records.
    """

    def __init__(self, key: str, segments: Sequence[Segment]) -> None:
        self.key, self.segments = key, list(segments)
        on_disk = {segment.data.dtype: segment.data.file for segment in segments}
        # Integers of any width come out as int64.
        dtypes = {np.dtype(np.int64) if dtype.kind in "iu" else dtype.newbyteorder("=") for dtype in on_disk}
        if len(dtypes) > 1:
            kinds = {file: dtype.name for dtype, file in on_disk.items()}
            raise StoreError.mismatch(f"key {shown(key)}", "one kind of values in all shards", kinds, "Write it again.")
        self.dtype = dtypes.pop()
        raw = np.dtype(np.uint8) if self.dtype.kind == "b" else next(iter(on_disk))
        self.raw_dtype = raw if len(on_disk) == 1 else self.dtype
        self.ends = list(accumulate(segment.data.count for segment in segments))
        self.record_ends = list(accumulate(segment.records.count for segment in segments))
        self.starts = [0, *self.ends[:-1]]

    def __len__(self) -> int:
        return self.ends[-1]

    @property
    def num_records(self) -> int:
        """How many records."""
        return self.record_ends[-1]

    def segment_of_record(self, index: int) -> tuple[int, int]:
        """The number of the segment that a record is in, and its number there."""
        number = bisect_right(self.record_ends, index)
        return number, index - self.record_ends[number] + self.segments[number].records.count
