"""The sidecar of a tar shard: JSON lines that add fields to its records.

1. sidecar → `SidecarKeys` → which line is for which key
2. tar, its keys → `build_rows` → the index: where each record's line is
3. record, line → `join` → the record with the fields of `meta_names`

The `key` of a line is the text of a record's `.id` member, or the record's own key. Where a recipe does not say which
(`sidecar_key`), each shard tells by itself: they are ids if any line joins so, else keys. Where by ids some lines join,
and by keys others do, an error asks for it: neither is chosen silently.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.errors import ShardError, shown
from streamdata.fields import KEY, URL, is_reserved
from streamdata.io.one_pass import byte_source
from streamdata.io.storage import FileStamp, Int64s, stamps_there
from streamdata.recipe.limits import DEFAULT_LIMITS, ShardLimits
from streamdata.shards.index.index_file import Contents, Rows
from streamdata.shards.jsonl.lines import MAX_LINE_BYTES, lines_of, numbered_lines
from streamdata.shards.jsonl.rows import doubtful_integers, parse_row
from streamdata.shards.listing import SIDECAR_SUFFIXES, sidecars_of
from streamdata.shards.readers import DamagedRecordError, Record
from streamdata.shards.tar.headers import ANY_SIZE
from streamdata.shards.tar.records import TarRecord, key_hash, records

BY_ID, BY_KEY = SIDECAR_KEYS = ("id", "key")
_COUNTED_AT_ONCE = 1 << 20
# A row per record of the tar, in its order: where the record's line is, and its length (0 for none).
DTYPE = np.dtype([("offset", "<u8"), ("length", "<u4")])


def checked_names(meta_names: Sequence[str]) -> tuple[str, ...]:
    """The names as a tuple.

    Raises:
        ValueError: One is not a name, comes twice, or is reserved.
    """
    if isinstance(meta_names, str):
        raise ValueError(
            f"meta_names: expected a list of names, got the text {shown(meta_names)}\n  Write [{meta_names}]."
        )
    for index, name in enumerate(meta_names):
        if not isinstance(name, str) or name in meta_names[:index] or is_reserved(name):
            raise ValueError(
                f"meta_names: expected different names, without two underscores at both ends, got {shown(name)}\n"
                "  Name each field of the sidecar once."
            )
    return tuple(meta_names)


def checked_sidecar_key(sidecar_key: str | None, meta_names: Sequence[str]) -> str | None:
    """Check what the keys of sidecars are; None where each shard has to tell.

    Raises:
        ValueError: It is neither of the two, or there are no fields to join.
    """
    if sidecar_key not in (None, *SIDECAR_KEYS):
        raise ValueError(
            f"sidecar_key: expected {' or '.join(map(repr, SIDECAR_KEYS))}, got {shown(sidecar_key)}\n"
            "  The keys of sidecars are the texts of '.id' members, or the records' keys. Without it, each shard tells."
        )
    if sidecar_key is not None and not meta_names:
        raise ValueError(
            f"sidecar_key: expected meta_names with it, got {shown(sidecar_key)} alone\n"
            "  Name the fields of the sidecar, or drop it."
        )
    return sidecar_key


def find_sidecars(urls: Iterable[str], known: Mapping[str, FileStamp]) -> dict[str, tuple[str, FileStamp]]:
    """The sidecar of each tar shard, `x/00001.meta.jsonl` or `x/00001.jsonl` beside `x/00001.tar`, and its stamp.

    Args:
        urls: The shards.
        known: Files that need not be asked for.

    Raises:
        ShardError: There is neither.
    """
    candidates = {url: sidecars_of(url) for url in urls}
    found: dict[str, tuple[str, FileStamp]] = {}
    for there in (known, None):
        for number in range(len(SIDECAR_SUFFIXES)):
            left = {url: names[number] for url, names in candidates.items() if names and url not in found}
            stamps = stamps_there(left.values()) if there is None else there
            found |= {url: (name, stamps[name]) for url, name in left.items() if name in stamps}
    if missing := [url for url in candidates if url not in found]:
        raise _no_sidecar(missing[0], candidates[missing[0]])
    return found


def _no_sidecar(url: str, candidates: Sequence[str]) -> ShardError:
    return ShardError(
        f"shard '{url}': meta_names are asked for, expected a sidecar {' or '.join(map(repr, candidates)) or ''}, "
        f"got {'none' if candidates else 'a pipe, which has none'}\n"
        "  Put the sidecar beside the shard, or leave meta_names out."
    )


class RecordNames(NamedTuple):
    """A sidecar's names for a record: by its id and by its key, which are the same where there is no doubt."""

    record: str
    by_id: str
    by_key: str
    has_id: bool


