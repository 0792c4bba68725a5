"""Whether all ranks set the same weights after the same batch: `each rank's call → one verdict, the same on all`."""

import json
import weakref
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from streamdata.errors import shown
from streamdata.mixing import MergedDataset
from streamdata.mixing.live_weights import live_after
from streamdata.mixing.tree import tree_of
from streamdata.run.topology import distributed_if_joined
from streamdata.states.progress import Progress
from streamdata.states.saving import store_of_group

_calls: Final["weakref.WeakKeyDictionary[Any, int]"] = weakref.WeakKeyDictionary()
"""How often each process group was asked: all its ranks ask in the same sequence."""
_PENDING: Final = ""


class Setting(NamedTuple):
    """Weights that a rank is about to set, and where it stands."""

    batches: int
    """How many batches it has received."""
    weights: Mapping[str, float] | None
    """None: those of rank 0."""
    time: float
    """The time of schedules."""


def checked_setting(
    dataset: MergedDataset,
    num_workers: int,
    batches: int,
    states: Mapping[str, Any],
    weights: Mapping[str, float] | None,
) -> Setting:
    """Check the weights that a rank is about to set.

    Args:
        dataset: Its stream.
        num_workers: Of the rank.
        batches: How many it has received.
        states: Those after the last one.
        weights: None: those of rank 0.

    Raises:
        ValueError: They cannot be set.
    """
    top, has_group = tree_of(dataset), store_of_group() is not None
    size = dataset.lane(num_workers).dp_size
    if size > 1 and not has_group and (top.has_schedule or not top.is_endless):
        raise ValueError(
            f"set_weights: there are {size} ranks, and no process group by which they could agree\n"
            "  Call torch.distributed.init_process_group first; without it all ranks may set the same weights of an "
            "endless stream without schedules."
        )
    time = dataset.time(num_workers, Progress(states)) if top.has_schedule else 0.0
    if weights is not None or not has_group:
        live_after(dataset, weights or {}, time)
    return Setting(batches, None if weights is None else {path: float(one) for path, one in weights.items()}, time)


def agree(own: Setting | Exception, timeout_s: float) -> Setting:
    """Return what rank 0 sets, once all ranks of the process group have called; without a group, what is given.

    By the store through which the ranks have met, and not by a collective: a group in which one has timed out is of no
    use any more. The verdict is written once, by rank 0 or by whoever gives up first, and counts for all.

    Args:
        own: What this rank sets, or why it cannot: then nobody does.
        timeout_s: How long to wait for the others.

    Raises:
        Exception: `own` is one.
        RuntimeError: Some rank has received another number of batches, sets other weights, cannot, or has not called.
    """
    distributed, store = distributed_if_joined(), store_of_group()
    if store is None or distributed.get_world_size() == 1:
        if isinstance(own, Exception):
            raise own
        return own
    rank, size = distributed.get_rank(), distributed.get_world_size()
    group = distributed.group.WORLD
    number = _calls.get(group, 0)
    _calls[group] = number + 1
    told = {"error": str(own)} if isinstance(own, Exception) else own._asdict()
    ranks, verdict = _keys(number, size)
    store.set(ranks[rank], json.dumps(told))
    patience = timedelta(seconds=timeout_s)
    found = ""
    try:
        store.wait(ranks if rank == 0 else [verdict], patience)
        if rank == 0:
            why = _disagreement([json.loads(store.get(key)) for key in ranks])
            found = json.dumps({"error": why} if why else told)
            former_ranks, former = _keys(number - 1, size)
            for key in (*former_ranks, former):  # all ranks have come here, so they have read it
                store.delete_key(key)
    except RuntimeError:  # torch's DistStoreError is one
        missing = [other for other, key in enumerate(ranks) if not store.check([key])]
        found = json.dumps({"error": f"rank {missing[0] if missing else 0} did not call within {timeout_s:g} s"})
    found = (store.compare_set(verdict, _PENDING, found) if found else store.get(verdict)).decode()
    agreed = json.loads(found)
    if isinstance(own, Exception):
        raise own
    if "error" in agreed:
        raise RuntimeError(
            f"set_weights: {agreed['error']}; no rank has changed anything\n"
            "  Call it on every rank after the same batch, with the same weights, or with None on all but rank 0."
        )
    return Setting(**agreed)


def _keys(number: int, size: int) -> tuple[list[str], str]:
    """The keys of what each rank sets in the call of this number, and of the verdict."""
    prefix = f"streamdata/set_weights/{number}"
    return [f"{prefix}/{rank}" for rank in range(size)], f"{prefix}/verdict"


def _disagreement(ranks: Sequence[Mapping[str, Any]]) -> str | None:
    """Why the ranks do not all set the same; None where they do."""
    first = ranks[0]
    for number, told in enumerate(ranks):
        if "error" in told:
            return f"rank {number}: {told['error']}"
    if first["weights"] is None:
        return "rank 0 gave no weights"
    for number, told in enumerate(ranks):
        if told["batches"] != first["batches"]:
            return f"rank {number} has received {told['batches']} batches, rank 0 {first['batches']}"
        if told["weights"] not in (None, first["weights"]):
            return f"rank {number} sets {shown(told['weights'])}, rank 0 {shown(first['weights'])}"
    return None
