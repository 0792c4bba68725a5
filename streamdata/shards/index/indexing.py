"""Finding and building indexes: `IndexJob → index file, beside the shard or in the cache`; many at once by processes.

Indexes of one tar are built in one pass over it: its own, and those that join its sidecar. The index of a shard that is
read from its start is one number: how many records it has.

Of a node, one process indexes and the others wait for it. Local shards are indexed by processes, one shard at a time
each; remote ones by threads, since what takes time is their server: so many chunks are under way however many shards.
"""

import errno
import hashlib
import logging
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from streamdata.errors import ShardError, one_line
from streamdata.io.file_cache import cache_directory, locked
from streamdata.io.one_pass import SourceFile, byte_source
from streamdata.io.remote.addresses import beside
from streamdata.io.storage import NO_STAMP, FileStamp, check_stamp, is_remote, local_path
from streamdata.io.streams import open_stream
from streamdata.recipe.limits import DEFAULT_LIMITS, ShardLimits
from streamdata.run.lane_link import log_once
from streamdata.run.processes import ProcessError, processes
from streamdata.run.publish import publish
from streamdata.shards.index.index_file import Contents, IndexDamageError, IndexFile, IndexHeader, encode, read_header
from streamdata.shards.jsonl.csv_rows import csv_records
from streamdata.shards.jsonl.lines import JSONL_ROW, jsonl_rows, lines_of
from streamdata.shards.tar import sidecar
from streamdata.shards.tar.records import TAR_ROW, TarRows, records

_CSV: Final = "n-csv"
logger = logging.getLogger(__name__)
_MAX_NAME_BYTES = 200  # of a shard: file systems allow 255, and its index adds some, more while it is being written
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
JOIN = "join"
"""The kind of the index of a sidecar where the shard tells what its keys are; `join-id` and `join-key` are told."""
_MAX_PROCESSES = 16
_MAX_REQUESTS = 32
_MIN_BYTES = 256 << 20
"""Bytes of shards for which processes are started; fewer are indexed sooner than these start."""
_SHARD_BYTES = 256 << 10
"""How many bytes are read in the time that a shard takes for itself, however small it is."""
_MAX_DEATHS = 4
"""Deaths of processes, such as by lack of memory; after that many the rest is indexed here, one shard after another."""


def csv_kind(delimiter: str) -> str:
    """The index kind for counting CSV rows with this delimiter; "" chooses the delimiter by file name."""
    return _CSV + delimiter.encode().hex()


COUNT_KINDS: Final = frozenset((*map(csv_kind, ["", *map(chr, range(128))]), "n-jsonl", "n-tar"))
"""The kinds of indexes that say how many records there are, as `noted`, and not where: their one row is empty."""


def count_records(kind: str, url: str, stamp: FileStamp, ahead: int, limits: ShardLimits) -> Contents:
    """Count the records of a shard that is not a pipe, damaged ones included; return that as an index.

    Raises:
        ShardError: The shard is damaged, of another format, or was changed; or one of its records exceeds the limits.
    """
    # Past the page cache, as an index.
    raw = SourceFile(byte_source(url, stamp, ahead)) if is_remote(url) else None
    with open_stream(url, stamp, raw=raw) as stream:
        if kind.startswith(_CSV):
            delimiter = bytes.fromhex(kind.removeprefix(_CSV)).decode()
            count = sum(1 for _ in csv_records(stream, url, limits.line_bytes, delimiter))
        elif kind == "n-jsonl":
            count = sum(len(lines.numbers) for lines in lines_of(stream, url, max_bytes=limits.line_bytes))
        else:
            assert kind == "n-tar", f"nobody counts records of the kind {kind}"
            count = sum(1 for _ in records(stream, url, (), max_bytes=limits.member_bytes))
    return Contents(np.zeros(1, np.uint8), 0, 0, noted=count)


class ListedIndex(NamedTuple):
    """An index as a manifest lists it: how many records it has, the CRC32 of its header, and whether it is a copy's."""

    num_records: int
    check: int
    is_copied: bool


class IndexJob(NamedTuple):
    """Identifies one index: its kind, the version of its shard and, for joins, of the sidecar.

    Records larger than the limits are an error when the index is built; the index does not store the limits.
    """

    kind: str
    url: str
    stamp: FileStamp
    sidecar: str = ""
    sidecar_stamp: FileStamp = NO_STAMP
    limits: ShardLimits = DEFAULT_LIMITS
    place: str = ""
    """Where the index is; "" for beside the shard, or in the cache."""
    listed: ListedIndex | None = None

    @property
    def is_given(self) -> bool:
        """Whether the index came with the shard, from a store or a copy, and cannot be built again in its place."""
        return self.listed is not None and (is_remote(self.place) or self.listed.is_copied)


