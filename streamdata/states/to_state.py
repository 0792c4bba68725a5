"""From delivered samples to a checkpoint."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from threading import Event
from typing import Any, TypeAlias

from streamdata.errors import StateError, names_text, shown
from streamdata.fields import CURSOR, STATE, STATES
from streamdata.states.cursor import Cursor, Entry, LaneKey, Mark, NodeKey, PlainCursor, PlainEntry, node_of

_AFTER_TAKEN = Cursor._fields[3:]

States: TypeAlias = dict[str, Any]
"""A checkpoint: a flat dict of plain JSON."""

is_asked = Event()
"""Set once somebody asked for the state of a batch."""


def to_state(batch: object) -> States:
    """Turn delivered samples into their part of the checkpoint.

    `states.update(to_state(batch))` after every batch is the whole protocol of a trainer. Go on updating the dict that
    you resumed from: it also holds the sources that were not drawn since.

    Args:
        batch: A sample, a list of samples in the order delivered, or nested lists of these; or a dict of tensors with
            the text of its samples' states under `__state__`, or nested lists of such.

    Returns:
        A flat dict of plain JSON. `cursor/G/P/RANK/WORKER/PATH` says where a lane stands in a node of the tree, in
        generation G and pass P; that of the top, whose path is "", also how many batches the lane has delivered,
        whether it has ended, and what nodes dropped after their last samples; `worker/G/P/RANK` which worker delivered
        last; `generation/G` what determines the order, and beside it what the shards hold that is not a record, or less
        than one. In the first batch of a lane there is also `deal/G`, what the run had come to under earlier numbers of
        ranks and workers, if it had others.

    Raises:
        StateError: A sample carries no state, such as one that a collate function built anew.
    """
    is_asked.set()
    return states_of_batch(batch)


def states_of_batch(batch: object) -> States:
    """Turn a batch into states as `to_state` does, for who keeps them until somebody asks."""
    samples = list(_samples(batch))
    # A sample has a cursor: what stands there under the name of a batch's field is its own.
    if samples and all(STATE in sample and CURSOR not in sample for sample in samples):
        return {key: value for sample in samples for key, value in _from_text(sample[STATE]).items()}
    entries, headers = _of_samples(samples)
    return {**{key: _parsed(text) for key, text in headers.items()}, **entries}


def state_text(samples: Sequence[Mapping[str, Any]]) -> str:
    """Write what `to_state` gives of samples as one string, which moves with a batch of tensors to any device.

    The entries are the first line. Each other one is a header, with its key before it: all batches of a run have the
    same, which has a line for every source, so that whoever reads them parses it once.

    Raises:
        StateError: A sample carries no state.
    """
    entries, headers = _of_samples(samples)
    lines = [f"{key} {text}" for key, text in headers.items()]
    return "\n".join([json.dumps(entries, separators=(",", ":")), *lines])


def _of_samples(samples: Iterable[Mapping[str, Any]]) -> tuple[States, dict[str, str]]:
    """The entries of samples that are of lanes; and by key the headers, as text."""
    latest: dict[tuple[int, LaneKey, str], PlainEntry] = {}
    last: dict[tuple[int, LaneKey], PlainEntry] = {}
    workers: States = {}
    headers: dict[str, str] = {}
    for sample in samples:
        for plain in _entries(sample):
            # Of each node the newest entry alone is turned into JSON: a batch has one for every sample.
            node = node_of(plain)
            latest[node.generation, node.lane, node.path] = plain
        entry = sample[CURSOR][-1]
        node, mark = node_of(entry), Entry(*entry).mark
        if mark is not None and mark.deal is not None:
            headers[mark.deal.key] = mark.deal.text
        last[node.generation, node.lane] = entry
        # Not from `last`: a dict keeps the position of a key's first insertion, and the last sample is wanted.
        workers[f"worker/{node.generation}/{node.lane.epoch_pass}/{node.lane.dp_rank}"] = node.lane.worker
    states: States = {}
    for node, draws, clock, cursor, drawn, _, cost, tokens in latest.values():
        lane = _lane(node)
        headers[f"generation/{node.generation}"] = node.header
        states[f"cursor/{lane}/{node.path}"] = _as_json(draws, clock, cost, tokens, cursor)
        if "." not in node.path and (node.generation, node.lane, "") not in latest:
            # A top without a function of its own has given what it drew; the last of its sources has counted most.
            top = states.setdefault(f"cursor/{lane}/", _as_json(0, 0.0, 0.0, 0, (0, 0, 0, 0)))
            top["draws"] = max(top["draws"], drawn)
    for entry in last.values():
        mark = Entry(*entry).mark or Mark()
        facts = {"batches": mark.batch or 0, "ended": int(mark.ended), "tail": mark.tail}
        states[f"cursor/{_lane(node_of(entry))}/"].update({name: value for name, value in facts.items() if value})
    return states | workers, headers


def _from_text(text: Any) -> States:
    try:
        entries, *lines = text.split("\n")
        headers = {key: _parsed(header) for key, _, header in (line.partition(" ") for line in lines)}
        return {**headers, **json.loads(entries)}
    except (ValueError, TypeError, AttributeError) as error:
        raise StateError(
            f"to_state: expected the string under {STATE!r} that our collate made, got {shown(text)}: {error}\n"
            "  Take the batch as the loader gives it; an entry of a list of batches is a batch."
        ) from error


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


def _entries(sample: Mapping[str, Any]) -> tuple[PlainEntry, ...]:
    entries = sample.get(CURSOR)
    if isinstance(entries, list):  # by torch's default_convert
        raise StateError(
            "to_state: expected a sample as it was delivered, got what a collate function has converted\n"
            "  Use collate_fn=mixed_collate; with batch_size=None, a function that returns the sample as it is."
        )
    if not isinstance(entries, tuple) or not entries:
        raise StateError(
            "to_state: expected a sample of a MergedDataset, got a dict without its state, with the keys "
            f"{names_text(sample)}\n"
            "  Keep the fields whose names begin with '__', and collate with mixed_collate or TensorCollate. "
            "HF Trainer removes them before it collates: let its get_train_dataloader return a StreamLoader."
        )
    inner: tuple[PlainEntry, ...] = sample.get(STATES, ())
    return inner + entries


def _lane(node: NodeKey) -> str:
    """The generation and the lane, as keys have them."""
    return f"{node.generation}/{node.lane.epoch_pass}/{node.lane.dp_rank}/{node.lane.worker}"


# All samples of a run share one header, which has a line for every source: it is parsed once, not per batch.
@lru_cache(maxsize=64)
def _parsed(text: str) -> object:
    return json.loads(text)


def _as_json(draws: int, clock: float, cost: float, tokens: int, cursor: PlainCursor) -> States:
    state: States = {"draws": draws, "clock": clock, "epoch": cursor[0], "window": cursor[1], "taken": cursor[2]}
    # What is nothing for most nodes is left out: a checkpoint of a thousand GPUs has hundreds of thousands of these.
    # Not strict: a plain cursor ends where all that follows is nothing. To name its fields would take as long as this.
    pairs = zip(_AFTER_TAKEN, cursor[3:], strict=False)
    # Lists, as JSON has them, of `pulled`, which is a tuple to be quickly made.
    state.update({name: list(value) if isinstance(value, tuple) else value for name, value in pairs if value})
    if cost:
        state["cost"] = cost
    if tokens:
        state["tokens"] = tokens
    return state
