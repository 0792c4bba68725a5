"""States of many ranks as columns: a flat dict to whoever reads or updates it."""

from collections.abc import Collection, ItemsView, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamdata.errors import StateError, shown
from streamdata.progress.cursor_table import FLOATS, NO_POSITION, Column, CursorTable, Group
from streamdata.progress.states_table import StatesTable, join, table_from_dict


@dataclass(frozen=True)
class CursorColumns:
    """Cursors that are consecutive rows: of one node in one generation and pass, a row for each lane."""

    table: CursorTable
    rows: slice

    def __len__(self) -> int:
        return int(self.rows.stop - self.rows.start)

    def __getitem__(self, name: str) -> Column:
        """A field of all rows, or `rank` or `worker`: int64, or float64 of `clock` and `cost`; zeros where absent.

        Of `pulled` each row is a position, whose last number is -1 where the lane has none.
        """
        if name in self.table.columns:
            return self.table.columns[name][self.rows]
        if name == "pulled":
            return np.tile(np.array(NO_POSITION), (len(self), 1))
        return np.zeros(len(self), np.float64 if name in FLOATS else np.int64)

    def rare(self) -> dict[int, Mapping[str, Any]]:
        """By row of these columns: the fields of `RARE`, where there is one of them."""
        start, stop = self.rows.start, self.rows.stop
        return {row - start: fields for row, fields in self.table.rare.items() if start <= row < stop}


class Columns(MutableMapping[str, Any]):
    """States, with the keys and values of the flat dict that `to_state` fills; `dict(…)` of them is plain JSON.

    What was loaded lies in a table and does not change; what is written afterwards lies in a dict above it. So an
    update costs what one of a dict costs, and workers that are forked share the table.

    Args:
        table: What was loaded.
        step: The step of which they were loaded.
    """

    def __init__(self, table: StatesTable | None = None, *, step: int | None = None) -> None:
        self._table = table or StatesTable()
        self._written: dict[str, Any] = {}
        self.step = step

    @classmethod
    def of(cls, states: Mapping[str, Any]) -> "Columns":
        """The same states, all of them in columns; themselves where they are that already.

        Raises:
            StateError: A cursor is not one that `to_state` writes; the message names its key.
        """
        if not isinstance(states, Mapping):
            raise StateError(f"states: expected the dict that to_state fills, got {type(states).__name__}")
        if not isinstance(states, Columns):
            return cls(table_from_dict(states))
        return states if states.is_as_loaded else states.in_columns()

    @property
    def is_as_loaded(self) -> bool:
        """Whether nothing was written since they were loaded."""
        return not self._written

    def in_columns(self) -> "Columns":
        """The same states, with what was written since they were loaded in columns, too."""
        return Columns(self.table(), step=self.step)

    def table(self) -> StatesTable:
        """All entries, what was written since they were loaded included."""
        return join([self._table, table_from_dict(self._written)]) if self._written else self._table

    def headers(self) -> dict[int, Mapping[str, Any]]:
        """The generations' headers, sorted by number."""
        return dict(sorted((self._table.headers() | StatesTable(others=self._written).headers()).items()))

    def divided(self, rank: int, generations: Collection[int]) -> tuple[StatesTable, StatesTable]:
        """The rank's own entries in these generations, and all others, headers among them."""
        # Before they are joined: a rank's own are few, and joining sorts.
        loaded, written = (table.divided(rank, generations) for table in (self._table, table_from_dict(self._written)))
        return join([loaded[0], written[0]]), join([loaded[1], written[1]])

    def cursors(self) -> CursorColumns:
        """All cursors, sorted by generation, pass, path, rank and worker; asked of `Columns.of(states)`."""
        assert self.is_as_loaded, "what was written since is in no column"
        cursors = self._table.cursors
        return CursorColumns(cursors, slice(0, len(cursors)))

    def group(self, generation: int, epoch_pass: int, path: str) -> CursorColumns | None:
        """The cursors of a node in all lanes that have one; asked of `Columns.of(states)`."""
        assert self.is_as_loaded, "what was written since is in no column"
        cursors = self._table.cursors
        rows = cursors.groups.get(Group(generation, epoch_pass, path))
        return None if rows is None else CursorColumns(cursors, rows)

    def groups(self) -> list[Group]:
        """The generation, pass and path of each group of cursors, sorted; asked of `Columns.of(states)`."""
        assert self.is_as_loaded, "what was written since is in no column"
        return list(self._table.cursors.groups)

    def others(self) -> Mapping[str, Any]:
        """All entries that are not cursors."""
        written = {key: value for key, value in self._written.items() if not str(key).startswith("cursor/")}
        return {**self._table.others, **written} if written else self._table.others

    def __getitem__(self, key: str) -> Any:
        return self._written[key] if key in self._written else self._table[key]

    def __contains__(self, key: object) -> bool:
        return key in self._written or key in self._table

    def __setitem__(self, key: str, value: Any) -> None:
        self._written[key] = value

    # No entry is deleted in training; it is here because mappings that can be changed have it.
    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        # Rare, and then everything becomes a dict: a table cannot lose a row.
        held = {other: value for other, value in self.items() if other != key}
        self._table, self._written = StatesTable(), held

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self.items())

    def __len__(self) -> int:
        return len(self._table) + sum(key not in self._table for key in self._written)

    def __repr__(self) -> str:
        return f"Columns({shown(dict(self))})"

    def items(self) -> ItemsView[str, Any]:
        """Like a dict's, and many times as fast as asking for each key."""
        return _Entries(self, self._table, self._written)

    def update(self, states: Any = (), /, **more: Any) -> None:
        """Like a dict's."""
        # A dict's own: MutableMapping's sets key by key, which takes many times as long for each batch. And without
        # handing on what is never given, which takes as long again.
        self._written.update(states)
        if more:
            self._written.update(more)


class _Entries(ItemsView[str, Any]):
    def __init__(self, columns: Columns, table: StatesTable, written: Mapping[str, Any]) -> None:
        super().__init__(columns)
        self._table, self._written = table, written

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        # In the sequence of a dict: what is written over an entry takes its position.
        left = dict(self._written)
        for key, value in self._table.items():
            yield key, left.pop(key, value)
        yield from left.items()
