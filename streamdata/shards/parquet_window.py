"""Windows of rows of parquet: `positions → row groups, decoded when they are due → records`."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from streamdata.fields import KEY, URL
from streamdata.shards.arrow_values import VALUE_BYTES, values_of
from streamdata.shards.coming import FileSpans
from streamdata.shards.decoded_runs import GroupRun
from streamdata.shards.parquet_file import MAX_COUNT
from streamdata.shards.portion import Portion
from streamdata.shards.readers import NO_FIELDS, DamagedRecordError, Int64s, Record
from streamdata.shards.run_decoder import Picks
from streamdata.shards.storage import is_remote

if TYPE_CHECKING:
    from streamdata.shards.parquet import ParquetShards

_LOOK_AHEAD, _LOOK_AHEAD_BYTES = 8192, 16 << 20
# As many rows become Python's objects at once as stay in a processor's cache: of fresh memory each page takes a fault.
_STEP_ROWS, _STEP_BYTES = 1024, 512 << 10
_LEAST_OF_RUN = 8
"""Rows of a run in a step, on average, at least: each run costs as much as several rows."""


class ParquetWindow:
    """Runs of rows of row groups; a group is decoded when the first of its rows is taken."""

    def __init__(self, shards: "ParquetShards", groups: Int64s, firsts: Int64s, counts: Int64s) -> None:
        self._shards, self._groups, self._firsts = shards, groups, firsts
        self._ends = np.cumsum(counts)
        self._starts = self._ends - counts
        row_bytes = int(shards.groups.row_bytes[groups].max(initial=1))
        self.look_ahead = max(1, min(_LOOK_AHEAD, _LOOK_AHEAD_BYTES // row_bytes))
        self._coming: Iterator[Portion | None] = iter(())
        self._asked: list[tuple[GroupRun, int, int, bool]] = []
        """Of each span that was asked for: whose it is, where it begins, how long it is, whether it is the last."""
        self._done = 0
        self._decoded = shards.new_decoded()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def spans(self) -> list[FileSpans]:
        """None: `spans_by_use` has them by row group."""
        return []

    def take_cached(self) -> bool:
        """Always false: the cache is asked for each span."""
        return False

    def _runs_of(self, positions: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """The group, the number in it, and the first row of the run, of each position."""
        runs = np.searchsorted(self._ends, positions, side="right")
        groups = self._groups[runs]
        rows = self._firsts[runs] + positions - self._starts[runs]
        return groups, rows, rows // self._shards.run_rows[groups] * self._shards.run_rows[groups]

    def spans_by_use(self, positions: Int64s) -> FileSpans:
        """What is to be asked for of remote files, in the order in which these positions need it."""
        shards = self._shards
        groups, _, begins = self._runs_of(positions)
        _, firsts = np.unique(np.stack([groups, begins], axis=1), axis=0, return_index=True)
        spans = [np.zeros((0, 3), np.int64)]
        for position in np.sort(firsts).tolist():
            run = shards.run_at(int(groups[position]), int(begins[position]))
            if not is_remote(shards.url_of(run.shard)):
                continue
            own = shards.spans_of(run)
            spans.append(own)
            sizes = (own[:, 2] - own[:, 1]).tolist()
            for number, (begin, size) in enumerate(zip(own[:, 1].tolist(), sizes, strict=True), 1):
                self._asked.append((run, begin, size, number == len(own)))
        return FileSpans(shards.urls, shards.groups.stamps, np.concatenate(spans))

    def come(self, portions: Iterator[Portion | None]) -> None:
        """Note what brings the spans that were asked for."""
        self._coming = portions

    def take(
        self,
        positions: Sequence[int] | Int64s,
        common: Mapping[str, Any] = NO_FIELDS,
        portion: Portion | None = None,
    ) -> Iterator[Record]:
        """The records at these positions, in this order, each with the fields `common` beside its own.

        Raises:
            DamagedRecordError: A value of the next row has no type of Python's.
            ShardError: A row group is damaged, or its file has changed.
        """
        return chain.from_iterable(self._up_to_damage(np.asarray(positions, np.int64), common))

    def _up_to_damage(self, positions: Int64s, common: Mapping[str, Any]) -> Iterator[list[Record]]:
        done = 0
        try:
            for records in self._steps(positions, common):
                yield records
                done += len(records)
        except DamagedRecordError:  # of rows that were to become Python's together: those before it come first
            for position in positions[done:, None]:
                yield from self._steps(position, common)

    def _steps(self, positions: Int64s, common: Mapping[str, Any]) -> Iterator[list[Record]]:
        """Some records at a time: lists, so that nothing of Python's runs for each record."""
        decoder = self._shards.decoder
        groups, rows, begins = self._runs_of(positions)
        used = self._by_use(groups, begins)
        for run, _ in used:
            self._wait_for(run)
            decoder.kept(run, self._decoded)
        # What the footer says may be too little.
        row_bytes = max((decoder.bytes_of_row(run) for run, _ in used), default=1)
        at_once = max(1, _LOOK_AHEAD_BYTES // row_bytes)
        objects = row_bytes + VALUE_BYTES * len(self._shards.groups.names)
        step = max(1, min(_STEP_ROWS, _STEP_BYTES // objects), min(_LEAST_OF_RUN * len(used), at_once))
        for first in range(0, len(positions), at_once):
            some = slice(first, first + at_once)
            picks = [
                found._replace(slots=of_run[found.slots])
                for run, of_run in self._by_use(groups[some], begins[some])
                for found in decoder.picks(run, self._decoded, rows[some][of_run] - run.first)
            ]
            yield from _in_order(picks, step, {**dict.fromkeys([*self._shards.groups.names, URL, KEY]), **common})

    def _by_use(self, groups: Int64s, begins: Int64s) -> list[tuple[GroupRun, Int64s]]:
        """The runs of some rows, in the order of their first ones, each with which of these rows are its own."""
        if len(groups) and groups.min() == groups.max() and begins.min() == begins.max():  # often; no sort is needed
            return [(self._shards.run_at(int(groups[0]), int(begins[0])), np.arange(len(groups)))]
        _, firsts, which = np.unique(groups * MAX_COUNT + begins, return_index=True, return_inverse=True)
        own = np.split(np.argsort(which, kind="stable"), np.cumsum(np.bincount(which))[:-1])
        in_order = np.argsort(firsts).tolist()
        firsts_in_order = firsts[in_order].tolist()
        runs = [self._shards.run_at(int(groups[first]), int(begins[first])) for first in firsts_in_order]
        return [(run, own[number]) for run, number in zip(runs, in_order, strict=True)]

    def _wait_for(self, run: "GroupRun") -> None:
        """Decode what was asked for, up to this run, as it comes."""
        wanted = {asked for asked, *_ in self._asked[self._done :]}
        held: list[tuple[int, memoryview]] = []
        while run in wanted and (portion := next(self._coming, None)) is not None:
            memories, offsets = portion.located(0, np.arange(portion.begin, portion.end))
            for memory, offset in zip(memories, offsets, strict=True):
                asked, begin, size, is_last = self._asked[self._done]
                held.append((begin, memoryview(memory)[offset : offset + size]))
                self._done += 1
                if is_last:
                    self._shards.decoder.decode(asked, self._decoded, held)
                    wanted.discard(asked)
                    held = []


def _in_order(picks: list[Picks], step: int, empty: Record) -> Iterator[list[Record]]:
    """The records of some picks, each at its place."""
    count = sum(len(one.slots) for one in picks)
    if len(picks) == 1:
        (one,) = picks
        for begin in range(0, count, step):
            yield _records(one, begin, min(begin + step, count), empty)
        return
    picks = [one.taken() for one in picks]  # once: to take a few rows costs as much as many
    owners = np.zeros(count, np.int64)
    for number, one in enumerate(picks):
        owners[one.slots] = number
    done = [0] * len(picks)
    for begin in range(0, count, step):
        of_step = owners[begin : begin + step]
        records: list[Record] = []
        for number, more in enumerate(np.bincount(of_step, minlength=len(picks)).tolist()):
            if more:
                records += _records(picks[number], done[number], done[number] + more, empty)
                done[number] += more
        places = np.empty(len(of_step), np.int64)
        places[np.argsort(of_step, kind="stable")] = np.arange(len(of_step))
        yield [records[place] for place in places.tolist()]


def _records(picks: Picks, begin: int, end: int, empty: Record) -> list[Record]:
    """Those of the picks [begin, end): copies of a record that has all fields, filled column by column."""
    # A loop over the fields of each record takes twice as long, and a dict that grows is made anew.
    batch, numbers = picks.some(begin, end), picks.numbers[begin:end]
    # An address, which may hold secrets, gets into no sample.
    filled = {**empty, URL: picks.url}
    records = [filled.copy() for _ in range(len(numbers))]
    columns = zip(batch.schema.names, values_of(batch, picks.url, numbers), strict=True)
    for name, values in [*columns, (KEY, map(str, numbers.tolist()))]:
        for record, value in zip(records, values, strict=True):
            record[name] = value
    return records
