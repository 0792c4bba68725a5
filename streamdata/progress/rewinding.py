"""A step that lacks ranks: each of these goes on from the newest entry that is held of it, and delivers again."""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from streamdata.errors import StateError
from streamdata.progress.descent import NOTHING_LOADED, present_generations
from streamdata.progress.joining import check_together, join_ranks
from streamdata.progress.saved_step import SavedStep, read_rank, read_step, steps_in
from streamdata.progress.state_file import RankStates
from streamdata.progress.states_table import StatesTable

logger = logging.getLogger("streamdata")


class _Held(NamedTuple):
    """What is held of a rank, of an older step."""

    step: int
    part: RankStates


class _Loaded(NamedTuple):
    """What the ranks had loaded when they began."""

    step: int
    table: StatesTable


class _Filled(NamedTuple):
    """A step, filled up."""

    table: StatesTable
    held: Mapping[int, _Held]
    """By rank, of those that have not saved it."""
    loaded: _Loaded | None


_Tables = dict[int, StatesTable | None]
"""What loading an older step gives, rewound if need be; None if that is an error."""


def rewound(found: SavedStep) -> StatesTable:
    """The states of a step, and of ranks that have not saved it their newest entries of older steps of its branch.

    Says for each of these ranks where it goes on, and how much comes again.

    Raises:
        StateError: The files do not belong together; or what rank 0 saves for all is in no file.
    """
    table, held, loaded = _filled(found, {})
    present = present_generations(table.headers())
    there, samples = table.ranks(present), _samples(table, present)
    # Ranks deliver in step: how far the missing one had come, the furthest of the others tells.
    expected = max((samples[part.origin.rank] for part in found.saved), default=0)
    for rank in found.missing:
        step = held[rank].step if rank in held else loaded.step if loaded is not None else None
        # Of what came from elsewhere rank 0 has saved all: see `part_of_rank`.
        entry = "its entry in what rank 0 had loaded" if step is None else f"its entry of step {step}"
        place = entry if rank in there else "its start"
        again = max(0, expected - samples[rank])
        logger.warning(
            "states: %s lacks rank %d: it goes on from %s; about %d of its samples come again",
            found.folder,
            rank,
            place,
            again,
        )
    return table


def _filled(found: SavedStep, tables: _Tables) -> _Filled:
    # First of all: nothing may be rewound to fill up a mixture of runs.
    check_together(found.saved)
    is_given_up = cache(partial(_is_given_up, found))
    held = {rank: newest for rank in found.missing if (newest := _newest_of(rank, found, is_given_up)) is not None}
    rest = [rank for rank in found.missing if rank not in held]
    loaded = _loaded(found, tables) if rest else None
    if 0 in rest and loaded is None and found.parent != NOTHING_LOADED:
        raise StateError(
            f"{found.folder}: rank 0 has not saved this step, and no step is there that it had loaded: what all ranks "
            "had delivered before is in no file\n  Load an older step."
        )
    parts = [*found.saved, *(newest.part for newest in held.values())]
    return _Filled(join_ranks(parts, _copies(loaded, rest)), held, loaded)


def _newest_of(rank: int, found: SavedStep, is_given_up: Callable[[int], bool]) -> _Held | None:
    """The newest entries of a rank in an older step of the same branch."""
    for step in steps_in(found.directory):
        part = read_rank(found.directory, step, rank) if step < found.step else None
        if part is None or is_given_up(step):
            continue
        # As if of this step: of which older one it is, is what is to be overlooked here, and nothing else.
        part = replace(part, origin=replace(part.origin, step=found.step))
        try:
            check_together([*found.saved, part])
        except StateError:  # of another branch
            continue
        return _Held(step, part)
    return None


def _is_given_up(found: SavedStep, step: int) -> bool:
    """Whether an older step is of another run, which had loaded the same: by the first rank that has saved both.

    Where none has, nobody knows. Then it counts as given up: to deliver again is better than to lose.
    """
    for part in found.saved:
        older = read_rank(found.directory, step, part.origin.rank)
        if older is not None:
            return older.origin.run != part.origin.run
    return True


def _loaded(found: SavedStep, tables: _Tables) -> _Loaded | None:
    """What the step's ranks had loaded, if that is an older step that is still there."""
    for step in steps_in(found.directory) if found.parent else ():
        table = _table_of(found.directory, step, tables) if step < found.step else None
        # By content, not by name: steps are saved anew after a run was given up.
        if table is not None and table.digest() == found.parent:
            return _Loaded(step, table)
    return None


def _table_of(directory: Path, step: int, tables: _Tables) -> StatesTable | None:
    if step not in tables:
        older = read_step(directory, step)
        try:
            # Also one that lacks ranks may have been loaded: rewound, as this one is.
            tables[step] = _filled(older, tables).table if older.saved else None
        except StateError:  # of rank 0 nothing is held: then it was not loaded either
            tables[step] = None
    return tables[step]


def _copies(loaded: _Loaded | None, ranks: Sequence[int]) -> list[StatesTable]:
    """What is held of the ranks in what was loaded; of rank 0, all that it would have saved for the others, too."""
    if loaded is None:
        return []
    # What rank 0 saves for all did not change since it was loaded.
    present = present_generations(loaded.table.headers())
    return [loaded.table] if 0 in ranks else [loaded.table.divided(rank, present)[0] for rank in ranks]


def _samples(table: StatesTable, generations: Collection[int]) -> dict[int, int]:
    """How many samples each rank has drawn in the generations of a deal."""
    counts: dict[tuple[str, str, str], tuple[int, int]] = {}
    # Of the top: what is drawn of it counts all sources once, whatever the tree below it.
    for key, count in table.others.items():
        if key.startswith("drawn/") and key.endswith("/"):  # of the top, whose path is empty
            _, generation, epoch_pass, rank, worker, _ = key.split("/")
            if int(generation) in generations:
                # In a deal counts go on over its generations: the newest one's is the sum.
                lane = (rank, epoch_pass, worker)
                counts[lane] = max(counts.get(lane, (-1, 0)), (int(generation), count))
    samples: defaultdict[int, int] = defaultdict(int)
    for (rank, *_), (_, count) in counts.items():
        samples[int(rank)] += count
    return samples
