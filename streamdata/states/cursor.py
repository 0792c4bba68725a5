"""Where one lane stands in one node of the tree, as samples carry it: `samples → to_state → a flat dict of JSON`.

What is made for every sample is a plain tuple: a named one takes nine times as long to make, and three times as long to
pickle and unpickle. So for each such layout there is a named tuple with the same fields in the same sequence, and
whoever reads one does it by name: `Cursor(*cursor).given`, `Entry(*entry).node`. The plain ones are made where samples
are: in `Source.read`, `Leaf` and `Mixture`.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest
from operator import itemgetter
from threading import Event
from typing import Any, NamedTuple, TypeAlias

from streamdata.errors import StateError, names_text, shown
from streamdata.fields import CURSOR, STATE, STATES
from streamdata.run.lane_link import DealText, LaneLink

Position: TypeAlias = tuple[int, int, int, int]
"""(epoch, window, taken, output): in the lane's `window`-th window of `epoch`, `taken` records are done, and of the
next one the first `output` outputs of `single_process_fn`. Plain, always."""

FunctionState: TypeAlias = dict[str, object]
"""Small plain JSON that `state_dict()` of a stateful function returned."""

PlainCursor: TypeAlias = tuple[Any, ...]
"""A `Cursor` as samples carry it: all its fields, or the first ones where the others say nothing."""


class Cursor(NamedTuple):
    """Where a lane stands in a node."""

    epoch: int = 0
    """Epoch of the source; 0 of a mixture."""
    window: int = 0
    taken: int = 0
    """Records done in the window; of a mixture with a yield function, samples that its sources had given when the open
    burst began."""
    output: int = 0
    given: int = 0
    """With a stream function, how many outputs of the present burst were delivered. The position is then the start of
    that burst, or as many records before it as the function asked for."""
    function: FunctionState | None = None
    """The stream function's state at the start of the burst."""
    dropped: int = 0
    """Records for which `single_process_fn` returned nothing, since the very start."""
    bad: int = 0
    """Failures forgiven under `max_bad`, since the very start."""
    skipped: int = 0
    """Records that were left out because they were to be skipped, since the very start."""
    records: int = 0
    """Records read, since the very start, where a function makes that another number than the draws."""
    pulled: Position | None = None
    """With a stream function, the position after the last record that the open burst has pulled."""
    left_out: str = ""
    """With a stream function, which records were to be skipped since the burst began, as `Skipping` writes it."""
    skips: int = 0
    """Digest of the records to be skipped below a mixture with a yield function; else 0."""
    stream: list[Any] | None = None
    """State of an iterable with `state_dict` at the position, alone in a list; else None."""

    @property
    def position(self) -> Position:
        """The position in the node: epoch, window, taken, output."""
        return self.epoch, self.window, self.taken, self.output


class LaneKey(NamedTuple):
    """Identifies one lane in one pass: pass, rank and worker."""

    epoch_pass: int
    dp_rank: int
    worker: int


class NodeKey(NamedTuple):
    """The fields that all entries of one node in one lane share, by reference: a batch pickles them once."""

    header: str
    """The generation's header as JSON."""
    generation: int
    lane: LaneKey
    path: str
    link: LaneLink | None


class Mark(NamedTuple):
    """Facts about a lane that one of its samples carries to the trainer, besides the cursors."""

    batches: tuple[int, Sequence[Sequence[int]]] | None = None
    """In the last sample of a batch that our collate functions made: the batch's number in its lane in this pass, from
    1, and the `sizes` of those up to it, as of `Batches`."""
    ended: bool = False
    """In the last sample of a lane in a pass."""
    deal: DealText | None = None
    """In the first sample that a lane gives in an iteration, where the size of the run has changed."""
    padded: Mapping[str, int] | None = None
    """In the last sample of a batch that it fills up: how often it is repeated, by its source."""
    tail: Mapping[str, Mapping[str, int]] | None = None
    """By path, what was delivered and is not in the node's entries: draws, tokens, cost and records in outputs of an
    open burst, and of bursts that were drawn anew. In the last sample of a lane also the `COUNTS` of all that was read
    after the last entry. `given` is how many outputs of an open burst are so counted."""


