"""The state of one lane's iterator, which a StatefulDataLoader asks for; and our states out of what that saved."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from streamdata.errors import StateError, shown
from streamdata.run import Lane
from streamdata.states.cursor import LaneKey, States
from streamdata.states.headers import DEAL, HEADERS, Tree
from streamdata.states.progress import Progress

_VERSION = 4


@dataclass(frozen=True, kw_only=True)
class LaneState:
    """The state of one lane's iterator, as `state_dict()` saves it.

    Fields that rarely change are JSON texts, and so is each entry: torchdata takes dicts apart, and sends to the
    trainer what differs from the batch before.
    """

    version: int = _VERSION
    lane: Lane
    """The one that it reads, or as far as is known will read."""
    epoch_pass: int
    is_begun: bool
    """Whether a sample was asked for. Until then lane and pass are what they would be now."""
    is_ended: bool
    """Whether it has said that there are no more."""
    ended: Sequence[Sequence[int]]
    """The passes of which the lane has given the last sample since states were set: runs of them, each as its first
    pass and the one after its last. One of which it gave nothing, or which `set_epoch` left, is not among them."""
    resumed: str
    """The states that were set when it began."""
    delivered: Mapping[str, str]
    """The states of what it has given since, by key, and the header of the generation that it is in."""

    @property
    def states(self) -> States:
        """The states that were resumed from, updated by those delivered since."""
        return {**json.loads(self.resumed), **{key: json.loads(text) for key, text in self.delivered.items()}}

    def as_json(self) -> dict[str, Any]:
        """The state as plain JSON; `lane_state_of` reads it."""
        return vars(self) | {"lane": dict(vars(self.lane)), "delivered": dict(self.delivered)}


def lane_state_of(state: object) -> LaneState:
    """Read a lane's state from the JSON of `LaneState.as_json`.

    Raises:
        StateError: `state` is something else.
    """
    if isinstance(state, Mapping) and state.get("version", _VERSION) != _VERSION:
        raise StateError(
            f"iterator state: expected version {_VERSION}, got {shown(state['version'])}\n"
            "  Go on with the version of streamdata that saved it, or start anew."
        )
    if not isinstance(state, Mapping) or state.keys() != {each.name for each in fields(LaneState)}:
        got = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise StateError(
            f"iterator state: expected what state_dict() of a MergedDataset's iterator gave, got {got}\n"
            "  Load the state into the kind of loader that saved it; our own go to set_dataloader_states."
        )
    return LaneState(**dict(state) | {"lane": Lane(**state["lane"])})


def from_stateful(state: Mapping[str, Any]) -> States:
    """Converts the state of a StatefulDataLoader over a MergedDataset to states for `set_dataloader_states`.

    The loader itself goes on under the same number of ranks and workers alone. These states go on under any: join those
    of all ranks with `merge_states`.

    Args:
        state: The `state_dict()` of one rank's StatefulDataLoader.

    Returns:
        The states that `to_state` would have collected from all its batches, including those it was resumed from.

    Raises:
        StateError: `state` is not such a state, or batches were delivered since its snapshot, which lacks them.
    """
    lanes = _lanes(state)
    states: States = {}
    for lane in lanes:
        states.update(json.loads(lane.resumed))
    held = set(states)
    for lane in lanes:
        states.update({key: json.loads(text) for key, text in lane.delivered.items()})
    progress = Progress(states)
    for lane in lanes:
        states |= _ended_passes(lane, progress)
    # A lane names its generation, and what was before, before it delivers something in it.
    begun = {key.split("/", 2)[1] for key in states if not key.startswith(HEADERS)}
    held |= {f"generation/{number}" for number in begun}
    held |= {f"{DEAL}{states[f'generation/{number}']['deal']}" for number in begun}
    return {key: value for key, value in states.items() if key in held or not key.startswith(HEADERS)}


def _ended_passes(lane: LaneState, progress: Progress) -> States:
    """States which say that a lane has ended passes other than the present one, whatever it held of them."""
    delivered = [int(key.partition("/")[2]) for key in lane.delivered if key.startswith("generation/")]
    if not delivered:
        return {}
    newest, rank, worker = max(delivered), lane.lane.dp_rank, lane.lane.worker
    tree = Tree.of(progress.headers[newest])
    found: States = {}
    for epoch_pass in {number for first, end in lane.ended for number in range(first, end)} - {lane.epoch_pass}:
        if progress.has_given_all(key := LaneKey(epoch_pass, rank, worker), tree):
            continue  # it had ended before it was resumed
        # What was drawn since nobody knows: the sum is that of what is known.
        drawn = sum(progress.table.lane(*key).draws_below("").values())
        top = {"draws": drawn, "clock": 0.0, "epoch": 0, "window": 0, "taken": drawn, "ended": 1}
        found[f"cursor/{newest}/{epoch_pass}/{rank}/{worker}/"] = top
        # Any worker of a rank that has ended is as good as the one that was last.
        found[f"worker/{newest}/{epoch_pass}/{rank}"] = worker
    return found


def _lanes(state: Mapping[str, Any]) -> list[LaneState]:
    """The lanes of a loader; last comes that of the worker that delivered last, which must be the one that says so."""
    try:
        # As torchdata keeps the states of iterators: with workers in a snapshot, one for each of them.
        if "_snapshot" not in state:
            return [lane_state_of(state["fetcher_state"]["dataset_iter_state"])]
        snapshot, since = state["_snapshot"], state["_steps_since_snapshot"]
        workers = [snapshot["_worker_snapshots"][f"worker_{n}"] for n in range(len(snapshot["_worker_snapshots"]))]
        lanes = [lane_state_of(worker["fetcher_state"]["dataset_iter_state"]) for worker in workers]
        lanes.append(lanes.pop(snapshot["_last_yielded_worker_id"]))
    except (KeyError, TypeError) as error:
        raise StateError(
            "from_stateful: expected the state of a StatefulDataLoader over a MergedDataset, got "
            f"{type(state).__name__} without {error}\n"
            "  Pass what its state_dict() gave; states of to_state need no conversion."
        ) from error
    if since:
        raise StateError(
            f"from_stateful: {since} batches were delivered since the snapshot that this state has, and it does not "
            "say which\n  Save with snapshot_every_n_steps=1, or at its multiples, and with in_order=True; or load the "
            "state into a StatefulDataLoader once, which reads these batches again, and save then."
        )
    return lanes
