"""The state of one lane's iterator, which a StatefulDataLoader asks for; and our states out of what that saved."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from streamdata.errors import StateError, shown
from streamdata.run import Lane
from streamdata.states.cursor import States
from streamdata.states.headers import HEADERS
from streamdata.states.table import StatesTable, table_of

_VERSION = 4
# The names under which torchdata keeps the states of iterators: with workers in a snapshot, one for each of them.
_FETCHER, _ITERATOR = "fetcher_state", "dataset_iter_state"
_SNAPSHOT, _SINCE_SNAPSHOT = "_snapshot", "_steps_since_snapshot"
_WORKERS, _LAST_WORKER = "_worker_snapshots", "_last_yielded_worker_id"


@dataclass(frozen=True, kw_only=True)
class LaneState:
    """The state of one lane's iterator, as `state_dict()` saves it.

    Fields that rarely change are JSON texts, and so is each entry: torchdata takes dicts apart, and sends to the
    trainer what differs from the batch before.
    """

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
        changed = {"lane": dict(vars(self.lane)), "delivered": dict(self.delivered)}
        return {"version": _VERSION, **vars(self), **changed}


def lane_state_of(state: object) -> LaneState:
    """Read a lane's state from the JSON of `LaneState.as_json`.

    Raises:
        StateError: `state` is something else.
    """
    names = {"version", *(each.name for each in fields(LaneState))}
    if isinstance(state, Mapping) and state.get("version", _VERSION) != _VERSION:
        raise StateError(
            f"iterator state: expected version {_VERSION}, got {shown(state['version'])}\n"
            "  Go on with the version of streamdata that saved it, or start anew."
        )
    if not isinstance(state, Mapping) or state.keys() != names:
        got = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise StateError(
            f"iterator state: expected what state_dict() of a MergedDataset's iterator gave, got {got}\n"
            "  Load the state into the kind of loader that saved it; our own go to set_dataloader_states."
        )
    values = {name: value for name, value in state.items() if name != "version"}
    return LaneState(**values | {"lane": Lane(**state["lane"])})


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
    lanes, last = _lanes(state)
    # The worker that delivered last must be the one that says so.
    ordered = [lane for number, lane in enumerate(lanes) if number != last] + [lanes[last]]
    states: States = {}
    for lane in ordered:
        states.update(json.loads(lane.resumed))
    held = set(states)
    for lane in ordered:
        states.update({key: json.loads(text) for key, text in lane.delivered.items()})
    table = table_of(states).present()
    for lane in ordered:
        states |= _ended_passes(lane, table)
    # A lane names its generation, and what was before, before it delivers something in it.
    begun = {key.split("/", 2)[1] for key in states if not key.startswith(HEADERS)}
    deals = {str(states[f"generation/{number}"]["deal"]) for number in begun}
    return {
        key: value
        for key, value in states.items()
        if key in held or not key.startswith(HEADERS) or key.partition("/")[2] in (begun if key[0] == "g" else deals)
    }


def _ended_passes(lane: LaneState, states: StatesTable) -> States:
    """States which say that a lane has ended passes other than the present one, whatever it held of them."""
    delivered = [int(key.partition("/")[2]) for key in lane.delivered if key.startswith("generation/")]
    if not delivered:
        return {}
    newest, rank, worker = max(delivered), lane.lane.dp_rank, lane.lane.worker
    nodes = states.headers[newest]["nodes"].keys()
    found: States = {}
    for epoch_pass in {number for first, end in lane.ended for number in range(first, end)} - {lane.epoch_pass}:
        entries = states.lane(epoch_pass, rank, worker)
        tops = entries.cursors.get("", {})
        last = max(tops, default=newest)
        if tops and tops[last].get("ended") and nodes <= states.headers[last]["nodes"].keys():
            continue  # it had ended before it was resumed
        # What was drawn since nobody knows: the sum is that of what is known.
        drawn = sum(entries.draws_below("").values())
        top = {"draws": drawn, "clock": 0.0, "epoch": 0, "window": 0, "taken": drawn, "ended": 1}
        found[f"cursor/{newest}/{epoch_pass}/{rank}/{worker}/"] = top
        # Any worker of a rank that has ended is as good as the one that was last.
        found[f"worker/{newest}/{epoch_pass}/{rank}"] = worker
    return found


def _lanes(state: Mapping[str, Any]) -> tuple[list[LaneState], int]:
    """The lanes of a loader, worker by worker, and which worker delivered last."""
    try:
        if _SNAPSHOT not in state:
            return [lane_state_of(state[_FETCHER][_ITERATOR])], 0
        snapshot, since = state[_SNAPSHOT], state[_SINCE_SNAPSHOT]
        workers = [snapshot[_WORKERS][f"worker_{number}"] for number in range(len(snapshot[_WORKERS]))]
        lanes, last = [lane_state_of(worker[_FETCHER][_ITERATOR]) for worker in workers], snapshot[_LAST_WORKER]
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
    return lanes, last