class Found(NamedTuple):
    """An existing index: its path and header."""

    path: str
    header: IndexHeader


class _Kind(NamedTuple):
    dtype: np.dtype[Any]
    skipped: str  # what the count of the passed over counts
    noted: str = ""  # what the count of the noteworthy counts, if that is to be said


def sidecar_kind(by: str | None) -> str:
    """The index kind for a sidecar whose keys are `by`; None if the shard decides."""
    return f"{JOIN}-{by}" if by else JOIN


_SIDECAR = _Kind(
    sidecar.DTYPE,
    "records without a line in the sidecar, the first record number {}",
    "lines of the sidecar that are of no record",
)
KINDS = {
    "jsonl": _Kind(JSONL_ROW, "blank lines, the first line {}"),
    **{sidecar_kind(by): _SIDECAR for by in (None, *sidecar.SIDECAR_KEYS)},
    "tar": _Kind(TAR_ROW, "members whose names give no key and field, the first at offset {}"),
    **dict.fromkeys(COUNT_KINDS, _Kind(np.dtype(np.uint8), "")),
}


def folder_of(url: str) -> str:
    """The folder of a file, with a final slash; "" for a file without a folder."""
    return url[: url.rfind("/") + 1]


def index_url(url: str, kind: str, roots: tuple[str, str] = ("", "")) -> str:
    """Where the index of a shard is, if it is beside it: hidden, so that no glob takes it for a shard.

    Args:
        url: The shard.
        kind: Of the index.
        roots: A folder above the shard, and where the indexes of its shards are; they may be the same.
    """
    if roots[0] != roots[1]:
        url = beside(roots[1], roots[1] + url[len(roots[0]) :])
    # As texts, like the urls: a `Path` keeps each part of each path in the interpreter's table of names, for ever.
    folder = folder_of(url)
    name = url[len(folder) :]
    if len(name) > _MAX_NAME_BYTES // 4 and len(os.fsencode(name)) > _MAX_NAME_BYTES:
        name = _digest(name)
    return beside(url, f"{folder}.{name}.{kind}.index")


def _digest(text: str) -> str:
    return hashlib.blake2b(os.fsencode(text), digest_size=16).hexdigest()


def _beside(job: IndexJob) -> str | None:
    """Where the index of a job may be kept for all nodes; None for a store's shard that has no place for it."""
    place = job.place or index_url(job.url, job.kind)
    return None if is_remote(place) else os.path.abspath(local_path(place))


def _cached(job: IndexJob) -> str:
    """Where the index may be in the cache; of a store's shard by its version, since it may be a copy with holes."""
    name = _digest(job.url if is_remote(job.url) else os.path.abspath(local_path(job.url)))
    if is_remote(job.url):
        version = job.listed if job.listed and job.listed.is_copied else (job.stamp, job.sidecar_stamp)
        name += f".{zlib.crc32(repr(version).encode()):08x}"
    return f"{cache_directory()}/indexes/{name[:2]}/{name}.{job.kind}.index"


