"""Rows of parquet files, group by group: `runs of rows → row groups, each decoded once → records`."""

import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from streamdata.errors import ShardError
from streamdata.remote import network
from streamdata.remote.addresses import keep_in
from streamdata.remote.cache_settings import CacheSettings, named_cache
from streamdata.remote.cached import Confirmations
from streamdata.run.recent import OpenFiles
from streamdata.shards.arrow_values import objects_beside, values_of
from streamdata.shards.decode_ahead import DecodeAhead
from streamdata.shards.decoded_runs import DecodedRun, DecodedRuns, GroupRun
from streamdata.shards.listed import stamps_known
from streamdata.shards.manifest_file import NOTHING_KNOWN, Known
from streamdata.shards.parquet_file import OpenParquet
from streamdata.shards.parquet_footers import read_footers
from streamdata.shards.parquet_window import LOOK_AHEAD, ParquetWindow
from streamdata.shards.readers import Int64s
from streamdata.shards.spans import read_spans
from streamdata.shards.stamps import stamps_of
from streamdata.shards.storage import (
    FileStamp,
    base_name,
    check_shards,
    close_unused,
    is_pipe,
    is_remote,
    local_path,
    opened,
    submit_question,
    submit_range,
)
from streamdata.shards.stored_rows import import_pyarrow

logger = logging.getLogger(__name__)
MAX_PIECE_ROWS = 1 << 16
MAX_RUN_ROWS = 1 << 20  # so that the positions of a window take little beside its rows
_MAX_OPEN_FILES = 32
_MANY_GROUPS = 32


class _Networked(NamedTuple):
    """The bytes of a remote file, as a lane reads them."""

    url: str
    stamp: FileStamp

    @property
    def size(self) -> int:
        return self.stamp.size

    def read(self, size: int, offset: int) -> bytes:
        with network().waiting():
            return submit_range(self.url, offset, offset + size, self.stamp).result()


class Picked(NamedTuple):
    """Some of the rows that were asked for."""

    slots: Int64s
    """Their places among these."""
    columns: list[Sequence[Any]]
    """The values of each column."""


