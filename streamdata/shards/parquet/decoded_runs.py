"""Runs of rows of parquet's row groups, decoded: kept within a bound, the last ones used longest."""

from typing import Any, NamedTuple


class GroupRun(NamedTuple):
    """Consecutive rows of a row group that are decoded together."""

    shard: int
    first: int
    num_rows: int


class DecodedRun(NamedTuple):
    """The rows of a run."""

    batches: list[Any]
    """Mostly one."""
    num_bytes: int


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

    def make_room(self, num_bytes: int) -> bool:
        """Keep no more than so many bytes; whether some run had to go for it."""
        before = len(self._runs)
        while self._runs and self.num_bytes > num_bytes:
            self.num_bytes -= self._runs.pop(next(iter(self._runs))).num_bytes
        return len(self._runs) < before
