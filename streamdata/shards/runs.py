"""Runs of consecutive records → their rows in the indexes of their shards."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from streamdata.errors import ShardError
from streamdata.shards.index_file import Rows
from streamdata.shards.indexing import Job, Stamps, rows_of
from streamdata.shards.readers import Int64s


class Runs(NamedTuple):
    """The records of several runs, one after another."""

    shards: Int64s  # of each record
    numbers: Int64s  # of each record, in its shard
    counts: Int64s  # of the records of each run, none of them 0


def spread(shards: Int64s, firsts: Int64s, counts: Int64s) -> Runs:
    """The records of the runs [first, first + count)."""
    starts = np.cumsum(counts) - counts
    numbers = np.arange(int(counts.sum()), dtype=np.int64) + np.repeat(firsts - starts, counts)
    return Runs(np.repeat(shards, counts), numbers, counts[counts > 0])


def gather(jobs: Callable[[int], tuple[Job, Stamps]], runs: Runs, dtype: np.dtype[Any]) -> tuple[Rows, Rows]:
    """The index rows of the records of `runs` and the rows after them; each shard's index is asked once."""
    rows: Rows = np.empty(len(runs.shards), dtype)
    following: Rows = np.empty(len(runs.shards), dtype)
    order = np.argsort(runs.shards, kind="stable")
    shards, begins = np.unique(runs.shards[order], return_index=True)
    for shard, begin, end in zip(shards.tolist(), begins, [*begins[1:], len(order)], strict=False):
        places = order[begin:end]
        rows[places], following[places] = rows_of(*jobs(shard), runs.numbers[places])
    return rows, following


def check_spans(url: Callable[[int], str], runs: Runs, begins: Int64s, ends: Int64s, sizes: Int64s) -> None:
    """Raise unless each record of an index lies within its shard: an index may come with a shard from anywhere."""
    wrong = np.flatnonzero((begins >= ends) | (begins < 0) | (ends > sizes[runs.shards]))
    if len(wrong):
        place = int(wrong[0])
        raise ShardError(
            f"index of '{url(int(runs.shards[place]))}': record {int(runs.numbers[place])} expected within the shard, "
            f"got bytes {int(begins[place])} to {int(ends[place])}\n  Delete the index; it is then built again."
        )
