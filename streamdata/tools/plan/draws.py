"""A run over blank records: `tree, averages of functions → blank tree; the first draws of a lane`.

A tree whose records are blank is drawn from as the real one is, by the real mixtures, clocks and orders; nothing of a
payload is read. Each sample costs what one costs on average, and in place of a function stands one that pulls as many
records for a sample as the real one did of a few. Where nobody has counted a source's records, it is as if its first
shards did not end.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import islice, repeat
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

import numpy as np

from streamdata.fields import CURSOR, DATASET_NAME, INDEX
from streamdata.io.storage import Int64s, told_url
from streamdata.mixing.deals import Deals
from streamdata.mixing.leaf import Run
from streamdata.mixing.mixture import Mixture
from streamdata.mixing.tree import Node
from streamdata.run import Lane
from streamdata.shards.readers import Record
from streamdata.sources import MapStyleSource
from streamdata.sources.files.parquet import RowGroupSource
from streamdata.sources.files.shard_source import BlockSource, SequentialSource
from streamdata.sources.foreign.own_stream import OwnStreamSource
from streamdata.sources.skip import Skips
from streamdata.states.cursor import Entry, node_of
from streamdata.states.headers import Tree
from streamdata.states.progress import Progress
from streamdata.tools.trace.era import Bare

NUMBER = "number"
"""The field of a blank record of a shard that says its number there; of parquet, in its row group."""
SHARD = "shard"
"""The field of such a record with the number of its shard."""


class Pulls(NamedTuple):
    """How many records a function pulls; of a yield function, samples."""

    each: float
    """For one output, on average."""
    first: float
    """Until its first output: a packer looks ahead."""


@dataclass(kw_only=True)
class Averages:
    """Averages that tell what a tree's functions do, by a look at some records."""

    pulls: dict[str, Pulls] = field(default_factory=dict)
    """By path, of sources with functions and of mixtures with yield functions; others give a sample for each record."""
    costs: dict[tuple[str, str], float] = field(default_factory=dict)
    """The cost of a sample on average, by the path of the mixture and of the source that it is of; else 1."""
    tokens: dict[str, float] = field(default_factory=dict)
    """Tokens of a sample on average, by the path of its source."""
    lengths: Sequence[int] = ()
    """Tokens of documents that the top's yield function packs or groups, where it balances."""

    def pulled_by(self, node: Node) -> float:
        """How many records, or samples, a node takes for one of its own."""
        return self.pulls[node.path].each if node.path in self.pulls else 1.0


COUNTED: Final = "counted"
"""The field of what a blank yield function gives: what it pulled was counted."""
_NEARLY: Final = 1e-9


Told = Callable[[Record], None]
"""Is told of a record or sample."""


class BlankFunction:
    """In place of a stream function: gives as many outputs, each the last record pulled.

    Args:
        pulls: How the real one pulls.
        note_pulled: Is told what it pulls,
        note_given: and of what it has made outputs.
        fields: What each output has beside.
    """

    def __init__(self, pulls: Pulls, note_pulled: Told, note_given: Told, fields: Record) -> None:
        self._each, self._ahead = pulls.each, max(0.0, pulls.first - pulls.each)
        self._note_pulled, self._note_given, self._fields, self._held = note_pulled, note_given, fields, 0.0

    def __call__(self, records: Iterator[Record]) -> Iterator[Record]:
        """Give an output for so many records; at the end, of what it still holds."""
        held: deque[Record] = deque()
        self._held, least = 0.0, self._ahead + self._each - _NEARLY
        record: Record = {}
        for record in records:
            self._note_pulled(record)
            held.append(record)
            self._held += 1
            while self._held >= least:
                yield self._output(record, held)
        while record and self._held >= self._each / 2:
            yield self._output(record, held)
        for record in held:
            self._note_given(record)

    def _output(self, record: Record, held: deque[Record]) -> Record:
        self._held -= self._each
        while held and len(held) > self._held + _NEARLY:
            self._note_given(held.popleft())
        return record | self._fields

    def state_dict(self) -> dict[str, int]:
        """Say that it holds something: else an epoch without an output were an error."""
        return {"rewind": int(self._held > _NEARLY)}

    def load_state_dict(self, state: object) -> None:
        """Nobody resumes it."""


