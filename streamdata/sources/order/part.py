"""The part of a source that is read: `holdout, part → a stable hash of each record's identity → which are of it`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamdata.recipe.named_source import HOLDOUT_KEYS, VALID, PartRange, read_selection
from streamdata.run import hashes_of, stable_seed

Seeds = np.uint64 | npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Part:
    """What is held out of a source, or the rest.

    A record's identity is the name of its shard and its number in that; of a map-style dataset the index, or of
    records that belong together the number of their block. Neither seed nor other shards count, nor what is in it, so
    that the part is known before the record is read, and both parts together are all records, each once.
    """

    holdout: float
    """The share of the records that is held out."""
    name: str
    """One of `PARTS`."""

    def __str__(self) -> str:
        return f"part {self.name} of holdout {self.holdout:g}"

    @property
    def share(self) -> float:
        """Which share of the records is of it, on average."""
        return self.holdout if self.name == VALID else 1 - self.holdout

    def holds(self, numbers: npt.NDArray[np.int64], seeds: Seeds) -> npt.NDArray[np.bool_]:
        """Which records are of it, bool (n,).

        Args:
            numbers: Of the records in their shards, int64 (n,).
            seeds: Of their shard, or of the shard of each (n,).
        """
        # What a smaller holdout holds out lies below its bound, and so below that of a larger one.
        is_held_out = hashes_of(numbers, seeds) < np.uint64(int(self.holdout * 2.0**64))
        return is_held_out if self.name == VALID else ~is_held_out


def part_of(dataset: Any) -> Part | None:
    """The part of a source that its attributes `holdout` and `part` ask for; None for all of it.

    Raises:
        ValueError: They are not valid.
    """
    read = _selection_of(dataset)
    return None if read is None or isinstance(read, PartRange) else Part(*read)


def range_of(dataset: Any) -> PartRange | None:
    """The part of a map-style dataset that its attributes `parts`, `parts_by` and `part` ask for; None for all of it.

    Raises:
        ValueError: They are not valid.
    """
    read = _selection_of(dataset)
    return read if isinstance(read, PartRange) else None


def _selection_of(dataset: Any) -> tuple[float, str] | PartRange | None:
    return read_selection(**{key: getattr(dataset, key, None) for key in HOLDOUT_KEYS})


# Not with the source's name: training and validation may call the same data by two.
MAP_STYLE_SEED = np.uint64(stable_seed("holdout"))


def shard_seeds(names: Sequence[str]) -> npt.NDArray[np.uint64]:
    """The seed of each shard, by its name without its directory: data may be moved."""
    return np.array([stable_seed("holdout", name) for name in names], np.uint64)
