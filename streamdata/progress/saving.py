"""Saving: one folder for each step, one file for each rank."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamdata.errors import StateError, shown
from streamdata.progress.checked import checked_header
from streamdata.progress.columns import Columns
from streamdata.progress.deal_header import DEAL
from streamdata.progress.entry_keys import owner_of
from streamdata.progress.loaded import is_as_loaded
from streamdata.progress.ranks import group_name
from streamdata.progress.state_file import Origin, encode, encode_deal
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

    Writes `directory/step-STEP/rank-RANK.states`, which is there in full or not at all, also after a power cut, and
    beside it, once for all ranks, what the run had come to under earlier sizes: a step needs no other folder.

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
    # Before the file that names it.
    for value in (value for key, value in part.others.items() if key.startswith(DEAL)):
        _publish_deal(folder, part, value)
    publish(folder / f"rank-{group.dp_rank}.states", [encode(origin, part)])


def part_of_rank(states: Mapping[str, Any], group: DataParallel, step: int) -> tuple[Origin, StatesTable]:
    """What a rank saves: its own entries since the size last changed, with the header of what was before.

    While it has delivered nothing since it loaded states of another size, rank 0 saves those for all.

    Raises:
        StateError: They do not come from `to_state`, or from a run with another number of ranks.
    """
    # Not `of` where they are columns: what was written since would be sorted in among all ranks' at every step.
    columns = states if isinstance(states, Columns) else Columns.of(states)
    headers, origin = _checked_headers(columns), Origin(rank=group.dp_rank, size=group.dp_size, step=step)
    if not headers:
        if len(columns):
            raise StateError("states: there are entries and no 'generation/…'\n  Save the whole dict.")
        return origin, StatesTable()
    newest = headers[max(headers)]
    present = [generation for generation in headers if generation >= newest["deal"]]
    before = {f"{DEAL}{newest['deal']}": columns[key]} if (key := f"{DEAL}{newest['deal']}") in columns else {}
    if newest["deal"] and not before:
        raise StateError(f"states: '{key}' is missing\n  Save the whole dict, from the first batch on.")
    if newest["dp_size"] != group.dp_size:
        if not is_as_loaded(columns):
            raise StateError(
                f"states: they are of dp_size={newest['dp_size']}, got size={group.dp_size}\n"
                "  Under tensor or pipeline parallelism give save_states rank and size of the data-parallel replicas."
            )
        # Its ranks are not those of this run: whichever rank has delivered something since has a newer header.
        return origin, columns.table().present() if group.dp_rank == 0 else StatesTable()
    # Before they are joined: a rank's own are few, and sorting all would take long at every step.
    own, rest = columns.divided(group.dp_rank, present)
    if missing := (own.generations() | rest.generations()) - headers.keys():
        raise StateError(f"states: 'generation/{min(missing)}' is missing\n  Save the whole dict.")
    # Its own headers alone: of a generation in which it has delivered nothing other ranks have it.
    needed = {f"generation/{number}": headers[number] for number in sorted(own.generations())}
    return origin, join([own, StatesTable(others=needed | before)])


def deal_file(digest: str) -> str:
    """The name of the file of what a run had come to under earlier sizes."""
    return f"deal-{digest}.json.gz"


def _publish_deal(folder: Path, part: StatesTable, value: Mapping[str, Any]) -> None:
    dealt = {header["dealt"] for header in part.headers().values() if "dealt" in header}
    if all((folder / deal_file(digest)).exists() for digest in dealt):
        return
    digest, content = encode_deal(value)
    if dealt != {digest}:
        key = next(key for key in part.others if key.startswith(DEAL))
        raise StateError(f"states: {key!r} is not the one that generations name\n  Save the whole dict.")
    publish(folder / deal_file(digest), [content])


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