class Entry(NamedTuple):
    """The state of one node in one lane after the sample that carries it."""

    node: NodeKey
    draws: int
    clock: float
    cursor: PlainCursor
    drawn: int
    """How many samples its mixture had drawn by then, of all sources together."""
    mark: Mark | None
    """In the last entry of a sample only, and of few samples."""
    cost: float
    """Cost of all samples drawn of it, where its mixture has a cost; of a top whose yield function balances, that of
    all outputs; else 0."""
    tokens: int = 0
    """How many `input_ids` or `tokens` the samples drawn of it had in all, as the mixture was given them."""


PlainEntry: TypeAlias = tuple[NodeKey, int, float, PlainCursor, int, Mark | None, float, int]
"""An `Entry` as samples carry it."""

node_of: Callable[[PlainEntry], NodeKey] = itemgetter(Entry._fields.index("node"))
"""The node of a plain entry, in a fifth of the time of `Entry(*entry).node`."""
mark_of: Callable[[PlainEntry], Mark | None] = itemgetter(Entry._fields.index("mark"))


def marked(entries: tuple[PlainEntry, ...], **said: Any) -> tuple[PlainEntry, ...]:
    """Set fields of the mark in a sample's entries; return the new entries."""
    last = Entry(*entries[-1])
    return (*entries[:-1], last._replace(mark=(last.mark or Mark())._replace(**said)))


def number_batch(samples: list[dict[str, Any]]) -> None:
    """Number a batch in its lane, by a mark in a copy of its last sample, which replaces that sample.

    Does nothing where the samples are not a MergedDataset's, or were read in another process.
    """
    for link in links_of(samples[-1:]):
        entries = samples[-1][CURSOR]
        last = Entry(*entries[-1])
        # A top with a function of its own has an entry, which counts what that gave.
        made = link.next_batch(last.drawn if last.node.path else last.draws)
        if made is not None:
            # A copy: the caller may put the same sample into another batch.
            samples[-1] = {**samples[-1], CURSOR: marked(entries, batches=(made.number, made.sizes))}


def links_of(samples: Iterable[Mapping[str, Any]]) -> list[LaneLink]:
    """The lane links of samples, each once, for a batch that leaves the samples' cursors out."""
    links: dict[LaneLink, None] = {}
    for sample in samples:
        entries = sample.get(CURSOR)
        if isinstance(entries, tuple) and entries and (link := node_of(entries[-1]).link) is not None:
            links[link] = None
    return list(links)


class NodeState(NamedTuple):
    """The state of a node in one lane at the end of a generation."""

    generation: int
    draws: int
    clock: float
    cursor: Cursor
    cost: float = 0.0
    """Cost of the samples drawn of it, where its mixture has a cost."""
    tokens: int = 0
    """Tokens in the samples drawn of it."""
    tail: Mapping[str, Mapping[str, int]] = {}
    """The top's, see `Mark`."""


@dataclass
class LaneEntries:
    """A lane's entries by generation; queries return the newest that exists."""

    cursors: dict[str, dict[int, Mapping[str, Any]]] = field(default_factory=dict)
    """Cursors by the path of the node, then by generation."""

    def node_state(self, path: str, before: float = math.inf) -> NodeState | None:
        """The last state of a node in the lane, or the last before a generation."""
        held = [number for number in self.cursors.get(path, {}) if number < before]
        if not held:
            return None
        entry = self.cursors[path][max(held)]
        cursor = Cursor(*map(entry.get, Cursor._fields, Cursor()))  # Cursor(): what to_state leaves out is as there
        cost, tokens, tail = float(entry.get("cost", 0)), entry.get("tokens", 0), entry.get("tail", {})
        return NodeState(max(held), entry["draws"], entry["clock"], cursor, cost, tokens, tail)

    def clocks(self, path: str) -> dict[int, float]:
        """The node's last clock in each generation in which it was drawn."""
        return {generation: entry["clock"] for generation, entry in self.cursors.get(path, {}).items()}

    def draws_below(self, path: str) -> dict[str, int]:
        """The draws of each source that was ever in the mixture at `path`, by the source's path."""
        # Those of sources that were removed, too: the mixture has counted them as drawn.
        return {
            child: held[max(held)]["draws"]
            for child, held in sorted(self.cursors.items())
            if child and child.rpartition(".")[0] == path
        }


