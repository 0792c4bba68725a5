"""States of all ranks as one table: a cursor is a row, all else stands by its key.

`flat dict of to_state → StatesTable → rows of a node, entries of a lane, the flat dict again`

A dict of dicts takes some 700 bytes a cursor and is walked entry by entry; a row takes 224, and what is computed of all
lanes is a few calls of NumPy.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from streamdata.errors import StateError, shown
from streamdata.states.cursor import LaneEntries, not_states
from streamdata.states.headers import DAMAGE, check_header, compared

Column: TypeAlias = npt.NDArray[Any]
Rows: TypeAlias = npt.NDArray[Any]
"""ROW (n,)."""

KEY: Final = ("generation", "epoch_pass", "path", "rank", "worker")
"""Fields of a cursor's key, the path as its index among the table's paths. Rows are sorted by these."""
REQUIRED: Final = ("draws", "clock", "epoch", "window", "taken")
COUNTS: Final = ("dropped", "bad", "skipped", "records")
"""Sums that go on over changes of topology: of these the new lanes get their parts."""
OPTIONAL: Final = ("output", "given", *COUNTS, "skips", "batches", "ended", "tokens", "cost")
"""Numbers that are absent where they are 0."""
POSITION: Final = ("epoch", "window", "taken", "output")
"""The fields of a `Position` as states name them: `part` is how many outputs of a record were delivered."""
RARE: Final = {"function": Mapping, "left_out": str, "stream": list, "tail": Mapping, "sizes": list, "padded": Mapping}
"""Few cursors have one; `function` can be any JSON object, and so can what is in the list `stream`."""
FLOATS: Final = ("clock", "cost")
NUMBERS: Final = (*KEY, *REQUIRED, *OPTIONAL)
ROW: Final = np.dtype(
    [(name, np.float64 if name in FLOATS else np.int64) for name in NUMBERS]
    + [("pulled", np.int64, len(POSITION)), ("rare", np.object_)]
)
"""A cursor. `pulled` is a position, its last number -1 where there is none; `rare` a dict of `RARE`, or None."""
_FIELDS: Final = frozenset((*REQUIRED, *OPTIONAL, *RARE, "pulled"))
_LOWEST: Final = {"window": 1 - 2**53, "clock": -(2.0**1023)}
"""Below 0 are leftovers of earlier sizes, and the clock of a source that is owed some draws."""
# Numbers as to_state writes them: else two keys could mean the same entry. Names of sources may contain a slash.
_NUMBER: Final = "(?:0|[1-9][0-9]{0,15})"
_CURSOR: Final = re.compile(rf"cursor/({_NUMBER})/({_NUMBER})/({_NUMBER})/({_NUMBER})/(.*)", re.DOTALL)
_OTHER: Final = re.compile(
    rf"(?:generation|deal)/{_NUMBER}|idle/{_NUMBER}/{_NUMBER}|(?:worker|uneven)/{_NUMBER}(?:/{_NUMBER}){{2}}"
)


class Owner(NamedTuple):
    """The place of an entry that is not a cursor, by its key."""

    kind: str
    generation: int
    epoch_pass: int
    """-1 of a header, and of a rank that was idle."""
    rank: int
    """-1 of a header."""


def owner_of(key: str) -> Owner:
    """Parse the key of an entry that is not a cursor."""
    kind, generation, *lane = key.split("/")
    return Owner(kind, int(generation), int(lane[0]) if len(lane) > 1 else -1, int(lane[-1]) if lane else -1)


def empty_rows(count: int) -> Rows:
    """Make `count` empty cursor rows."""
    rows = np.zeros(count, ROW)
    rows["pulled"], rows["rare"] = -1, None
    return rows


@dataclass(frozen=True, eq=False)
class StatesTable(Mapping[str, Any]):
    """Immutable states, stored as a table: a mapping with the flat dict's items. `table_of` and `join` make it."""

    paths: tuple[str, ...] = ()
    """Paths of the rows, sorted."""
    rows: Rows = field(default_factory=partial(empty_rows, 0))
    """ROW (n,), sorted by `KEY`; no two have the same key."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Headers, and who delivered last or nothing: by key."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # Column by column: NumPy pickles rows with objects value by value.
        return StatesTable.of_columns, (self.as_columns(), self.others)

    def as_columns(self) -> dict[str, Any]:
        """The rows as files hold them: their `paths`, number, columns that are not empty, and `RARE` fields by row."""
        columns = {name: np.ascontiguousarray(self.rows[name]) for name in NUMBERS if self.rows[name].any()}
        if (self.rows["pulled"] != -1).any():
            columns["pulled"] = np.ascontiguousarray(self.rows["pulled"])
        rare = {row: fields for row, fields in enumerate(self.rows["rare"].tolist()) if fields}
        return {"paths": self.paths, "rows": len(self.rows), "columns": columns, "rare": rare}

    @staticmethod
    def of_columns(held: Mapping[str, Any], others: Mapping[str, Any]) -> "StatesTable":
        """Make a table of what `as_columns` returned, or of its JSON.

        Raises:
            ValueError: A column has another length. One of `DAMAGE` if it is something else.
        """
        rows = empty_rows(held["rows"])
        for name, column in held["columns"].items():
            if len(column) != len(rows):  # NumPy would repeat a single value
                raise ValueError(f"expected {len(rows)} values of {shown(name)}, got {len(column)}")
            rows[name] = column
        for row, fields in held["rare"].items():
            rows["rare"][int(row)] = fields
        return StatesTable(tuple(held["paths"]), rows, others)

    @cached_property
    def groups(self) -> dict[tuple[int, int, str], slice]:
        """The slice of rows of each node, by generation, pass and path."""
        numbers = np.stack([self.rows[name] for name in KEY[:3]])
        is_first = np.append(True, (numbers[:, 1:] != numbers[:, :-1]).any(axis=0))[: len(self.rows)]
        starts = np.flatnonzero(is_first).tolist()
        keys = zip(numbers[:, is_first].T.tolist(), starts, [*starts[1:], len(self.rows)], strict=False)
        return {(number, epoch_pass, self.paths[p]): slice(*ends) for (number, epoch_pass, p), *ends in keys}

    @cached_property
    def headers(self) -> dict[int, Any]:
        """The headers of all generations, sorted by number."""
        found = {owner_of(key).generation: v for key, v in self.others.items() if key.startswith("generation/")}
        return dict(sorted(found.items()))

    def only_headers(self) -> "StatesTable":
        """The headers of generations alone."""
        return StatesTable(others={f"generation/{number}": header for number, header in self.headers.items()})

    @property
    def deal(self) -> int:
        """The generation with which the present size began, from the newest header; 0 if there is none."""
        return int(self.headers[max(self.headers)]["deal"]) if self.headers else 0

    @cached_property
    def digest(self) -> str:
        """A digest of the states that does not depend on the order in which they were filled."""
        others = {key: compared(value) for key, value in self.others.items()}
        rare = self.as_columns()["rare"]
        hasher = blake2b(json.dumps([self.paths, others, rare], sort_keys=True).encode(), digest_size=16)
        for name in (*NUMBERS, "pulled"):
            hasher.update(np.ascontiguousarray(self.rows[name]).data)
        return hasher.hexdigest()

    def present(self) -> "StatesTable":
        """The entries since the size of the run last changed, with the header of the deal."""
        # A dict that a trainer goes on to update keeps what it was resumed from.
        if not self:
            return self
        table = self.select(self.rows["generation"] >= self.deal, lambda own: own.generation >= self.deal)
        return _shortened(table) if any("set_percents" in header for header in table.headers.values()) else table

    def select(self, rows: npt.NDArray[np.bool_], keep: Callable[[Owner], bool]) -> "StatesTable":
        """The rows that a mask selects, and the other entries that `keep` does, by their owner."""
        others = {key: value for key, value in self.others.items() if keep(owner_of(key))}
        if rows.all() and len(others) == len(self.others):
            return self
        return _table(self.paths, self.rows[rows], others)

    def of_ranks(self, ranks: Collection[int], since: int = 0) -> "StatesTable":
        """The entries of some ranks, of generations from `since` on; headers are of rank -1."""
        is_own = np.isin(self.rows["rank"], [*ranks]) & (self.rows["generation"] >= since)
        return self.select(is_own, lambda own: own.rank in ranks and own.generation >= since)

    def ranks(self) -> set[int]:
        """The ranks that have delivered samples."""
        return set(np.unique(self.rows["rank"]).tolist())

    def lane(self, epoch_pass: int, rank: int, worker: int) -> LaneEntries:
        """The entries of one lane in a pass."""
        passes, ranks, workers = self._lanes
        own, entries = self.rows[(passes == epoch_pass) & (ranks == rank) & (workers == worker)], LaneEntries()
        for (generation, path), cursor in zip(own[["generation", "path"]].tolist(), as_dicts(own), strict=True):
            entries.cursors.setdefault(self.paths[path], {})[generation] = cursor
        return entries

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
        """Return the states as a flat dict, much faster than key by key."""
        return {**self.others, **dict(zip(self._numbers, as_dicts(self.rows), strict=True))}


class LoadedStates(MutableMapping[str, Any]):
    """The loaded states of all ranks: a dict-like mapping that a trainer updates and cannot delete from.

    Loaded entries lie in a table and do not change; later updates lie in a dict above it. So an
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
        """Return a copy that can be updated independently."""
        return LoadedStates(self.loaded, dict(self.written), step=self.step)

    __copy__ = copy

    # A dict's own: a mapping's sets key by key, which takes many times as long for each batch.
    def update(self, states: Any = (), /, **more: Any) -> None:
        """Update the entries, like a dict's `update`."""
        self.written.update(states, **more)


