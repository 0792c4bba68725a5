"""Parquet files as shards: `files → row groups → windows of runs of rows, each group decoded once in a window`."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import chain
from typing import Any

import numpy as np

from streamdata.fields import KEY, URL
from streamdata.io.remote.addresses import CacheSettings, keep_in
from streamdata.io.storage import Int64s, base_name, close_unused, is_pipe, is_remote
from streamdata.shards.ahead.spans import FileSpans
from streamdata.shards.ahead.windows import Chunk
from streamdata.shards.index.manifest_file import NOTHING_KNOWN, Known, stamps_for
from streamdata.shards.parquet.file import MAX_COUNT
from streamdata.shards.parquet.row_groups import RowGroups
from streamdata.shards.parquet.run_decoder import GroupRun, Picks, RunDecoder
from streamdata.shards.parquet.values import VALUE_BYTES, values_of
from streamdata.shards.readers import NO_FIELDS, DamagedRecordError, Record

_LOOK_AHEAD, _LOOK_AHEAD_BYTES = 8192, 16 << 20
# As many rows become Python's objects at once as stay in a processor's cache: of fresh memory each page takes a fault.
_STEP_ROWS, _STEP_BYTES = 1024, 512 << 10
_LEAST_OF_RUN = 8
"""Rows of a run in a step, on average, at least: each run costs as much as several rows."""
_MAX_RUN_ROWS = 1 << 20  # so that the positions of a window take little beside its rows


class ParquetShards:
    """Parquet files as shards; each row group counts as one shard.

    Args:
        urls: The files.
        columns: Those that are read; None for all.
        max_open_bytes: How much is decoded and kept at most.
        known: What is known of the files already.

    Raises:
        FileNotFoundError: A file does not exist.
        ShardError: A file is damaged, lacks a column, or has one of another type than the first file.
    """

    def __init__(
        self, urls: list[str], columns: Sequence[str] | None, max_open_bytes: int, known: Known = NOTHING_KNOWN
    ) -> None:
        for url in filter(is_pipe, urls):
            raise ValueError(f"parquet: expected files, got '{url}', which cannot be sought in\n  Write it to a file.")
        close_unused(urls)
        stamps = stamps_for(urls, known)
        self.urls, self.max_open_bytes = urls, max_open_bytes
        self.has_remote = any(map(is_remote, urls))
        self.groups = RowGroups(urls, [stamps[url] for url in urls], columns, at_once=self.has_remote)
        self.num_records, self.sizes = self.groups.num_records, self.groups.sizes
        self.fits = int(self.sizes.sum()) <= max_open_bytes
        """Whether all of it stays decoded, by what footers say."""
        # Else the present window and the next one are kept, each with room for what footers say too little of.
        self.window_bytes = max(1, max_open_bytes // 3)
        """Bytes of a window, at most, where not all of the source stays."""
        self.run_rows = self.num_records
        """Rows of each group that are decoded together, at most."""
        if not self.fits:  # those of the fewest parts, as large as each other, that may be kept
            is_small, rows = self.sizes <= self.window_bytes, self.num_records
            most = np.clip(np.where(is_small, rows, self.window_bytes // self.groups.row_bytes), 1, _MAX_RUN_ROWS)
            self.run_rows = -(-rows // -(-rows // most))
        self.decodes_ahead = not self.has_remote and not self.fits
        self._kept_bytes = max_open_bytes if self.fits else max_open_bytes // 2
        self.decoder = RunDecoder(self.groups, self._kept_bytes, keeps_all=self.fits)
        self.cache: CacheSettings | None = None
        self.asked: set[GroupRun] = set()
        """Runs whose spans were asked for in this process."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "asked": set()}

    def use_cache(self, cache: CacheSettings | None) -> None:
        """Set where pages of remote files are cached; None leaves it to the environment."""
        self.cache = self.decoder.cache = cache
        keep_in(cache, self.urls)

    def is_slow(self) -> bool:
        """Whether row groups should be requested before they are needed."""
        return self.has_remote

    def confirm(self, *, wait: bool) -> None:
        """Raise ShardError if a file read from the cache has changed on its host."""
        self.decoder.confirmations.check(wait=wait)

    def identity(self) -> list[tuple[str, int]]:
        """The base name of each row group's file, and its number of rows."""
        names = list(map(base_name, self.urls))
        files = self.groups.file_of.tolist()
        return list(zip(map(names.__getitem__, files), self.num_records.tolist(), strict=True))

    def url_of(self, shard: int) -> str:
        """The url of a row group's file."""
        return self.groups.url_of(shard)

    def last_line(self, file: int) -> int:
        """The number of a file's last row, which is its key; -1 if it has no rows."""
        return int(self.groups.rows_of_file[file]) - 1

    def anomalies(self) -> dict[str, int]:
        return {}

    def prefetch_rows(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> "Sequence[Future[Any]]":
        """Do nothing: the facts of all groups are in memory."""
        return ()

    def window(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> "ParquetWindow":
        """The window of the runs [first, first + count) of the groups."""
        return ParquetWindow(self, shards, firsts, counts)

    def decode_ahead(self, present: tuple[Int64s, Int64s], later: Sequence[tuple[Int64s, Int64s]]) -> None:
        """Decode in a thread what later windows will need; drop what no window needs.

        Args:
            present: Group and first row of each run of the present window.
            later: Of other windows.
        """
        runs = [
            [self.run_at(shard, row) for shard, row in zip(shards.tolist(), firsts.tolist(), strict=True)]
            for shards, firsts in (present, *later)
        ]
        self.decoder.ask(runs[0], list(dict.fromkeys(chain.from_iterable(runs[1:]))))

    def run_at(self, shard: int, row: int) -> GroupRun:
        """The run that contains a row of a group: the unit of decoding."""
        size = int(self.run_rows[shard])
        first = row // size * size
        return GroupRun(shard, first, min(size, int(self.num_records[shard]) - first))


class ParquetWindow:
    """Runs of rows of row groups; a group is decoded when its first row is taken."""

    def __init__(self, shards: ParquetShards, groups: Int64s, firsts: Int64s, counts: Int64s) -> None:
        self._shards, self._groups, self._firsts = shards, groups, firsts
        self._ends = np.cumsum(counts)
        self._starts = self._ends - counts
        row_bytes = int(shards.groups.row_bytes[groups].max(initial=1))
        self.look_ahead = max(1, min(_LOOK_AHEAD, _LOOK_AHEAD_BYTES // row_bytes))
        self._chunks: Iterator[Chunk | None] = iter(())
        self._asked: list[tuple[GroupRun, int, int, bool]] = []
        """Spans that were asked for: the run of each, where it begins, how long it is, whether it is the last."""
        self._done = 0
        self._decoded = shards.decoder.new_decoded()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def spans(self) -> list[FileSpans]:
        """Empty: `spans_by_use` gives the spans, by row group."""
        return []

    def take_cached(self) -> bool:
        """Always false: the cache is consulted for each span."""
        return False

    def _runs_of(self, positions: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """The group, the number in it, and the first row of the run, of each position."""
        runs = np.searchsorted(self._ends, positions, side="right")
        groups = self._groups[runs]
        rows = self._firsts[runs] + positions - self._starts[runs]
        return groups, rows, rows // self._shards.run_rows[groups] * self._shards.run_rows[groups]

    def spans_by_use(self, positions: Int64s) -> FileSpans:
        """The spans of remote files to request, in the order in which these positions need them."""
        shards = self._shards
        groups, _, begins = self._runs_of(positions)
        _, firsts = np.unique(np.stack([groups, begins], axis=1), axis=0, return_index=True)
        spans: list[tuple[int, int, int]] = []
        for position in np.sort(firsts).tolist():
            run = shards.run_at(int(groups[position]), int(begins[position]))
            if not is_remote(shards.url_of(run.shard)):
                continue
            if shards.fits and run in shards.asked:  # its rows stay here
                continue
            shards.asked.add(run)
            own = shards.groups.facts[run.shard].spans
            spans += [(int(shards.groups.file_of[run.shard]), begin, end) for begin, end in own]
            for number, (begin, end) in enumerate(own, 1):
                self._asked.append((run, begin, end - begin, number == len(own)))
        return FileSpans(shards.urls, shards.groups.stamps, np.array(spans, np.int64).reshape(-1, 3))

    def come(self, chunks: Iterator[Chunk | None]) -> None:
        """Set the chunks that will bring the requested spans."""
        self._chunks = chunks

    def take(
        self,
        positions: Sequence[int] | Int64s,
        common: Mapping[str, Any] = NO_FIELDS,
        chunk: Chunk | None = None,
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
        row_bytes = max((decoder.row_bytes[run.shard] for run, _ in used), default=1)
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
        while run in wanted and (chunk := next(self._chunks, None)) is not None:
            memories, offsets = chunk.located(0, np.arange(chunk.begin, chunk.end))
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
    """Make the records of the picks [begin, end): copies of a record that has all fields, filled column by column."""
    # A loop over the fields of each record takes twice as long, and a dict that grows is made anew.
    batch, numbers = picks.some(begin, end), picks.numbers[begin:end]
    # An address, which may hold secrets, gets into no sample.
    filled = {**empty, URL: picks.url}
    records = [filled.copy() for _ in range(len(numbers))]
    columns = [
        (name, values_of(column, name, picks.url, numbers))
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    for name, values in [*columns, (KEY, map(str, numbers.tolist()))]:
        for record, value in zip(records, values, strict=True):
            record[name] = value
    return records
