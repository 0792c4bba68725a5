"""The states of all ranks, without files; and whether all ranks are about to read the same."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streamdata.errors import StateError, shown
from streamdata.run import DataParallel, find_data_parallel
from streamdata.states.joining import check_together, join_ranks
from streamdata.states.ranks import all_gather, check_can_meet, gather
from streamdata.states.saving import RankStates, part_of_rank, replica_of
from streamdata.states.table import LoadedStates, StatesTable, table_of


def gather_states(
    states: Mapping[str, Any], dst: int | None = None, *, rank: int | None = None, size: int | None = None
) -> LoadedStates | None:
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
    of, processes = replica_of("gather_states", rank, size), find_data_parallel()
    check_can_meet("gather_states", of.dp_size)
    if dst is not None and not 0 <= dst < processes.dp_size:
        raise ValueError(f"gather_states: expected a rank below {processes.dp_size} as dst, got {shown(dst)}")
    part, deal, error = StatesTable(), None, None
    try:
        part, deal = part_of_rank(states, of)
    except StateError as raised:
        error = str(raised)
    # What is small goes to every rank, so that all of them refuse what does not fit together, and none waits for one.
    headers = StatesTable(others={k: v for k, v in part.others.items() if k.startswith("generation/")})
    own = RankStates(name=f"rank {processes.dp_rank}", rank=of.dp_rank, size=of.dp_size, step=0, table=headers)
    reports = all_gather((error, own, part.digest if part else None, deal and deal[0]))
    if errors := [f"rank {number}: {error}" for number, (error, *_) in enumerate(reports) if error is not None]:
        raise StateError(f"gather_states: {errors[0]}")
    chosen = _one_of_each_replica([(each.rank, digest) for _, each, digest, _ in reports], of.dp_size)
    check_together([reports[number][1] for number in chosen])
    # What came before may be large, and is the same for all: the first that names it sends it.
    is_first = deal is not None and [named for *_, named in reports].index(deal[0]) == processes.dp_rank
    sent = replace(own, table=part), deal if is_first else None
    contents = all_gather(sent) if dst is None else gather(sent, dst)
    if contents is None:
        return None
    deals = dict(each for _, each in contents if each is not None)
    return LoadedStates(join_ranks([contents[number][0] for number in chosen], deals))


def _one_of_each_replica(replicas: list[tuple[int, str | None]], size: int) -> list[int]:
    """For each replica, a process that tells of it: of several the first that has read something."""
    chosen: dict[int, int] = {}
    for process, (rank, digest) in enumerate(replicas):
        other = chosen.setdefault(rank, process)
        if replicas[other][1] is None:
            chosen[rank] = process
        elif digest not in (None, replicas[other][1]):
            raise StateError(
                f"gather_states: processes {other} and {process} are both replica {rank}, and stand apart\n"
                "  Let all processes of a replica read the same batches; a replica of its own has a rank of its own."
            )
    if missing := set(range(size)) - chosen.keys():
        raise StateError(
            f"gather_states: no process is replica {min(missing)} of {size}\n"
            "  Call it on every rank, each with the rank of its own replica."
        )
    return [chosen[rank] for rank in sorted(chosen)]


def states_digests(states: Mapping[str, Any], rank: int) -> dict[str, str | None]:
    """Digest a rank's states for a comparison: their topology, and the digests of their headers and of all.

    The digest of all is None of states that hold the rank's own alone: two ranks' own must differ, and of these the
    headers say whether they are of one run.
    """
    table = table_of(states).present()
    headers = StatesTable(others={key: value for key, value in table.others.items() if key.startswith("generation/")})
    newest = table.headers[max(table.headers)] if table.headers else None
    # A single rank's own are all there are.
    is_alone = newest is not None and newest["dp_size"] == 1
    # The headers' digest tells the topology, too, but not what it is that differs.
    return {
        "topology in its states": newest and f"{newest['dp_size']} ranks with {newest['num_workers']} workers each",
        "states' header": headers.digest,
        "states": table.digest if is_alone or not table.ranks() <= {rank} else None,
    }


def verify_ranks_agree(facts: Mapping[str, Any], group: DataParallel) -> None:
    """Compare what each rank says of itself, in one all-gather; to be called on every rank.

    Args:
        facts: By what it is called in messages. A fact that is None on some rank is not compared with that rank's.
        group: Which replica this rank is.

    Raises:
        StateError: Some rank says another thing than most; on every rank.
    """
    check_can_meet("verify_agreement", group.dp_size)
    of_ranks, replicas = zip(*all_gather((dict(facts), group.dp_rank)), strict=True)
    found = [line for name in facts for line in _differences(name, [of_rank[name] for of_rank in of_ranks])]
    # Where more processes meet than there are replicas, those of one replica share its number.
    if not found and len(replicas) == group.dp_size:
        found = [
            f"rank {rank} has another topology: it is replica {replica}, and so is rank {replicas.index(replica)}"
            for rank, replica in enumerate(replicas)
            if replicas.index(replica) < rank
        ]
    if found:
        raise StateError(
            "verify_agreement: the ranks would not read one stream\n  " + "\n  ".join(found) + "\n"
            "  Give all ranks the same recipe, seed, size and states."
        )


def _differences(name: str, values: list[Any]) -> list[str]:
    known = [value for value in values if value is not None]
    if not known:
        return []
    # The first of the most common: of two ranks that differ, rank 0 counts as the one that is right.
    usual, _ = Counter(known).most_common(1)[0]
    pattern = values.index(usual)
    return [
        f"rank {rank} has another {name} than rank {pattern}: {value}, not {usual}"
        for rank, value in enumerate(values)
        if value is not None and value != usual
    ]