def find(job: IndexJob) -> Found | None:
    """Find the index of exactly this version of the shard; None if it has not been built."""
    for place in (_beside, _cached):
        if (path := place(job)) is None:
            continue
        try:
            header = read_header(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except IndexDamageError as damage:
            # In the cache that of a store's shard may be a copy with holes.
            level = logging.DEBUG if is_remote(job.url) else logging.WARNING
            logger.log(level, "index '%s': %s; it is built again", one_line(path), damage)
            continue
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:  # it says nothing of the index, and no shard could be read either
                raise
            # Where one cannot be read, the others of its folder mostly cannot either.
            log_once(
                ("index", os.path.dirname(path), error.errno),
                f"index '{one_line(path)}' cannot be read: {one_line(error.strerror)}; it is built again, in the cache "
                "if it cannot be replaced, and so are others of this folder: let all who read the shards read their "
                "indexes, or delete these",
            )
            continue
        if header[:3] == (job.kind, KINDS[job.kind].dtype.itemsize, (job.stamp, job.sidecar_stamp)):
            return Found(path, header)
    return None


def open_index(job: IndexJob) -> IndexFile:
    """Open an index; build it if it is missing.

    Raises:
        ShardError: The shard is damaged, or another one; or the index is missing where it came with the shard.
        IndexDamageError: The file found is not a valid index.
    """
    row_bytes, listed = KINDS[job.kind].dtype.itemsize, job.listed
    if listed is not None and is_remote(job.place):
        return IndexFile(_cached(job), row_bytes, listed.num_records, listed.check, job.place)
    if listed is not None:
        try:
            return IndexFile(job.place, row_bytes, listed.num_records, listed.check)
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:  # as in `find`
                raise
            if job.is_given:
                raise given_error(job, f"got none that can be read: {error.strerror}") from error
    if (found := find(job)) is None:
        check_stamp(job.url, job.stamp)
        (found,) = build(job)
    return IndexFile(found.path, row_bytes, found.header.num_records, found.header.check)


def given_error(job: IndexJob, got: object) -> ShardError:
    """Make the error for an index that came with its shard and is missing or damaged."""
    return ShardError(
        f"index '{job.place}': expected the index of '{job.url}' that the manifest lists, {got}\n"
        "  Let this user read it, or copy it again with the manifest, or delete it and run streamdata index FOLDER."
    )


def build(*jobs: IndexJob, ahead: int = 0) -> list[Found]:
    """Build and publish all these indexes of one shard in a single pass, beside it or in the cache.

    Args:
        jobs: The indexes.
        ahead: What fetches chunks of a remote shard early.

    Raises:
        ShardError: The shard is damaged, or it changed meanwhile; those that could be built are published.
    """
    built = []
    for found in build_each(*jobs, ahead=ahead):
        if isinstance(found, ShardError):
            raise found
        built.append(found)
    return built


def build_each(*jobs: IndexJob, ahead: int = 0) -> list[Found | ShardError]:
    """Build indexes as `build` does, and return the error in place of each one that fails."""
    contents = _contents(jobs, ahead)
    # After reading, since a file that was replaced meanwhile may have been read in parts of two versions.
    read = {jobs[0].url: jobs[0].stamp, **{which.sidecar: which.sidecar_stamp for which in jobs if which.sidecar}}
    for url, stamp in read.items():
        if not is_remote(url):  # there each answer was of the version asked for
            check_stamp(url, stamp)
    return [
        found if isinstance(found, ShardError) else _publish(which, found)
        for which, found in zip(jobs, contents, strict=True)
    ]


def _publish(job: IndexJob, contents: Contents) -> Found:
    """Write an index beside its shard if it may be there, else, or where that fails, in the cache."""
    stamps, kind = (job.stamp, job.sidecar_stamp), KINDS[job.kind]
    header = IndexHeader(job.kind, kind.dtype.itemsize, stamps, len(contents.rows) - 1, *contents[1:])
    parts, own, cached = encode(header, contents.rows), _beside(job), _cached(job)
    failures = []
    for path in filter(None, (own, cached)):  # tried, not asked: access bits say little about root and mounts
        try:
            if path == cached or job.place:
                os.makedirs(os.path.dirname(path), exist_ok=True)
            publish(Path(path), parts, is_checked=True)
            return Found(path, header)
        except OSError as failure:
            failures.append(failure)
    raise ShardError(
        f"index '{cached}': cannot be written, neither beside its shard ({own}) nor in the cache: "
        f"{'; '.join(map(str, failures))}\n  Set STREAMDATA_CACHE to a directory that can be written, with room."
    ) from failures[-1]


def _contents(jobs: Sequence[IndexJob], ahead: int) -> list[Contents | ShardError]:
    """Index a shard for these jobs: the content of each index, or why it cannot be built."""
    url, limits = jobs[0].url, jobs[0].limits
    if jobs[0].kind == "jsonl":
        return [jsonl_rows(url, jobs[0].stamp, ahead, limits.line_bytes)]
    if jobs[0].kind in COUNT_KINDS:
        return [count_records(jobs[0].kind, url, jobs[0].stamp, ahead, limits)]
    assert all(job.kind == "tar" or job.sidecar for job in jobs), "a kind of index that nobody knows how to build"
    sidecars = {job.sidecar: job.sidecar_stamp for job in jobs if job.sidecar}  # of several kinds, and read once
    keys = {file: sidecar.SidecarKeys(file, stamp, limits.line_bytes) for file, stamp in sidecars.items()}
    own = TarRows(url)
    takers: list[TarRows | sidecar.JoinRows] = [
        sidecar.JoinRows(url, keys[job.sidecar], job.kind.partition("-")[2] or None) if job.sidecar else own
        for job in jobs
    ]
    source, fields = byte_source(url, jobs[0].stamp, ahead), ("id",) if keys else ()
    for record in records(source, url, fields, own.skip, max_bytes=limits.member_bytes):
        for taker in takers:
            taker.add(record)
    found: list[Contents | ShardError] = []
    for taker in takers:
        try:
            found.append(taker.contents())
        except ShardError as error:
            found.append(error)
    return found


Tasks = list[tuple[IndexJob, ...]]
"""The indexes of each shard, which are built in one pass over it."""
Report = Callable[[tuple[IndexJob, ...]], object]


def headers_of(jobs: Sequence[IndexJob]) -> list[IndexHeader]:
    """The headers of all these indexes; one process of the node builds those that are missing.

    Raises:
        ShardError: A shard is damaged (of several, the first in order).
    """
    found = {job: find(job) for job in jobs}
    if not all(found.values()):
        with locked("indexes", *sorted({job.url for job in jobs})):
            # Looked for again: another process may have built them while this one waited.
            build_missing([job for job in found if found[job] is None and find(job) is None])
            found = {job: index or find(job) for job, index in found.items()}
            for task in by_shard(job for job, index in found.items() if index is None):
                # One that could not be indexed raises here what is wrong with it.
                found.update(zip(task, build(*task), strict=True))
    return [index.header for job in jobs if (index := found[job]) is not None]


def by_shard(jobs: Iterable[IndexJob]) -> Tasks:
    """Group index jobs by shard."""
    tasks: dict[str, list[IndexJob]] = {}
    for job in jobs:
        tasks.setdefault(job.url, []).append(job)
    return [tuple(task) for task in tasks.values()]


def build_missing(
    jobs: Sequence[IndexJob],
    *,
    num_processes: int | None = None,
    report: Report = lambda _: None,
) -> set[IndexJob]:
    """Build indexes of many shards in parallel; return those that fail although their shards can be read.

    Other indexes of a shard that fails are left out.

    Args:
        jobs: The indexes.
        num_processes: How many; by default one for each core.
        report: Called with the jobs of each shard that was indexed.
    """
    tasks = by_shard(jobs)
    remote, local = ([task for task in tasks if is_remote(task[0].url) is kind] for kind in (True, False))
    size = sum(max(task[0].stamp.size, _SHARD_BYTES) for task in local)
    count = min(num_processes or len(os.sched_getaffinity(0)), len(local), _MAX_PROCESSES)
    unbuilt: set[IndexJob] = set()
    if remote:
        logger.info("indexing %d remote shards", len(remote))
        at_once = min(_MAX_REQUESTS, len(remote))
        with ThreadPoolExecutor(at_once) as threads:
            in_threads = partial(_build_quietly, ahead=_MAX_REQUESTS // at_once)
            for task, failed in zip(remote, threads.map(in_threads, remote), strict=True):
                unbuilt.update(failed)
                report(task)
    if count > 1 and size >= _MIN_BYTES:
        logger.info("indexing %d shards of %d MB with %d processes", len(local), size >> 20, count)
        local = _build_in_processes(local, count, report, unbuilt)
    for task in local:
        unbuilt.update(_build_quietly(task))
        report(task)
    return unbuilt


def _build_in_processes(tasks: Tasks, count: int, report: Report, unbuilt: set[IndexJob]) -> Tasks:
    """Build indexes; return what is left where processes died."""
    waiting = sorted(
        tasks, key=lambda task: -task[0].stamp.size
    )  # the largest first, or it would end long after others
    left: Tasks = []
    for _ in range(_MAX_DEATHS):
        try:
            with processes(_build_quietly, count) as team:
                for task, failed in team.run(tuple(waiting)):
                    waiting.remove(task)
                    unbuilt.update(failed)
                    report(task)
            return left
        except ProcessError as error:
            logger.warning("a process that indexes shards: %s; its shard is indexed here", error)
            waiting = [task for task in waiting if task != error.task]
            left += [error.task] if error.task else []
    return left + waiting


def _build_quietly(task: tuple[IndexJob, ...], _: object = None, *, ahead: int = 0) -> tuple[IndexJob, ...]:
    """Index a shard; return what cannot be built though the shard could be read."""
    try:
        built = build_each(*task, ahead=ahead)
    except Exception as error:  # whatever it is, the caller meets it again
        logger.debug("index of %s: %s", one_line(task[0].url), one_line(error))
        return ()
    return tuple(job for job, found in zip(task, built, strict=True) if not isinstance(found, Found))
