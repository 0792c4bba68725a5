"""The first draws of a lane, and which blocks which lane reads: `tree, topology → draws by its clocks and orders`.

A tree whose records are blank is drawn from as the real one is, and nothing of a payload is read. What a function would
make of a record nobody knows here: each record is one sample, each sample costs what one costs on average. Where nobody
has counted a source's records, it is as if its first shards did not end.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import islice, repeat
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from streamdata.fields import CURSOR, DATASET_NAME, INDEX, URL
from streamdata.io.storage import Int64s, told_url
from streamdata.mixing.clock import Clocks
from streamdata.mixing.deals import Deals
from streamdata.mixing.leaf import Run, ShareAt
from streamdata.mixing.mixture import Mixture
from streamdata.mixing.tree import Node
from streamdata.run import Lane
from streamdata.shards.readers import NO_FIELDS, Record
from streamdata.sources import MapStyleSource, Source
from streamdata.sources.files.parquet import RowGroupSource
from streamdata.sources.files.shard_source import BlockSource, SequentialSource
from streamdata.sources.foreign.own_stream import OwnStreamSource
from streamdata.sources.skip import Skips
from streamdata.states.cursor import Cursor, Entry, node_of
from streamdata.states.headers import Tree
from streamdata.states.progress import Progress
from streamdata.tools.trace.era import Bare

NUMBER = "number"
"""The field of a blank record of a shard that says its number there; of parquet, in its row group."""
SHARD = "shard"
"""The field of such a record with the number of its shard."""

Costs = Mapping[tuple[str, str], float]
"""The cost of a sample on average, by the path of the mixture and of the source that it is of."""


def blank_tree(node: Node, num_lanes: int, costs: Costs) -> Node:
    """Copy a tree, over blank records.

    Args:
        node: Its top.
        num_lanes: How many lanes read it.
        costs: 1 where they do not say it.
    """
    blank = copy(node)
    if node.is_mixture:
        blank.children = tuple(blank_tree(child, num_lanes, costs) for child in node.children)
        blank.dataset = _blank_settings(node, costs)
        blank.weights = node.weights  # some follow from the sizes of the real sources
        return blank
    blank.dataset = Bare(node.dataset)
    source = _blank_source(node, blank.dataset, num_lanes)
    blank.__dict__.pop("source", None)
    blank.as_source = lambda: source
    return blank


def _blank_settings(node: Node, costs: Costs) -> Any:
    settings = node.dataset
    kept = {name: getattr(settings, name, None) for name in ("name", "percent", "cyclic", "stop", "seed")}
    cost = None if settings.cost is None else lambda record: costs.get((node.path, record[DATASET_NAME]), 1.0)
    return SimpleNamespace(customized_yield_fn=None, cost=cost, **kept)


def _blank_source(node: Node, bare: Bare, num_lanes: int) -> Source:
    source = node.source
    match source:
        case BlockSource() | SequentialSource():
            of_shards = copy(source)
            of_shards.shards = _BlankShards(source.shards)  # type: ignore[assignment]
            return of_shards
        case OwnStreamSource():
            shards: Any = _BlankShards(SimpleNamespace(urls=[""] * num_lanes))
            return SequentialSource("iterable", shards, 0)
        case MapStyleSource():
            return MapStyleSource(bare)
    raise AssertionError(f"a new kind of source, {type(source).__name__}, needs a case here")


class _BlankShards:
    """Shards of blank records: what of `IndexedShards` and `SequentialShards` a lane asks for."""

    has_remote, fits, decodes_ahead, cache = False, True, False, None

    def __init__(self, shards: Any) -> None:
        # A shard of parquet is a row group, of which a file may have several.
        self.groups = getattr(shards, "groups", None)
        """The row groups of parquet; None of other shards."""
        files = range(len(shards.urls)) if self.groups is None else self.groups.file_of
        self.urls: Sequence[str] = [str(shards.urls[file]) for file in files]
        self._identity = getattr(shards, "identity", list)

    def identity(self) -> list[tuple[str, int]]:
        """The identity of the real shards."""
        return list(self._identity())

    def cache_keys(self) -> list[str]:
        """None of them is in a cache."""
        return []

    def is_slow(self) -> bool:
        """Nothing is read."""
        return False

    def window(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> "_BlankWindow":
        """The window of these runs."""
        return _BlankWindow(self.urls, shards, firsts, counts)

    def stream(self, shard: int, raw: object = None) -> Iterator[Record]:
        """Blank records without end."""
        del raw
        url = told_url(self.urls[shard])
        return ({URL: url, SHARD: shard, NUMBER: number} for number, _ in enumerate(repeat(None)))


class _BlankWindow:
    """A window of blank records."""

    look_ahead = 64

    def __init__(self, urls: Sequence[str], shards: Int64s, firsts: Int64s, counts: Int64s) -> None:
        self._urls = urls
        self._shards = np.repeat(shards, counts)
        self._numbers = np.arange(int(counts.sum())) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)

    def __len__(self) -> int:
        return len(self._shards)

    def come(self, portions: object) -> None:
        """Wait for nothing, where a window of parquet waits for portions."""

    def take(
        self, positions: Int64s, common: Mapping[str, Any] = NO_FIELDS, portion: object = None
    ) -> Iterator[Record]:
        """The records at these positions."""
        del portion
        for shard, number in zip(self._shards[positions].tolist(), self._numbers[positions].tolist(), strict=True):
            yield {URL: self._urls[shard], SHARD: shard, NUMBER: number, **common}


_MAX_LANES = 64
_BLOCKS = 4
"""Blocks that are shown of each lane and source."""


@dataclass(frozen=True)
class Draw:
    """One draw of a lane."""

    number: int
    """From 0."""
    source: str
    """The path of the source that the sample is of."""
    clock: float
    """The virtual time of the draw, by the clock of that source."""
    next_clock: float
    """The clock after the draw, as states say it."""
    epoch: int
    window: int
    block: int | None
    """The source's block; None of an iterable."""
    url: str | None
    """The url of the shard; None of sources without shards."""
    record: int | None
    """The record's number in its shard; None where that shows only when it is read."""
    index: int | None
    """The index in a map-style dataset; None of other sources."""