States: TypeAlias = dict[str, Any]
"""A checkpoint: a flat dict of plain JSON."""

is_asked = Event()
"""Set once somebody asked for the state of a batch."""


def to_state(batch: object) -> States:
    """Returns the states that delivered samples carry, to be merged into a trainer's dict of states.

    `states.update(to_state(batch))` after every batch is the whole protocol of a trainer. Go on updating the dict that
    you resumed from: it also holds the sources that were not drawn since.

    Args:
        batch: A sample, a list of samples in the order delivered, or nested lists of these; or a dict of tensors with
            the text of its samples' states under `__state__`, or nested lists of such.

    Returns:
        A flat dict of plain JSON. `cursor/G/P/RANK/WORKER/PATH` says where a lane stands in a node of the tree, in
        generation G and pass P. The entry of the top, whose path is "", also has the lane's batches and their sizes,
        whether it has ended, and counts that are not in the nodes' entries yet. `worker/G/P/RANK` is the worker that
        delivered last. `generation/G` has what determines the order, and counts of what in the shards is not a whole
        record. The first batch of a lane also has `deal/G`: what the run had come to under earlier numbers of ranks and
        workers, if it had others.

    Raises:
        StateError: A sample carries no state, such as one that a collate function built anew.
    """
    is_asked.set()
    return states_of_batch(batch)


def states_of_batch(batch: object) -> States:
    """Turns a batch into states as `to_state` does, without noting that the trainer asked for them."""
    samples = list(_samples(batch))
    # A sample has a cursor: what stands there under the name of a batch's field is its own.
    if samples and all(STATE in sample and CURSOR not in sample for sample in samples):
        states: States = {}
        for sample in samples:
            states.update(_from_text(sample[STATE]))
        return states
    entries, headers = _of_samples(samples)
    return {**{key: _parsed(text) for key, text in headers.items()}, **entries}


def state_text(samples: Sequence[Mapping[str, Any]]) -> str:
    """Encode the states of samples as one string, which can travel in a batch of tensors to any device.

    The entries are the first line. Each other one is a header, with its key before it: all batches of a run have the
    same, which has a line for every source, so that whoever reads them parses it once.

    Raises:
        StateError: A sample carries no state.
    """
    entries, headers = _of_samples(samples)
    return "\n".join([json.dumps(entries, separators=(",", ":")), *map(" ".join, headers.items())])


def _of_samples(samples: Sequence[Mapping[str, Any]]) -> tuple[States, dict[str, str]]:
    """The entries of samples that are of lanes; and by key the headers, as text."""
    latest: dict[tuple[int, LaneKey, str], PlainEntry] = {}
    last: dict[tuple[int, LaneKey], PlainEntry] = {}
    workers: States = {}
    headers: dict[str, str] = {}
    # Little is done for each sample. The samples of a batch share their nodes' keys, whose own keys are made once.
    keys: dict[int, tuple[int, LaneKey, str]] = {}
    for sample in samples:
        for plain in _entries(sample):
            # Of each node the newest entry alone is turned into JSON: a batch has one for every sample.
            node = node_of(plain)
            key = keys.get(id(node)) or keys.setdefault(id(node), (node.generation, node.lane, node.path))
            latest[key] = plain
    ends = [sample[CURSOR][-1] for sample in samples]
    for entry, following in zip_longest(ends, ends[1:]):
        node, mark = node_of(entry), mark_of(entry)
        if mark is not None and mark.deal is not None:
            headers[mark.deal.key] = mark.deal.text
        if following is None or node_of(following).lane is not node.lane:
            last[node.generation, node.lane] = entry
            # Not from `last`: a dict keeps the position of a key's first insertion, and the last sample is wanted.
            workers[f"worker/{node.generation}/{node.lane.epoch_pass}/{node.lane.dp_rank}"] = node.lane.worker
    states: States = {}
    for node, draws, clock, cursor, drawn, _, cost, tokens in latest.values():
        lane = "/".join(map(str, (node.generation, *node.lane)))
        headers[f"generation/{node.generation}"] = node.header
        states[f"cursor/{lane}/{node.path}"] = _as_json(draws, clock, cost, tokens, cursor)
        if "." not in node.path and (node.generation, node.lane, "") not in latest:
            # A top without a function of its own has given what it drew; the last of its sources has counted most.
            top = states.setdefault(f"cursor/{lane}/", _as_json(0, 0.0, 0.0, 0, (0, 0, 0, 0)))
            top["draws"] = max(top["draws"], drawn)
    for (generation, key_of_lane), entry in last.items():
        mark = mark_of(entry) or Mark()
        top = states[f"cursor/{generation}/{'/'.join(map(str, key_of_lane))}/"]
        number, sizes = mark.batches or (0, None)
        facts = {"batches": number, "sizes": sizes, "ended": int(mark.ended), "padded": mark.padded, "tail": mark.tail}
        top.update({name: value for name, value in facts.items() if value})
    return states | workers, headers