def names_of(key: str, identifier: bytes | None, url: str, by: str | None) -> RecordNames:
    """Find the names of a record: by its `.id` member where it has one, by its key, or by what `by` says.

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
    """The key that a line of a sidecar is for; an integer stands for its digits.

    Raises:
        DamagedRecordError: It has none.
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
    """The lines of a sidecar by their keys: 20 bytes per line, while a shard is indexed or streamed.

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
        self._hashes = np.array(hashes, np.uint64)[order]
        rows: Rows = np.zeros(len(order) + 1, DTYPE)  # the last row is for records without a line
        rows["offset"][:-1], rows["length"][:-1] = np.array(offsets)[order], np.array(lengths)[order]
        is_again = np.append(False, self._hashes[1:] == self._hashes[:-1])[: len(order)]
        if is_again.any():
            self._merge(rows, is_again, np.array(numbers)[order])
        self._hashes, self.rows = self._hashes[~is_again], rows[np.append(~is_again, True)]
        self.num_broken = len(broken)
        self._others: Rows = np.array(broken or [(0, 0)], DTYPE)

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

    def find(self, hashes: Sequence[int]) -> Int64s:
        """The index in `rows` of each line for a key of these hashes; len(self) where there is none."""
        wanted = np.array(hashes, np.uint64)
        lines = np.searchsorted(self._hashes, wanted)
        if not len(self):
            return lines
        is_known = self._hashes[np.minimum(lines, len(self) - 1)] == wanted
        return np.where(is_known, lines, len(self))

    def row_without(self, number: int) -> Any:
        """The row of record `number`, from 0, of those for which no line has the key."""
        return self._others[min(number, len(self._others) - 1)]

    def unfit(self, url: str, first: RecordNames | None, by: str | None) -> ShardError:
        """The error for a sidecar of which no line joins a record of the shard; the first of these, if it has any."""
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

    def ambiguous(self, url: str, by_id: RecordNames, by_key: RecordNames) -> ShardError:
        """The error for a sidecar of which one record has a line by its id, and one has another line by its key."""
        return ShardError(
            f"sidecar '{self.url}': expected the ids of the records of '{url}', or their keys, got both: a line for "
            f"{_described(by_id)} by its id, and one for {_described(by_key)} by its key\n"
            f"  Say which is meant: sidecar_key: {BY_ID}, or sidecar_key: {BY_KEY}."
        )


def _described(names: RecordNames) -> str:
    return f"record {shown(names.record)}" + (f" with the id {shown(names.by_id)}" if names.has_id else "")


class JoinRows:
    """Joins the records of a tar, as these come, with lines of its sidecar.

    Args:
        url: The tar.
        sidecar: Its sidecar.
        stamp: The sidecar's version.

    Raises:
        ShardError: The sidecar is damaged.
    """

    def __init__(
        self, url: str, sidecar: str, stamp: FileStamp | None = None, limits: ShardLimits = DEFAULT_LIMITS
    ) -> None:
        self._url, self._keys, self._limits = url, SidecarKeys(sidecar, stamp, limits.line_bytes), limits
        self._ids, self._own, self._has_id = array("Q"), array("Q"), bytearray()
        self._broken_id: ShardError | None = None

    def add(self, record: TarRecord) -> None:
        """Take in the next record."""
        try:
            names = names_of(record.key, record.fields.get("id"), self._url, None)
        except ShardError as error:  # it is one only where ids are asked for
            self._broken_id = self._broken_id or error
            names = names_of(record.key, None, self._url, None)
        own = key_hash(record.key)
        self._own.append(own)
        self._ids.append(key_hash(names.by_id) if names.has_id else own)
        self._has_id.append(names.has_id)

    def contents(self, by: str | None) -> Contents:
        """Rows of the records and one more; the records without a line (the first from 0), the lines without one.

        Args:
            by: What the keys of the lines are, one of SIDECAR_KEYS; None where the shard has to tell.

        Raises:
            ShardError: No line joins a record, it is in doubt which does, or an id is no text.
        """
        if self._broken_id is not None and by != BY_KEY:
            raise self._broken_id
        keys, own = self._keys, self._keys.find(self._own)
        ids = own if by == BY_KEY else keys.find(self._ids)
        has_id = np.frombuffer(self._has_id, np.bool_)
        has_id = np.zeros_like(has_id) if by == BY_KEY else has_id
        lines = _lines_of(self._url, keys, by, (ids, ids if by == BY_ID else own), has_id)
        missing = np.flatnonzero(lines == len(keys))
        rows: Rows = np.zeros(len(lines) + 1, DTYPE)
        rows[:-1] = keys.rows[lines]
        unused = len(keys) - len(np.unique(lines[lines < len(keys)]))
        if keys.num_broken:
            for number, record in enumerate(missing.tolist()):
                rows[record] = keys.row_without(number)
            unused += max(0, keys.num_broken - len(missing))
            missing = missing[:0]
        return Contents(rows, len(missing), int(missing[0]) if len(missing) else 0, unused)


def _names(url: str, by: str | None) -> Iterator[RecordNames]:
    for record in records(byte_source(url), url, ("id",), max_bytes=ANY_SIZE):
        yield names_of(record.key, record.fields.get("id"), url, by)


def _lines_of(
    url: str, keys: SidecarKeys, by: str | None, found: tuple[Int64s, Int64s], has_id: npt.NDArray[np.bool_]
) -> Int64s:
    """The index of each record's line, of those found by ids and by keys."""
    by_id, by_key = found
    with_line = np.flatnonzero(has_id & (by_id < len(keys)))
    others = np.flatnonzero((by_key != by_id) & (by_key < len(keys)))
    if len(with_line) and len(others):
        first, other = (next(islice(_names(url, by), int(which[0]), None)) for which in (with_line, others))
        raise keys.ambiguous(url, first, other)
    lines = by_id if len(with_line) else by_key
    if (len(lines) or len(keys)) and not (lines < len(keys)).any():
        raise keys.unfit(url, next(_names(url, by), None), by)
    return lines


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
    """Add the fields `meta_names` of a sidecar's line to a record; all None where the record has no line.

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
        names = names_of(record[KEY], record.get("id"), url, by)
        if got not in (names.by_id, names.by_key):
            expected = " or ".join(dict.fromkeys([shown(names.by_id), shown(names.by_key)]))
            raise ShardError(
                f"sidecar '{sidecar}': offset {offset}: expected the line of key {expected}, got that of {shown(got)}\n"
                "  Delete the index of the shard; it is then built again."
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
