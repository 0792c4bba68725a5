"""Finding and building indexes: `IndexJob → index file, beside the shard or in the cache`.

Indexes of one tar are built in one pass over it: its own, and those that join its sidecar.
"""

import errno
import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from streamdata.errors import ShardError, one_line
from streamdata.io.file_cache import cache_directory
from streamdata.io.one_pass import Ahead, byte_source
from streamdata.io.storage import NO_STAMP, FileStamp, check_stamp, is_remote, local_path
from streamdata.recipe.limits import DEFAULT_LIMITS, ShardLimits
from streamdata.shards.index.index_file import Contents, IndexDamageError, IndexFile, IndexHeader, encode, read_header
from streamdata.shards.index.publish import publish_index
from streamdata.shards.index.record_counts import COUNT_KINDS, count_records
from streamdata.shards.jsonl import index as jsonl_index
from streamdata.shards.tar import index as tar_index
from streamdata.shards.tar import sidecar
from streamdata.shards.tar.records import records

logger = logging.getLogger(__name__)
_MAX_OPENINGS = 8
_MAX_NAME_BYTES = 200  # of a shard: file systems allow 255, and its index adds some, more while it is being written
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class IndexJob(NamedTuple):
    """One index: its kind, and which version of which shard; for the sidecar of a tar, of which sidecar too.

    What is larger than the limits is an error where the index is built; they are in no index.
    """

    kind: str
    url: str
    stamp: FileStamp
    sidecar: str = ""
    sidecar_stamp: FileStamp = NO_STAMP
    limits: ShardLimits = DEFAULT_LIMITS


class Found(NamedTuple):
    """Where an index is, and its header."""

    path: str
    header: IndexHeader


class _Kind(NamedTuple):
    dtype: np.dtype[Any]
    skipped: str  # what the count of the passed over counts
    noted: str = ""  # what the count of the noteworthy counts, if that is to be said


JOIN = "join"
"""The kind of the index of a sidecar where the shard tells what its keys are; `join-id` and `join-key` are told."""


def sidecar_kind(by: str | None) -> str:
    """The kind of the index of a sidecar whose keys are these; None where the shard tells what they are."""
    return f"{JOIN}-{by}" if by else JOIN


_SIDECAR = _Kind(
    sidecar.DTYPE,
    "records without a line in the sidecar, the first record number {}",
    "lines of the sidecar that are of no record",
)
KINDS = {
    "jsonl": _Kind(jsonl_index.DTYPE, "blank lines, the first line {}"),
    **{sidecar_kind(by): _SIDECAR for by in (None, *sidecar.SIDECAR_KEYS)},
    "tar": _Kind(tar_index.DTYPE, "members whose names give no key and field, the first at offset {}"),
    **dict.fromkeys(COUNT_KINDS, _Kind(np.dtype(np.uint8), "")),
}


# As texts, like the urls: a `Path` keeps each part of each path in the interpreter's table of names, for ever.
def _beside(job: IndexJob) -> str | None:
    """Where the index may be beside the shard: hidden, so that no glob takes it for a shard."""
    if is_remote(job.url):
        return None
    path = os.path.abspath(local_path(job.url))
    name = os.path.basename(path)
    if len(os.fsencode(name)) > _MAX_NAME_BYTES:
        return None
    return os.path.join(os.path.dirname(path), f".{name}.{job.kind}.index")


def _cached(job: IndexJob) -> str:
    """Where the index may be in the cache."""
    where = job.url if is_remote(job.url) else str(Path(local_path(job.url)).absolute())
    name = hashlib.blake2b(os.fsencode(where), digest_size=16).hexdigest()
    return f"{cache_directory()}/indexes/{name[:2]}/{name}.{job.kind}.index"


_in_memory: dict[IndexJob, str] = {}
"""The indexes that could be written nowhere."""


