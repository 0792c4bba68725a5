"""States of all ranks as one table: a cursor is a row, all else stands by its key.

`flat dict of to_state → StatesTable → rows of a node, entries of a lane, the flat dict again`

A dict of dicts takes some 700 bytes a cursor and is walked entry by entry; a row takes 224, and what is computed of all
lanes is a few calls of NumPy.
"""

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from streamdata.errors import StateError, shown
from streamdata.progress.left_out import read_left_out

Column: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]
Rows: TypeAlias = npt.NDArray[Any]
"""ROW (n,)."""

KEY: Final = ("generation", "epoch_pass", "path", "rank", "worker")
"""What a cursor's key says; the path as its index among the table's paths. Rows are sorted by these."""
REQUIRED: Final = ("draws", "clock", "epoch", "window", "taken")
OPTIONAL: Final = (
    "part",
    "given",
    "dropped",
    "bad",
    "skipped",
    "records",
    "skips",
    "batches",
    "ended",
    "tokens",
    "cost",
)
"""Numbers that are absent where they are 0."""
RARE: Final = ("function", "left_out", "told", "stream")
"""Few cursors have one; `function` can be any JSON object, and so can what is in the list `stream`."""
FLOATS: Final = ("clock", "cost")
NUMBERS: Final = (*KEY, *REQUIRED, *OPTIONAL)
ROW: Final = np.dtype(
    [(name, np.float64 if name in FLOATS else np.int64) for name in NUMBERS]
    + [("pulled", np.int64, 4), ("rare", np.object_)]
)
"""A cursor. `pulled` is a position, with -1 as `part` where there is none; `rare` a dict of `RARE`, or None."""
_FIELDS: Final = frozenset((*REQUIRED, *OPTIONAL, *RARE, "pulled"))
_LOWEST: Final = {"window": 1 - 2**53, "clock": -(2.0**1023)}
"""Below 0 are leftovers of earlier sizes, and the clock of a source that is owed some draws."""
_MAX_LEVELS: Final = 100
"""Of a function's state: what copies it must not run out of stack."""
_MAX_DIGITS: Final = 16
_NOT_COMPARED: Final = "anomalies"
"""Of a header: a rank may not have delivered anything since a shard was mended."""


class Group(NamedTuple):
    """The cursors of one node in one generation and pass: consecutive rows."""

    generation: int
    epoch_pass: int
    path: str


class Owner(NamedTuple):
    """Whose an entry is."""

    generation: int
    rank: int | None
    """None of a header."""


def empty_rows(count: int) -> Rows:
    """So many cursors that say nothing."""
    rows = np.zeros(count, ROW)
    rows["pulled"], rows["rare"] = -1, None
    return rows


def columns_of(rows: Rows) -> tuple[dict[str, Column], dict[int, Mapping[str, Any]]]:
    """The columns of cursors in which there is something; and by row the fields of `RARE`."""
    columns = {name: np.ascontiguousarray(rows[name]) for name in NUMBERS if rows[name].any()}
    if (rows["pulled"] != -1).any():
        columns["pulled"] = np.ascontiguousarray(rows["pulled"])
    return columns, {row: fields for row, fields in enumerate(rows["rare"].tolist()) if fields}


def rows_of(count: int, columns: Mapping[str, Any], rare: Mapping[Any, Mapping[str, Any]]) -> Rows:
    """Make cursors of what `columns_of` gave, or of the same as JSON has it.

    Raises:
        ValueError: A column has another length.
    """
    rows = empty_rows(count)
    for name, column in columns.items():
        if len(column) != count:  # NumPy would repeat a single value
            raise ValueError(f"expected {count} values of {shown(name)}, got {len(column)}")
        rows[name] = column
    for row, fields in rare.items():
        rows["rare"][int(row)] = fields
    return rows