class ParquetShards:
    """Parquet files; what is called a shard here is one of their row groups.

    Args:
        urls: The files.
        columns: Those that are read; None for all.
        max_open_bytes: How much is decoded and kept at most.
        known: What is known of the files already.

    Raises:
        FileNotFoundError: There is no such file.
        ShardError: A file is damaged, lacks a column, or has one of another type than the first file.
    """

    def __init__(
        self, urls: list[str], columns: Sequence[str] | None, max_open_bytes: int, known: Known = NOTHING_KNOWN
    ) -> None:
        self.urls, self.columns, self.max_open_bytes = urls, columns, max_open_bytes
        for url in filter(is_pipe, urls):
            raise ValueError(f"parquet: expected files, got '{url}', which cannot be sought in\n  Write it to a file.")
        self.cache: CacheSettings | None = None
        self.confirmations = Confirmations()
        close_unused(urls)
        stamps = stamps_known(urls, known)
        unknown = [url for url in urls if url not in stamps]
        stamps.update(zip(unknown, stamps_of(unknown), strict=True))
        self.stamps = [stamps[url] for url in urls]
        self.has_remote = any(map(is_remote, urls))
        self._take_footers()
        # A half each for the present window and the next one, and a third of that for what footers say too little of.
        self.window_bytes = max(1, max_open_bytes // 3)
        self.fits = int(self.sizes.sum()) <= self.window_bytes and len(self.sizes) < _MANY_GROUPS
        """Whether all of it stays decoded, since it is small, and has too few groups to deal out."""
        self.row_bytes: Int64s = np.maximum(1, -(-self.sizes // np.maximum(1, self.num_records)))
        self.run_rows: Int64s = np.clip(self.window_bytes // self.row_bytes, 1, MAX_RUN_ROWS)
        """Rows of each group that are decoded together, at most."""
        self.url_texts = list(map(str, urls))
        """The urls without what else belongs to an address."""
        self._own = _OpenedHere()
        self._ahead = DecodeAhead()
        self._asked: set[tuple[int, int]] = set()
        self._found_row_bytes: dict[int, int] = {}
        """Of each group that was decoded."""
        self._too_large: set[GroupRun] = set()

    def _take_footers(self) -> None:
        """Read what the files say of themselves."""
        self.names, groups = read_footers(self.urls, self.stamps, self.columns, at_once=self.has_remote)
        self.facts = [facts for _, facts in groups]
        self.file_of = np.array([file for file, _ in groups], np.int64)
        self.num_records: Int64s = np.array([facts.num_rows for facts in self.facts], np.int64)
        self.sizes: Int64s = np.array([facts.num_bytes for facts in self.facts], np.int64)
        ends = np.cumsum(self.num_records)
        begins = ends - self.num_records
        first_of_file = np.searchsorted(self.file_of, self.file_of, side="left")
        self.first_rows: Int64s = begins - begins[first_of_file]
        """Of each group, the number of its first row in its file."""
        self.rows_of_file: Int64s = np.zeros(len(self.urls), np.int64)
        np.add.at(self.rows_of_file, self.file_of, self.num_records)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_own": None, "_asked": set()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._own = _OpenedHere()

    def use_cache(self, cache: CacheSettings | None) -> None:
        """Keep pages of the files there; None as the environment says."""
        self.cache = cache
        keep_in(cache, self.urls)

    def cache_keys(self) -> list[str]:
        """None: which pages a row group takes is not known by its size."""
        return []

    def is_slow(self) -> bool:
        """Whether groups are better asked for before they are needed."""
        return self.has_remote

    def confirm(self, *, wait: bool) -> None:
        """Raise ShardError where what a cache had is not what the files are now."""
        self.confirmations.check(wait=wait)

    def identity(self) -> list[tuple[str, int]]:
        """Of each row group the base name of its file, and its number of rows."""
        names = list(map(base_name, self.urls))
        return list(zip(map(names.__getitem__, self.file_of.tolist()), self.num_records.tolist(), strict=True))

    def url_of(self, shard: int) -> str:
        """The file of a row group."""
        return self.urls[int(self.file_of[shard])]

    def last_line(self, file: int) -> int:
        """The number of the last row of a file, which is its key; -1 where there is none."""
        return int(self.rows_of_file[file]) - 1

    def anomalies(self) -> dict[str, int]:
        return {}

    def prefetch_rows(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> "Sequence[Future[Any]]":
        """Nothing: what is known of the groups is here."""
        return ()

    def window(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> ParquetWindow:
        """The window of the runs [first, first + count) of the groups."""
        return ParquetWindow(self, shards, firsts, counts)

    def new_decoded(self) -> DecodedRuns:
        """Where a window keeps what it decodes: its own, gone with it, unless all of the source stays."""
        # What no later window needs is let go of first: memory that is used again costs less than new memory.
        if not self.fits:
            return DecodedRuns(self.max_open_bytes // 2)
        self._own.decoded = self._own.decoded or DecodedRuns(self.max_open_bytes)
        return self._own.decoded

    def decode_ahead(self, present: tuple[Int64s, Int64s], later: Sequence[tuple[Int64s, Int64s]]) -> None:
        """Decode in a thread what the windows that come later will need, and let go of what no window needs.

        Args:
            present: Group and first row of each run of the present window.
            later: Of other windows.
        """

        def runs_of(shards: Int64s, firsts: Int64s) -> list[GroupRun]:
            return [self.run_at(shard, row) for shard, row in zip(shards.tolist(), firsts.tolist(), strict=True)]

        wanted = dict.fromkeys(run for window in later for run in runs_of(*window))
        self._ahead.ask(runs_of(*present), list(wanted), self._decode_apart)

    def _decode_apart(self, run: GroupRun) -> DecodedRun | None:
        return self.decode(run, DecodedRuns(self.max_open_bytes // 2))

    def run_at(self, shard: int, row: int) -> GroupRun:
        """The run in which a row of a group is decoded."""
        size = int(self.run_rows[shard])
        first = row // size * size
        return GroupRun(shard, first, min(size, int(self.num_records[shard]) - first))

    def spans_of(self, run: GroupRun) -> Int64s:
        """What is asked for ahead of it, (n, 3): nothing where that was done, and what it gave stays here."""
        asked = (run.shard, run.first)
        if self.fits and asked in self._asked:
            return np.zeros((0, 3), np.int64)
        self._asked.add(asked)
        file = int(self.file_of[run.shard])
        return np.array([(file, begin, end) for begin, end in self.facts[run.shard].spans], np.int64).reshape(-1, 3)

    def rows(self, run: GroupRun, runs: DecodedRuns, numbers: Int64s) -> Iterator[Picked]:
        """Some rows of a run, by their numbers in it."""
        decoded = self.kept(run, runs)
        if decoded is None:
            yield from self._picked(run, numbers)
            return
        if decoded.batches and not self.fits and not _follow(numbers):
            decoded = self._listed(run, decoded, runs)
        if decoded.columns:
            chosen = numbers.tolist()
            yield Picked(np.arange(len(chosen)), [[column[row] for row in chosen] for column in decoded.columns])
            return
        which = np.searchsorted(decoded.ends, numbers, side="right")
        for number in np.unique(which).tolist():
            slots = np.flatnonzero(which == number)
            batch = decoded.batches[number]
            rows = numbers[slots] - (int(decoded.ends[number]) - batch.num_rows)
            yield self._picked_of(run, numbers, slots, _taken(batch, rows))

    def _picked_of(self, run: GroupRun, numbers: Int64s, slots: Int64s, batch: Any) -> Picked:
        in_file = numbers[slots] + (run.first + self.first_rows[run.shard])
        return Picked(slots, values_of(batch, self.url_texts[int(self.file_of[run.shard])], in_file))

    def _listed(self, run: GroupRun, decoded: DecodedRun, runs: DecodedRuns) -> DecodedRun:
        """A run that is delivered once as Python's objects, where there is room for them: nothing is copied by row."""
        num_bytes = decoded.num_bytes + sum(map(objects_beside, decoded.batches))
        if runs.num_bytes - decoded.num_bytes + num_bytes > runs.max_bytes:
            return decoded
        columns: list[list[Any]] = [[] for _ in decoded.batches[0].schema.names]
        url, first = self.url_texts[int(self.file_of[run.shard])], int(run.first + self.first_rows[run.shard])
        while decoded.batches:
            batch = decoded.batches.pop(0)  # not both forms of all rows are held
            found = values_of(batch, url, np.arange(first, first + batch.num_rows))
            for column, values in zip(columns, found, strict=True):
                column.extend(values)
            first += batch.num_rows
        return runs.replace(run, decoded._replace(columns=columns, num_bytes=num_bytes))

    def kept(self, run: GroupRun, runs: DecodedRuns) -> DecodedRun | None:
        """A run that is decoded, now if it was not yet; None where it takes more than may be kept."""
        found = runs.get(run)
        if found is None and (coming := self._ahead.take(run)) is not None:
            found = coming.result()
            if found is not None:
                runs.make_room(runs.max_bytes - found.num_bytes)
                runs.add(run, found)
        return found or self.decode(run, runs)

    def bytes_of_row(self, run: GroupRun) -> int:
        """How many bytes a row takes on average: what was found where it was decoded, else what the footer says."""
        return max(int(self.row_bytes[run.shard]), self._found_row_bytes.get(run.shard, 0))

    def decode(
        self, run: GroupRun, runs: DecodedRuns, held: Sequence[tuple[int, memoryview]] = ()
    ) -> DecodedRun | None:
        """Decode and keep a run; None where it takes more than may be kept.

        Args:
            run: Which rows.
            runs: Where they are kept.
            held: What is in memory of the file: where each piece begins in it, and its bytes.
        """
        if run in self._too_large:
            return None
        batches, num_bytes, num_rows = list[Any](), 0, 0
        expected = int(self.sizes[run.shard]) * run.num_rows // max(1, int(self.num_records[run.shard]))
        runs.make_room(runs.max_bytes - expected)
        for batch in self._batches(run, held):
            num_bytes, num_rows = num_bytes + batch.nbytes, num_rows + batch.num_rows
            self._found_row_bytes[run.shard] = num_bytes // num_rows
            runs.make_room(runs.max_bytes - num_bytes)
            if num_bytes > runs.max_bytes:
                self._note_too_large(run)
                return None
            batches.append(batch)
        if self.fits:  # many windows take few rows each
            batches = [import_pyarrow().concat_batches(batches)]
        ends = np.cumsum([batch.num_rows for batch in batches], dtype=np.int64)
        return runs.add(run, DecodedRun(batches, ends, num_bytes))

    def _note_too_large(self, run: GroupRun) -> None:
        if not self._too_large:
            logger.warning(
                "shard '%s': row group %d decodes to more than half of the %d bytes of max_open_bytes, of which its "
                "footer says nothing: it is decoded again for each %d records. Raise max_open_bytes, or write "
                "smaller groups",
                self.url_of(run.shard), self.facts[run.shard].group, self.max_open_bytes, LOOK_AHEAD,
            )  # fmt: skip
        self._too_large.add(run)

    def _picked(self, run: GroupRun, numbers: Int64s) -> Iterator[Picked]:
        """Some rows of a run that is not kept."""
        first = 0
        for batch in self._batches(run, ()):
            slots = np.flatnonzero((numbers >= first) & (numbers < first + batch.num_rows))
            if len(slots):
                yield self._picked_of(run, numbers, slots, _taken(batch, numbers[slots] - first))
            first += batch.num_rows
            if first > numbers.max():
                return

    def _batches(self, run: GroupRun, held: Sequence[tuple[int, memoryview]]) -> Iterator[Any]:
        """The rows of a run. Those before them are decoded too: a group has no index of its rows."""
        first = 0
        with self._opened(run.shard, held) as file:
            for batch in file.batches(self.facts[run.shard], self.names, MAX_PIECE_ROWS):
                begin, end = max(0, run.first - first), min(batch.num_rows, run.first + run.num_rows - first)
                if begin < end:
                    yield batch.slice(begin, end - begin)
                first += batch.num_rows
                if first >= run.first + run.num_rows < int(self.num_records[run.shard]):
                    return

    @contextmanager
    def _opened(self, shard: int, held: Sequence[tuple[int, memoryview]]) -> Iterator[OpenParquet]:
        """The file of a group, that is still of the version whose footer was read."""
        number = int(self.file_of[shard])
        url, stamp = self.urls[number], self.stamps[number]
        file = self._own.files.get(number, self._open)
        if is_remote(url) and not held:
            spans = np.array([(0, *span) for span in self.facts[shard].spans], np.int64).reshape(-1, 3)
            memory, begins = read_spans([url], [stamp], spans)
            sizes = (spans[:, 2] - spans[:, 1]).tolist()
            pieces = zip(spans[:, 1].tolist(), begins.tolist(), sizes, strict=True)
            held = [(begin, memory[at : at + size]) for begin, at, size in pieces]
        file.file.held = list(held)
        try:
            yield file
        except ShardError:
            self._check_version(number)  # that it was replaced says more than that it cannot be read
            raise
        finally:
            file.file.held = []
        self._check_version(number)

    def _check_version(self, number: int) -> None:
        if not is_remote(self.urls[number]):
            check_shards(self.urls, self.stamps, [number])
            opened(self.urls[number]).check(self.stamps[number], by_path=True)

    def _open(self, number: int) -> OpenParquet:
        url, stamp = self.urls[number], self.stamps[number]
        if not is_remote(url):
            check_shards(self.urls, self.stamps, [number])
            return OpenParquet(url, opened(url), import_pyarrow().OSFile(local_path(url)))
        if named_cache(self.cache) is not None:
            self.confirmations.add(submit_question(url, stamp))
        return OpenParquet(url, _Networked(url, stamp))


def _follow(numbers: Int64s) -> bool:
    """Whether these rows follow one another."""
    return len(numbers) > 0 and bool(np.array_equal(numbers, np.arange(numbers[0], numbers[0] + len(numbers))))


def _taken(batch: Any, rows: Int64s) -> Any:
    """Some rows of a batch, without a copy where they follow one another."""
    if _follow(rows):
        return batch.slice(int(rows[0]), len(rows))
    return batch.take(import_pyarrow().array(rows))


class _OpenedHere(threading.local):
    """What a thread has open, and found out."""

    def __init__(self) -> None:
        self.files: OpenFiles[int, OpenParquet] = OpenFiles(_MAX_OPEN_FILES)
        self.decoded: DecodedRuns | None = None