def blank_tree(
    node: Node,
    num_lanes: int,
    averages: Averages,
    note_pulled: Told = lambda _: None,
    note_given: Told = lambda _: None,
) -> Node:
    """Copy a tree, over blank records; its functions tell what they are given, and of what they have made outputs."""
    blank = copy(node)
    if node.is_mixture:
        blank.children = tuple(blank_tree(each, num_lanes, averages, note_pulled, note_given) for each in node.children)
        blank.dataset = settings = copy(node.dataset)
        blank.weights = node.weights  # some follow from the sizes of the real sources
        if settings.cost is not None:
            settings.cost = lambda sample: averages.costs.get((node.path, sample[DATASET_NAME]), 1.0)
        if settings.customized_yield_fn is not None:
            pulls = averages.pulls.get(node.path, Pulls(1.0, 1.0))
            settings.customized_yield_fn = BlankFunction(pulls, note_pulled, note_given, {COUNTED: True})
        return blank
    blank.dataset = bare = cast("Any", Bare(node.dataset))
    if node.path in averages.pulls:
        bare.process_fn = BlankFunction(averages.pulls[node.path], note_pulled, note_given, {})
    source: Any = node.source
    if isinstance(source, MapStyleSource):
        source = MapStyleSource(bare)
    elif isinstance(source, OwnStreamSource):
        shards: Any = _BlankShards(SimpleNamespace(urls=[""] * num_lanes))
        source = SequentialSource("iterable", shards, 0)
    else:
        assert isinstance(source, BlockSource | SequentialSource), f"a case for {type(source).__name__}"
        source = copy(source)
        source.shards = _BlankShards(source.shards)
    blank.__dict__.pop("source", None)
    blank.as_source = lambda: source
    return blank


class _BlankShards:
    """Shards of blank records, on a disk of this machine; all else is as of the real ones."""

    has_remote = False

    def __init__(self, shards: Any) -> None:
        self._shards = shards

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shards, name)

    def window(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> "_BlankWindow":
        """The window of these runs."""
        numbers = np.arange(int(counts.sum())) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
        return _BlankWindow(np.repeat(shards, counts), numbers)

    def stream(self, shard: int) -> Iterator[Record]:
        """Blank records without end."""
        return ({SHARD: shard} for _ in repeat(None))


class _BlankWindow:
    """A window of blank records, by the shard and the number there of each."""

    look_ahead = 64

    def __init__(self, shards: Int64s, numbers: Int64s) -> None:
        self._shards, self._numbers = shards, numbers

    def __len__(self) -> int:
        return len(self._shards)

    def come(self, portions: object) -> None:
        """Wait for nothing, where a window of parquet waits for portions."""

    def take(self, positions: Int64s, common: Mapping[str, Any], portion: object = None) -> Iterator[Record]:
        """The records at these positions."""
        del portion
        for shard, number in zip(self._shards[positions].tolist(), self._numbers[positions].tolist(), strict=True):
            yield {SHARD: shard, NUMBER: number, **common}


def fresh_run(top: Node, lane: Lane, deals: Deals) -> Run:
    """Make what the nodes of a tree share in a lane of a run that begins."""
    # Nothing to compare with: a description of a source reads the names of all of its shards.
    weights = {path: weight for node in top.walk() if node.is_mixture for path, weight in node.weights.items()}
    tree = Tree({node.path: "" for node in top.walk()}, weights, sources={leaf.path: None for leaf in top.leaves()})
    return Run.at(Progress({}), 0, lane, deals, tree, Skips(None, {}))


@dataclass(frozen=True)
class Draw:
    """One draw of a lane."""

    number: int
    """From 1."""
    source: str
    """The path of the source that the sample is of."""
    clock: float
    """The clock of that source after the draw, as states say it."""
    epoch: int
    window: int
    block: int | None = None
    """The source's block; None of an iterable."""
    url: str | None = None
    """The url of the shard; None of sources without shards."""
    record: int | None = None
    """The record's number in its shard; None where that shows only when it is read."""
    index: int | None = None
    """The index in a map-style dataset; None of other sources."""


def first_draws(top: Node, lane: Lane, count: int, averages: Averages) -> list[Draw]:
    """The first draws of a lane in the first pass; as many as there are, up to `count`.

    Args:
        top: The tree.
        lane: Whose.
        count: How many.
        averages: What is known of its functions.
    """
    blank = blank_tree(top, lane.count, averages)
    run = fresh_run(blank, lane, Deals(Progress({}), 0, lane.count))
    nodes, mixture, draws = {node.path: node for node in top.walk()}, Mixture(run, blank), []
    for number, sample in enumerate(islice(mixture.draw(), count), 1):
        entries = {node_of(entry).path: Entry(*entry) for entry in sample[CURSOR]}
        path = sample[DATASET_NAME]
        if path in entries:  # else a yield function below the top has pulled it
            entry = entries[path]
            place = _place(nodes[path].source, sample)
            draws.append(Draw(number, path, entry.clock, entry.cursor[0], entry.cursor[1], **place))
    return draws


def _place(source: Any, sample: Record) -> dict[str, Any]:
    """Where a draw's record lies, as fields of `Draw`."""
    if isinstance(source, MapStyleSource):
        return {"block": sample[INDEX] // source.records_per_block, "index": sample[INDEX]}
    if isinstance(source, OwnStreamSource):
        return {}
    shard, number = sample[SHARD], sample.get(NUMBER)
    if number is None:  # shuffled in groups, which a short shard may not fill
        return {"block": shard, "url": told_url(str(source.shards.urls[shard]))}
    block, _ = source.block_of(shard, number)
    if isinstance(source, RowGroupSource):  # as keys count rows: from the first of the file
        shard, number = source.shards.file_of[shard], number + int(source.shards.first_rows[shard])
    return {"block": block, "url": told_url(str(source.shards.urls[shard])), "record": number}