@dataclass(frozen=True, eq=False)
class StatesTable(Mapping[str, Any]):
    """States that do not change any more; made by `table_of` and `join`. A mapping with the flat dict's items."""

    paths: tuple[str, ...] = ()
    """Those of the rows, sorted."""
    rows: Rows = field(default_factory=lambda: empty_rows(0))
    """ROW (n,), sorted by `KEY`; no two have the same key."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Headers, and who delivered last or nothing: by key."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # Column by column: NumPy pickles rows with objects value by value.
        return _restored, (self.paths, len(self.rows), *columns_of(self.rows), self.others)

    @cached_property
    def groups(self) -> dict[Group, slice]:
        """Where the rows of each node are."""
        numbers = np.stack([self.rows[name] for name in KEY[:3]])
        is_first = np.append(True, (numbers[:, 1:] != numbers[:, :-1]).any(axis=0))[: len(self.rows)]
        starts = np.flatnonzero(is_first).tolist()
        return {
            Group(generation, epoch_pass, self.paths[path]): slice(start, end)
            for (generation, epoch_pass, path), start, end in zip(
                numbers[:, is_first].T.tolist(), starts, [*starts[1:], len(self.rows)], strict=False
            )
        }

    @cached_property
    def headers(self) -> dict[int, Any]:
        """The generations' headers, sorted by number."""
        found = {owner_of(key).generation: v for key, v in self.others.items() if key.startswith("generation/")}
        return dict(sorted(found.items()))

    @cached_property
    def digest(self) -> str:
        """The same for equal states, whatever sequence they were filled in."""
        others = {key: compared(key, value) for key, value in self.others.items()}
        rare = [(row, fields) for row, fields in enumerate(self.rows["rare"].tolist()) if fields]
        hasher = blake2b(json.dumps([self.paths, others, rare], sort_keys=True).encode(), digest_size=16)
        for name in (*NUMBERS, "pulled"):
            hasher.update(np.ascontiguousarray(self.rows[name]).data)
        return hasher.hexdigest()

    def present(self) -> "StatesTable":
        """The entries since the size of the run last changed, with the header of what was before."""
        # A dict that a trainer goes on to update keeps what it was resumed from.
        newest = max(self.headers, default=0)
        deal = deal_of(self.headers[newest]) if self.headers else 0
        if deal > newest:  # refused by whoever reads it
            return self
        others = {key: value for key, value in self.others.items() if owner_of(key).generation >= deal}
        return self.select(self.rows["generation"] >= deal, others)

    def select(self, rows: Mask, others: Mapping[str, Any]) -> "StatesTable":
        """The rows of a mask, and some of the other entries."""
        if rows.all() and len(others) == len(self.others):
            return self
        return _table(self.paths, self.rows[rows], others)

    def of_rank(self, rank: int, since: int) -> "StatesTable":
        """A rank's own entries of the generations from `since` on."""
        others = {k: v for k, v in self.others.items() if (own := owner_of(k)).rank == rank and own.generation >= since}
        return self.select((self.rows["rank"] == rank) & (self.rows["generation"] >= since), others)

    def ranks(self) -> set[int]:
        """Those that delivered something."""
        return set(np.unique(self.rows["rank"]).tolist())

    def generations(self) -> set[int]:
        """Those of which there are entries."""
        owners = map(owner_of, self.others)
        named = {owner.generation for owner in owners if owner.rank is not None}
        return named.union(np.unique(self.rows["generation"]).tolist())

    def of_lane(self, epoch_pass: int, rank: int, worker: int) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """Yield the generation, path and cursor of each node in a lane and a pass."""
        numbers = self._lanes
        own = self.rows[(numbers[0] == epoch_pass) & (numbers[1] == rank) & (numbers[2] == worker)]
        for (generation, path), cursor in zip(own[["generation", "path"]].tolist(), as_dicts(own), strict=True):
            yield generation, self.paths[path], cursor

    @cached_property
    def _lanes(self) -> Column:
        """The pass, rank and worker of each row: not in strides, since each lane looks through all."""
        return np.stack([self.rows[name] for name in ("epoch_pass", "rank", "worker")])

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """The row of each key."""
        keys = self.rows[["generation", "epoch_pass", "rank", "worker", "path"]].tolist()
        return {f"cursor/{g}/{p}/{r}/{w}/{self.paths[path]}": row for row, (g, p, r, w, path) in enumerate(keys)}

    def __getitem__(self, key: str) -> Any:
        if key in self.others:
            return self.others[key]
        row = self._numbers[key]
        return next(as_dicts(self.rows[row : row + 1]))

    def __iter__(self) -> Iterator[str]:
        yield from self.others
        yield from self._numbers

    def __len__(self) -> int:
        return len(self.others) + len(self.rows)

    def as_dict(self) -> dict[str, Any]:
        """The flat dict, many times as fast as by asking for each key."""
        return {**self.others, **dict(zip(self._numbers, as_dicts(self.rows), strict=True))}