def table_of(states: Mapping[str, Any]) -> StatesTable:
    """Convert a flat dict of states to a table.

    Raises:
        StateError: The states are not a mapping, or an entry is not one that `to_state` writes; the message names its
            key. Of what was before the present size only whoever reads it knows whether it is whole.
    """
    if isinstance(states, StatesTable):
        return states
    if isinstance(states, LoadedStates):
        return join([states.loaded, table_of(states.written)]) if states.written else states.loaded
    if not isinstance(states, Mapping):
        raise StateError(f"states: expected the dict that to_state fills, got {type(states).__name__}")
    if not states:
        return StatesTable()
    others, keys = {}, {}
    for key, value in states.items():
        if isinstance(key, str) and (match := _CURSOR.fullmatch(key)):
            keys[key] = match.groups()
        else:
            try:
                others[key] = checked_entry(key, value)
            except DAMAGE as error:
                raise not_states(key, value, f"{type(error).__name__}: {error}") from error
    paths: dict[str, int] = {}
    rows = empty_rows(len(keys))
    rows[list(KEY)] = [
        (int(generation), int(epoch_pass), paths.setdefault(path, len(paths)), int(rank), int(worker))
        for generation, epoch_pass, rank, worker, path in keys.values()
    ]
    _fill(rows, {key: states[key] for key in keys})
    return _table(tuple(paths), rows, others)