def _from_text(text: Any) -> States:
    try:
        entries, *lines = text.split("\n")
        states: States = {}
        for line in lines:
            key, _, header = line.partition(" ")
            states[key] = _parsed(header)
        return {**states, **json.loads(entries)}
    except (ValueError, TypeError, AttributeError) as error:
        raise StateError(
            f"to_state: expected the string under {STATE!r} that our collate made, got {shown(text)}: {error}\n"
            "  Take the batch as the loader gives it; an entry of a list of batches is a batch."
        ) from error


def _samples(batch: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(batch, dict | Mapping):  # a dict is told at once, another mapping by a search
        yield batch
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from (part,) if isinstance(part, dict) else _samples(part)
    else:
        raise StateError(
            f"to_state: expected a sample, a list of samples or nested lists, got {type(batch).__name__}\n"
            "  Use collate_fn=mixed_collate, which keeps samples as they are."
        )


def _entries(sample: Mapping[str, Any]) -> tuple[PlainEntry, ...]:
    entries = sample.get(CURSOR)
    if not isinstance(entries, tuple) or not entries:  # torch's default_convert makes a list of them
        raise StateError(
            "to_state: expected a sample of a MergedDataset, got a dict without its state as it was delivered, with "
            f"the keys {names_text(sample)}\n"
            "  Keep the fields whose names begin with '__', and collate with mixed_collate or TensorCollate; with "
            "batch_size=None, by a function that returns the sample as it is. "
            "HF Trainer removes them before it collates: let its get_train_dataloader return a StreamLoader."
        )
    inner: tuple[PlainEntry, ...] = sample.get(STATES, ())
    return inner + entries


# All samples of a run share one header, which has a line for every source: it is parsed once, not per batch.
_parsed: Callable[[str], object] = lru_cache(maxsize=64)(json.loads)


def _as_json(draws: int, clock: float, cost: float, tokens: int, cursor: PlainCursor) -> States:
    state: States = {"draws": draws, "clock": clock, "epoch": cursor[0], "window": cursor[1], "taken": cursor[2]}
    # What is nothing for most nodes is left out: a checkpoint of a thousand GPUs has hundreds of thousands of these.
    # Not strict: a plain cursor ends where all that follows is nothing. To name its fields would take as long as this.
    for name, value in zip(Cursor._fields[3:], cursor[3:], strict=False):
        if value:  # `pulled` is a tuple to be quickly made, and in JSON a list
            state[name] = list(value) if isinstance(value, tuple) else value
    if cost:
        state["cost"] = cost
    if tokens:
        state["tokens"] = tokens
    return state


def not_states(key: object, value: object, why: str) -> StateError:
    """Make the error for an entry that `to_state` does not write."""
    return StateError(
        f"states: {shown(key)}: {shown(value)} does not come from to_state ({why})\n"
        "  Pass the dict that was filled by states.update(to_state(batch)), as it was saved."
    )


def not_there(key: str) -> StateError:
    """Make the error for an entry without which others mean nothing."""
    return StateError(
        f"states: {key!r} is missing, though there are entries of it\n"
        "  Update the dict from the first batch after a resume on, and save and restore the whole of it."
    )
