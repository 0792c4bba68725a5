"""Finding and building indexes: `IndexJob → index file, beside the shard or in the cache`."""

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from streamdata.shards import jsonl_index, sidecar, tar_index
from streamdata.shards.index_file import Contents, IndexDamageError, IndexHeader, encode, read_header
from streamdata.shards.publish import cache_directory, publish_beside_or_cached
from streamdata.shards.storage import NO_STAMP, FileStamp, check_stamp, is_remote, local_path

logger = logging.getLogger(__name__)
_MAX_NAME_BYTES = 200  # of a shard: file systems allow 255, and its index adds some, more while it is being written


class IndexJob(NamedTuple):
    """One index: its kind, and which version of which shard; for the sidecar of a tar, of which sidecar too."""

    kind: str
    url: str
    stamp: FileStamp
    sidecar: str = ""
    sidecar_stamp: FileStamp = NO_STAMP


class Found(NamedTuple):
    """Where an index is, and its header."""

    path: Path
    header: IndexHeader


class _Kind(NamedTuple):
    dtype: np.dtype[Any]
    build: Callable[[IndexJob], Contents]
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


def _beside(job: IndexJob) -> Path | None:
    """Where the index may be beside the shard: hidden, so that no glob takes it for a shard."""
    if is_remote(job.url):
        return None
    path = os.path.abspath(local_path(job.url))
    name = os.path.basename(path)
    if len(os.fsencode(name)) > _MAX_NAME_BYTES:
        return None
    return Path(os.path.dirname(path), f".{name}.{job.kind}.index")


def _cached(job: IndexJob) -> Path:
    """Where the index may be in the cache."""
    where = job.url if is_remote(job.url) else str(Path(local_path(job.url)).absolute())
    name = hashlib.blake2b(os.fsencode(where), digest_size=16).hexdigest()
    return cache_directory() / "indexes" / name[:2] / f"{name}.{job.kind}.index"


def find(job: IndexJob) -> Found | None:
    """Path and header of the index of just this version of the shard, if it has been built."""
    for path in filter(None, (_beside(job), _cached(job))):
        try:
            header = read_header(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except IndexDamageError as damage:
            logger.warning("index '%s': %s; it is built again", path, damage)
            continue
        if header[:3] == (job.kind, KINDS[job.kind].dtype.itemsize, (job.stamp, job.sidecar_stamp)):
            return Found(path, header)
    return None


def build(job: IndexJob) -> Found:
    """Build and publish the index, wherever it may be written.

    Raises:
        ShardError: The shard is damaged, or it changed meanwhile.
    """
    kind = KINDS[job.kind]
    contents = kind.build(job)
    # After reading, since a file that was replaced meanwhile may have been read in parts of two versions.
    check_stamp(job.url, job.stamp)
    if job.sidecar:
        check_stamp(job.sidecar, job.sidecar_stamp)
    stamps = (job.stamp, job.sidecar_stamp)
    header = IndexHeader(job.kind, kind.dtype.itemsize, stamps, len(contents.rows) - 1, *contents[1:])
    return Found(publish_beside_or_cached(_beside(job), _cached(job), encode(header, contents.rows)), header)


def warn_of_skipped(job: IndexJob, header: IndexHeader) -> None:
    """Log what the shard holds that is no record, or less than one."""
    if header.skipped:
        what = KINDS[job.kind].skipped.format(header.first_skipped)
        logger.warning("shard '%s': %d %s", job.url, header.skipped, what)
    if header.noted and KINDS[job.kind].noted:
        logger.warning("shard '%s': %d %s", job.url, header.noted, KINDS[job.kind].noted)
