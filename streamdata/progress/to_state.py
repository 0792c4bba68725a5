"""From delivered samples to a checkpoint."""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from streamdata.errors import StateError
from streamdata.fields import CURSOR, STATES
from streamdata.progress.cursor import Cursor, Entry, whole

States: TypeAlias = dict[str, Any]
"""A checkpoint: a flat dict of plain JSON."""


def to_state(batch: object) -> States:
    """Turn delivered samples into their part of the checkpoint.

    `states.update(to_state(batch))` after every batch is the whole protocol of a trainer. Go on updating the dict that
    you resumed from: it also holds the sources that were not drawn since.

    Args:
        batch: A sample, a list of samples in the order delivered, or nested lists of these.

    Returns:
        A flat dict of plain JSON. `cursor/G/P/RANK/WORKER/PATH` says where a lane stands in a node of the tree, in
        generation G and pass P; `drawn/G/P/RANK/WORKER/PATH` how many samples a mixture has drawn there, which its
        sources' draws must add up to; `lane/G/P/RANK/WORKER` how many batches the lane has delivered, and whether it
        has ended; `worker/G/P/RANK` which worker delivered last; `generation/G` what determines the
        order, and beside it what the shards hold that is no record, or less than one.

    Raises:
        StateError: A sample carries no state, such as one that a collate function built anew.
    """
    latest: dict[tuple[object, ...], Entry] = {}
    lanes: dict[tuple[object, ...], tuple[Entry, ...]] = {}
    workers: States = {}
    for sample in _samples(batch):
        for entry in _entries(sample):
            latest[entry[0][1:6]] = entry
        node = sample[CURSOR][-1][0]
        lanes[node[1:5]] = sample[CURSOR]
        # Not from `lanes`: a dict keeps the place of a key's first insertion, and the last sample is wanted.
        workers[f"worker/{_slashed(node[1:4])}"] = node.worker
    states: States = {}
    for node, draws, clock, cursor, drawn, _ in latest.values():
        lane = _slashed(node[1:5])
        states[f"generation/{node.generation}"] = _header(node.header)
        states[f"cursor/{lane}/{node.path}"] = _as_json(draws, clock, node.round, cursor)
        if node.path:
            mixture = f"drawn/{lane}/{node.path.rpartition('.')[0]}"
            states[mixture] = max(drawn, states.get(mixture, 0))
    states.update({f"lane/{_slashed(lane)}": _lane_as_json(entries) for lane, entries in lanes.items()})
    return states | workers


def _samples(batch: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(batch, Mapping):
        yield batch
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from _samples(part)
    else:
        raise StateError(
            f"to_state: expected a sample, a list of samples or nested lists, got {type(batch).__name__}\n"
            "  Use collate_fn=mixed_collate, which keeps samples as they are."
        )


def _entries(sample: Mapping[str, Any]) -> tuple[Entry, ...]:
    entries = sample.get(CURSOR)
    if not isinstance(entries, tuple) or not entries:
        raise StateError(
            "to_state: expected a sample of a MergedDataset, got a dict without its state, with the keys "
            f"{sorted(sample)}\n"
            "  Keep the fields whose names begin with '__', and collate with mixed_collate."
        )
    inner: tuple[Entry, ...] = sample.get(STATES, ())
    return inner + entries


def _slashed(numbers: Iterable[object]) -> str:
    return "/".join(map(str, numbers))


def _lane_as_json(entries: tuple[Entry, ...]) -> States:
    mark = entries[-1][5]
    facts = {"batches": mark.batch, "ended": mark.ended} if mark is not None else {}
    return {name: value for name, value in facts.items() if value}


@lru_cache(maxsize=64)
def _header(text: str) -> object:
    return json.loads(text)


def _as_json(draws: int, clock: float, round_: int, cursor: Cursor) -> States:
    epoch, window, taken, part, given, function, dropped, bad = whole(cursor)
    state: States = {"draws": draws, "clock": clock, "epoch": epoch, "window": window, "taken": taken}
    # What is nothing for most nodes is left out: a checkpoint of a thousand GPUs has hundreds of thousands of these.
    rest = {"part": part, "given": given, "function": function, "dropped": dropped, "bad": bad, "round": round_}
    state.update({name: value for name, value in rest.items() if value})
    return state
