"""Files with an index each: runs of their records → rows of their indexes → where the records lie → their bytes."""

import logging
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from streamdata.errors import ShardError
from streamdata.shards.build import headers_of
from streamdata.shards.index_file import IndexDamageError, IndexFile, Rows
from streamdata.shards.indexing import KINDS, IndexJob, build, find, warn_of_skipped
from streamdata.shards.read_ahead import FileSpans
from streamdata.shards.readers import Int64s
from streamdata.shards.recent import ReadBuffer, Recent
from streamdata.shards.slow_reads import SlowReads
from streamdata.shards.storage import (
    NO_STAMP,
    base_name,
    check_shards,
    check_stamp,
    close_unused,
    is_remote,
    read_spans,
    stamps_of,
)

logger = logging.getLogger(__name__)
MAX_OPEN_INDEXES = 128


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


class IndexedFiles:
    """Shards with an index each. Constructing builds the indexes that are missing and reads the others' headers.

    Args:
        urls: The shards, some perhaps several times.
        kind: Of their indexes.
        sidecar_of: The sidecar of a shard, where the kind has one.

    Raises:
        ShardError: A shard is damaged.
        FileNotFoundError: There is no such shard.
    """

    def __init__(self, urls: list[str], kind: str, sidecar_of: Callable[[str], str] | None = None) -> None:
        different = list(dict.fromkeys(urls))
        sidecars = [sidecar_of(url) if sidecar_of else "" for url in different]
        # Under these urls another version may have been opened before, by an earlier reader.
        close_unused([*different, *filter(None, sidecars)])
        sidecar_stamps = stamps_of(sidecars) if sidecar_of else [NO_STAMP] * len(different)
        versions = zip(different, stamps_of(different), sidecars, sidecar_stamps, strict=True)
        jobs = [IndexJob(kind, *version) for version in versions]
        headers = dict(zip(different, headers_of(jobs), strict=True))
        for job in jobs:
            warn_of_skipped(job, headers[job.url])
        by_url = dict(zip(different, jobs, strict=True))
        self.urls, self._dtype = urls, KINDS[kind].dtype
        self.jobs = [by_url[url] for url in urls]
        self.stamps = [job.stamp for job in self.jobs]
        self.sidecar_urls = [job.sidecar for job in self.jobs]
        self.sidecar_stamps = [job.sidecar_stamp for job in self.jobs]
        self.is_remote = [is_remote(url) for url in urls]
        self.has_remote, self.reads = any(self.is_remote), SlowReads()
        self.num_records: Int64s = np.array([headers[url].num_records for url in urls], np.int64)
        self.noted: Int64s = np.array([headers[url].noted for url in urls], np.int64)
        self.skipped = sum(headers[url].skipped for url in urls)
        self.sizes: Int64s = np.array([stamp.size for stamp in self.stamps], np.int64)

    def is_slow(self) -> bool:
        """Whether the next window is better asked for before it is needed: some are remote, or were waited for."""
        return self.has_remote or self.reads.judge()

    def runs(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> Runs:
        """The records of the runs [first, first + count)."""
        inside = (firsts >= 0) & (counts >= 0) & (firsts + counts <= self.num_records[shards])
        assert inside.all(), f"runs {np.flatnonzero(~inside)} go beyond their shards"
        is_run = counts > 0
        return Runs(shards[is_run], firsts[is_run], counts[is_run])

    def rows(self, runs: Runs) -> tuple[Rows, Int64s]:
        """The index rows of each run, with the row after it, and which of them are the records' own.

        What follows such a row tells where the record ends. Each shard's index is asked once.
        """
        shards = runs.shards.tolist()
        bounds = list(zip(runs.firsts.tolist(), runs.counts.tolist(), strict=True))
        pieces = [b""] * len(bounds)
        for shard, group in groupby(sorted(range(len(shards)), key=shards.__getitem__), shards.__getitem__):
            numbers = list(group)
            for number, piece in zip(numbers, _read_rows(self.jobs[shard], [bounds[n] for n in numbers]), strict=True):
                pieces[number] = piece
        own = np.arange(int(runs.counts.sum())) + runs.per_record(np.arange(len(shards)))
        return np.frombuffer(b"".join(pieces), self._dtype), own

    def identity(self) -> list[tuple[str, int]]:
        """Base name and number of records per shard."""
        return list(zip(map(base_name, self.urls), self.num_records.tolist(), strict=True))


class RecordBytes:
    """Where the records of some runs lie, and their bytes: read at each take, or all at the first one, and kept.

    Args:
        files: The shards.
        runs: Of their records.
        offsets: Of each run's records, and of what follows the last of them.
        own: Which of the offsets are where a record begins.
        buffer: Memory to read into.

    Raises:
        ShardError: A record does not lie within its shard: an index may come with a shard from anywhere.
    """

    def __init__(self, files: IndexedFiles, runs: Runs, offsets: Int64s, own: Int64s, buffer: ReadBuffer) -> None:
        self._files, self._runs, self._buffer = files, runs, buffer
        self.shards = runs.per_record(runs.shards)
        self.begins, self.ends = offsets[own], offsets[own + 1]
        wrong = np.flatnonzero((self.begins >= self.ends) | (self.begins < 0) | (self.ends > files.sizes[self.shards]))
        if len(wrong):
            first = int(wrong[0])
            raise ShardError(
                f"index of '{files.urls[int(self.shards[first])]}': record {int(runs.numbers()[first])} expected "
                f"within the shard, got bytes {int(self.begins[first])} to {int(self.ends[first])}\n"
                "  Delete the index; it is then built again."
            )
        self.sizes = self.ends - self.begins
        self.num_bytes = int(self.sizes.sum())
        self._spans = np.stack([self.shards, self.begins, self.ends], axis=1)
        self._kept: tuple[memoryview, Int64s] | None = None
        # A path is looked at once per window: on a network file system that may be a request, other than `fstat`.
        self._at_their_paths: set[int] = set()

    @property
    def file_spans(self) -> FileSpans:
        """Where the records lie."""
        return FileSpans(self._files.urls, self._files.stamps, self._spans)

    def read(self, chosen: Int64s, *, keep: bool) -> tuple[memoryview, Int64s]:
        """Memory that holds these records, and where each begins in it.

        Args:
            chosen: Positions in the runs.
            keep: Read all records at once, for this and later calls.

        Raises:
            ShardError: A shard is not what was indexed.
        """
        files = self._files
        if not keep:
            spans = self._spans[chosen]
            began = files.reads.begin()
            found = read_spans(files.urls, files.stamps, spans, self._buffer.lend, self._at_their_paths)
            files.reads.end(began)
            return found
        if self._kept is None:
            began = files.reads.begin()
            self._kept = self._read_runs()
            files.reads.end(began)
        else:  # what is in memory was checked when it was read; to ask again of a remote shard would be a request
            shards = set(self.shards[chosen].tolist())
            check_shards(files.urls, files.stamps, {shard for shard in shards if not files.is_remote[shard]})
        memory, begins = self._kept
        return memory, begins[chosen]

    def _read_runs(self) -> tuple[memoryview, Int64s]:
        """As `read`, of all records; a run is one span, so that few are sorted."""
        runs = self._runs
        lasts = np.cumsum(runs.counts) - 1
        spans = np.stack([runs.shards, self.begins[lasts - runs.counts + 1], self.ends[lasts]], axis=1)
        memory, offsets = read_spans(self._files.urls, self._files.stamps, spans, self._buffer.lend)
        return memory, self.begins + runs.per_record(offsets - spans[:, 1])


_open_indexes: Recent[IndexJob, IndexFile] = Recent(MAX_OPEN_INDEXES)


def _read_rows(job: IndexJob, runs: Sequence[tuple[int, int]]) -> list[bytes]:
    """The rows of each run (first, count), and the row after it, from an index that is built again if it is damaged."""
    try:
        return _open_indexes.get(job, _open_index).runs(runs)
    except IndexDamageError as damage:
        logger.warning("index of '%s': %s; it is built again", job.url, damage)
    path = build(job).path
    _open_indexes.forget(job)
    try:
        return _open_indexes.get(job, lambda _: IndexFile(path, KINDS[job.kind].dtype)).runs(runs)
    except IndexDamageError as damage:
        raise ShardError(
            f"index of '{job.url}': just built, and yet {damage}\n  Check the disk that holds it."
        ) from damage


def _open_index(job: IndexJob) -> IndexFile:
    """The index; built again where it is gone."""
    found = find(job)
    if found is None:
        check_stamp(job.url, job.stamp)
    return IndexFile((found or build(job)).path, KINDS[job.kind].dtype)
