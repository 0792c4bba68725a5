"""The sidecar of a tar shard: JSON lines that add fields to its records.

1. sidecar → `SidecarKeys` → which line is for which key
2. records, these keys → `JoinedLines` → where each record's line is; `JoinRows` → the index of it
3. record, line → `join` → the record with the fields of `meta_names`

The `key` of a line is the text of a record's `.id` member, or the record's own key. Where a recipe does not say which
(`sidecar_key`), each shard tells by itself: they are ids if any line joins so, else keys. Where by ids some lines join,
and by keys others do, an error asks for it: neither is chosen silently.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.errors import ShardError, shown
from streamdata.fields import KEY, URL
from streamdata.io.one_pass import byte_source
from streamdata.io.storage import FileStamp, stamps_there
from streamdata.shards.index.index_file import Contents, Rows
from streamdata.shards.jsonl.lines import MAX_LINE_BYTES, lines_of, numbered_lines
from streamdata.shards.jsonl.rows import doubtful_integers, parse_row
from streamdata.shards.listing import SIDECAR_SUFFIXES, sidecars_of
from streamdata.shards.readers import DamagedRecordError, Record
from streamdata.shards.tar.records import TarRecord, key_hash

BY_ID, BY_KEY = SIDECAR_KEYS = ("id", "key")
_COUNTED_AT_ONCE = 1 << 20
# A row per record of the tar, in its order: where the record's line is, and its length (0 for none).
DTYPE = np.dtype([("offset", "<u8"), ("length", "<u4")])


def find_sidecars(urls: Iterable[str], known: Mapping[str, FileStamp]) -> dict[str, tuple[str, FileStamp]]:
    """The sidecar of each tar shard (`x/00001.meta.jsonl` or `x/00001.jsonl` beside `x/00001.tar`), with its stamp.

    Args:
        urls: The shards.
        known: Files that need not be asked for.

    Raises:
        ShardError: A shard has no sidecar.
    """
    candidates = {url: sidecars_of(url) for url in urls}
    found: dict[str, tuple[str, FileStamp]] = {}
    for there in (known, None):
        for number in range(len(SIDECAR_SUFFIXES)):
            left = {url: names[number] for url, names in candidates.items() if names and url not in found}
            stamps = stamps_there(left.values()) if there is None else there
            found |= {url: (name, stamps[name]) for url, name in left.items() if name in stamps}
    if missing := [url for url in candidates if url not in found]:
        url, names = missing[0], candidates[missing[0]]
        raise ShardError(
            f"shard '{url}': meta_names are asked for, expected a sidecar {' or '.join(map(repr, names))}, "
            f"got {'none' if names else 'a pipe, which has none'}\n"
            "  Put the sidecar beside the shard, or leave meta_names out."
        )
    return found


class RecordNames(NamedTuple):
    """The names under which a record may have a sidecar line: its id and its key."""

    record: str
    by_id: str
    by_key: str
    has_id: bool


def names_of(key: str, identifier: bytes | None, url: str, by: str | None) -> RecordNames:
    """Find the names under which a record may have a sidecar line: id or key, as `by` says.

    Raises:
        ShardError: The id is not text.
    """
    if identifier is None or by == BY_KEY:
        return RecordNames(key, key, key, has_id=False)
    try:
        text = identifier.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise ShardError(
            f"shard '{url}': record {shown(key)}: expected text in its '.id' member, got {error.reason}\n"
            f"  Write the id as UTF-8 text, or say sidecar_key: {BY_KEY}."
        ) from error
    return RecordNames(key, text, text if by == BY_ID else key, has_id=True)


def line_key(row: Record, url: str, number: int) -> str:
    """The key of a sidecar line, as text; an integer key is converted.

    Raises:
        DamagedRecordError: The line has no valid key.
    """
    key = row.get("key")
    if type(key) is str:
        return key
    if type(key) is int:
        return str(key)
    raise DamagedRecordError(
        f"{url}:{number}:1: expected a 'key' that is a text or an integer, got {shown(key)}\n"
        "  Give each line of a sidecar the key of its record."
    )


class SidecarKeys:
    """Looks up sidecar lines by key; takes 20 bytes per line while a shard is indexed or streamed.

    A line that is broken, or has no key, may be that of any record without one: it is given to one of these, in the
    order of both, and if there are more of these the last such line to all of them. Whoever joins it finds it damaged.

    Lines of one key are one, from the first to the last of them, if they follow one another and no field differs.

    Raises:
        ShardError: A key comes again elsewhere, with other fields or another value.
    """

    def __init__(self, sidecar: str, stamp: FileStamp | None = None, max_bytes: int = MAX_LINE_BYTES) -> None:
        self.url, self._max_bytes = sidecar, max_bytes
        hashes, offsets, lengths, numbers = array("Q"), array("Q"), array("I"), array("Q")
        broken: list[tuple[int, int]] = []
        for lines in lines_of(byte_source(sidecar, stamp), sidecar, max_bytes=max_bytes):
            if lines.are_elements:
                raise ShardError(f"'{sidecar}': expected a line per record, got a JSON array\n  Write lines.")
            doubtful = set(np.searchsorted(lines.ends, doubtful_integers(lines.buffer)).tolist())
            for index, (number, start, line) in enumerate(lines.listed()):
                try:
                    row = parse_row(line, sidecar, number + 1, doubtful=index in doubtful)
                    hashes.append(key_hash(line_key(row, sidecar, number + 1)))
                except DamagedRecordError:
                    broken.append((lines.offset + start, len(line)))
                    continue
                offsets.append(lines.offset + start)
                lengths.append(len(line))
                numbers.append(number + 1)
        order = np.argsort(np.array(hashes, np.uint64), kind="stable")  # lines of one key in their sequence
        hashed = np.array(hashes, np.uint64)[order]
        rows: Rows = np.zeros(len(order), DTYPE)
        rows["offset"], rows["length"] = np.array(offsets)[order], np.array(lengths)[order]
        is_again = np.append(False, hashed[1:] == hashed[:-1])[: len(order)]
        if is_again.any():
            self._merge(rows, is_again, np.array(numbers)[order])
        self._hashes, rows = array("Q", hashed[~is_again].tobytes()), rows[~is_again]
        self._offsets, self._lengths = array("Q", rows["offset"].tobytes()), array("I", rows["length"].tobytes())
        self.broken = broken
        """Where broken lines begin, and their lengths."""

    def _merge(self, rows: Rows, is_again: npt.NDArray[np.bool_], numbers: npt.NDArray[np.uint64]) -> None:
        """Let the first line of a key stand for all of them; of equal ones it is enough."""
        twins = set(numbers[is_again | np.append(is_again[1:], False)].tolist())
        lines = numbered_lines(byte_source(self.url), self.url, self._max_bytes)
        read = {number: parse_row(line, self.url, number) for number, _, line in lines if number in twins}
        read = {number: row | {"key": line_key(row, self.url, number)} for number, row in read.items()}
        for index in np.flatnonzero(is_again).tolist():
            first = index - 1
            while is_again[first]:
                first -= 1
            number, begin = int(numbers[index]), int(numbers[first])
            row, merged = read[number], read[begin]
            if row.items() <= merged.items():
                continue
            differ = [name for name in row.keys() & merged.keys() if row[name] != merged[name]]
            if differ or number - begin != index - first:  # another key's line between them would be joined too
                got = f"another {shown(min(differ))}" if differ else "more of its fields elsewhere"
                raise ShardError(
                    f"{self.url}:{number}:1: expected each key once, got that of line {begin} again, "
                    f"with {got}\n  Remove one of the lines, or write both as one."
                )
            merged.update(row)
            rows["length"][first] = rows["offset"][index] + rows["length"][index] - rows["offset"][first]

    def __len__(self) -> int:
        return len(self._hashes)

    def find(self, key: str) -> int:
        """The number of the line for a key (lines are sorted by hash); `len(self)` if there is none."""
        wanted = key_hash(key)
        line = bisect_left(self._hashes, wanted)
        return line if line < len(self) and self._hashes[line] == wanted else len(self)

    def place(self, line: int) -> tuple[int, int]:
        """The offset and length of a line found by `find`."""
        return self._offsets[line], self._lengths[line]

    def unfit(self, url: str, first: RecordNames | None, by: str | None) -> ShardError:
        """Make the error for a sidecar none of whose lines matches a record of the shard."""
        line = next(numbered_lines(byte_source(self.url), self.url, self._max_bytes), None)
        lines = "no line"
        if line is not None:
            key = line_key(parse_row(line[2], self.url, line[0]), self.url, line[0])
            lines = f"none that joins{f' by sidecar_key: {by}' if by else ''}, the first is for {shown(key)}"
        records = f"the first is {_described(first)}" if first else "there is none"
        return ShardError(
            f"sidecar '{self.url}': expected lines for the records of '{url}' ({records}), got {lines}\n"
            "  Put the shard's own sidecar beside it, give each line the key of its record, or leave meta_names out."
        )


def _described(names: RecordNames) -> str:
    return f"record {shown(names.record)}" + (f" with the id {shown(names.by_id)}" if names.has_id else "")


class JoinedLines:
    """Finds the sidecar line of each record of a tar, one record after another.

    Args:
        url: The tar.
        keys: The lines of its sidecar.
        by: What the keys of the lines are, one of SIDECAR_KEYS; None where the shard has to tell.
    """

    def __init__(self, url: str, keys: SidecarKeys, by: str | None) -> None:
        self._url, self._keys, self._by = url, keys, by
        self._is_used = bytearray(len(keys))
        self._num_missing = 0
        self._first: RecordNames | None = None
        self._with_id: RecordNames | None = None  # the first record with a line by its id
        self._other: RecordNames | None = None  # the first with a line by its key alone

    def next(self, key: str, identifier: bytes | None) -> tuple[int, int]:
        """The offset and length of the next record's line; length 0 if it has none.

        Raises:
            ShardError: The matching line is ambiguous, or the id is not text.
        """
        names, keys = names_of(key, identifier, self._url, self._by), self._keys
        self._first = self._first or names
        line = by_key = keys.find(names.by_id)
        if names.by_key != names.by_id:
            by_key = keys.find(names.by_key)
        if names.has_id and line < len(keys):
            self._with_id = self._with_id or names
        if by_key not in (line, len(keys)):
            self._other = self._other or names
        if self._with_id and self._other:
            raise ShardError(
                f"sidecar '{keys.url}': expected the ids of the records of '{self._url}', or their keys, got both: a "
                f"line for {_described(self._with_id)} by its id, and one for {_described(self._other)} by its key\n"
                f"  Say which is meant: sidecar_key: {BY_ID}, or sidecar_key: {BY_KEY}."
            )
        if line == len(keys):
            line = by_key
        if line == len(keys):
            self._num_missing += 1
            return keys.broken[min(self._num_missing, len(keys.broken)) - 1] if keys.broken else (0, 0)
        self._is_used[line] = 1
        return keys.place(line)

    def num_unused(self) -> int:
        """The number of lines that matched no record, after the last record.

        Raises:
            ShardError: No line matches a record.
        """
        keys, num_used = self._keys, self._is_used.count(1)
        if not num_used and (len(keys) or self._first):
            raise keys.unfit(self._url, self._first, self._by)
        return len(keys) - num_used + max(0, len(keys.broken) - self._num_missing)


class JoinRows:
    """Collects the index rows of a tar's sidecar. Arguments as in `JoinedLines`."""

    def __init__(self, url: str, keys: SidecarKeys, by: str | None) -> None:
        self._lines = JoinedLines(url, keys, by)
        self._error: ShardError | None = None
        self._offsets, self._lengths = array("Q"), array("I")

    def add(self, record: TarRecord) -> None:
        """Append the row of the next record."""
        if self._error is not None:
            return
        try:
            offset, length = self._lines.next(record.key, record.fields.get("id"))
        except ShardError as error:  # other indexes of the shard can be built yet
            self._error = error
            return
        self._offsets.append(offset)
        self._lengths.append(length)

    def contents(self) -> Contents:
        """The finished index: rows, records without a line (and the first of them), lines without a record.

        Raises:
            ShardError: No line matches a record, a match is ambiguous, or an id is not text.
        """
        if self._error is not None:
            raise self._error
        num_unused = self._lines.num_unused()
        rows: Rows = np.zeros(len(self._offsets) + 1, DTYPE)
        rows["offset"][:-1], rows["length"][:-1] = self._offsets, self._lengths
        missing = np.flatnonzero(rows["length"][:-1] == 0)
        return Contents(rows, len(missing), int(missing[0]) if len(missing) else 0, num_unused)


