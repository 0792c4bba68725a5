"""States that do not change any more, of all ranks: cursors in columns, all else by key."""

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any, NoReturn

import numpy as np

from streamdata.errors import StateError, shown
from streamdata.progress.cursor_table import (
    OPTIONAL,
    RARE,
    REQUIRED,
    BadRowError,
    CursorTable,
    Lists,
    Mask,
    joined,
    table_of,
)
from streamdata.progress.entry_keys import CursorKey, cursor_key, owner_of

_FIELDS = frozenset((*REQUIRED, *OPTIONAL))
_NOT_COMPARED = "anomalies"
"""Of a header: a rank may not have delivered anything since a shard was mended."""
_KEY_NUMBERS = ("generation", "epoch_pass", "rank", "worker")


@dataclass(frozen=True)
class StatesTable:
    """The entries of states."""

    cursors: CursorTable = field(default_factory=CursorTable)
    others: Mapping[str, Any] = field(default_factory=dict)
    """Headers, lanes, what mixtures had drawn: by key, as in the flat dict."""

    def __len__(self) -> int:
        return len(self.cursors) + len(self.others)

    def __contains__(self, key: object) -> bool:
        return key in self.others or self._row(key) is not None

    def __getitem__(self, key: str) -> Any:
        if key in self.others:
            return self.others[key]
        row = self._row(key)
        if row is None:
            raise KeyError(key)
        return next(self.cursors.as_dicts(slice(row, row + 1)))

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield the flat dict's items."""
        yield from self.others.items()
        for group, rows in self.cursors.groups.items():
            lanes = (self.cursors.columns[name][rows].tolist() for name in ("rank", "worker"))
            for rank, worker, cursor in zip(*lanes, self.cursors.as_dicts(rows), strict=True):
                yield str(CursorKey(group, rank, worker)), cursor

    def headers(self) -> dict[int, Mapping[str, Any]]:
        """The generations' headers, sorted by number."""
        found = {owner_of(key).generation: v for key, v in self.others.items() if key.startswith("generation/")}
        return dict(sorted(found.items()))

    def generations(self) -> set[int]:
        """Those of which there are entries."""
        others = (owner_of(key) for key in self.others)
        return {*self.cursors.generations(), *(owner.generation for owner in others if owner.rank is not None)}

    def ranks(self, generations: Collection[int]) -> set[int]:
        """The ranks that delivered something in one of these generations."""
        owners = {owner_of(key) for key in self.others if not key.startswith("idle/")}
        named = {owner.rank for owner in owners if owner.generation in generations and owner.rank is not None}
        return named | set(self.cursors.ranks(generations))

    def divided(self, rank: int, generations: Collection[int]) -> "tuple[StatesTable, StatesTable]":
        """The rank's own entries in these generations, and all others, headers among them."""
        own = {key for key in self.others if (owner := owner_of(key)).rank == rank and owner.generation in generations}
        mask = self.cursors.of(rank, generations)
        return self._part(mask, own), self._part(~mask, self.others.keys() - own)

    def present(self) -> "StatesTable":
        """The entries since the size of the run last changed, with the header of what was before."""
        # A dict that a trainer goes on to update keeps what it was resumed from.
        try:
            headers = self.headers()
            deal = headers[max(headers)]["deal"] if headers else 0
            if not 0 <= deal <= max(headers, default=0):
                return self
            old = {key for key in self.others if owner_of(key).generation < deal}
            old_cursors = [generation for generation in self.cursors.generations() if generation < deal]
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
        ):  # `Entries` says what is wrong
            return self
        if not old and not old_cursors:
            return self
        return self._part(~self.cursors.within(old_cursors), self.others.keys() - old)

    def digest(self) -> str:
        """The same for equal states, whatever sequence they were filled in."""
        return self._digest

    # When it is first asked for: that is when a rank first saves, and not before the first sample.
    @cached_property
    def _digest(self) -> str:
        # JSON has one text for equal values, and columns one content: they are sorted by key.
        others = {key: _compared(key, value) for key, value in self.others.items()}
        rare = sorted(self.cursors.rare.items())
        hasher = blake2b(digest_size=16)
        hasher.update(json.dumps([self.cursors.paths, others, rare], sort_keys=True).encode())
        for name, column in sorted(self.cursors.columns.items()):
            hasher.update(name.encode() + np.ascontiguousarray(column).tobytes())
        return hasher.hexdigest()

    def _part(self, mask: Mask, keys: Collection[str]) -> "StatesTable":
        others = {key: value for key, value in self.others.items() if key in keys}
        return StatesTable(self.cursors.select(mask), others)

    def _row(self, key: object) -> int | None:
        found = cursor_key(key)
        return None if found is None else self.cursors.row(*found)