def find(job: IndexJob) -> Found | None:
    """Path and header of the index of just this version of the shard, if it has been built."""
    for place in (_beside, _cached, _in_memory.get):
        path = place(job)
        if path is None:
            continue
        try:
            header = read_header(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except IndexDamageError as damage:
            logger.warning("index '%s': %s; it is built again", one_line(path), damage)
            continue
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:  # it says nothing of the index, and no shard could be read either
                raise
            _say_unreadable(path, error)
            continue
        if header[:3] == (job.kind, KINDS[job.kind].dtype.itemsize, (job.stamp, job.sidecar_stamp)):
            return Found(path, header)
    return None


_unreadable: set[tuple[str, int | None]] = set()
"""Folders with indexes that cannot be read, and why not: where one cannot be, the others mostly cannot either."""


def _say_unreadable(path: str, error: OSError) -> None:
    """Log that an index is passed over: one of each folder as a warning, the others for who looks for them."""
    which = os.path.dirname(path), error.errno
    level = logging.DEBUG if which in _unreadable else logging.WARNING
    _unreadable.add(which)
    logger.log(
        level,
        "index '%s' cannot be read: %s; it is built again, in the cache if it cannot be replaced, and so are others of "
        "this folder\n  Let all who read the shards read their indexes, or delete these.",
        one_line(path), one_line(error.strerror),
    )  # fmt: skip


def open_index(job: IndexJob, *, is_kept_beside: bool = True) -> IndexFile:
    """The index; built where it is not there, or no longer: whoever has put it into a manifest deletes it.

    Raises:
        ShardError: The shard is damaged, or another one, or its index is deleted as often as it is built.
        IndexDamageError: What was found is none.
    """
    for _ in range(_MAX_OPENINGS):
        found = find(job)
        if found is None:
            check_stamp(job.url, job.stamp)
            (found,) = build(job, is_kept_beside=is_kept_beside)
        try:
            return IndexFile(Path(found.path), KINDS[job.kind].dtype)
        except FileNotFoundError:
            logger.debug("index '%s': another process has deleted it", one_line(found.path))
    raise ShardError(
        f"index of '{job.url}': built {_MAX_OPENINGS} times, and each time deleted by another process\n"
        f"  See what deletes files below '{cache_directory()}'."
    )


def build(*jobs: IndexJob, is_kept_beside: bool = True, ahead: Ahead | None = None) -> list[Found]:
    """Build and publish indexes of one shard in one pass, wherever they may be written.

    Args:
        jobs: The indexes.
        is_kept_beside: Whether they may be written beside the shard; else they are written in the cache.
        ahead: What fetches pieces of a remote shard early.

    Raises:
        ShardError: The shard is damaged, or it changed meanwhile; those that could be built are published.
    """
    built = []
    for found in build_each(*jobs, is_kept_beside=is_kept_beside, ahead=ahead):
        if isinstance(found, ShardError):
            raise found
        built.append(found)
    return built


def build_each(*jobs: IndexJob, is_kept_beside: bool = True, ahead: Ahead | None = None) -> list[Found | ShardError]:
    """As `build`; in the place of an index that cannot be built, though the shard could be read, is why not."""
    contents = _contents(jobs, ahead)
    # After reading, since a file that was replaced meanwhile may have been read in parts of two versions.
    read = {jobs[0].url: jobs[0].stamp, **{which.sidecar: which.sidecar_stamp for which in jobs if which.sidecar}}
    for url, stamp in read.items():
        if not is_remote(url):  # there each answer was of the version asked for
            check_stamp(url, stamp)
    return [
        found if isinstance(found, ShardError) else _publish(which, found, is_kept_beside=is_kept_beside)
        for which, found in zip(jobs, contents, strict=True)
    ]


def _publish(job: IndexJob, contents: Contents, *, is_kept_beside: bool) -> Found:
    stamps, kind = (job.stamp, job.sidecar_stamp), KINDS[job.kind]
    header = IndexHeader(job.kind, kind.dtype.itemsize, stamps, len(contents.rows) - 1, *contents[1:])
    beside = _beside(job) if is_kept_beside else None
    places = None if beside is None else Path(beside), Path(_cached(job))
    path = publish_index(*places, encode(header, contents.rows))
    if path not in places:
        _in_memory[job] = str(path)
    return Found(str(path), header)


def _contents(jobs: Sequence[IndexJob], ahead: Ahead | None) -> list[Contents | ShardError]:
    """What is in the index of each of these jobs, which are of one shard, or why it cannot be built."""
    url, limits = jobs[0].url, jobs[0].limits
    if jobs[0].kind == "jsonl":
        return [jsonl_index.build_rows(url, jobs[0].stamp, ahead, limits.line_bytes)]
    if jobs[0].kind in COUNT_KINDS:
        return [count_records(jobs[0].kind, url, jobs[0].stamp, ahead, limits)]
    own = tar_index.TarRows(url)
    joined = {job.sidecar: job.sidecar_stamp for job in jobs if job.sidecar}  # of several kinds, and read once
    joins = {file: sidecar.JoinRows(url, file, stamp, limits) for file, stamp in joined.items()}
    is_own_wanted = any(job.kind == "tar" for job in jobs)
    takers: list[tar_index.TarRows | sidecar.JoinRows] = [*([own] if is_own_wanted else []), *joins.values()]
    source, fields = byte_source(url, jobs[0].stamp, ahead), ("id",) if joins else ()
    for record in records(source, url, fields, own.skip, max_bytes=limits.member_bytes):
        for taker in takers:
            taker.add(record)
    return [_tried(job, own, joins) for job in jobs]


def _tried(job: IndexJob, own: tar_index.TarRows, joins: dict[str, sidecar.JoinRows]) -> Contents | ShardError:
    try:
        return joins[job.sidecar].contents(job.kind.partition("-")[2] or None) if job.sidecar else own.contents()
    except ShardError as error:
        return error


def forget_cached(job: IndexJob) -> None:
    """Delete the index from the cache, where it is kept elsewhere now."""
    try:
        Path(_cached(job)).unlink(missing_ok=True)
    except OSError as error:  # a cache that is shared may be read-only
        logger.info("index '%s' stays in the cache: %s", one_line(_cached(job)), one_line(error))


def warn_of_skipped(url: str, kind: str, skipped: int, first_skipped: int, noted: int) -> None:
    """Log what a shard holds that is no record, or less than one."""
    if skipped:
        logger.warning("shard '%s': %d %s", one_line(url), skipped, KINDS[kind].skipped.format(first_skipped))
    if noted and KINDS[kind].noted:
        logger.warning("shard '%s': %d %s", one_line(url), noted, KINDS[kind].noted)