class LaneBlocks(NamedTuple):
    """The first blocks of each source that a lane reads."""

    rank: int
    worker: int
    blocks: dict[str, list[int]]


def first_draws(top: Node, lane: Lane, count: int, costs: Costs) -> list[Draw]:
    """The first draws of a lane in the first pass; as many as there are, up to `count`.

    Args:
        top: The tree.
        lane: Whose.
        count: How many.
        costs: Of samples on average, where mixtures have costs.
    """
    blank = blank_tree(top, lane.count, costs)
    run = fresh_run(blank, lane)
    mixture = Mixture(run, blank)
    return list(islice(_draws(top, mixture, _start_clocks(run, blank)), count))


def _draws(top: Node, mixture: Mixture, clocks: dict[str, float]) -> Iterator[Draw]:
    nodes = {node.path: node for node in top.walk()}
    for number, sample in enumerate(mixture.draw()):
        entries = {node_of(entry).path: Entry(*entry) for entry in sample[CURSOR]}
        path = sample[DATASET_NAME]
        cursor, next_clock = Cursor(*entries[path].cursor), entries[path].clock
        place = _place(nodes[path], sample)
        yield Draw(number, path, clocks[path], next_clock, cursor.epoch, cursor.window, *place)
        clocks.update({path: entry.clock for path, entry in entries.items()})


def _place(node: Node, sample: dict[str, Any]) -> tuple[int | None, str | None, int | None, int | None]:
    """Block, url, number in the shard, index."""
    match node.source:
        case BlockSource() as source:
            (block, _), number = source.block_of(sample[SHARD], sample[NUMBER]), sample[NUMBER]
            if isinstance(source, RowGroupSource):  # as keys count rows: from the first of the file
                number += int(source.shards.groups.first_rows[sample[SHARD]])
            return block, sample[URL], number, None
        case SequentialSource():  # shuffled in groups, which a short shard may not fill
            return sample[SHARD], sample[URL], None, None
        case MapStyleSource() as rows:
            return sample[INDEX] // rows.records_per_block, None, None, sample[INDEX]
    return None, None, None, None


def lane_blocks(top: Node, lane: Lane) -> list[LaneBlocks]:
    """The first blocks that each lane reads of each source, of a map-style dataset its records; of up to 64 lanes."""
    deals = Deals(Progress({}), 0, lane.count)
    sources = [node for node in top.leaves() if not isinstance(node.source, OwnStreamSource)]
    return [
        LaneBlocks(*divmod(index, lane.num_workers), {node.path: _blocks(deals, node, index) for node in sources})
        for index in range(min(lane.count, _MAX_LANES))
    ]


def _blocks(deals: Deals, node: Node, index: int) -> list[int]:
    order = deals.lane(node, index).order
    blocks: list[int] = []
    epoch: int | None = order.epochs.first
    while epoch is not None and len(blocks) < _BLOCKS:
        found: list[int] = order.blocks(epoch, 0, _BLOCKS - len(blocks)).tolist()
        blocks += found
        epoch = order.next_epoch(epoch)
    return blocks


def fresh_run(top: Node, lane: Lane) -> Run:
    """Make what the nodes of a tree share in a lane of a run that begins."""
    progress = Progress({})
    # Nothing to compare with: a description of a source reads the names of all of its shards.
    weights = {path: weight for node in top.walk() if node.is_mixture for path, weight in node.weights.items()}
    tree = Tree({node.path: "" for node in top.walk()}, weights)
    return Run.at(progress, 0, lane, Deals(progress, 0, lane.count), tree, Skips(None, {}))


def _start_clocks(run: Run, node: Node, above: tuple[ShareAt, ...] = ()) -> dict[str, float]:
    """Where the clocks of a mixture's sources start in a lane, and those below it, by path."""
    if not node.is_mixture:
        return {}
    clocks = Clocks(run, node, above)
    starts = dict(zip((child.path for child in node.children), clocks.begin(), strict=True))
    for number, child in enumerate(node.children):
        starts |= _start_clocks(run, child, (*above, clocks.share_at(number)))
    return starts
