"""The states of several ranks, joined to one: after it is sure that they are of one run."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from streamdata.errors import StateError, shown
from streamdata.states.headers import DEAL, compared
from streamdata.states.progress import Progress
from streamdata.states.saving import RankStates
from streamdata.states.table import StatesTable, join, owner_of
from streamdata.states.to_state import States


def merge_states(*states: Mapping[str, Any]) -> States:
    """Join the states that several ranks collected, in any order.

    Every rank that resumed from a joined dict still carries the other ranks' entries as they were then; a plain
    `update` might bring those back. Cursors only grow (draws are counted), so each rank's entries are taken from the
    dict in which that rank is furthest, among those that the newest topology has written.

    Args:
        states: What `to_state` filled; joined dicts may be joined again.

    Returns:
        A dict to be passed to `set_dataloader_states` of any of the ranks.

    Raises:
        StateError: One of them was not filled by `to_state`, or they disagree on what determines the order.
    """
    # Checked first: below, entries are compared and summed up without another look.
    parts = [(f"states {number}", Progress(one).table) for number, one in enumerate(states)]
    _check_headers(parts)
    return _joined([table for _, table in parts]).as_dict()


def join_ranks(saved: Sequence[RankStates], deals: Mapping[str, Any], unknown: Collection[int] = ()) -> StatesTable:
    """The states of all ranks, with a record of each that delivered nothing since the size last changed.

    Args:
        saved: Of different ranks.
        deals: By digest, what had been before, of all that these name.
        unknown: Ranks of which nobody knows whether they delivered anything.

    Raises:
        StateError: They do not belong together.
    """
    check_together(saved)
    table = _joined([part.table for part in saved])
    if not table.headers:
        return table
    number = max(table.headers)
    newest = table.headers[number]
    # A rank that has delivered nothing since the size changed is of another size than the others. One of the same size
    # has begun without what the others had loaded.
    for part in saved:
        for header in part.table.headers.values():
            is_same_size = all(header[name] == newest[name] for name in ("dp_size", "num_workers"))
            if is_same_size and header["deal"] != newest["deal"]:
                raise StateError(
                    f"states: {part.name} and the others are not of one run: it goes on from another number of ranks "
                    "or workers\n  Delete the files of the run that you do not go on with, or load another step."
                )
    # Of the ranks that the newest header tells of: in a run of another size nobody has delivered yet. Those that were
    # idle once may have delivered since.
    idle = set(range(newest["dp_size"])) - table.ranks() - set(unknown)
    others = {key: value for key, value in table.others.items() if not key.startswith("idle/")}
    others |= {f"idle/{number}/{rank}": True for rank in sorted(idle)}
    # Whichever rank had it wrote it: the others' files name it by its digest.
    if newest["deal"]:
        others[f"{DEAL}{newest['deal']}"] = deals[newest["dealt"]]
    return StatesTable(table.paths, table.rows, others)


def _joined(tables: Sequence[StatesTable]) -> StatesTable:
    """Join states of one run, rank by rank."""
    # A rank that has delivered nothing since the size changed has entries of the size before: of these the newest
    # header says all.
    newest = max((table.deal for table in tables), default=0)
    tables = [table for table in tables if table.headers and table.deal == newest]
    # Rank by rank: states may hold several, one of them newer and another older than in those beside them.
    size = 1 + max((rank for table in tables for rank in _ranks(table)), default=-1)
    best, chosen = np.full((3, size), -1), np.full(size, -1)
    for number, table in enumerate(tables):
        reach = _reach(table, size)
        differs = reach != best
        first = differs.argmax(axis=0), np.arange(size)
        is_further = differs.any(axis=0) & (reach[first] > best[first])
        best, chosen = np.where(is_further, reach, best), np.where(is_further, number, chosen)
    kept = [
        table.select(
            chosen[table.rows["rank"]] == number,
            {k: v for k, v in table.others.items() if (rank := owner_of(k).rank) is None or chosen[rank] == number},
        )
        for number, table in enumerate(tables)
    ]
    return join(kept)


def _ranks(table: StatesTable) -> set[int]:
    return table.ranks() | {rank for key in table.others if (rank := owner_of(key).rank) is not None}


def _reach(table: StatesTable, size: int) -> Any:
    """How far each rank had come: its newest generation, how many lanes had ended passes, its draws in all.

    Returns:
        int64 (3, size); -1 of ranks of which nothing is held.
    """
    # Over all passes: with `set_epoch` the newest one need not be the last. And a lane that has ended one may be held
    # without its cursors: see `from_stateful`.
    reach, ranks = np.full((3, size), -1), table.rows["rank"]
    reach[1:, [*_ranks(table)]] = 0
    np.maximum.at(reach[0], ranks, table.rows["generation"])
    for row, name in ((1, "ended"), (2, "draws")):
        np.add.at(reach[row], ranks, table.rows[name])
    return reach


def check_together(saved: Sequence[RankStates]) -> None:
    """Refuse to join what different runs saved.

    Raises:
        StateError: They are of different steps, numbers of ranks or process groups; a generation is another in one of
            them.
    """
    for name in ("step", "size", "group"):
        # Of those that name no group it may be any.
        known = [part for part in saved if getattr(part, name) is not None]
        for part in known:
            got, expected = getattr(part, name), getattr(known[0], name)
            if got != expected:
                raise StateError(
                    f"states: {part.name} and {known[0].name} are of two runs: saved by {name} {got} and {expected}\n"
                    "  Delete the files of the run that you do not go on with, or load another step."
                )
    _check_headers((part.name, part.table) for part in saved)


def _check_headers(parts: Iterable[tuple[str, StatesTable]]) -> None:
    """Refuse generations that are not the same in all parts, whose headers were checked."""
    # The first that has a generation stands for all: what differs from it is named with it.
    first: dict[int, tuple[str, Any]] = {}
    for name, table in parts:
        for number, header in table.headers.items():
            # The same object in many files, which is then compared once.
            other, expected = first.setdefault(number, (name, header))
            if header is not expected and header["digest"] != expected["digest"]:
                where = _difference(compared(header), compared(expected))
                raise StateError(
                    f"states: {name} and {other} are not of one run: 'generation/{number}' differs in {where}\n"
                    "  Join states of one run only, all of which resumed from the same; delete the files of the other."
                )


def _difference(value: Any, other: Any, path: str = "") -> str:
    """The first place at which two values differ, with what is there."""
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        for name in sorted(value.keys() | other.keys()):
            if value.get(name) != other.get(name):
                return _difference(value.get(name), other.get(name), f"{path}.{name}" if path else name)
    return f"{path}: {shown(value)}, not {shown(other)}"
