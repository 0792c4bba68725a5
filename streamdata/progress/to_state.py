"""From delivered samples to a checkpoint."""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from streamdata.errors import StateError
from streamdata.progress.cursor import Cursor, Entry, whole
from streamdata.progress.fields import CURSOR, STATES

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
        generation G and pass P; `worker/G/P/RANK` which worker delivered last; `generation/G` what determines the
        order.

    Raises:
        StateError: A sample carries no state, such as one that a collate function built anew.
    """
    latest: dict[tuple[object, ...], Entry] = {}
    for sample in _samples(batch):
        for entry in _entries(sample):
            latest[entry[0][1:6]] = entry
    states: States = {}
    for node, draws, clock, cursor in latest.values():
        header, generation, epoch_pass, dp_rank, worker, path, round_ = node
        states[f"generation/{generation}"] = _header(header)
        states[f"cursor/{generation}/{epoch_pass}/{dp_rank}/{worker}/{path}"] = _as_json(draws, clock, round_, cursor)
    # Of the last sample, not of the last entry above: a dict keeps the place of a key's first insertion.
    states.update(_last_workers(batch))
    return states


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


def _last_workers(batch: object) -> States:
    workers: States = {}
    for sample in _samples(batch):
        _, generation, epoch_pass, dp_rank, worker, _, _ = sample[CURSOR][-1][0]
        workers[f"worker/{generation}/{epoch_pass}/{dp_rank}"] = worker
    return workers


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