def _fill(rows: Rows, cursors: Mapping[str, Any]) -> None:
    """Put cursors into rows; checked, since damage must not decide what comes next."""
    for key, value in cursors.items():
        if not isinstance(value, Mapping) or not value.keys() <= _FIELDS:
            raise not_states(key, value, f"expected {sorted(_FIELDS)} at most")
    held = {name for value in cursors.values() for name in value}
    for name in (*REQUIRED, *(name for name in OPTIONAL if name in held)):
        absent = None if name in REQUIRED else 0
        rows[name] = _column(name, {key: value.get(name, absent) for key, value in cursors.items()})
    if "pulled" in held:
        _fill_pulled(rows, cursors)
    for row, (key, value) in enumerate(cursors.items() if held.intersection(RARE) else ()):
        if RARE.keys().isdisjoint(value):
            continue
        rare = {name: value[name] for name in RARE if name in value}
        try:
            json.dumps(rare)
        except (ValueError, TypeError, RecursionError) as error:
            raise not_states(key, rare, f"expected JSON, {type(error).__name__}") from error
        is_right = all(isinstance(rare[name], kind) for name, kind in RARE.items() if name in rare)
        tails = rare.get("tail", {}).values() if is_right else ()
        counts = [([*tail.values()] if isinstance(tail, Mapping) else None, len(tail)) for tail in tails]
        is_right = is_right and all(_are_counts(*each, (int, float)) for each in counts)
        counts = [(run, 2) for run in rare.get("sizes", ())] if is_right else []
        counts += [([number], 1) for number in rare.get("padded", {}).values()] if is_right else []
        if not is_right or not all(_are_counts(*each) for each in counts):
            raise not_states(key, rare, "expected values of other types")
        rows["rare"][row] = rare


def checked_entry(key: Any, value: Any) -> Any:
    """Return the value of an entry that is not a cursor, if it is one that `to_state` writes.

    Raises:
        ValueError: It is not. One of `DAMAGE` if it is of another type.
    """
    if not isinstance(key, str) or not _OTHER.fullmatch(key):
        raise ValueError("not a key of to_state")
    kind = key.partition("/")[0]
    if kind == "generation":
        check_header(value)
    elif kind == "worker" and not _are_counts([value], 1):
        raise ValueError("expected the number of a worker")
    elif kind == "uneven" and {type(number) for number in (value["batches"], *value.values())} != {int}:
        raise ValueError("expected whole numbers")
    return value