def join(parts: Sequence[StatesTable]) -> StatesTable:
    """One of several; of entries with the same key that of the last one counts."""
    others = {key: value for part in parts for key, value in part.others.items()}
    return StatesTable(joined([part.cursors for part in parts]), others)


def same_order(header: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two headers of a generation agree on all that determines the order."""
    return bool(_compared("generation/", header) == _compared("generation/", other))


def table_from_dict(states: Mapping[str, Any]) -> StatesTable:
    """The entries of a flat dict.

    Raises:
        StateError: A cursor is not one that `to_state` writes; the message names its key.
    """
    lists: defaultdict[str, list[Any]] = defaultdict(list)
    index: dict[str, int] = {}
    others: dict[str, Any] = {}
    keys, values = [], []
    # One pass over the entries: all else goes field by field.
    for key, value in states.items():
        if not str(key).startswith("cursor/"):
            others[key] = value
            continue
        found = cursor_key(key)
        if found is None or not isinstance(value, Mapping) or not value.keys() <= _FIELDS:
            _refuse(key, value, "not a key of to_state" if found is None else f"expected {sorted(_FIELDS)} at most")
        (generation, epoch_pass, path), rank, worker = found
        for name, number in zip(_KEY_NUMBERS, (generation, epoch_pass, rank, worker), strict=True):
            lists[name].append(number)
        lists["path"].append(index.setdefault(path, len(index)))
        keys.append(key)
        values.append(value)
    if not keys:
        return StatesTable(others=others)
    try:
        pulled = {row: value["pulled"] for row, value in enumerate(values) if "pulled" in value}
        rare = {row: fields for row, value in enumerate(values) if (fields := _rare(value))}
        table = table_of(list(index), lists | _fields(values), pulled, rare)
    except BadRowError as error:
        _refuse(keys[error.row], values[error.row], str(error))
    return StatesTable(table, others)


def table_from_lists(
    paths: Sequence[str],
    lists: Lists,
    pulled: Mapping[int, Any],
    rare: Mapping[int, Any],
    others: Mapping[str, Any],
) -> StatesTable:
    """The entries of states whose cursors were read as for `table_of`; those among `others` count too.

    Raises:
        StateError: A cursor is not one that `to_state` writes; the message names its key.
    """
    try:
        table = StatesTable(table_of(paths, lists, pulled, rare))
    except BadRowError as error:
        numbers = [shown(lists[name][error.row]) for name in _KEY_NUMBERS]
        path = lists["path"][error.row]
        named = paths[path] if type(path) is int and 0 <= path < len(paths) else "?"
        _refuse("/".join(["cursor", *numbers, named]), {error.name: error.value}, str(error))
    return join([table, table_from_dict(others)])


def _fields(values: list[Mapping[str, Any]]) -> Lists:
    """The fields of cursors as columns; of optional ones those that some cursor has."""
    lists: Lists = {name: [value.get(name) for value in values] for name in REQUIRED}
    held = {name for value in values for name in value} - {"pulled", *RARE}
    return lists | {name: [value.get(name, 0) for value in values] for name in OPTIONAL if name in held}


def _rare(cursor: Mapping[str, Any]) -> dict[str, Any]:
    return {name: cursor[name] for name in RARE if name in cursor}


def _compared(key: str, value: Any) -> Any:
    is_header = key.startswith("generation/") and isinstance(value, Mapping)
    return {name: part for name, part in value.items() if name != _NOT_COMPARED} if is_header else value


def _refuse(key: object, value: object, why: str) -> NoReturn:
    raise StateError(
        f"states: {shown(key)}: {shown(value)} does not come from to_state ({why})\n"
        "  Pass the dict that was filled by states.update(to_state(batch)), as it was saved."
    )
