"""Files with an index each: runs of their records → rows of their indexes → where the records lie → their bytes."""

import logging
import mmap
from concurrent.futures import Future
from itertools import groupby
from resource import RUSAGE_THREAD, getrusage, struct_rusage
from time import perf_counter
from typing import Final, NamedTuple

import numpy as np

from streamdata.errors import ShardError, one_line
from streamdata.io.one_pass import ByteSource, byte_source
from streamdata.io.remote.addresses import CacheSettings, keep_in
from streamdata.io.remote.requests import GoneError
from streamdata.io.storage import NO_STAMP, Int64s, base_name, close_unused, is_remote, opened_shard, stamps_of
from streamdata.recipe.limits import DEFAULT_LIMITS, ShardLimits
from streamdata.run.per_process import ReadBuffer, open_files
from streamdata.shards.ahead.spans import FileSpans, read_spans
from streamdata.shards.index.index_file import IndexDamageError, IndexFile, RowRuns, Rows
from streamdata.shards.index.indexing import (
    KINDS,
    IndexJob,
    ListedIndex,
    build,
    given_error,
    headers_of,
    index_url,
    open_index,
)
from streamdata.shards.index.manifest import NOTHING_KNOWN, Known, ListedFacts
from streamdata.shards.tar.sidecar import find_sidecars

_LEAST: Final = 0.02
"""Seconds of waiting that make files slow."""
_TIMES: Final = 4
"""How many times as long as it computes must a reader wait: for what is in the kernel's page cache it never does."""
_NUM_WINDOWS: Final = 32
"""Windows for which files that were waited for once are slow: that the kernel was told before shows as no wait."""
logger = logging.getLogger(__name__)


class SlowReads:
    """Measures whether recent reads of some files were slow: how much of their time was spent waiting."""

    def __init__(self) -> None:
        self._waited = self._computed = 0.0
        self._num_slow = 0

    def end(self, began: float, before: struct_rusage) -> None:
        """Note the read that was begun at a time, with what the thread had used by then."""
        after = getrusage(RUSAGE_THREAD)
        computed = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.note(perf_counter() - began, computed, after.ru_nvcsw - before.ru_nvcsw)

    def note(self, took: float, computed: float, gave_up: int) -> None:
        """Add the measurements of one read.

        Args:
            took: Seconds of wall-clock time.
            computed: Seconds of a processor.
            gave_up: How many times it gave its processor up; where it was only taken away, others were busy.
        """
        self._computed += computed
        if gave_up:
            self._waited += max(0.0, took - computed)

    def judge(self) -> bool:
        """Whether the next window should be treated as slow to read; call it once per window."""
        if self._waited > _LEAST and self._waited > _TIMES * self._computed:
            self._num_slow = _NUM_WINDOWS
        elif self._num_slow:
            self._num_slow -= 1
        if self._waited + self._computed > _LEAST:  # what was long ago tells nothing
            self._waited = self._computed = 0.0
        return self._num_slow > 0


class Runs(NamedTuple):
    """Runs of consecutive records, none empty, as arrays with one number per run."""

    shards: Int64s
    firsts: Int64s  # number of the first record, in its shard
    counts: Int64s

    def per_record(self, values: Int64s) -> Int64s:
        """Repeat one value per run for each of the run's records."""
        return np.repeat(values, self.counts)

    def numbers(self) -> Int64s:
        """The number of each record in its shard."""
        starts = np.cumsum(self.counts) - self.counts
        return np.arange(int(self.counts.sum())) + self.per_record(self.firsts - starts)


