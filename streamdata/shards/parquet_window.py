"""Windows of rows of parquet: `positions → row groups, decoded when they are due → records`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streamdata.fields import KEY, URL
from streamdata.shards.arrow_values import VALUE_BYTES
from streamdata.shards.coming import FileSpans
from streamdata.shards.decoded_runs import GroupRun
from streamdata.shards.parquet_file import MAX_COUNT
from streamdata.shards.portion import Portion
from streamdata.shards.readers import NO_FIELDS, Int64s, Record
from streamdata.shards.storage import is_remote

if TYPE_CHECKING:
    from streamdata.shards.parquet import ParquetShards

LOOK_AHEAD = 8192
LOOK_AHEAD_BYTES = 16 << 20
_FILLED_AT_ONCE = 256


class ParquetWindow:
    """Runs of rows of row groups; a group is decoded when the first of its rows is taken."""

    def __init__(self, shards: "ParquetShards", groups: Int64s, firsts: Int64s, counts: Int64s) -> None:
        self._shards, self._groups, self._firsts = shards, groups, firsts
        self._ends = np.cumsum(counts)
        self._starts = self._ends - counts
        # Of images, as many as are Python's objects at once.
        row_bytes = int(shards.row_bytes[groups].max(initial=1)) + VALUE_BYTES * len(shards.names)
        self.look_ahead = max(1, min(LOOK_AHEAD, LOOK_AHEAD_BYTES // row_bytes))
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
        return FileSpans(shards.urls, shards.stamps, np.concatenate(spans))

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
            ShardError: A row group is damaged, its file has changed, or a value has no type of Python's.
        """
        chosen = np.asarray(positions, np.int64)
        groups, rows, begins = self._runs_of(chosen)
        used = self._by_use(groups, begins)
        for run, _ in used:
            self._wait_for(run)
            self._shards.kept(run, self._decoded)
        # What the footer says may be too little: what is Python's objects at once is by what was found.
        size = max((self._shards.bytes_of_row(run) for run, _ in used), default=1)
        step = max(1, LOOK_AHEAD_BYTES // (size + VALUE_BYTES * len(self._shards.names)))
        for first in range(0, len(chosen), step):
            some = slice(first, first + step)
            yield from self._some(groups[some], rows[some], begins[some], common)

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

    def _some(self, groups: Int64s, rows: Int64s, begins: Int64s, common: Mapping[str, Any]) -> Iterator[Record]:
        """Rows of some runs, in their order; a record is made when it is asked for."""
        shards, slots_of, names = self._shards, list[Int64s](), self._shards.names
        columns: list[list[Any]] = [[] for _ in names]
        for run, of_run in self._by_use(groups, begins):
            for slots, found in shards.rows(run, self._decoded, rows[of_run] - run.first):
                for column, values in zip(columns, found, strict=True):
                    column.extend(values)
                slots_of.append(of_run[slots])
        if len(slots_of) > 1:  # in the order in which they were found
            in_order = np.argsort(np.concatenate(slots_of)).tolist()
            columns = [[column[place] for place in in_order] for column in columns]
        # An address, which may hold secrets, gets into no sample.
        urls = map(shards.url_texts.__getitem__, shards.file_of[groups].tolist())
        keys = map(str, (rows + shards.first_rows[groups]).tolist())
        fields = dict(zip([*names, URL, KEY], map(iter, [*columns, urls, keys]), strict=True))
        return _filled({**dict.fromkeys(fields), **common}, fields, len(groups))

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
                    self._shards.decode(asked, self._decoded, held)
                    wanted.discard(asked)
                    held = []


def _filled(empty: Record, fields: Mapping[str, Iterator[Any]], count: int) -> Iterator[Record]:
    """Copies of a record with the values of these fields.

    Column by column: a loop over the fields of each record takes twice as long, and a dict that grows is made anew.
    """
    for first in range(0, count, _FILLED_AT_ONCE):
        records = [empty.copy() for _ in range(min(_FILLED_AT_ONCE, count - first))]
        for name, values in fields.items():
            # Records first: `zip` asks its first one alone when it ends, and loses no value.
            for record, value in zip(records, values, strict=False):
                record[name] = value
        yield from records
