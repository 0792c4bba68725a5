"""Parquet files as shards: `files → row groups → windows of runs of rows, each group decoded once in a window`."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from streamdata.fields import KEY, URL
from streamdata.io.one_pass import byte_source
from streamdata.io.remote.addresses import CacheSettings, keep_in
from streamdata.io.storage import Int64s, base_name, close_unused, is_pipe, is_remote, opened_shard
from streamdata.run.lane_link import log_once
from streamdata.run.per_process import PerProcess, open_files
from streamdata.shards.ahead.spans import FileSpans, read_spans
from streamdata.shards.ahead.windows import Chunk
from streamdata.shards.index.manifest import NOTHING_KNOWN, Known, stamps_for
from streamdata.shards.parquet.file import MAX_COUNT, OpenParquet, common_schema, open_file, read_footer
from streamdata.shards.parquet.values import Rows, as_schema, gathered, import_pyarrow, named_bytes, values_of
from streamdata.shards.readers import NO_FIELDS, DamagedRecordError, Record

_WORTH_A_DICTIONARY = 4  # times its bytes that a column comes to without: a cast of each row costs more than some bytes
_LOOK_AHEAD, _LOOK_AHEAD_BYTES = 8192, 16 << 20
# As many rows become Python's objects at once as stay in a processor's cache: of fresh memory each page takes a fault.
_STEP_ROWS, _STEP_BYTES = 1024, 512 << 10
_VALUE_BYTES = 64  # that a value takes as an object of Python's, beside what it holds
_AT_ONCE = 16  # footers of remote files
_MAX_RUN_ROWS = 1 << 20  # so that the positions of a window take little beside its rows
_DECODED_BYTES = 32 << 20  # by one call, about
_MAX_RUN_BYTES = 1 << 30  # as footers say: one of pyarrow's arrays holds 2 GiB of texts


class GroupRun(NamedTuple):
    """Consecutive rows of a row group that are decoded together."""

    shard: int
    first: int
    num_rows: int


class KeptRuns:
    """The decoded runs that a process keeps, in the order in which they were decoded. Its threads share them."""

    def __init__(self) -> None:
        self.lock = Lock()
        """Held while a run is looked up or decoded, so that what several threads need is decoded once."""
        self.runs: dict[GroupRun, Rows] = {}
        self.num_bytes = 0
        self.asked: set[GroupRun] = set()
        """Runs whose spans were asked for."""

    def make_room(self, num_bytes: int, max_bytes: int) -> bool:
        """Drop runs until so many bytes more are within the bound; return whether any was dropped."""
        before = len(self.runs)
        while self.runs and self.num_bytes + num_bytes > max_bytes:
            self.num_bytes -= self.runs.pop(next(iter(self.runs))).num_bytes
        return len(self.runs) < before


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
        self.url_texts = list(map(str, urls))
        """The urls without what else belongs to an address, which may hold secrets."""
        self.has_remote = any(map(is_remote, urls))
        self.stamps = [stamps[url] for url in urls]
        with ThreadPoolExecutor(_AT_ONCE if self.has_remote else 1) as threads:
            found = list(threads.map(lambda url, stamp: read_footer(url, stamp, columns), urls, self.stamps))
        self.schema = common_schema(urls, [schema for schema, _ in found])
        self.facts = [facts for _, facts_of_file in found for facts in facts_of_file]
        groups_of_files = [len(facts_of_file) for _, facts_of_file in found]
        self.file_of: Int64s = np.repeat(np.arange(len(urls)), groups_of_files)
        self.num_records: Int64s = np.array([facts.num_rows for facts in self.facts], np.int64)
        self.sizes: Int64s = np.array([facts.num_bytes for facts in self.facts], np.int64)
        """Decoded, as far as footers say it."""
        ends = np.cumsum([0, *self.num_records])
        self.ends_of_files: Int64s = ends[np.cumsum(groups_of_files)]
        """Rows of all files up to the end of each."""
        self.first_rows: Int64s = ends[:-1] - np.array([0, *self.ends_of_files])[self.file_of]
        """The number of each group's first row in its file."""
        self.row_bytes: Int64s = np.maximum(1, -(-self.sizes // np.maximum(1, self.num_records)))
        self.fits = int(self.sizes.sum()) <= max_open_bytes
        """Whether all of it stays decoded, by what footers say."""
        # Else each window has a third: footers may say too little of it.
        self.window_bytes = max(1, max_open_bytes // 3)
        """Bytes of a window, at most, where not all of the source stays."""
        # Decoded together are whole groups, or the fewest even parts of large ones.
        limit, rows = _MAX_RUN_BYTES if self.fits else self.window_bytes, self.num_records
        most = np.clip(np.where(self.sizes <= limit, rows, limit // self.row_bytes), 1, _MAX_RUN_ROWS)
        self.run_rows: Int64s = -(-rows // -(-rows // most))
        """Rows of each group that are decoded together, at most."""
        self.kept = PerProcess(KeptRuns)
        # Half, so that the parts of a large run may be joined beside others, and windows that are over let go of.
        self._kept_bytes = max_open_bytes if self.fits else max_open_bytes // 2

    def use_cache(self, cache: CacheSettings | None) -> None:
        """Set where pages of remote files are cached; None leaves it to the environment."""
        keep_in(cache, self.urls)

    def is_slow(self) -> bool:
        """Whether row groups should be requested before they are needed."""
        return self.has_remote

    def identity(self) -> list[tuple[str, int]]:
        """The base name of each row group's file, and its number of rows."""
        names = list(map(base_name, self.urls))
        return list(zip(map(names.__getitem__, self.file_of.tolist()), self.num_records.tolist(), strict=True))

    def url_of(self, shard: int) -> str:
        """The url of a row group's file."""
        return self.urls[int(self.file_of[shard])]

    def last_line(self, file: int) -> int:
        """The number of a file's last row, which is its key; -1 if it has no rows."""
        return int(np.diff(self.ends_of_files, prepend=0)[file]) - 1

    def anomalies(self) -> dict[str, int]:
        return {}

    def prefetch_rows(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> "Sequence[Future[Any]]":
        """Do nothing: the facts of all groups are in memory."""
        return ()

    def window(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> "ParquetWindow":
        """The window of the runs [first, first + count) of the groups."""
        return ParquetWindow(self, shards, firsts, counts)

    def run_at(self, shard: int, row: int) -> GroupRun:
        """The run that contains a row of a group."""
        size = int(self.run_rows[shard])
        first = row // size * size
        return GroupRun(shard, first, min(size, self.facts[shard].num_rows - first))

    def get(self, run: GroupRun, held: Sequence[tuple[int, memoryview]] = ()) -> Rows:
        """The decoded run, decoded now unless it is kept.

        Args:
            run: Which rows.
            held: What is in memory of the file: where each piece begins in it, and its bytes.

        Raises:
            ShardError: The row group is damaged, or its file has changed.
        """
        kept = self.kept.get()
        with kept.lock:
            decoded = kept.runs.get(run)
            if decoded is None:
                facts = self.facts[run.shard]
                # First, so that the memory is used again: new memory costs a page fault for each 4 KiB.
                has_dropped = kept.make_room(facts.num_bytes * run.num_rows // facts.num_rows, self._kept_bytes)
                decoded = self._decode(run, held)
                has_dropped |= kept.make_room(decoded.num_bytes, self._kept_bytes)
                kept.runs[run] = decoded
                kept.num_bytes += decoded.num_bytes
                if kept.num_bytes > self.max_open_bytes or (has_dropped and self.fits):
                    remedy = "which leaves the order as it is" if self.fits else "or write smaller ones"
                    log_once(
                        ("max_open_bytes", self.url_texts[0], self.max_open_bytes),
                        f"shard '{self.url_of(run.shard)}': row groups decode to more than max_open_bytes="
                        f"{self.max_open_bytes}, of which footers say less: more is held, or they are decoded again "
                        f"and again. Raise max_open_bytes, {remedy}",
                    )
        return decoded

    def _decode(self, run: GroupRun, held: Sequence[tuple[int, memoryview]]) -> Rows:
        """Decode a run. The rows before it are decoded too: a group has no index of its rows."""
        facts, schema, first, end, parts = self.facts[run.shard], self.schema, 0, run.first + run.num_rows, list[Any]()
        # Rows before the run are dropped: little at a time, so that its memory is used again.
        most = _DECODED_BYTES // int(self.row_bytes[run.shard]) + 1 if run.first else run.num_rows
        with self._opened(run.shard, held) as file, file.damage(f"row group {facts.group}"):
            for batch in file.runs(facts, schema.names, min(run.num_rows, most)):
                begin, stop = max(0, run.first - first), min(batch.num_rows, end - first)
                if begin < stop:
                    parts.append(batch.slice(begin, stop - begin))
                first += batch.num_rows
                if first >= end:
                    break
            batch = (parts[0] if len(parts) == 1 else import_pyarrow().concat_batches(parts)).select(schema.names)
            named = list(map(named_bytes, batch.columns))
            # A dictionary stays where its values come to much: one of a megabyte may be named by each row.
            fields = [
                field if size <= _WORTH_A_DICTIONARY * column.nbytes else field.with_type(column.type)
                for field, column, size in zip(schema, batch.columns, named, strict=True)
            ]
            return Rows(as_schema(batch, import_pyarrow().schema(fields)), sum(named))

    @contextmanager
    def _opened(self, shard: int, held: Sequence[tuple[int, memoryview]]) -> Iterator[OpenParquet]:
        """The file of a group, that is still of the version whose footer was read."""
        number = int(self.file_of[shard])
        url, stamp = self.urls[number], self.stamps[number]
        self._check_version(number)
        file: OpenParquet = open_files.get(("parquet", url, stamp), lambda _: open_file(url, byte_source(url, stamp)))
        if is_remote(url) and not held:
            spans = self.facts[shard].spans
            table = np.array([(0, *span) for span in spans], np.int64).reshape(-1, 3)
            memory, places = read_spans([url], [stamp], table)
            pieces = zip(spans, places.tolist(), strict=True)
            held = [(begin, memory[at : at + end - begin]) for (begin, end), at in pieces]
        file.file.held = held
        try:
            yield file
        finally:
            file.file.held = ()
            self._check_version(number)  # that it was replaced says more than that it cannot be read

    def _check_version(self, number: int) -> None:
        url, stamp = self.urls[number], self.stamps[number]
        if not is_remote(url):
            opened_shard(url).check(stamp, by_path=True)


class ParquetWindow:
    """Runs of rows of row groups; a group is decoded when its first row is taken."""

    def __init__(self, shards: ParquetShards, groups: Int64s, firsts: Int64s, counts: Int64s) -> None:
        self._shards, self._groups, self._firsts = shards, groups, firsts
        self._ends = np.cumsum(counts)
        self._starts = self._ends - counts
        row_bytes = int(shards.row_bytes[groups].max(initial=1))
        self.look_ahead = max(1, min(_LOOK_AHEAD, _LOOK_AHEAD_BYTES // row_bytes))
        self._asked: dict[GroupRun, list[tuple[int, int]]] = {}
        """Runs whose bytes were asked for and have not come, and where these begin and end."""
        self._coming: Iterator[tuple[GroupRun, list[tuple[int, memoryview]]]] = iter(())

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def _rows_at(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """The group of each position, and the number of its row in it."""
        runs = np.searchsorted(self._ends, positions, side="right")
        return self._groups[runs], self._firsts[runs] + positions - self._starts[runs]

    def _runs_at(self, groups: Int64s, rows: Int64s) -> tuple[list[GroupRun], Int64s, Int64s]:
        """The runs that some rows are of, in no order; the number of each row's run, and of the first row of each."""
        size = self._shards.run_rows[groups]
        keys = groups * MAX_COUNT + rows // size * size
        _, firsts, run_of = np.unique(keys, return_index=True, return_inverse=True)
        at = zip(groups[firsts].tolist(), rows[firsts].tolist(), strict=True)
        return [self._shards.run_at(group, row) for group, row in at], run_of, firsts

    def spans(self, positions: Int64s) -> tuple[list[FileSpans], Int64s]:
        """The spans of remote files to request, in the order in which these positions need them.

        What is planned and paced is spans, not records: all rows of a group come with the same bytes.
        """
        shards, asked, spans = self._shards, self._shards.kept.get().asked, list[tuple[int, int, int]]()
        runs, _, firsts = self._runs_at(*self._rows_at(positions))
        for run in (runs[number] for number in np.argsort(firsts).tolist()):
            if not is_remote(shards.url_of(run.shard)):
                continue
            if shards.fits and run in asked:  # its rows stay here
                continue
            asked.add(run)
            self._asked[run] = shards.facts[run.shard].spans
            spans += [(int(shards.file_of[run.shard]), begin, end) for begin, end in self._asked[run]]
        table = np.array(spans, np.int64).reshape(-1, 3)
        return [FileSpans(shards.urls, shards.stamps, table)] if spans else [], np.arange(len(spans))

    def come(self, chunks: Iterator[Chunk | None]) -> None:
        """Set the chunks that will bring the requested spans."""
        # No method: in a cycle with the window, what is decoded would stay until a collection of garbage.
        self._coming = _arrivals(self._asked, chunks)

    def take(
        self, positions: Sequence[int] | Int64s, common: Mapping[str, Any] = NO_FIELDS, chunk: Chunk | None = None
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
        except DamagedRecordError:  # of rows that became Python's together: which of them it is shows one by one
            for position in positions[done:, None]:
                yield from self._steps(position, common)

    def _steps(self, positions: Int64s, common: Mapping[str, Any]) -> Iterator[list[Record]]:
        """Some records at a time: lists, so that nothing of Python's runs for each record."""
        shards, (groups, rows) = self._shards, self._rows_at(positions)
        runs, run_of, _ = self._runs_at(groups, rows)
        found = [self._decoded(run) for run in runs]
        in_run = rows - np.array([run.first for run in runs], np.int64)[run_of]
        files, numbers = shards.file_of[groups], rows + shards.first_rows[groups]
        row_bytes = max((run.row_bytes for run in found), default=1) + _VALUE_BYTES * len(shards.schema.names)
        at_once, step = max(1, _LOOK_AHEAD_BYTES // row_bytes), max(1, min(_STEP_ROWS, _STEP_BYTES // row_bytes))
        empty = {**dict.fromkeys([*shards.schema.names, URL, KEY]), **common}
        for begin in range(0, len(positions), at_once):
            end = min(begin + at_once, len(positions))
            columns = gathered(found, run_of[begin:end], in_run[begin:end], shards.schema)
            for first in range(begin, end, step):
                some, own = slice(first, min(first + step, end)), slice(first - begin, first - begin + step)
                of_step = {name: column[own] for name, column in columns.items()}
                yield self._records(of_step, files[some], numbers[some], empty)

    def _decoded(self, run: GroupRun) -> Rows:
        """A run; what was asked for and comes before it is decoded as it comes."""
        while run in self._asked and (coming := next(self._coming, None)) is not None:
            self._shards.get(*coming)
        return self._shards.get(run)

    def _records(self, columns: Mapping[str, Any], files: Int64s, numbers: Int64s, empty: Record) -> list[Record]:
        """Make records: copies of one that has all fields, filled column by column."""
        # A loop over the fields of each record takes twice as long, and a dict that grows is made anew.
        records = [empty.copy() for _ in range(len(numbers))]
        urls, keys = [self._shards.url_texts[file] for file in files.tolist()], list(map(str, numbers.tolist()))
        filled = {name: values_of(column, name, urls[0], int(numbers[0])) for name, column in columns.items()}
        for name, values in (filled | {URL: urls, KEY: keys}).items():
            for record, value in zip(records, values, strict=True):
                record[name] = value
        return records


def _arrivals(
    asked: dict[GroupRun, list[tuple[int, int]]], chunks: Iterator[Chunk | None]
) -> Iterator[tuple[GroupRun, list[tuple[int, memoryview]]]]:
    """Each run that was asked for, with its pieces, as they come; a chunk is taken up when it is needed."""
    pieces = (
        memoryview(memory)[offset:]
        for chunk in chunks
        if chunk is not None  # else the window was not asked for
        for memory, offset in chunk.located(0, np.arange(chunk.begin, chunk.end))
    )
    for run, spans in list(asked.items()):
        held = [(begin, piece[: end - begin]) for (begin, end), piece in zip(spans, pieces, strict=False)]
        if len(held) < len(spans):
            break
        del asked[run]
        yield run, held
    asked.clear()  # if the window was not asked for after all
