"""The sidecar of a tar shard: JSON lines that add fields to its records, matched by `key` (see `sidecar_keys`).

The index has 12 bytes per record of the tar, in its order: where the record's line is, and its length (0 for none).
"""

from array import array
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import fsspec
import numpy as np

from streamdata.errors import ShardError
from streamdata.shards.index_file import Contents, Rows
from streamdata.shards.readers import Int64s
from streamdata.shards.sidecar_keys import DTYPE, RecordNames, SidecarKeys, names_of
from streamdata.shards.storage import byte_source, is_pipe, is_remote, local_path
from streamdata.shards.tar_records import SkippedMembers, key_hash, records

SIDECAR_SUFFIXES = (".meta.jsonl", ".jsonl")
_TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst")


def find_sidecar(url: str) -> str:
    """The sidecar of a tar shard: `x/00001.meta.jsonl` or `x/00001.jsonl` beside `x/00001.tar`.

    Raises:
        ShardError: There is neither.
    """
    stem = next((url.removesuffix(end) for end in _TAR_SUFFIXES if url.endswith(end)), url)
    candidates = [] if is_pipe(url) else [stem + suffix for suffix in SIDECAR_SUFFIXES]
    for candidate in candidates:
        if _exists(candidate):
            return candidate
    raise ShardError(
        f"shard '{url}': meta_names are asked for, expected a sidecar {' or '.join(map(repr, candidates)) or ''}, "
        f"got {'none' if candidates else 'a pipe, which has none'}\n"
        "  Put the sidecar beside the shard, or leave meta_names out."
    )


def _exists(url: str) -> bool:
    if not is_remote(url):
        return Path(local_path(url)).is_file()
    filesystem, path = fsspec.core.url_to_fs(url)
    return bool(filesystem.exists(path))


def build_rows(url: str, sidecar: str, by: str | None) -> Contents:
    """Rows of the tar's records and one more; the records without a line (the first from 0), the lines without one.

    Args:
        url: The tar.
        sidecar: Its sidecar.
        by: What the keys of the lines are, one of SIDECAR_KEYS; None where the shard has to tell.

    Raises:
        ShardError: The sidecar or the tar is damaged, no line joins a record, or it is in doubt which does.
    """
    keys = SidecarKeys(sidecar)
    ids, own, has_id = array("Q"), array("Q"), bytearray()
    for names in _names(url, by):
        ids.append(key_hash(names.by_id))
        own.append(key_hash(names.by_key))
        has_id.append(names.has_id)
    places = _joined(url, keys, by, (keys.places(ids), keys.places(own)), np.frombuffer(has_id, np.bool_))
    missing = np.flatnonzero(places == len(keys))
    rows: Rows = np.zeros(len(places) + 1, DTYPE)
    rows[:-1] = keys.rows[places]
    unused = len(keys) - len(np.unique(places[places < len(keys)]))
    return Contents(rows, len(missing), int(missing[0]) if len(missing) else 0, unused)


def _names(url: str, by: str | None) -> Iterator[RecordNames]:
    for record in records(byte_source(url), url, lambda name: name == "id", SkippedMembers()):
        yield names_of(record.key, record.fields.get("id"), url, by)


def _joined(
    url: str, keys: SidecarKeys, by: str | None, found: tuple[Int64s, Int64s], has_id: "np.typing.NDArray[np.bool_]"
) -> Int64s:
    """The place of each record's line, of those found by ids and by keys."""
    by_id, by_key = found
    with_line = np.flatnonzero(has_id & (by_id < len(keys)))
    others = np.flatnonzero((by_key != by_id) & (by_key < len(keys)))
    if len(with_line) and len(others):
        first, other = (next(islice(_names(url, by), int(which[0]), None)) for which in (with_line, others))
        raise keys.ambiguous(url, first, other)
    places = by_id if len(with_line) else by_key
    if (len(places) or len(keys)) and not (places < len(keys)).any():
        raise keys.unfit(url, next(_names(url, by), None), by)
    return places
