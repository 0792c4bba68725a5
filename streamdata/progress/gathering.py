"""The states of all ranks, without files."""

from collections.abc import Mapping
from typing import Any

from streamdata.errors import StateError, shown
from streamdata.progress.columns import Columns
from streamdata.progress.deal_header import DEAL
from streamdata.progress.joining import check_together, join_ranks
from streamdata.progress.ranks import all_gather, check_can_meet, gather
from streamdata.progress.saving import group_of, part_of_rank
from streamdata.progress.state_file import RankStates, decode, decode_deal, encode, encode_deal
from streamdata.progress.states_table import StatesTable
from streamdata.run import DataParallel, find_data_parallel


def gather_states(
    states: Mapping[str, Any], dst: int | None = None, *, rank: int | None = None, size: int | None = None
) -> Columns | None:
    """Join the states of all ranks over torch.distributed; to be called on every rank.

    Args:
        states: Those of this rank, also where it has delivered nothing.
        dst: The process that gets them; by default all do.
        rank: Of this data-parallel replica, with `size`: to be given under tensor or pipeline parallelism, where
            several processes are one replica. Those that read must then stand at the same batch.
        size: How many replicas there are.

    Returns:
        What `load_states` would return, had all ranks saved; None on ranks other than `dst`.

    Raises:
        StateError: Some rank's are not states, are of another run than the others', or of another number of workers;
            on every rank, whichever it is.
        ValueError: `dst` is no process, or one of rank and size is missing or wrong.
    """
    group, num_processes = group_of("gather_states", rank, size), find_data_parallel().dp_size
    check_can_meet("gather_states", group.dp_size)
    if dst is not None and not 0 <= dst < num_processes:
        raise ValueError(f"gather_states: expected a rank below {num_processes} as dst, got {shown(dst)}")
    headers, digest, content, deals = _encoded(states, group)
    # What is small goes to every rank, so that all of them refuse what does not fit together, and none waits for one.
    told = all_gather((headers, digest, list(deals)))
    errors = [f"rank {number}: {error}" for number, (error, *_) in enumerate(told) if isinstance(error, str)]
    if errors:
        raise StateError(f"gather_states: {errors[0]}")
    saved = _decoded([headers for headers, *_ in told])
    chosen = _one_of_each_replica(saved, [digest for _, digest, _ in told], group.dp_size)
    saved = [saved[process] for process in chosen]
    check_together(saved)
    # What came before may be large, and is the same for all: of each the first that names it sends it.
    process = find_data_parallel().dp_rank
    # Backwards, so that the lowest one stays.
    first = {name: number for number, (*_, names) in reversed(list(enumerate(told))) for name in names}
    sent = {name: encode_deal(value)[1] for name, value in deals.items() if first[name] == process}
    contents = all_gather((content, sent)) if dst is None else gather((content, sent), dst)
    if contents is None:
        return None
    came = {name: decode_deal("deal", name, deal) for _, others in contents for name, deal in others.items()}
    return Columns(join_ranks(_decoded([contents[number][0] for number in chosen]), came))


def _one_of_each_replica(saved: list[RankStates], digests: list[str | None], size: int) -> list[int]:
    """For each replica, a process that tells of it: of several the first that has read something."""
    chosen: dict[int, int] = {}
    for process, part in enumerate(saved):
        other = chosen.setdefault(part.origin.rank, process)
        if digests[other] is None:
            chosen[part.origin.rank] = process
        elif digests[process] not in (None, digests[other]):
            raise StateError(
                f"gather_states: processes {other} and {process} are both replica {part.origin.rank}, and stand apart\n"
                "  Let all processes of a replica read the same batches; a replica of its own has a rank of its own."
            )
    if missing := set(range(size)) - chosen.keys():
        raise StateError(
            f"gather_states: no process is replica {min(missing)} of {size}\n"
            "  Call it on every rank, each with the rank of its own replica."
        )
    return [chosen[rank] for rank in sorted(chosen)]


def _encoded(
    states: Mapping[str, Any], group: DataParallel
) -> tuple[bytes | str, str | None, bytes, dict[str, Mapping[str, Any]]]:
    """The headers of a rank's part, the digest of what it has read, if anything, all of it, and what came before.

    Instead of the headers it may be an error's text, for all ranks to raise.
    """
    try:
        origin, part = part_of_rank(states, group, step=0)
        headers = {key: value for key, value in part.others.items() if key.startswith("generation/")}
        entries = StatesTable(part.cursors, {k: v for k, v in part.others.items() if not k.startswith(DEAL)})
        digest = entries.digest() if headers else None
        dealt = {header["deal"]: header["dealt"] for header in headers.values() if header["deal"]}
        deals = {name: part.others[f"{DEAL}{number}"] for number, name in dealt.items()}
        return encode(origin, StatesTable(others=headers)), digest, encode(origin, part), deals
    except StateError as error:
        return str(error), None, b"", {}


def _decoded(contents: list[bytes]) -> list[RankStates]:
    return [decode(f"rank {rank}", content) for rank, content in enumerate(contents)]
