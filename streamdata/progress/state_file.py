"""The file of one rank's states at one step, which shows when it is torn, or not the one that its name says.

Four lines of JSON. The envelope: rank, size, step, group, and a checksum of it all. The headers, which are the same in
most files and so are parsed once. The other entries that are not cursors, by key as in the flat dict. The cursors, a
list for each field: that reads many times as fast as a dict for each cursor. What the run had come to under earlier
sizes, which may be large, has a file of its own beside these, named by its digest.
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

import orjson

from streamdata.errors import StateError, names_text, shown
from streamdata.progress.checked import count
from streamdata.progress.cursor_table import KEY, OPTIONAL, RARE, REQUIRED, CursorTable, Lists
from streamdata.progress.deal_header import DEAL, canonical, digest_of
from streamdata.progress.entry_keys import owner_of
from streamdata.progress.states_table import StatesTable, table_from_dict, table_from_lists
from streamdata.run import MAX_RANKS

_VERSION = 2
_NUM_LINES = 4
_COLUMNS = frozenset((*KEY, *REQUIRED, *OPTIONAL)) - {"function", "pulled", "stream"}
_NEEDED = frozenset((*KEY, *REQUIRED))
_DAMAGE = (ValueError, TypeError, AttributeError, KeyError, RecursionError, OverflowError)
"""All that reading a value of any type as one of ours can raise."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Of which rank, of how many, and at which step a file is."""

    rank: int
    size: int
    step: int
    group: str | None = None
    """Names the ranks that saved together, as far as they have a process group; None where nobody knows."""


@dataclass(frozen=True, kw_only=True)
class RankStates:
    """What one rank saved, in a file or for the other ranks."""

    name: str
    """For messages: the file's path, or the rank."""
    origin: Origin
    lines: Sequence[bytes]
    """Headers, entries and cursors, not parsed yet."""


def encode(origin: Origin, states: StatesTable) -> bytes:
    """Write a rank's file."""
    cursors, rare = states.cursors, states.cursors.rare
    headers = {key: value for key, value in states.others.items() if key.startswith("generation/")}
    entries = {key: value for key, value in states.others.items() if not key.startswith(("generation/", DEAL))}
    # The standard library's JSON for what functions return: orjson would read long integers as floats.
    parts = [headers, {"entries": entries, "rare": {str(row): rare[row] for row in rare}}]
    columns = {name: column for name, column in cursors.columns.items() if name in _COLUMNS}
    table = {"paths": cursors.paths, "path": [], "pulled": _pulled(cursors), **columns}
    lines = [*(json.dumps(part).encode() for part in parts), orjson.dumps(table, option=orjson.OPT_SERIALIZE_NUMPY)]
    # Of the envelope, too: a file of another step must not pass for this one's by a flipped bit.
    envelope = {"streamdata_states": _VERSION, **asdict(origin)}
    envelope["checksum"] = _checksum(envelope, lines)
    return b"".join(line + b"\n" for line in (json.dumps(envelope).encode(), *lines))


def decode(name: str, content: bytes) -> RankStates:
    """Read a rank's file, but for what is in its lines.

    Raises:
        StateError: It is torn, damaged, or not such a file; the message begins with its name.
    """
    # JSON escapes line ends, so that these are the only ones.
    first, *lines = content.split(b"\n")
    try:
        envelope = json.loads(first)
        checksum = envelope.pop("checksum")
        # Of a whole file nothing follows the last line's end.
        is_whole = len(lines) == _NUM_LINES and not lines.pop() and checksum == _checksum(envelope, lines)
    except _DAMAGE:
        is_whole = False
    if not is_whole:
        raise StateError(
            f"{name}: expected a rank's states, got {len(content)} bytes that are not such a file from end to end: it "
            "is torn or damaged\n  Restore it, or delete it: then its rank is missing at this step."
        )
    return RankStates(name=name, origin=_origin(name, envelope), lines=lines)


def is_rank_file(content: bytes) -> bool:
    """Whether it begins like a rank's file, be it torn."""
    return content.startswith(b'{"streamdata_states"')


def encode_deal(value: Mapping[str, Any]) -> tuple[str, bytes]:
    """Name and content of the file of what a run had come to under earlier sizes: the same of equal ones."""
    text = canonical(value)
    # Without a time: the same bytes from each rank, whichever is first.
    return digest_of(text), gzip.compress(text.encode(), 6, mtime=0)


def decode_deal(name: str, digest: str, content: bytes) -> Any:
    """Read such a file.

    Raises:
        StateError: It is torn, damaged, or not the one of this digest; the message begins with its name.
    """
    try:
        text = gzip.decompress(content).decode()
        if digest_of(text) != digest:
            raise ValueError("it is not the one of its name")
        return json.loads(text)
    except (*_DAMAGE, OSError, EOFError, zlib.error) as error:
        raise StateError(
            f"{name}: expected what the run had come to under earlier sizes, got {len(content)} bytes that are not "
            f"such a file from end to end ({error})\n  Restore it, or load another step."
        ) from error


def dealt_of(saved: Iterable[RankStates]) -> dict[int, str]:
    """By number, the digests of what came before the generations in these files."""
    found = [header for _, headers in headers_of(saved) for header in headers.values() if isinstance(header, Mapping)]
    return {header["deal"]: header["dealt"] for header in found if header.get("deal") and "dealt" in header}


