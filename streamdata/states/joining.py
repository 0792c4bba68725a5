"""The states of several ranks joined to one: out of dicts and files, or over torch.distributed."""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from streamdata.errors import StateError, shown
from streamdata.run import DataParallel, find_data_parallel
from streamdata.run.topology import distributed_if_joined
from streamdata.states.cursor import States
from streamdata.states.headers import DEAL, check_one_run
from streamdata.states.progress import Progress
from streamdata.states.saving import RankStates, part_of_rank, replica_of
from streamdata.states.table import LoadedStates, StatesTable, join, owner_of


def merge_states(*states: Mapping[str, Any]) -> States:
    """Joins the states that several ranks collected, in any order, into the states of all ranks.

    Every rank that resumed from a joined dict still carries the other ranks' entries as they were then; a plain
    `update` might bring those back. Cursors only grow (draws are counted), so each rank's entries are taken from the
    dict in which that rank is furthest, among those that the newest topology has written.

    Args:
        states: Dicts filled by `to_state`; joined dicts may be joined again.

    Returns:
        A dict to be passed to `set_dataloader_states` of any of the ranks.

    Raises:
        StateError: A dict was not filled by `to_state`, or the dicts disagree on what determines the order.
    """
    # Checked first: below, entries are compared and summed up without another look.
    parts = [(f"states {number}", Progress(one).table) for number, one in enumerate(states)]
    check_one_run((name, table.only_headers().others) for name, table in parts)
    return _joined([table for _, table in parts]).as_dict()


def join_ranks(saved: Sequence[RankStates], deals: Mapping[str, Any], unknown: Collection[int] = ()) -> StatesTable:
    """Join the states of all ranks; ranks that delivered nothing since the size last changed are recorded as idle.

    Args:
        saved: Of different ranks, of which is known that they are of one run.
        deals: By digest, what had been before, of all that these name.
        unknown: Ranks of which nobody knows whether they delivered anything.
    """
    table = _joined([part.table for part in saved])
    if not table.headers:
        return table
    number, newest = max(table.headers.items())
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
    best: dict[int, tuple[list[int], int]] = {}
    for number, table in enumerate(tables):
        # Its newest generation, how many lanes had ended passes, its draws in all, or batches that only fill up; -1
        # of ranks of which nothing is held. Over all passes: with `set_epoch` the newest one need not be the last.
        # And a lane that has ended one may be held without its cursors: see `from_stateful`.
        ranks, held = table.rows["rank"], table.ranks() | {owner_of(key).rank for key in table.others} - {-1}
        generations, ended, draws = reach = np.zeros((3, 1 + max(held, default=-1)), np.int64)
        generations[:] = -1
        np.maximum.at(generations, ranks, table.rows["generation"])
        np.add.at(ended, ranks, table.rows["ended"])
        np.add.at(draws, ranks, table.rows["draws"])
        for key, value in table.others.items():
            if key.startswith("uneven/"):
                draws[owner_of(key).rank] += abs(value["batches"])
        for rank in held:  # of several that are as far the first
            best[rank] = max(best.get(rank, ([], 0)), (reach[:, rank].tolist(), -number))
    chosen: defaultdict[int, set[int]] = defaultdict(set)
    for rank, (_, number) in best.items():
        chosen[-number].add(rank)
    return join([table.of_ranks({-1, *chosen[number]}) for number, table in enumerate(tables)])


def check_can_meet(who: str, size: int) -> None:
    """Raise StateError if there are several ranks and no process group through which to exchange states.

    Raises:
        StateError: There are several ranks, and no process group.
    """
    if size > 1 and not distributed_if_joined():
        raise StateError(
            f"{who}: there are {size} ranks, and no process group by which they could meet\n"
            "  Call torch.distributed.init_process_group first."
        )


def gather(value: Any, dst: int | None = None) -> list[Any]:
    """Collect the values of all ranks on every rank, or only on rank `dst`."""
    if not (distributed := distributed_if_joined()):
        return [value]
    from torch import cuda

    # Objects, not tensors: what ranks give differs in length, and a rank without states gives almost nothing.
    values: list[Any] = [None] * distributed.get_world_size() if dst in (None, distributed.get_rank()) else []
    # Under NCCL objects travel by the current device, which may be another one than the group is bound to.
    bound = getattr(distributed.group.WORLD, "bound_device_id", None)
    with contextlib.nullcontext() if bound is None or bound.type != "cuda" else cuda.device(bound):
        if dst is None:
            distributed.all_gather_object(values, value)
        else:
            distributed.gather_object(value, values or None, dst=dst)
    return values


