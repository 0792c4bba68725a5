"""The first draws of a lane, and which blocks which lane reads: `tree, topology → draws by its clocks and orders`."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from streamdata.fields import CURSOR, DATASET_NAME, INDEX, URL
from streamdata.mixing.clock import Clocks
from streamdata.mixing.deals import Deals
from streamdata.mixing.leaf import Run, ShareAt
from streamdata.mixing.mixture import Mixture
from streamdata.mixing.tree import Node
from streamdata.run import Lane
from streamdata.sources import MapStyleSource
from streamdata.sources.files.parquet import RowGroupSource
from streamdata.sources.files.shard_source import BlockSource, SequentialSource
from streamdata.sources.foreign.own_stream import OwnStreamSource
from streamdata.sources.skip import Skips
from streamdata.states.cursor import Cursor, Entry, node_of
from streamdata.states.headers import Tree
from streamdata.states.progress import Progress
from streamdata.tools.plan.blanks import NUMBER, SHARD, Costs, blank_tree

_MAX_LANES = 64
_BLOCKS = 4
"""Of each lane and source that are shown."""


@dataclass(frozen=True)
class Draw:
    """One draw of a lane."""

    number: int
    """From 0."""
    source: str
    """The path of the source that the sample is of."""
    clock: float
    """Of that source: the virtual time of the draw."""
    next_clock: float
    """What it is after it, as states say it."""
    epoch: int
    window: int
    block: int | None
    """Of the source; None of an iterable."""
    url: str | None
    """Of shards."""
    record: int | None
    """The record's number in its shard; None where that shows only when it is read."""
    index: int | None
    """Of a map-style dataset."""


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
    num_workers = lane.num_workers
    lanes = [divmod(index, num_workers) for index in range(min(lane.count, _MAX_LANES))]
    deals = Deals(Progress({}), 0, lane.count)
    sources = [node for node in top.walk() if not node.is_mixture and not isinstance(node.source, OwnStreamSource)]
    return [
        LaneBlocks(rank, worker, {node.path: _blocks(deals, node, rank * num_workers + worker) for node in sources})
        for rank, worker in lanes
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
    """What the nodes of a tree share in a lane of a run that begins."""
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
