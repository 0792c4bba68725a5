"""Saving: one folder for each step, one file for each rank."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamdata.errors import StateError, shown
from streamdata.progress.checked import checked_header
from streamdata.progress.columns import Columns
from streamdata.progress.descent import descent_of, present_generations
from streamdata.progress.entry_keys import owner_of
from streamdata.progress.history import compacted
from streamdata.progress.ranks import group_name
from streamdata.progress.state_file import Origin, encode
from streamdata.progress.states_table import StatesTable, join
from streamdata.run import DataParallel, find_data_parallel
from streamdata.run.publish import make_directory, publish

# No leading zeros: two folders would be the same step, and two files the same rank.
STEP_NAME = re.compile(r"step-(0|[1-9]\d*)")
FILE_NAME = re.compile(r"rank-(0|[1-9]\d*)\.states")


def save_states(
    directory: str | Path, states: Mapping[str, Any], *, step: int, rank: int | None = None, size: int | None = None
) -> None:
    """Save a rank's states, to be called on every rank, also on one that has delivered nothing.

    Writes `directory/step-STEP/rank-RANK.states`, which is there in full or not at all, also after a power cut. What
    was delivered before the topology last changed, rank 0 writes for all: a step's folder needs no other folder.

    Args:
        directory: The same for all ranks and steps.
        states: What `load_states` gave, or a dict, updated with `to_state` of each batch since.
        step: The trainer's, the same on all ranks.
        rank: Of this data-parallel replica, with `size`: to be given under tensor or pipeline parallelism. By default
            the process group's, else RANK and WORLD_SIZE, else there is one replica.
        size: How many replicas there are.

    Raises:
        StateError: They do not come from `to_state`, or from a run with another number of ranks.
        ValueError: The step is not a number from 0, or one of rank and size is missing or wrong.
        OSError: The directory cannot be written.
    """
    if type(step) is not int or not 0 <= step < 2**53:
        raise ValueError(f"save_states: expected a step from 0 on, an int below 2**53, got {shown(step)}")
    group = group_of("save_states", rank, size)
    origin, part = part_of_rank(states, group, step)
    if rank is None:  # otherwise each replica may have a process group of its own
        origin = replace(origin, group=group_name())
    folder = Path(directory) / f"step-{step}"
    make_directory(folder)
    # Before its own file is there: until then the step lacks rank 0, and cannot be taken for one of both runs.
    if group.dp_rank == 0:
        _remove_ranks_from(folder, group.dp_size)
    publish(folder / f"rank-{group.dp_rank}.states", [encode(origin, part)])


def part_of_rank(states: Mapping[str, Any], group: DataParallel, step: int) -> tuple[Origin, StatesTable]:
    """What a rank saves: its own entries since the topology last changed; as rank 0, all that no other rank saves.

    Raises:
        StateError: They do not come from `to_state`, or from a run with another number of ranks.
    """
    # Not `of` where they are columns: what was written since would be sorted in among all ranks' at every step.
    columns = states if isinstance(states, Columns) else Columns.of(states)
    headers = _checked_headers(columns)
    descent = descent_of(columns, group.dp_rank)
    newest = headers[max(headers)] if headers else None
    # Loaded by another number of ranks, of which this one has delivered nothing yet, they are still the old ones'.
    if newest is not None and newest["dp_size"] != group.dp_size and not descent.is_as_loaded:
        raise StateError(
            f"states: they are of dp_size={newest['dp_size']}, got size={group.dp_size}\n"
            "  Under tensor or pipeline parallelism use save_states with rank and size of the data-parallel replicas."
        )
    origin = Origin(rank=group.dp_rank, size=group.dp_size, step=step, parent=descent.parent, run=descent.run)
    present = present_generations(headers)
    own, rest = columns.divided(group.dp_rank, present)
    if missing := (own.generations() | rest.generations()) - headers.keys():
        raise StateError(f"states: 'generation/{min(missing)}' is missing\n  Save the whole dict.")
    if group.dp_rank:
        # Its own headers, too: rank 0 may have delivered nothing yet, and know of none.
        needed = {f"generation/{number}": headers[number] for number in sorted(own.generations())}
        return origin, join([own, StatesTable(others=needed)])
    # A rank that has delivered nothing since it loaded cannot know whether the others are in a new deal, and so do not
    # save what they had delivered before; nor can one whose states come from elsewhere.
    knows_deal = descent.parent is not None and not descent.is_as_loaded
    joined = join([rest.without(present) if knows_deal else rest, own])
    # Else states would grow with each topology that the run ever had.
    return origin, compacted(joined)


def _checked_headers(columns: Columns) -> dict[int, Mapping[str, Any]]:
    try:
        for key in columns.others():
            owner_of(key)
        return {number: checked_header(header) for number, header in columns.headers().items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StateError(f"states: they do not come from to_state ({error})\n  Save the whole dict.") from error


def group_of(who: str, rank: int | None, size: int | None) -> DataParallel:
    """The replica that a caller names, or by default that of the process.

    Raises:
        ValueError: One of rank and size is missing or wrong.
    """
    if rank is None and size is None:
        return find_data_parallel()
    if rank is None or size is None:
        raise ValueError(f"{who}: expected both rank and size, or neither, got rank={rank}, size={size}")
    return DataParallel(dp_size=size, dp_rank=rank)


def _remove_ranks_from(folder: Path, size: int) -> None:
    """Remove the files of ranks that this run does not have: a run of more ranks was at this step before.

    No rank of this run writes them, so that none can lose its own. The others' are replaced by their ranks.
    """
    for path in folder.iterdir():
        name = FILE_NAME.fullmatch(path.name)
        if name and int(name[1]) >= size:
            path.unlink()