def _are_counts(counts: object, number: int, kinds: Collection[type] = (int,)) -> bool:
    return isinstance(counts, list) and [type(n) in kinds and 0 <= n < math.inf for n in counts] == [True] * number


def _fill_pulled(rows: Rows, cursors: Mapping[str, Mapping[str, Any]]) -> None:
    pulled = {row: (key, value["pulled"]) for row, (key, value) in enumerate(cursors.items()) if "pulled" in value}
    for key, position in pulled.values():
        if not isinstance(position, list | tuple) or len(position) != len(POSITION):
            raise not_states(key, {"pulled": position}, "expected a position")
    for number, name in enumerate(POSITION):
        rows["pulled"][[*pulled], number] = _column(name, {key: position[number] for key, position in pulled.values()})


def _column(name: str, values: Mapping[str, Any]) -> Column:
    """A column of numbers, by key."""
    lowest, end = _LOWEST.get(name, 0), 2.0**1023 if name in FLOATS else 2**53
    # By exact type: NumPy takes True for 1 and 1.5 for an integer without a word.
    types = {int, float} if name in FLOATS else {int}
    if types.issuperset(map(type, values.values())):
        with suppress(OverflowError):  # which of them is found below
            column = np.array(list(values.values()), ROW[name])
            if bool(((column >= lowest) & (column < end)).all()):  # false of NaN
                return column
    # An integer just below the end is the end as a float.
    for key, value in values.items():
        if type(value) not in types or not lowest <= value < end or float(value) >= end:
            raise not_states(key, {name: value}, f"expected a number from {lowest} on in {name!r}")
    raise AssertionError("one of them is out of bounds")


def join(tables: Sequence[StatesTable]) -> StatesTable:
    """Join tables; for equal keys the last table wins."""
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


def _shortened(table: StatesTable) -> StatesTable:
    """Leave out the entries that weights set since have made needless.

    A lane that begins a generation says so of all nodes: that stays, and the generation before, with which it began;
    of a node that it does not tell of, the last entry. A header stays while an entry is of it.
    """
    keys = np.stack([table.rows[name] for name in ("epoch_pass", "rank", "worker", "path", "generation")])
    order = np.lexsort(keys[::-1])
    *_, paths, generations = keys = keys[:, order]
    # By lane, node and generation: of each row but the last, whether the next one is of the same lane, and node.
    is_same = keys[:, 1:] == keys[:, :-1]
    is_of_lane, is_of_node = is_same[:3].all(axis=0), is_same[:4].all(axis=0)
    lanes = np.append(0, np.cumsum(~is_of_lane))
    # The generation before a lane's newest: the last top that another one follows.
    is_earlier_top = is_of_node & (paths[1:] == (table.paths.index("") if "" in table.paths else -1))
    since = np.full(len(lanes), -1)
    np.maximum.at(since, lanes[:-1][is_earlier_top], generations[:-1][is_earlier_top])
    # Needless is what another row of the node follows that is not later than that.
    is_kept = np.ones(len(order), np.bool_)
    is_kept[order[:-1]] = ~is_of_node | (generations[1:] > since[lanes[1:]])
    owners = sorted(map(owner_of, table.others))
    last = {(own.epoch_pass, own.rank): own.generation for own in owners if own.kind == "worker"}
    used = {*table.rows["generation"][is_kept].tolist(), *last.values(), max(table.headers)}
    used |= {own.generation for own in owners if own.kind not in ("worker", "generation")}
    return table.select(is_kept, lambda own: own.generation in used)


def as_dicts(rows: Rows) -> Iterator[dict[str, Any]]:
    """Yield cursor rows as the dicts that `to_state` wrote."""
    # Lists first: an element of a list is an int or float of Python, and reading it ten times as fast.
    optional = [(name, rows[name].tolist()) for name in OPTIONAL if rows[name].any()]
    if (rows["pulled"][:, -1] >= 0).any():
        optional.append(("pulled", [position if position[-1] >= 0 else None for position in rows["pulled"].tolist()]))
    for row, (values, rare) in enumerate(zip(rows[list(REQUIRED)].tolist(), rows["rare"].tolist(), strict=True)):
        cursor = dict(zip(REQUIRED, values, strict=True))
        for name, column in optional:
            if column[row]:
                cursor[name] = column[row]
        if rare:
            cursor.update(rare)
        yield cursor
