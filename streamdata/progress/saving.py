"""Saving: one folder for each step, one file for each rank."""

import re
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from streamdata.errors import StateError, shown
from streamdata.progress.header import check_header
from streamdata.progress.lane_link import is_asked, watched
from streamdata.progress.ranks import group_name
from streamdata.progress.state_file import Origin, encode, encode_deal
from streamdata.progress.states_table import LoadedStates, StatesTable, deal_of, join, table_of
from streamdata.run import DataParallel, find_data_parallel
from streamdata.run.publish import make_directory, publish

# No leading zeros: two folders would be the same step, and two files the same rank.
STEP_NAME = re.compile(r"step-(0|[1-9]\d*)")
FILE_NAME = re.compile(r"rank-(0|[1-9]\d*)\.states")

_loaded: Final[deque[str]] = deque(maxlen=1024)
"""The digests of states that this process has loaded: a job loads once, a notebook may look at many steps."""


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
        StateError: They do not come from `to_state`, or from a run with another number of ranks; or they are empty
            after step 0, while a dataset of this process has delivered samples and `to_state` was never called.
        ValueError: The step is not a number from 0, or one of rank and size is missing or wrong.
        OSError: The directory cannot be written.
    """
    if type(step) is not int or not 0 <= step < 2**53:
        raise ValueError(f"save_states: expected a step from 0 on, an int below 2**53, got {shown(step)}")
    group = group_of("save_states", rank, size)
    part, deal = part_of_rank(states, group)
    if step and not (part or deal or is_asked.is_set()) and any(dataset.is_to_be_saved() for dataset in list(watched)):
        raise StateError(
            f"save_states: expected states of what was delivered in {step} steps, got none, and nobody has asked for "
            "some: a resume would begin at sample 0\n"
            "  Call states.update(to_state(batch)) for every batch, or save StreamLoader.state_dict()."
        )
    # Otherwise each replica may have a process group of its own.
    origin = Origin(rank=group.dp_rank, size=group.dp_size, step=step, group=group_name() if rank is None else None)
    folder = Path(directory) / f"step-{step}"
    make_directory(folder)
    # Before its own file is there: until then the step lacks rank 0, and cannot be taken for one of both runs.
    if group.dp_rank == 0:
        _remove_ranks_from(folder, group.dp_size)
    # Before the file that names it.
    if deal is not None and not (folder / deal_file(deal[0])).exists():
        digest, content = encode_deal(deal[1])
        if digest != deal[0]:
            raise StateError("states: the entry 'deal/…' is not the one that generations name\n  Save the whole dict.")
        publish(folder / deal_file(digest), [content])
    publish(folder / f"rank-{group.dp_rank}.states", [encode(origin, part)])


def part_of_rank(states: Mapping[str, Any], group: DataParallel) -> tuple[StatesTable, tuple[str, Any] | None]:
    """What a rank saves: its own entries since the size last changed; and the header of what was before, by its digest.

    While it has delivered nothing since it loaded states of another size, rank 0 saves those for all.

    Raises:
        StateError: They do not come from `to_state`, or from a run with another number of ranks.
    """
    # What was written since is not sorted in among all ranks' at every step: a rank's own are few.
    parts = [states.loaded, states.written] if isinstance(states, LoadedStates) else [states]
    tables = list(map(table_of, parts))
    headers = dict(sorted({number: value for table in tables for number, value in table.headers.items()}.items()))
    if not headers:
        if any(map(len, tables)):
            raise StateError("states: there are entries and no 'generation/…'\n  Save the whole dict.")
        return StatesTable(), None
    try:
        for header in headers.values():
            check_header(header)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StateError(f"states: they do not come from to_state ({error})\n  Save the whole dict.") from error
    newest = headers[max(headers)]
    key = f"deal/{deal_of(newest)}"
    deals = [table.others[key] for table in tables if key in table.others]
    if newest["deal"] and not deals:
        raise StateError(f"states: {key!r} is missing\n  Save the whole dict, from the first batch on.")
    deal = (newest["dealt"], deals[-1]) if deals else None
    if newest["dp_size"] != group.dp_size:
        if not is_as_loaded(states):
            raise StateError(
                f"states: they are of dp_size={newest['dp_size']}, got size={group.dp_size}\n"
                "  Under tensor or pipeline parallelism give save_states rank and size of the data-parallel replicas."
            )
        # Its ranks are not those of this run: whichever rank has delivered something since has a newer header.
        return (join(tables).present(), deal) if group.dp_rank == 0 else (StatesTable(), None)
    own = join([table.of_rank(group.dp_rank, newest["deal"]) for table in tables])
    generations = sorted(own.generations())
    if missing := own.generations() - headers.keys():
        raise StateError(f"states: 'generation/{min(missing)}' is missing\n  Save the whole dict.")
    # Its own headers alone: of a generation in which it has delivered nothing other ranks have it.
    needed = {f"generation/{number}": headers[number] for number in generations}
    return StatesTable(own.paths, own.rows, {**needed, **own.others}), deal


def remember(states: StatesTable) -> None:
    """Note that these were loaded, or set, to know them again where nothing was delivered since."""
    # By content: a plain dict has it, too, and so has what a trainer wrote and read by its own means.
    if states.digest not in _loaded:
        _loaded.append(states.digest)


def is_as_loaded(states: Mapping[str, Any]) -> bool:
    """Whether nothing was delivered since they were loaded."""
    return table_of(states).present().digest in _loaded


def deal_file(digest: str) -> str:
    """The name of the file of what a run had come to under earlier sizes."""
    return f"deal-{digest}.json.gz"


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