def headers_of(saved: Iterable[RankStates]) -> Iterable[tuple[RankStates, dict[str, Any]]]:
    """The headers of each file, parsed once where they are the same in many."""
    parsed: dict[bytes, dict[str, Any]] = {}
    for part in saved:
        text = part.lines[0]
        if text not in parsed:
            try:
                parsed[text] = dict(json.loads(text))
            except _DAMAGE as error:
                raise _not_states(part, error) from error
        yield part, parsed[text]


def _pulled(cursors: CursorTable) -> list[list[int]]:
    """The row and the position of each cursor that has one: few have."""
    if "pulled" not in cursors.columns:
        return []
    column = cursors.columns["pulled"]
    (rows,) = (column[:, -1] >= 0).nonzero()
    pairs = zip(rows.tolist(), column[rows].tolist(), strict=True)
    return [[row, *position] for row, position in pairs]


def parse(saved: Sequence[RankStates]) -> StatesTable:
    """The entries of several files; of entries with the same key that of the last file counts.

    Raises:
        StateError: They do not come from `to_state`; the message names the key.
    """
    # The files' lists one after another, as rows of one table: an array for each file and field would take longer than
    # all else.
    others: dict[str, Any] = {}
    index: dict[str, int] = {}
    lists: Lists = {name: [] for name in KEY}
    pulled: dict[int, Any] = {}
    rare: dict[int, Any] = {}
    for part, headers in headers_of(saved):
        try:
            entries, table = json.loads(part.lines[1]), orjson.loads(part.lines[2])
            others.update(_checked_entries(headers, are_headers=True))
            others.update(_checked_entries(entries["entries"], are_headers=False))
            rows = range(len(lists["path"]), len(lists["path"]) + len(table["path"]))
            pulled.update((rows[row], value) for row, *value in _checked(table.pop("pulled"), len(rows)))
            states = [(int(row), state) for row, state in entries["rare"].items()]
            rare.update((rows[row], _checked_rare(state)) for row, state in _checked(states, len(rows)))
            numbers = [index.setdefault(_checked_path(path), len(index)) for path in table.pop("paths")]
            _extend(lists, table, numbers, rows)
        except _DAMAGE as error:
            raise _not_states(part, error) from error
    try:
        return table_from_lists(list(index), lists, pulled, rare, others) if lists["path"] else table_from_dict(others)
    except StateError as error:
        for part in saved if len(saved) > 1 else ():
            parse([part])  # alone, so that the error names the file
        raise StateError(f"{saved[0].name}: {error}") from error


def _extend(lists: Lists, table: Lists, numbers: list[int], rows: range) -> None:
    """Append a file's columns, for these rows, to those of the files before it."""
    if not table.keys() <= _COLUMNS or (rows and not table.keys() >= _NEEDED):
        raise ValueError(f"expected the fields of cursors, got {names_text(table)}")
    _check_indices(table["path"], len(numbers))
    table["path"] = [numbers[path] for path in table["path"]]
    for name in table.keys() | lists.keys():
        if name not in lists:  # not setdefault: its argument would be made for each file anew
            lists[name] = [0] * rows.start
        lists[name] += table[name] if name in table else [0] * len(rows)
        if len(lists[name]) != rows.stop:
            raise ValueError(f"expected as many values of {shown(name)} as of the others")


def _checked(rows: list[Any], num_rows: int) -> list[Any]:
    _check_indices([row for row, *_ in rows], num_rows)
    return rows


def _checked_entries(entries: dict[str, Any], *, are_headers: bool) -> dict[str, Any]:
    for key in entries:
        if (owner_of(key).rank is None) != are_headers:  # only among the headers was it looked at
            raise ValueError(f"expected {'headers alone' if are_headers else 'no header'}, got {shown(key)}")
    return entries


def _checked_rare(fields: Any) -> dict[str, Any]:
    if not isinstance(fields, dict) or not fields.keys() <= set(RARE):
        raise ValueError(f"expected {RARE} at most, got {shown(fields)}")
    return fields


def _checked_path(path: Any) -> str:
    if not isinstance(path, str):
        raise ValueError(f"expected a path, got {shown(path)}")
    return path


def _check_indices(values: list[Any], num_all: int) -> None:
    # A negative one would be another's, of this file or of one before it.
    if values and (set(map(type, values)) != {int} or min(values) < 0 or max(values) >= num_all):
        raise ValueError(f"expected indices below {num_all}")


def _origin(name: str, envelope: dict[str, Any]) -> Origin:
    if envelope.pop("streamdata_states", None) != _VERSION:
        raise StateError(f"{name}: written by another version of streamdata\n  Read it with that version.")
    try:
        origin = Origin(**envelope)
        is_rank = count(origin.rank) < count(origin.size) <= MAX_RANKS
        if not is_rank or not isinstance(origin.group, str | None):
            raise ValueError(f"rank {origin.rank} of {origin.size}")
        count(origin.step)
    except _DAMAGE as error:
        raise StateError(f"{name}: does not come from save_states ({error})\n  Delete it.") from error
    return origin


def _not_states(part: RankStates, error: Exception) -> StateError:
    why = f"{type(error).__name__}: {str(error)[:100]}"
    return StateError(f"{part.name}: does not come from save_states ({why})\n  Delete it: then its rank is missing.")


def _checksum(envelope: dict[str, Any], lines: Sequence[bytes]) -> str:
    hasher = blake2b(json.dumps(envelope).encode(), digest_size=16)
    for line in lines:
        hasher.update(b"\n" + line)
    return hasher.hexdigest()