def join(
    record: Record,
    line: bytes | None,
    meta_names: Sequence[str],
    by: str | None,
    sidecar: str,
    offset: int,
    *,
    doubtful: bool = True,
) -> None:
    """Add the fields `meta_names` of a sidecar line to a record; None for each if the record has no line.

    Raises:
        DamagedRecordError: The line is damaged.
        ShardError: The line is not the record's, or a field is there already.
    """
    url, row = record[URL], dict[str, Any]()
    if line is not None:
        try:
            for part in line.splitlines() if b"\n" in line else [line]:  # several of one key
                row |= parse_row(part, sidecar, 1, doubtful=doubtful)
            got = line_key(row, sidecar, 1)
        except DamagedRecordError:
            raise _error_of(line, sidecar, offset).of(url, record[KEY]) from None
        if got != record[KEY] or (by == BY_ID and "id" in record):
            names = names_of(record[KEY], record.get("id"), url, by)
            if got not in (names.by_id, names.by_key):
                expected = " or ".join(dict.fromkeys([shown(names.by_id), shown(names.by_key)]))
                raise ShardError(
                    f"sidecar '{sidecar}': offset {offset}: expected the line of key {expected}, got that of "
                    f"{shown(got)}\n  Delete the index of the shard; it is then built again."
                )
    for name in meta_names:
        if name in record:
            raise ShardError(
                f"shard '{url}': record {shown(record[KEY])}: expected no field '{name}', since meta_names asks for "
                f"it, got one in the archive\n  Rename the field in '{sidecar}', or drop it from meta_names."
            )
        record[name] = row.get(name)


def _error_of(line: bytes, sidecar: str, offset: int) -> DamagedRecordError:
    """Find the mistake of a line, with its number: no index has that, so all before it are counted."""
    source, number = byte_source(sidecar), 1
    for begin in range(0, offset, _COUNTED_AT_ONCE):
        number += source.read(min(_COUNTED_AT_ONCE, offset - begin), begin).count(b"\n")
    try:
        line_key(parse_row(line, sidecar, number), sidecar, number)
    except DamagedRecordError as error:
        return error
    raise AssertionError("a line that is damaged stays so")