def gather_states(
    states: Mapping[str, Any], dst: int | None = None, *, rank: int | None = None, size: int | None = None
) -> LoadedStates | None:
    """Joins the states of all ranks over torch.distributed; call it on every rank.

    Args:
        states: This rank's states, also if it has delivered nothing.
        dst: The process that gets the joined states; by default all do.
        rank: The rank of this data-parallel replica; give it with `size` under tensor or pipeline parallelism, where
            several processes are one replica. Those that read must then stand at the same batch.
        size: The number of replicas.

    Returns:
        The states that `load_states` would return, had all ranks saved; None on ranks other than `dst`.

    Raises:
        StateError: Some rank's states are invalid, of another run than the others', or of another number of workers;
            on every rank, whichever it is.
        ValueError: `dst` is no process, or one of rank and size is missing or wrong.
    """
    of, processes = replica_of("gather_states", rank, size, states), find_data_parallel()
    check_can_meet("gather_states", of.dp_size)
    if dst is not None and not 0 <= dst < processes.dp_size:
        raise ValueError(f"gather_states: expected a rank below {processes.dp_size} as dst, got {shown(dst)}")
    part, deal, error = StatesTable(), None, None
    try:
        part, deal = part_of_rank(states, of)
    except StateError as raised:
        error = str(raised)
    # What is small goes to every rank, so that all of them refuse what does not fit together, and none waits for one.
    name = f"rank {processes.dp_rank}"
    own = RankStates(name=name, rank=of.dp_rank, size=of.dp_size, step=0, table=part.only_headers())
    reports = gather((error, own, part.digest if part else None, deal and deal[0]))
    if errors := [f"rank {number}: {error}" for number, (error, *_) in enumerate(reports) if error is not None]:
        raise StateError(f"gather_states: {errors[0]}")
    chosen = _one_of_each_replica([(each.rank, digest) for _, each, digest, _ in reports], of.dp_size)
    check_one_run((reports[number][1].name, reports[number][1].facts) for number in chosen)
    # What came before may be large, and is the same for all: the first that names it sends it.
    is_first = deal is not None and [named for *_, named in reports].index(deal[0]) == processes.dp_rank
    contents = gather((replace(own, table=part), deal if is_first else None), dst)
    if not contents:
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


def verify_ranks_agree(facts: Mapping[str, str], states: StatesTable, group: DataParallel) -> None:
    """Compare facts and states of all ranks in one all-gather; call it on every rank.

    Args:
        facts: By what it is called in messages.
        states: Those that the rank goes on from. Of those that hold its own alone the headers are compared, which say
            whether they are of one run: two ranks' own must differ.
        group: Which replica this rank is.

    Raises:
        StateError: Some rank differs from most; raised on every rank.
    """
    check_can_meet("verify_agreement", group.dp_size)
    newest = states.headers[max(states.headers)] if states.headers else None
    # A single rank's own are all there are.
    is_of_all = (newest is not None and newest["dp_size"] == 1) or not states.ranks() <= {group.dp_rank}
    # The headers' digest tells the topology, too, but not what it is that differs.
    topology = newest and f"{newest['dp_size']} ranks with {newest['num_workers']} workers each"
    told = {
        **facts,
        "topology in its states": topology,
        "states' header": states.only_headers().digest,
        "states": states.digest if is_of_all else None,
    }
    of_ranks, replicas = zip(*gather((told, group.dp_rank)), strict=True)
    found: list[str] = []
    for name in told:
        values = [of_rank[name] for of_rank in of_ranks]
        # The first of the most common: of two ranks that differ, rank 0 counts as the one that is right.
        ((usual, _),) = Counter(value for value in values if value is not None).most_common(1) or [(None, 0)]
        for rank, value in enumerate(values):
            if value not in (None, usual):
                found.append(f"rank {rank} has another {name} than rank {values.index(usual)}: {value}, not {usual}")
    # Where more processes meet than there are replicas, those of one replica share its number.
    for rank, replica in enumerate(replicas if len(replicas) == group.dp_size and not found else ()):
        if (first := replicas.index(replica)) < rank:
            found.append(f"rank {rank} has another topology: it is replica {replica}, and so is rank {first}")
    if found:
        raise StateError(
            "verify_agreement: the ranks would not read one stream\n  " + "\n  ".join(found) + "\n"
            "  Give all ranks the same recipe, seed, size and states."
        )
