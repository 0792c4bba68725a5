"""Finding, building and opening indexes: `(kind, url) → index file beside the shard or in the cache → IndexFile`."""

import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from streamdata.errors import ShardError
from streamdata.shards import jsonl_index, sidecar, tar_index
from streamdata.shards.index_file import Contents, IndexDamageError, IndexFile, IndexHeader, encode, read_header
from streamdata.shards.publish import cache_directory, publish_beside_or_cached
from streamdata.shards.recent import Recent
from streamdata.shards.storage import FileStamp, check_stamp, is_remote, local_path

logger = logging.getLogger(__name__)
MAX_OPEN_INDEXES = 128
_MAX_NAME_BYTES = 200  # of a shard, so that there is room for what its index adds
Stamps = tuple[FileStamp, FileStamp]


class Job(NamedTuple):
    """One index: its kind, the shard, and where the kind is of the sidecar of a tar, the sidecar."""

    kind: str
    url: str
    sidecar: str = ""


class Found(NamedTuple):
    """Where an index is, and its header."""

    path: Path
    header: IndexHeader


class _Kind(NamedTuple):
    dtype: np.dtype[Any]
    build: Callable[[Job], Contents]
    skipped: str  # what the count of the passed over counts
    noted: str = ""  # what the count of the noteworthy counts, if that is to be said


def sidecar_kind(by: str | None) -> str:
    """The kind of the index of a sidecar whose keys are these; None where the shard tells what they are."""
    return f"join-{by}" if by else "join"


def _sidecar_kind(by: str | None) -> _Kind:
    return _Kind(
        sidecar.DTYPE,
        lambda job: sidecar.build_rows(job.url, job.sidecar, by),
        "records without a line in the sidecar, the first record number {}",
        "lines of the sidecar that are of no record",
    )


KINDS = {
    "jsonl": _Kind(jsonl_index.DTYPE, lambda job: jsonl_index.build_rows(job.url), "blank lines, the first line {}"),
    **{sidecar_kind(by): _sidecar_kind(by) for by in (None, *sidecar.SIDECAR_KEYS)},
    "tar": _Kind(
        tar_index.DTYPE,
        lambda job: tar_index.build_rows(job.url),
        "members whose names give no key and field, the first at offset {}",
    ),
}


def _beside(job: Job) -> Path | None:
    """Where the index may be beside the shard: hidden, so that no glob takes it for a shard."""
    if is_remote(job.url):
        return None
    path = os.path.abspath(local_path(job.url))
    name = os.path.basename(path)
    if len(os.fsencode(name)) > _MAX_NAME_BYTES:
        return None
    return Path(os.path.dirname(path), f".{name}.{job.kind}.index")


def _cached(job: Job) -> Path:
    """Where the index may be in the cache."""
    where = job.url if is_remote(job.url) else str(Path(local_path(job.url)).absolute())
    name = hashlib.blake2b(os.fsencode(where), digest_size=16).hexdigest()
    return cache_directory() / "indexes" / name[:2] / f"{name}.{job.kind}.index"


def find(job: Job, stamps: Stamps) -> Found | None:
    """Path and header of the index of just this version of the shard, if it has been built."""
    for place in (_beside, _cached):
        path = place(job)
        if path is None:
            continue
        try:
            header = read_header(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except IndexDamageError as damage:
            logger.warning("index '%s': %s; it is built again", path, damage)
            continue
        if (header.kind, header.row_bytes, header.stamps) == (job.kind, KINDS[job.kind].dtype.itemsize, stamps):
            return Found(path, header)
    return None


def build(job: Job, stamps: Stamps) -> Found:
    """Build and publish the index, wherever it may be written.

    Raises:
        ShardError: The shard is damaged, or it changed meanwhile.
    """
    kind = KINDS[job.kind]
    contents = kind.build(job)
    check_stamp(job.url, stamps[0])
    if job.sidecar:
        check_stamp(job.sidecar, stamps[1])
    header = IndexHeader(job.kind, kind.dtype.itemsize, stamps, len(contents.rows) - 1, *contents[1:])
    return Found(publish_beside_or_cached(_beside(job), _cached(job), encode(header, contents.rows)), header)


def warn_of_skipped(job: Job, header: IndexHeader) -> None:
    """Log what the shard holds that is no record, or less than one."""
    if header.skipped:
        what = KINDS[job.kind].skipped.format(header.first_skipped)
        logger.warning("shard '%s': %d %s", job.url, header.skipped, what)
    if header.noted and KINDS[job.kind].noted:
        logger.warning("shard '%s': %d %s", job.url, header.noted, KINDS[job.kind].noted)


_open_indexes: Recent[tuple[Job, Stamps], IndexFile] = Recent(MAX_OPEN_INDEXES)


def open_index(job: Job, stamps: Stamps) -> IndexFile:
    """The open index, one of a bounded number per thread; built again where it is gone or damaged."""
    return _open_indexes.get((job, stamps), lambda _: _open(job, stamps))


def _open(job: Job, stamps: Stamps) -> IndexFile:
    found = find(job, stamps)
    if found is None:
        check_stamp(job.url, stamps[0])
    return IndexFile((found or build(job, stamps)).path, KINDS[job.kind].dtype)


def rows_of(job: Job, stamps: Stamps, runs: Sequence[tuple[int, int]]) -> list[bytes]:
    """The rows of each run (first, count), and the row after it, from an index that is built again if it is damaged."""
    try:
        return open_index(job, stamps).runs(runs)
    except IndexDamageError as damage:
        logger.warning("index of '%s': %s; it is built again", job.url, damage)
    path = build(job, stamps).path
    _open_indexes.forget((job, stamps))
    try:
        index = _open_indexes.get((job, stamps), lambda _: IndexFile(path, KINDS[job.kind].dtype))
        return index.runs(runs)
    except IndexDamageError as damage:
        raise ShardError(
            f"index of '{job.url}': just built, and yet {damage}\n  Look after the disk that holds it."
        ) from damage
