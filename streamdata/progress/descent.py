"""From which loaded states a trainer's states descend, and since which loading of them."""

import os
import secrets
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from streamdata.progress.columns import Columns
from streamdata.progress.entry_keys import owner_of
from streamdata.progress.states_table import StatesTable

NOTHING_LOADED = ""
"""The parent of states of a run that began without any."""
_MAX_REMEMBERED = 4
"""A job loads once; a notebook may look at several steps."""


class Descent(NamedTuple):
    """Of a trainer's states."""

    parent: str | None
    """The digest of the loaded states; `NOTHING_LOADED`; None where nobody knows."""
    is_as_loaded: bool
    """Whether nothing was delivered since."""
    run: str
    """What this process alone has delivered since it loaded them: another one that loads them has another name."""


class _LoadedTable(NamedTuple):
    table: StatesTable
    run: str


class _Remembered:
    """What this process loaded: `dict(states)` loses what `Columns` know of themselves, and shows it by its entries."""

    loaded: ClassVar[deque[_LoadedTable]] = deque(maxlen=_MAX_REMEMBERED)
    run: ClassVar[str] = secrets.token_hex(8)
    """Since nothing was loaded, as far as it knows."""


def remember(loaded: Columns) -> None:
    """Know states again that descend from these, when they are saved as a plain dict."""
    # Not the mapping: the trainer goes on to write into that.
    _Remembered.loaded.appendleft(_LoadedTable(loaded.table(), secrets.token_hex(8)))


def descent_of(states: Mapping[str, Any], rank: int) -> Descent:
    """From which loaded states a rank's states descend."""
    if isinstance(states, Columns) and states.parent is not None:
        run = next((one.run for one in _Remembered.loaded if one.table.digest() == states.parent), _Remembered.run)
        return _descent(states.parent, states.is_as_loaded and states.table().digest() == states.parent, run)
    table = Columns.of(states).table()
    # By content: `dict(states)` has it, and so has what a trainer wrote and read by its own means in this process.
    for loaded, run in _Remembered.loaded:
        is_as_loaded = bool(loaded.cursors) and table.digest() == loaded.digest()
        if is_as_loaded or _descends(table, loaded, rank):
            return _descent(loaded.digest(), is_as_loaded, run)
    return _descent(NOTHING_LOADED if _is_of_rank_alone(table, rank) else None, False, _Remembered.run)


def _descent(parent: str | None, is_as_loaded: bool, run: str) -> Descent:
    # A process that was forked has the memory of the one that loaded, which may fork another one for each attempt.
    return Descent(parent, is_as_loaded, f"{run}-{os.getpid()}")


def present_generations(headers: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """The generations of the present deal: those since the topology last changed."""
    # States of format 1 know no deals: their topology never changed.
    deals = {generation: header.get("deal", 0) for generation, header in headers.items()}
    return [generation for generation, deal in deals.items() if deal == deals[max(deals)]] if deals else []


def _descends(table: StatesTable, loaded: StatesTable, rank: int) -> bool:
    """Whether all that the rank does not write itself is as it was loaded."""
    headers = loaded.headers()
    if not headers or not headers.keys() <= table.headers().keys():
        return False
    present, newest = present_generations(headers), max(headers)
    later = [generation for generation in table.headers() if generation > newest]
    # Its own have changed since, unless the topology has. All else is a copy that nobody updates here, but for
    # generations that began since.
    changing = present if set(present) & set(present_generations(table.headers())) else []
    _, foreign = loaded.divided(rank, changing)
    _, kept = table.divided(rank, [*changing, *later])
    return bool(foreign.cursors) and _without_headers(kept).digest() == _without_headers(foreign).digest()


def _without_headers(table: StatesTable) -> StatesTable:
    others = {key: value for key, value in table.others.items() if not key.startswith("generation/")}
    return StatesTable(table.cursors, others, table.odd)


def _is_of_rank_alone(table: StatesTable, rank: int) -> bool:
    # A run that began without states has one topology, and of that nobody else's entries.
    _, rest = table.divided(rank, present_generations(table.headers()))
    return not rest.cursors and all(owner_of(key).rank is None for key in rest.others) and len(table.headers()) <= 1
