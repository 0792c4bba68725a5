"""The sidecar of a tar shard: JSON lines that add fields to its records, matched by `key`.

The index has 12 bytes per record of the tar, in its order: where the record's line is, and its length (0 for none).
"""

from array import array
from pathlib import Path

import fsspec
import numpy as np
import numpy.typing as npt

from streamdata.errors import ShardError
from streamdata.shards.index_file import Contents, Rows
from streamdata.shards.json_lines import numbered_lines
from streamdata.shards.json_rows import parse_row
from streamdata.shards.readers import Record
from streamdata.shards.storage import byte_source, is_pipe, is_remote, local_path
from streamdata.shards.tar_names import key_hash
from streamdata.shards.tar_records import SkippedMembers, records

DTYPE = np.dtype([("offset", "<u8"), ("length", "<u4")])
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


def match_key(key: str, identifier: bytes | None, url: str) -> str:
    """What the sidecar calls a record: the text of its `.id` member where it has one, else its key."""
    if identifier is None:
        return key
    try:
        return identifier.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise ShardError(
            f"shard '{url}': record '{key}': expected text in its '.id' member, got {error.reason}\n"
            "  Write the id as UTF-8 text."
        ) from error


def line_key(row: Record, url: str, number: int) -> str:
    """The key that a line of a sidecar is for; an integer stands for its digits.

    Raises:
        ShardError: There is none.
    """
    key = row.get("key")
    if type(key) is str:
        return key
    if type(key) is int:
        return str(key)
    raise ShardError(
        f"{url}:{number}:1: expected a 'key' that is a text or an integer, got {key!r}\n"
        "  Give each line of a sidecar the key of its record."
    )


class SidecarKeys:
    """Which line of a sidecar is for which key: 20 bytes per line, while a shard is indexed or streamed.

    Raises:
        ShardError: A line is broken or has no key, or a key comes twice.
    """

    def __init__(self, sidecar: str) -> None:
        self.url = sidecar
        hashes, offsets, lengths, numbers = array("Q"), array("Q"), array("I"), array("Q")
        for number, offset, line in numbered_lines(byte_source(sidecar), sidecar):
            hashes.append(key_hash(line_key(parse_row(line, sidecar, number), sidecar, number)))
            offsets.append(offset)
            lengths.append(len(line))
            numbers.append(number)
        order = np.argsort(np.array(hashes, np.uint64), kind="stable")
        self._hashes = np.array(hashes, np.uint64)[order]
        self._rows: Rows = np.zeros(len(order) + 1, DTYPE)  # the last row says: none
        self._rows["offset"][:-1], self._rows["length"][:-1] = np.array(offsets)[order], np.array(lengths)[order]
        self._check_keys_differ(np.array(numbers)[order])

    def _check_keys_differ(self, numbers: npt.NDArray[np.uint64]) -> None:
        twins = np.flatnonzero(self._hashes[1:] == self._hashes[:-1])
        if len(twins):
            first, second = int(numbers[twins[0]]), int(numbers[twins[0] + 1])
            raise ShardError(
                f"{self.url}:{second}:1: expected each key once, got that of line {first} again\n"
                "  Remove one of the two lines."
            )

    def find(self, hashes: npt.NDArray[np.uint64]) -> Rows:
        """The rows (offset, length) of the lines for keys of these hashes; length 0 where there is none."""
        places = np.searchsorted(self._hashes, hashes)
        inside = np.minimum(places, max(len(self._hashes) - 1, 0))
        known = (self._hashes[inside] == hashes) if len(self._hashes) else np.zeros(len(hashes), np.bool_)
        found: Rows = self._rows[np.where(known, places, len(self._hashes))]
        return found


def build_rows(url: str, sidecar: str) -> Contents:
    """Rows of the tar's records and one more, the number of records without a line, the first of them (from 0).

    Raises:
        ShardError: The sidecar or the tar is damaged.
    """
    keys = SidecarKeys(sidecar)
    hashes = array("Q")
    for record in records(byte_source(url), url, lambda name: name == "id", SkippedMembers()):
        hashes.append(key_hash(match_key(record.key, record.fields.get("id"), url)))
    found = keys.find(np.array(hashes, np.uint64))
    missing = np.flatnonzero(found["length"] == 0)
    rows: Rows = np.zeros(len(found) + 1, DTYPE)
    rows[:-1] = found
    return Contents(rows, len(missing), int(missing[0]) if len(missing) else 0)