class IndexedFiles(ListedFacts):
    """Shards with an index each. `complete` builds missing indexes and reads the headers of the others.

    Args:
        urls: The shards, some perhaps several times.
        kind: Of their indexes.
        has_sidecars: Whether the kind is of shards with their sidecars.
        known: Of those shards that a manifest knows, nothing is asked here; of others not what is known.
        limits: What a record may be.

    Raises:
        FileNotFoundError: A shard does not exist.
    """

    def __init__(
        self,
        urls: list[str],
        kind: str,
        known: Known = NOTHING_KNOWN,
        *,
        has_sidecars: bool = False,
        limits: ShardLimits = DEFAULT_LIMITS,
    ) -> None:
        self.urls, self.kind, self._dtype, self.limits = urls, kind, KINDS[kind].dtype, limits
        self.names = list(map(str, urls))  # an address, which may hold secrets, gets into no sample
        close_unused(urls)  # another version may have been opened before under these urls, by an earlier reader
        super().__init__(urls, kind, known.manifests)
        unlisted: list[int] = np.flatnonzero(self.manifest_of < 0).tolist()
        different = {urls[shard]: ("", NO_STAMP) for shard in unlisted}
        unknown = [url for url in different if url not in known.stamps]
        stamps = {**known.stamps, **dict(zip(unknown, stamps_of(unknown), strict=True))}
        sidecars = find_sidecars(different, known.stamps) if has_sidecars else different
        self.jobs: dict[int, IndexJob] = {}
        """The indexes that no manifest lists."""
        for shard in unlisted:
            url = urls[shard]
            job = self.jobs[shard] = IndexJob(kind, url, stamps[url], *sidecars[url], limits)
            self.stamps.sizes[shard], self.stamps.versions[shard] = job.stamp
            self.sidecar_stamps.sizes[shard], self.sidecar_stamps.versions[shard] = job.sidecar_stamp
            self.sidecar_urls[shard], self.is_remote[shard] = job.sidecar, is_remote(url)
        close_unused(filter(None, self.sidecar_urls))
        self.sizes: Int64s = self.stamps.sizes
        self.has_remote, self.reads = any(self.is_remote), SlowReads()

    def is_slow(self) -> bool:
        """Whether the next window should be requested before it is needed: files are remote, or reads were slow."""
        return self.has_remote or self.reads.judge()

    def runs(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> Runs:
        """The records of the runs [first, first + count)."""
        inside = (firsts >= 0) & (counts >= 0) & (firsts + counts <= self.num_records[shards])
        assert inside.all(), f"runs {np.flatnonzero(~inside)} go beyond their shards"
        is_run = counts > 0
        return Runs(shards[is_run], firsts[is_run], counts[is_run])

    def rows(self, runs: Runs) -> tuple[Rows, Int64s]:
        """The index rows of each run, with the row after each, and the positions of the records' own rows.

        The row after a record's row marks where the record ends. Each shard's index is read once.
        """
        if self.has_rows_in_stores:
            self.prefetch_rows(*runs)  # of all shards, before those of the first are waited for
        shards, pieces = runs.shards.tolist(), [b""] * len(runs.shards)
        bounds = list(zip(runs.firsts.tolist(), runs.counts.tolist(), strict=True))
        for shard, group in groupby(sorted(range(len(shards)), key=shards.__getitem__), shards.__getitem__):
            numbers, job = list(group), self.jobs.get(shard) or self._listed_job(shard)
            for number, piece in zip(numbers, _read_rows(job, list(map(bounds.__getitem__, numbers))), strict=True):
                pieces[number] = piece
        own = np.arange(int(runs.counts.sum())) + runs.per_record(np.arange(len(pieces)))
        return np.frombuffer(b"".join(pieces), self._dtype), own

    def _listed_job(self, shard: int) -> IndexJob:
        """The index of a shard that a manifest lists."""
        url = self.urls[shard]
        manifest = int(self.manifest_of[shard])
        place = index_url(url, self.kind, self.roots[manifest])
        listed = ListedIndex(int(self.num_records[shard]), int(self.checks[shard]), self.are_copies[manifest])
        sidecar = self.sidecar_urls[shard], self.sidecar_stamps[shard]
        return IndexJob(self.kind, url, self.stamps[shard], *sidecar, self.limits, place, listed)

    def prefetch_rows(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> list[Future[None]]:
        """Request what `rows` will read from stores, without waiting; return the requests."""
        asked = list[Future[None]]()
        if not self.has_rows_in_stores:
            return asked
        wanted: dict[int, list[tuple[int, int]]] = {}
        for shard, first, count in zip(shards.tolist(), firsts.tolist(), counts.tolist(), strict=True):
            if count and self.manifest_of[shard] >= 0:
                wanted.setdefault(shard, []).append((first, count))
        for shard, runs in wanted.items():
            index: IndexFile = open_files.get(self._listed_job(shard), open_index)
            asked += index.ask_for(runs)
        return asked

    def use_cache(self, cache: CacheSettings | None) -> None:
        """Set where pages of remote files are cached; None leaves it to the environment."""
        if self.has_remote:
            keep_in(cache, [*self.urls, *self.sidecar_urls])

    def identity(self) -> list[tuple[str, int]]:
        """The base name and number of records of each shard."""
        return list(zip(map(base_name, self.urls), self.num_records.tolist(), strict=True))


def complete(*files: IndexedFiles) -> None:
    """Build missing indexes, those of each shard in one pass, and read the headers of all.

    Raises:
        ShardError: A shard is damaged.
    """
    jobs = list(dict.fromkeys(job for some in files for job in some.jobs.values()))
    headers = dict(zip(jobs, headers_of(jobs), strict=True))
    for some in files:
        for shard, job in some.jobs.items():
            header = headers[job]
            some.num_records[shard], some.noted[shard] = header.num_records, header.noted
            some.skipped[shard], some.first_skipped[shard] = header.skipped, header.first_skipped
        anomalous = np.flatnonzero((some.skipped > 0) | (some.noted > 0)).tolist()
        for url, shard in {some.urls[shard]: shard for shard in anomalous}.items():
            skipped, noted, kind = int(some.skipped[shard]), int(some.noted[shard]), KINDS[some.kind]
            if skipped:
                what = kind.skipped.format(int(some.first_skipped[shard]))
                logger.warning("shard '%s': %d %s", one_line(url), skipped, what)
            if noted and kind.noted:
                logger.warning("shard '%s': %d %s", one_line(url), noted, kind.noted)


def check_inside(files: IndexedFiles, runs: Runs, begins: Int64s, ends: Int64s, sizes: Int64s, *, least: int) -> None:
    """Raise ShardError if the index puts a record, or its sidecar line, outside of its file; one has `least` bytes."""
    is_inside = (begins >= 0) & (begins + least <= ends) & (ends <= sizes)
    if not is_inside.all():
        first = int(is_inside.argmin())
        file = "shard" if least else "sidecar"
        url, record = files.names[int(runs.per_record(runs.shards)[first])], int(runs.numbers()[first])
        begin, end = int(begins[first]), int(ends[first])
        raise ShardError(
            f"index of '{url}': record {record} expected within the {file}, got bytes {begin} to {end}\n"
            "  Delete the index; it is then built again."
        )


class RecordBytes:
    """Reads the bytes of runs of records: at each take, or all at the first and kept.

    Args:
        files: The shards.
        runs: Of their records.
        begins: Of each record, in its shard.
        ends: Of each record.
        buffer: Memory to read into.

    Raises:
        ShardError: A record does not lie within its shard: an index may come with a shard from anywhere.
    """

    def __init__(self, files: IndexedFiles, runs: Runs, begins: Int64s, ends: Int64s, buffer: ReadBuffer) -> None:
        self._files, self._runs, self._buffer = files, runs, buffer
        self.shards = runs.per_record(runs.shards)
        self.begins, self.ends = begins, ends
        check_inside(files, runs, begins, ends, files.sizes[self.shards], least=1)
        self.sizes = ends - begins
        self.num_bytes = int(self.sizes.sum())
        self.file_spans = FileSpans(files.urls, files.stamps, np.array((self.shards, begins, ends)).T)
        """The byte spans of all records of the runs."""
        self._kept: tuple[memoryview, Int64s] | None = None
        # A path is looked at once per window: on a network file system that may be a request, other than `fstat`.
        self._at_their_paths: set[int] = set()

    def bytes_of_shard(self, position: int) -> ByteSource:
        """The shard of a record, to look at some of its bytes alone."""
        shard = int(self.shards[position])
        return byte_source(self._files.urls[shard], self._files.stamps[shard])

    def maps(self, spans: list[list[int]]) -> list[mmap.mmap]:
        """Map the local shard of each of these spans.

        Raises:
            ShardError: A shard is not what was indexed.
        """
        files, maps = self._files, dict[int, mmap.mmap]()
        for shard in {span[0] for span in spans}:
            file = opened_shard(files.urls[shard])
            file.check(files.stamps[shard], by_path=shard not in self._at_their_paths)
            self._at_their_paths.add(shard)
            maps[shard] = file.mapped()
        return [maps[span[0]] for span in spans]

    def read(self, chosen: Int64s, *, keep: bool) -> tuple[memoryview, Int64s]:
        """Read records; return the memory that holds them, and the offset of each in it.

        Args:
            chosen: Positions in the runs.
            keep: Read all records at once, for this and later calls.

        Raises:
            ShardError: A shard is not what was indexed.
        """
        files, runs = self._files, self._runs
        if self._kept is None:
            spans = self.file_spans.spans[chosen]
            if keep:  # a run is one span
                lasts = np.cumsum(runs.counts) - 1
                spans = np.array((runs.shards, self.begins[lasts - runs.counts + 1], self.ends[lasts])).T
            begun = perf_counter(), getrusage(RUSAGE_THREAD)
            found = read_spans(files.urls, files.stamps, spans, self._buffer.lend, self._at_their_paths)
            files.reads.end(*begun)
            if not keep:
                return found
            self._kept = found[0], self.begins + runs.per_record(found[1] - spans[:, 1])
        else:  # what is in memory was checked when it was read; to ask again of a remote shard would be a request
            for shard in set(self.shards[chosen].tolist()):
                if not files.is_remote[shard]:
                    opened_shard(files.urls[shard]).check(files.stamps[shard])
        memory, begins = self._kept
        return memory, begins[chosen]


def _read_rows(job: IndexJob, runs: RowRuns) -> list[bytes]:
    """The rows of each run (first, count), and the row after it, from an index that is built again if it is damaged."""
    try:
        rows: list[bytes] = open_files.get(job, open_index).runs(runs)
        return rows
    except IndexDamageError as damage:
        if job.is_given:
            raise given_error(job, damage) from damage
        logger.warning("index of '%s': %s; it is built again", one_line(job.url), damage)
    except GoneError as error:
        raise given_error(job, "got none") from error
    (built,) = build(job)
    header = built.header
    open_files.forget(job)
    try:
        index = IndexFile(built.path, header.row_bytes, header.num_records, header.check)
        rows = open_files.get(job, lambda _: index).runs(runs)
    except IndexDamageError as damage:
        raise ShardError(
            f"index of '{job.url}': just built, and yet {damage}\n  Check the disk that holds it."
        ) from damage
    return rows
