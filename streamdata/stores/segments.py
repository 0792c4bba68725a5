"""The one form in which every format is read: per key a list of segments, and where each ends in the store."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from streamdata.errors import StoreError, names_text, shown
from streamdata.stores.bounds import Bounds, Even, Offsets, Starts, StoredArray
from streamdata.stores.dtypes import delivered_dtype

_MAX_EMPTY = 1 << 16  # no size of a file bounds how many they are, and a record gives each of its own


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
    records: Bounds
    items: Bounds | None = None
    rows: Even | Offsets | None = None
    documents: Starts | None = None
    is_undivided: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.items, Even) and not self.items.length and self.items.count > _MAX_EMPTY:
            raise StoreError(
                f"file '{self.data.file}': expected at most {_MAX_EMPTY} items without a value, got "
                f"{self.items.count}\n  Copy the shard again."
            )

    @property
    def arrays(self) -> list[StoredArray]:
        """All that is on disk, each once."""
        levels = (self.records, self.items, self.documents)
        return list(
            dict.fromkeys([self.data, *(array for level in levels if level is not None for array in level.arrays)])
        )


@dataclass(frozen=True, eq=False, slots=True)
class Shard:
    """What one shard holds.

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
        ends: Where each segment ends, in values.
        record_ends: Where each segment ends, in records.
    """

    def __init__(self, key: str, segments: Sequence[Segment]) -> None:
        self.key, self.segments = key, list(segments)
        dtypes = {delivered_dtype(segment.data.dtype): segment.data for segment in segments}
        if len(dtypes) > 1:
            kinds = {data.file: data.dtype.name for data in dtypes.values()}
            raise StoreError(
                f"key {shown(key)}: expected one kind of values in all shards, got {kinds}\n  Write it again."
            )
        self.dtype = next(iter(dtypes))
        raw = {np.dtype(np.uint8) if part.data.dtype.kind == "b" else part.data.dtype for part in segments}
        self.raw_dtype = raw.pop() if len(raw) == 1 else self.dtype
        self.ends = list(accumulate(segment.data.count for segment in segments))
        self.record_ends = list(accumulate(segment.records.count for segment in segments))
        self.starts = [0, *self.ends[:-1]]

    def __len__(self) -> int:
        return self.ends[-1]

    @property
    def num_records(self) -> int:
        """How many records."""
        return self.record_ends[-1]


def columns(shards: Sequence[Shard]) -> dict[str, Column]:
    """The columns of a store.

    Raises:
        StoreError: Shards have different keys, or different kinds of values.
    """
    first = shards[0]
    for shard in shards:
        if set(shard.segments) != set(first.segments):
            raise StoreError(
                f"shard '{shard.name}': expected the keys {names_text(first.segments)} of '{first.name}', "
                f"got {names_text(shard.segments)}\n  Give stores of different keys their own directories."
            )
    return {key: Column(key, [part for shard in shards for part in shard.segments[key]]) for key in first.segments}
