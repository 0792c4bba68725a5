"""The keys of a sidecar's lines, and what they may be of a record: the text of its `.id` member, or its own key.

Where a recipe does not say which (`sidecar_key`), each shard tells by itself: they are ids if any line joins so, else
keys. Where by ids some lines join, and by keys others do, an error asks for it: neither is chosen silently.
"""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.errors import ShardError
from streamdata.shards.index_file import Rows
from streamdata.shards.json_lines import numbered_lines
from streamdata.shards.json_rows import parse_row
from streamdata.shards.readers import Int64s, Record
from streamdata.shards.storage import byte_source
from streamdata.shards.tar_records import key_hash

DTYPE = np.dtype([("offset", "<u8"), ("length", "<u4")])
BY_ID, BY_KEY = SIDECAR_KEYS = ("id", "key")


class RecordNames(NamedTuple):
    """What a sidecar may call a record: by its id and by its key, which are the same where there is no doubt."""

    record: str
    by_id: str
    by_key: str
    has_id: bool


def names_of(key: str, identifier: bytes | None, url: str, by: str | None) -> RecordNames:
    """What a record may be called: by its `.id` member where it has one, by its key, or by what `by` says.

    Raises:
        ShardError: The id is no text.
    """
    if identifier is None or by == BY_KEY:
        return RecordNames(key, key, key, has_id=False)
    try:
        text = identifier.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise ShardError(
            f"shard '{url}': record '{key}': expected text in its '.id' member, got {error.reason}\n"
            f"  Write the id as UTF-8 text, or say sidecar_key: {BY_KEY}."
        ) from error
    return RecordNames(key, text, text if by == BY_ID else key, has_id=True)


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
        self.rows: Rows = np.zeros(len(order) + 1, DTYPE)  # the last row says: none
        self.rows["offset"][:-1], self.rows["length"][:-1] = np.array(offsets)[order], np.array(lengths)[order]
        self._check_keys_differ(np.array(numbers)[order])

    def _check_keys_differ(self, numbers: npt.NDArray[np.uint64]) -> None:
        twins = np.flatnonzero(self._hashes[1:] == self._hashes[:-1])
        if len(twins):
            first, second = int(numbers[twins[0]]), int(numbers[twins[0] + 1])
            raise ShardError(
                f"{self.url}:{second}:1: expected each key once, got that of line {first} again\n"
                "  Remove one of the two lines."
            )

    def __len__(self) -> int:
        return len(self._hashes)

    def places(self, hashes: Sequence[int]) -> Int64s:
        """The places in `rows` of the lines for keys of these hashes; len(self) where there is none."""
        wanted = np.array(hashes, np.uint64)
        places = np.searchsorted(self._hashes, wanted)
        if not len(self):
            return places
        is_known = self._hashes[np.minimum(places, len(self) - 1)] == wanted
        return np.where(is_known, places, len(self))

    def unfit(self, url: str, first: RecordNames | None, by: str | None) -> ShardError:
        """The error for a sidecar of which no line joins a record of the shard; the first of these, if it has any."""
        line = next(numbered_lines(byte_source(self.url), self.url), None)
        lines = "no line"
        if line is not None:
            key = line_key(parse_row(line[2], self.url, line[0]), self.url, line[0])
            lines = f"none that joins{f' by sidecar_key: {by}' if by else ''}, the first is for '{key}'"
        records = f"the first is {_described(first)}" if first else "there is none"
        return ShardError(
            f"sidecar '{self.url}': expected lines for the records of '{url}' ({records}), got {lines}\n"
            "  Put the shard's own sidecar beside it, give each line the key of its record, or leave meta_names out."
        )

    def ambiguous(self, url: str, by_id: RecordNames, by_key: RecordNames) -> ShardError:
        """The error for a sidecar of which one record has a line by its id, and one has another line by its key."""
        return ShardError(
            f"sidecar '{self.url}': expected the ids of the records of '{url}', or their keys, got both: a line for "
            f"{_described(by_id)} by its id, and one for {_described(by_key)} by its key\n"
            f"  Say which is meant: sidecar_key: {BY_ID}, or sidecar_key: {BY_KEY}."
        )


def _described(names: RecordNames) -> str:
    return f"record '{names.record}'" + (f" with the id '{names.by_id}'" if names.has_id else "")
