"""Runs of consecutive records → their rows in the indexes of their shards."""

from collections.abc import Callable
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from streamdata.errors import ShardError
from streamdata.shards.index_file import Rows
from streamdata.shards.indexing import Job, Stamps, rows_of
from streamdata.shards.readers import Int64s


class Runs(NamedTuple):
    """Runs of consecutive records, none of them empty; each array has one number per run."""

    shards: Int64s
    firsts: Int64s  # number of the first record, in its shard
    counts: Int64s

    def per_record(self, values: Int64s) -> Int64s:
        """One value per run → one per record."""
        return np.repeat(values, self.counts)

    def numbers(self) -> Int64s:
        """The number of each record, in its shard."""
        starts = np.cumsum(self.counts) - self.counts
        return np.arange(int(self.counts.sum())) + self.per_record(self.firsts - starts)


def gather(jobs: Callable[[int], tuple[Job, Stamps]], runs: Runs, dtype: np.dtype[Any]) -> tuple[Rows, Int64s]:
    """The rows of each run, with the row after it, and which of them are the records' own.

    What follows such a row tells where the record ends. Each shard's index is asked once.
    """
    shards = runs.shards.tolist()
    bounds = list(zip(runs.firsts.tolist(), runs.counts.tolist(), strict=True))
    pieces = [b""] * len(bounds)
    for shard, group in groupby(sorted(range(len(shards)), key=shards.__getitem__), shards.__getitem__):
        places = list(group)
        for place, piece in zip(places, rows_of(*jobs(shard), [bounds[place] for place in places]), strict=True):
            pieces[place] = piece
    own = np.arange(int(runs.counts.sum())) + runs.per_record(np.arange(len(shards)))
    return np.frombuffer(b"".join(pieces), dtype), own


def check_spans(url: Callable[[int], str], runs: Runs, begins: Int64s, ends: Int64s, sizes: Int64s) -> None:
    """Raise unless each record of an index lies within its shard: an index may come with a shard from anywhere."""
    wrong = np.flatnonzero((begins >= ends) | (begins < 0) | (ends > runs.per_record(sizes[runs.shards])))
    if len(wrong):
        place = int(wrong[0])
        raise ShardError(
            f"index of '{url(int(runs.per_record(runs.shards)[place]))}': record {int(runs.numbers()[place])} expected "
            f"within the shard, got bytes {int(begins[place])} to {int(ends[place])}\n"
            "  Delete the index; it is then built again."
        )