class LoadedStates(MutableMapping[str, Any]):
    """States of all ranks that were loaded; a trainer goes on to update them like a dict, but cannot delete from them.

    What was loaded lies in a table and does not change; what is written afterwards lies in a dict above it. So an
    update costs what one of a dict costs, and workers that are forked share the table. `dict(…)` of them is plain JSON.

    Args:
        loaded: What was loaded.
        written: What was written since.
        step: The step of which they were loaded.
    """

    def __init__(self, loaded: StatesTable, written: dict[str, Any] | None = None, *, step: int | None = None) -> None:
        self.loaded, self.written, self.step = loaded, {} if written is None else written, step

    def __getitem__(self, key: str) -> Any:
        return self.written[key] if key in self.written else self.loaded[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.written[key] = value

    def __delitem__(self, key: str) -> None:
        raise TypeError(f"states that were loaded: {shown(key)} cannot be deleted\n  Make a dict of them.")

    def __iter__(self) -> Iterator[str]:
        yield from self.loaded
        yield from (key for key in self.written if key not in self.loaded)

    def __len__(self) -> int:
        return len(self.loaded) + sum(key not in self.loaded for key in self.written)

    def copy(self) -> "LoadedStates":
        """The same, to be updated by itself."""
        return LoadedStates(self.loaded, dict(self.written), step=self.step)

    __copy__ = copy

    # A dict's own: a mapping's sets key by key, which takes many times as long for each batch.
    def update(self, states: Any = (), /, **more: Any) -> None:
        """Updates what was written, like a dict's."""
        self.written.update(states, **more)


def _restored(paths: tuple[str, ...], count: int, columns: Any, rare: Any, others: Mapping[str, Any]) -> StatesTable:
    return StatesTable(paths, rows_of(count, columns, rare), others)


def table_of(states: Mapping[str, Any]) -> StatesTable:
    """Put states into a table.

    Raises:
        StateError: They are no mapping, or a cursor is not one that `to_state` writes; the message names its key.
    """
    if isinstance(states, StatesTable):
        return states
    if isinstance(states, LoadedStates):
        return join([states.loaded, table_of(states.written)]) if states.written else states.loaded
    if not isinstance(states, Mapping):
        raise StateError(f"states: expected the dict that to_state fills, got {type(states).__name__}")
    cursors = {key: value for key, value in states.items() if str(key).startswith("cursor/")}
    others = {key: value for key, value in states.items() if key not in cursors} if cursors else dict(states)
    _check_keys(others)
    paths: dict[str, int] = {}
    rows = empty_rows(len(cursors))
    rows[list(KEY)] = [_key_of(key, paths) for key in cursors]
    for key, value in cursors.items():
        if not isinstance(value, Mapping) or not value.keys() <= _FIELDS:
            raise not_states(key, value, f"expected {sorted(_FIELDS)} at most")
    held = {name for value in cursors.values() for name in value}
    for name in (*REQUIRED, *(name for name in OPTIONAL if name in held)):
        absent = None if name in REQUIRED else 0
        rows[name] = _numbers(name, {key: value.get(name, absent) for key, value in cursors.items()})
    if "pulled" in held:
        _fill_pulled(rows, cursors)
    if held.intersection(RARE):
        _fill_rare(rows, cursors)
    return _table(tuple(paths), rows, others)


def join(tables: Sequence[StatesTable]) -> StatesTable:
    """Join tables; of entries with the same key that of the last one counts."""
    others = {key: value for table in tables for key, value in table.others.items()}
    tables = [table for table in tables if len(table.rows)]
    if len(tables) <= 1:
        return replace(tables[0], others=others) if tables else StatesTable(others=others)
    # Each table numbers its own paths.
    paths = {path: None for table in tables for path in table.paths}
    number = {path: index for index, path in enumerate(paths)}
    rows = np.concatenate([table.rows for table in tables])
    rows["path"] = np.concatenate([np.array([number[p] for p in t.paths])[t.rows["path"]] for t in tables])
    return _table(tuple(paths), rows, others)


def _table(paths: Sequence[str], rows: Rows, others: Mapping[str, Any]) -> StatesTable:
    """A table of rows in any sequence; of those with the same key the last one counts."""
    # The same cursors give the same table, whatever sequence they came in: its digest is that of what it holds.
    used = {paths[index]: index for index in np.unique(rows["path"]).tolist()}
    number = np.zeros(len(paths), np.int64)
    number[[used[path] for path in sorted(used)]] = np.arange(len(used))
    keys = np.stack([rows[name] if name != "path" else number[rows["path"]] for name in KEY])
    order = np.lexsort(keys[::-1])  # stable: the last of equal keys stays last
    is_last = np.append((keys[:, order[1:]] != keys[:, order[:-1]]).any(axis=0), True)[: len(rows)]
    rows = rows[order[is_last]]
    rows["path"] = number[rows["path"]]
    return StatesTable(tuple(sorted(used)), rows, others)


def as_dicts(rows: Rows) -> Iterator[dict[str, Any]]:
    """Yield cursors as `to_state` wrote them."""
    # Lists first: an element of a list is an int or float of Python, and reading it ten times as fast.
    optional = [(name, rows[name].tolist()) for name in OPTIONAL if rows[name].any()]
    pulled = rows["pulled"].tolist() if (rows["pulled"][:, -1] >= 0).any() else None
    for row, (values, rare) in enumerate(zip(rows[list(REQUIRED)].tolist(), rows["rare"].tolist(), strict=True)):
        cursor = dict(zip(REQUIRED, values, strict=True))
        for name, column in optional:
            if column[row]:
                cursor[name] = column[row]
        if pulled is not None and pulled[row][-1] >= 0:
            cursor["pulled"] = pulled[row]
        if rare:
            cursor.update(rare)
        yield cursor


def compared(key: str, value: Any) -> Any:
    """What of an entry must be the same on all ranks: of a header all that determines the order."""
    is_header = key.startswith("generation/") and isinstance(value, Mapping)
    return {name: part for name, part in value.items() if name != _NOT_COMPARED} if is_header else value


def deal_of(header: Any) -> int:
    """The number of a generation's deal; 0 of what is no header, which whoever reads it refuses."""
    number = header.get("deal") if isinstance(header, Mapping) else None
    return number if type(number) is int else 0


def owner_of(key: str) -> Owner:
    """Whose an entry is that is no cursor.

    Raises:
        ValueError: It is not a key of states.
    """
    kind, *numbers = key.split("/")
    match kind, [key_number(number) for number in numbers]:
        case (("generation" | "deal"), [generation]):
            return Owner(generation, None)
        case ("idle", [generation, rank]) | ("worker", [generation, _, rank]):
            return Owner(generation, rank)
    raise ValueError("not a key of to_state")


def key_number(text: str) -> int:
    """A number of a key, written as `to_state` writes it: else two keys could mean the same entry.

    Raises:
        ValueError: It is not one.
    """
    number = int(text) if len(text) <= _MAX_DIGITS else -1
    if str(number) != text or number < 0:
        raise ValueError(f"expected a count, got {shown(text)}")
    return number


def not_states(key: object, value: object, why: str) -> StateError:
    """An error about an entry that `to_state` does not write."""
    return StateError(
        f"states: {shown(key)}: {shown(value)} does not come from to_state ({why})\n"
        "  Pass the dict that was filled by states.update(to_state(batch)), as it was saved."
    )


def _check_keys(others: Mapping[str, Any]) -> None:
    for key, value in others.items():
        try:
            owner_of(key)
        except (ValueError, AttributeError) as error:
            raise not_states(key, value, str(error)) from error


def _key_of(key: str, paths: dict[str, int]) -> tuple[int, ...]:
    """The numbers of a cursor's key, as `KEY` has them; the path gets one if it has none."""
    try:
        # At most five times: what follows the lane's numbers is the path, and names of sources may contain a slash.
        _, *texts, path = key.split("/", 5)
        generation, epoch_pass, rank, worker = map(key_number, texts)
    except ValueError as error:
        raise not_states(key, "…", "not a key of to_state") from error
    return generation, epoch_pass, paths.setdefault(path, len(paths)), rank, worker


def _numbers(name: str, values: Mapping[str, Any]) -> Column:
    """A column of numbers, by key; checked, since damage must not decide what comes next."""
    lowest, end = _LOWEST.get(name, 0), 2.0**1023 if name in FLOATS else 2**53
    types = {int, float} if name in FLOATS else {int}
    # By exact type: NumPy takes True for 1 and 1.5 for an integer without a word.
    if types.issuperset(map(type, values.values())):
        try:
            column = np.array(list(values.values()), ROW[name])
        except OverflowError:  # which of them is found below
            column = np.array([math.nan])
        if bool(((column >= lowest) & (column < end)).all()):  # false of NaN
            return column
    # An integer just below the end is the end as a float.
    for key, value in values.items():
        if type(value) not in types or not lowest <= value < end or float(value) >= end:
            raise not_states(key, {name: value}, f"expected a number from {lowest} on in {name!r}")
    raise AssertionError("one of them is out of bounds")


def _fill_pulled(rows: Rows, cursors: Mapping[str, Mapping[str, Any]]) -> None:
    held = [(row, key, value["pulled"]) for row, (key, value) in enumerate(cursors.items()) if "pulled" in value]
    for _, key, value in held:
        if not isinstance(value, list | tuple) or len(value) != ROW["pulled"].shape[0]:
            raise not_states(key, {"pulled": value}, "expected a position")
    for number, name in enumerate(("epoch", "window", "taken", "part")):
        rows["pulled"][[row for row, _, _ in held], number] = _numbers(name, {key: v[number] for _, key, v in held})


def _fill_rare(rows: Rows, cursors: Mapping[str, Mapping[str, Any]]) -> None:
    for row, (key, value) in enumerate(cursors.items()):
        if fields := {name: value[name] for name in RARE if name in value}:
            try:
                _check_rare(fields)
            except (ValueError, TypeError) as error:
                raise not_states(key, fields, str(error)) from error
            rows["rare"][row] = fields


def _check_rare(fields: Mapping[str, Any]) -> None:
    """Refuse what functions and iterables do not say.

    Raises:
        ValueError: A field is of another form, or nests deeper than what copies it can follow.
    """
    if not isinstance(fields.get("function", {}), Mapping):
        raise ValueError("expected a mapping in 'function'")
    if not isinstance(stream := fields.get("stream", [None]), list) or len(stream) != 1:
        raise ValueError("expected a list of one in 'stream'")
    read_left_out(fields.get("left_out", ""))
    told = fields.get("told", ())
    if len(told) not in (0, 2, 5) or not all(
        type(number) in (int, float) and 0 <= number < math.inf for number in told
    ):
        raise ValueError("expected two or five numbers in 'told'")
    # Level by level and not by recursion, which could itself run out of stack here.
    level: Collection[Any] = list(fields.values())
    for _ in range(_MAX_LEVELS):
        parts = [part for part in level if isinstance(part, Mapping | list | tuple)]
        level = [inner for part in parts for inner in (part.values() if isinstance(part, Mapping) else part)]
        if not level:
            return
    raise ValueError(f"expected at most {_MAX_LEVELS} levels")
