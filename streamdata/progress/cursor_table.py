"""The cursors of many lanes as NumPy columns, checked as strictly as one by one.

A dict of dicts takes some 700 bytes a cursor and is walked entry by entry; columns take 8 bytes a field, and what is
computed of all lanes is a few calls of NumPy.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from streamdata.errors import shown
from streamdata.progress.checked import check_levels
from streamdata.progress.left_out import read_left_out

Column: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]
Lists: TypeAlias = dict[str, list[Any]]
"""Columns before they are checked: by name, the values of each row. What may be left out may be absent."""

KEY = ("generation", "epoch_pass", "path", "rank", "worker")
"""What a cursor's key says; the path as its index among the table's paths. Rows are sorted by these."""
REQUIRED = ("draws", "clock", "epoch", "window", "taken")
OPTIONAL = (
    "part",
    "given",
    "function",
    "dropped",
    "bad",
    "skipped",
    "records",
    "pulled",
    "left_out",
    "skips",
    "told",
    "stream",
    "cost",
    "tokens",
)
"""Absent where they are zero or empty."""
FLOATS = ("clock", "cost")
RARE = ("function", "left_out", "told", "stream")
"""Few cursors have one; `function` can be any JSON, and so can what is in the list `stream`."""
NO_POSITION = (-1, -1, -1, -1)
"""What stands for a position in rows that have none: no `part` is negative."""
_POSITION = ("epoch", "window", "taken", "part")
_SCALARS = frozenset((int, float, str, bool, type(None)))
_MAX_COUNT = 2**53
_MAX_TIME = 2.0**1023
_LOWEST = {"window": 1 - _MAX_COUNT, "clock": -_MAX_TIME}
"""Below 0 are leftovers of earlier sizes, and the clock of a source that is owed some draws."""
_END = {"clock": _MAX_TIME, "cost": _MAX_TIME}
"""Not infinity, below which any integer is, also one that is no float."""


class BadRowError(ValueError):
    """A value that is not one of a cursor: its row, and what is wrong with it."""

    def __init__(self, row: int, name: str, value: object) -> None:
        super().__init__(f"{shown(name)} is {shown(value)}")
        self.row, self.name, self.value = row, name, value


class Group(NamedTuple):
    """The rows of one node in one generation and pass: consecutive ones."""

    generation: int
    epoch_pass: int
    path: str


@dataclass(frozen=True)
class CursorTable:
    """Cursors, a row each, sorted by generation, pass, path, rank and worker; no two have the same key."""

    paths: tuple[str, ...] = ()
    """Sorted."""
    columns: Mapping[str, Column] = field(default_factory=dict)
    """By name: int64, or float64 of `clock` and `cost`. `pulled` has four columns, with -1 as `part` where there is
    none. Fields that no row has are absent."""
    rare: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """By row: the fields of `RARE`, where there is one of them."""
    groups: Mapping[Group, slice] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns["rank"]) if self.columns else 0

    def row(self, group: Group, rank: int, worker: int) -> int | None:
        """The row of a key."""
        rows = self.groups.get(group)
        if rows is None:
            return None
        # A group is sorted by rank, and by worker among those of a rank.
        ranks = self.columns["rank"][rows]
        first, last = np.searchsorted(ranks, rank), np.searchsorted(ranks, rank, "right")
        workers = self.columns["worker"][rows][first:last]
        at = int(np.searchsorted(workers, worker))
        return rows.start + int(first) + at if at < len(workers) and workers[at] == worker else None

    def generations(self) -> list[int]:
        """Those of which there are cursors, sorted."""
        return sorted({group.generation for group in self.groups})

    def ranks(self, generations: Collection[int]) -> list[int]:
        """Those of which there are cursors in one of the generations, sorted."""
        ranks: list[int] = np.unique(self.columns["rank"][self.within(generations)]).tolist() if len(self) else []
        return ranks

    def of(self, rank: int, generations: Collection[int]) -> Mask:
        """For each row, whether it is of the rank and of one of the generations."""
        mask = self.within(generations)
        mask &= self.columns["rank"] == rank if len(self) else False
        return mask

    def within(self, generations: Collection[int]) -> Mask:
        """For each row, whether it is of one of the generations."""
        mask: Mask = np.isin(self.columns.get("generation", np.empty(0, np.int64)), list(generations))
        return mask

    def select(self, mask: Mask) -> "CursorTable":
        """The rows where `mask` is true."""
        if not len(self):
            return self
        (rows,) = np.nonzero(mask)
        new = {int(old): row for row, old in enumerate(rows)} if self.rare else {}
        rare = {new[row]: fields for row, fields in self.rare.items() if row in new}
        return _sorted_table(self.paths, {name: column[rows] for name, column in self.columns.items()}, rare)

    def as_dicts(self, rows: slice) -> Iterator[dict[str, Any]]:
        """Yield the cursors of consecutive rows, as `to_state` wrote them."""
        # Lists first: an element of a list is an int or float of Python, and reading it ten times as fast.
        columns = [(name, self.columns[name][rows].tolist()) for name in (*REQUIRED, *OPTIONAL) if name in self.columns]
        required = [values for name, values in columns if name in REQUIRED]
        optional = [(name, values) for name, values in columns if name not in REQUIRED]
        for index, values in enumerate(zip(*required, strict=True)):
            cursor = dict(zip(REQUIRED, values, strict=True))
            for name, column in optional:
                value = column[index]
                if value if name != "pulled" else value[-1] >= 0:
                    cursor[name] = value
            if self.rare:
                cursor.update(self.rare.get(rows.start + index, {}))
            yield cursor

    def of_lane(self, epoch_pass: int, rank: int, worker: int) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """Yield the generation, path and cursor of each node in a lane and a pass."""
        if not len(self):
            return
        lane = [self.columns[name] for name in ("epoch_pass", "rank", "worker")]
        is_own = (lane[0] == epoch_pass) & (lane[1] == rank) & (lane[2] == worker)
        own = self.select(is_own)
        if not len(own):
            return
        # All rows at once: a group would be one row of them.
        keys = own.columns["generation"].tolist(), own.columns["path"].tolist()
        for generation, path, cursor in zip(*keys, own.as_dicts(slice(0, len(own))), strict=True):
            yield generation, own.paths[path], cursor


def table_of(
    paths: Sequence[str], lists: Lists, pulled: Mapping[int, Any], rare: Mapping[int, Mapping[str, Any]]
) -> CursorTable:
    """Make a table of rows in any sequence; of those with the same key the last one counts.

    Args:
        paths: Of the nodes: a row's path is an index into them.
        lists: By name, the values of all rows, but for the fields that follow.
        pulled: By row, of those that have one: the position.
        rare: By row: the fields of `RARE`, where there is one of them.

    Raises:
        BadRowError: A value is not one of a cursor.
    """
    columns = {name: _integers(name, lists[name]) for name in KEY}
    for name in (*REQUIRED, *OPTIONAL):
        if name in lists:
            columns[name] = (_floats if name in FLOATS else _integers)(name, lists[name])
    if pulled:
        columns["pulled"] = _positions(len(columns["rank"]), pulled)
    for row, fields in rare.items():
        _check_left_out(row, fields.get("left_out", ""))
        _check_told(row, fields.get("told", []))
        _check_stream(row, fields.get("stream", [None]))
        state = fields.get("function", {})
        # What most functions return is flat, and seen to be so in a fifth of the time.
        if type(state) is dict and _SCALARS.issuperset(map(type, state.values())):
            continue
        try:
            check_levels(state)
        except ValueError as error:
            raise BadRowError(row, "function", state) from error
    return _sorted_table(tuple(paths), columns, rare)


def joined(tables: Sequence[CursorTable]) -> CursorTable:
    """One table of several; of rows with the same key that of the last table counts."""
    tables = [table for table in tables if len(table)]
    if len(tables) <= 1:
        return tables[0] if tables else CursorTable()
    # Each table numbers its own paths.
    index: dict[str, int] = {}
    for table in tables:
        for path in table.paths:
            index.setdefault(path, len(index))
    renumbered = [np.array([index[path] for path in table.paths])[table.columns["path"]] for table in tables]
    columns = {"path": np.concatenate(renumbered)}
    for name in {name: None for table in tables for name in table.columns if name != "path"}:
        parts = [table.columns[name] if name in table.columns else _absent(name, len(table)) for table in tables]
        columns[name] = np.concatenate(parts)
    starts = np.cumsum([0, *map(len, tables)]).tolist()
    counted = zip(starts, tables, strict=False)
    rare = {start + row: fields for start, table in counted for row, fields in table.rare.items()}
    return _sorted_table(tuple(index), columns, rare)


def _sorted_table(
    paths: tuple[str, ...], columns: dict[str, Column], rare: Mapping[int, Mapping[str, Any]]
) -> CursorTable:
    if not len(columns["rank"]):
        return CursorTable()
    # The same cursors give the same table, whatever sequence they came in: its digest is that of what it holds.
    used = sorted({paths[index] for index in np.unique(columns["path"]).tolist()})
    numbers = {path: number for number, path in enumerate(used)}
    columns["path"] = np.array([numbers.get(path, -1) for path in paths])[columns["path"]]
    order = np.lexsort([columns[name] for name in reversed(KEY)])  # stable: the last of equal keys stays last
    keys = np.stack([columns[name][order] for name in KEY])
    is_last = np.append((keys[:, 1:] != keys[:, :-1]).any(axis=0), values=True)
    order = order[is_last]
    # A field that no row has any more must not be there: equal states would differ by it.
    ordered = {name: columns[name][order] for name in columns}
    kept = {name: column for name, column in ordered.items() if name in (*KEY, *REQUIRED) or _has_any(name, column)}
    rows = np.full(len(is_last), -1)
    rows[order] = np.arange(len(order))
    moved = {row: fields for old, fields in rare.items() if (row := int(rows[old])) >= 0}
    return CursorTable(tuple(used), kept, moved, _groups(used, kept))


def _groups(paths: Sequence[str], columns: Mapping[str, Column]) -> dict[Group, slice]:
    numbers = np.stack([columns[name] for name in KEY[:3]])
    starts = [0, *(np.nonzero((numbers[:, 1:] != numbers[:, :-1]).any(axis=0))[0] + 1).tolist()]
    ends = [*starts[1:], numbers.shape[1]]
    found = numbers[:, starts].T.tolist()
    return {
        Group(generation, epoch_pass, paths[path]): slice(start, end)
        for (generation, epoch_pass, path), start, end in zip(found, starts, ends, strict=True)
    }


def _has_any(name: str, column: Column) -> bool:
    return bool((column[:, -1] >= 0).any() if name == "pulled" else column.any())


def _absent(name: str, rows: int) -> Column:
    if name == "pulled":
        return np.tile(np.array(NO_POSITION), (rows, 1))
    return np.zeros(rows, np.float64 if name in FLOATS else np.int64)


def _integers(name: str, values: list[Any]) -> Column:
    lowest = _LOWEST.get(name, 0)
    # By exact type: NumPy takes True for 1 and 1.5 for a float column without a word.
    if set(map(type, values)) <= {int}:
        try:
            column = np.array(values, np.int64)
        except OverflowError:  # which of them is found below
            column = np.array([_MAX_COUNT])
        if bool(((column >= lowest) & (column < _MAX_COUNT)).all()):
            return column
    return _refuse(name, values, lambda value: type(value) is int and lowest <= value < _MAX_COUNT)


def _floats(name: str, values: list[Any]) -> Column:
    lowest, end = _LOWEST.get(name, 0), _END[name]
    if set(map(type, values)) <= {int, float}:
        try:
            column = np.array(values, np.float64)
        except OverflowError:  # an integer beyond all floats
            column = np.array([np.nan])
        if bool(((column >= lowest) & (column < end)).all()):  # false of NaN
            return column
    # An integer just below the end is the end as a float.
    return _refuse(name, values, lambda value: type(value) in (int, float) and lowest <= value < end > float(value))


def _positions(rows: int, pulled: Mapping[int, Any]) -> Column:
    for row, value in pulled.items():
        if not isinstance(value, list | tuple) or len(value) != len(_POSITION):
            raise BadRowError(row, "pulled", value)
    column = np.tile(np.array(NO_POSITION), (rows, 1))
    # Number by number, as columns: a list of lists would take NumPy as long as all the rest.
    held, values = list(pulled), list(pulled.values())
    for number, part in enumerate(_POSITION):
        try:
            column[held, number] = _integers(part, [value[number] for value in values])
        except BadRowError as error:
            raise BadRowError(held[error.row], "pulled", values[error.row]) from error
    return column


def _check_left_out(row: int, code: Any) -> None:
    try:
        read_left_out(code)
    except ValueError as error:
        raise BadRowError(row, "left_out", code) from error


def _check_told(row: int, told: Any) -> None:
    is_list = isinstance(told, list | tuple) and len(told) in (0, 2, 5)
    if not is_list or not all(type(number) in (int, float) and 0 <= number < _MAX_TIME for number in told):
        raise BadRowError(row, "told", told)
    if told and not (told[1] and told[-1] and all(type(count) is int for count in told[2:3])):
        raise BadRowError(row, "told", told)


def _check_stream(row: int, stream: Any) -> None:
    if not isinstance(stream, list) or len(stream) != 1:
        raise BadRowError(row, "stream", stream)
    try:
        check_levels({"": stream})
    except ValueError as error:
        raise BadRowError(row, "stream", stream) from error


def _refuse(name: str, values: list[Any], is_good: Callable[[Any], bool]) -> NoReturn:
    row = next(row for row, value in enumerate(values) if not is_good(value))
    raise BadRowError(row, name, values[row])
