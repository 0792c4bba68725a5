"""Runs of rows of parquet's row groups, decoded: kept within a bound, the last ones used longest."""

from typing import Any, NamedTuple

from streamdata.shards.readers import Int64s


class GroupRun(NamedTuple):
    """Consecutive rows of a row group that are decoded together."""

    shard: int
    first: int
    num_rows: int


class DecodedRun(NamedTuple):
    """The rows of a run."""

    batches: list[Any]
    ends: Int64s
    """How many rows there are up to the end of each batch."""
    num_bytes: int
    columns: list[list[Any]] | None = None
    """In place of batches: the values of each column."""


class DecodedRuns:
    """Some of them.

    Args:
        max_bytes: They have together.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._runs: dict[GroupRun, DecodedRun] = {}
        self.num_bytes = 0

    def get(self, run: GroupRun) -> DecodedRun | None:
        """One of them, if it is kept."""
        decoded = self._runs.pop(run, None)
        if decoded is not None:
            self._runs[run] = decoded  # the first in the dict is the one that was used longest ago
        return decoded

    def add(self, run: GroupRun, decoded: DecodedRun) -> DecodedRun:
        """Keep one more."""
        self._runs[run] = decoded
        self.num_bytes += decoded.num_bytes
        return decoded

    def replace(self, run: GroupRun, decoded: DecodedRun) -> DecodedRun:
        """Keep the same rows in another form."""
        self.num_bytes += decoded.num_bytes - self._runs[run].num_bytes
        self._runs[run] = decoded
        return decoded

    def make_room(self, num_bytes: int) -> None:
        """Keep no more than so many bytes."""
        while self._runs and self.num_bytes > num_bytes:
            self.num_bytes -= self._runs.pop(next(iter(self._runs))).num_bytes
