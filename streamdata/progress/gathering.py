"""The states of all ranks, without files."""

from collections.abc import Mapping
from typing import Any

from streamdata.errors import StateError
from streamdata.progress.columns import Columns
from streamdata.progress.joining import check_together, join_ranks
from streamdata.progress.ranks import all_gather, check_can_meet, gather
from streamdata.progress.saving import part_of_rank
from streamdata.progress.state_file import RankStates, decode, encode
from streamdata.progress.states_table import StatesTable
from streamdata.run import DataParallel, find_data_parallel


def gather_states(states: Mapping[str, Any], dst: int | None = None) -> Columns | None:
    """Join the states of all ranks over torch.distributed; to be called on every rank.

    Args:
        states: Those of this rank, also where it has delivered nothing.
        dst: The rank that gets them; by default all do.

    Returns:
        What `load_states` would return, had all ranks saved; None on ranks other than `dst`.

    Raises:
        StateError: Some rank's are not states, are of another run than the others', or of another number of workers;
            on every rank, whichever it is.
    """
    group = find_data_parallel()
    check_can_meet("gather_states", group.dp_size)
    if dst is not None and not 0 <= dst < group.dp_size:
        raise ValueError(f"gather_states: expected a rank below {group.dp_size} as dst, got {dst!r}")
    headers, content = _encoded(states, group)
    # What is small goes to every rank, so that all of them refuse what does not fit together, and none waits for one.
    told = all_gather(headers)
    errors = [f"rank {rank}: {error}" for rank, error in enumerate(told) if isinstance(error, str)]
    if errors:
        raise StateError(f"gather_states: {errors[0]}")
    saved = _decoded(told)
    check_together(saved)
    contents = all_gather(content) if dst is None else gather(content, dst)
    if contents is None:
        return None
    # Not their own digest: a rank that goes on from them is no other branch than one that goes on from its own.
    parents = {part.origin.parent for part in saved if part.origin.parent is not None}
    return Columns(join_ranks(_decoded(contents)), parent=parents.pop() if parents else None)


def _encoded(states: Mapping[str, Any], group: DataParallel) -> tuple[bytes | str, bytes]:
    """The headers of a rank's part, and all of it; instead of the headers an error's text, for all ranks to raise."""
    try:
        origin, part = part_of_rank(states, group, step=0)
        headers = {key: value for key, value in part.others.items() if key.startswith("generation/")}
        return encode(origin, StatesTable(others=headers)), encode(origin, part)
    except StateError as error:
        return str(error), b""


def _decoded(contents: list[bytes]) -> list[RankStates]:
    return [decode(f"rank {rank}", content) for rank, content in enumerate(contents)]
