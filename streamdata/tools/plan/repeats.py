"""When a source first repeats: `tree, topology → the first sample of the job that is of a second epoch`.

A lane draws its share of an epoch, and goes on with the next one. Where no schedule, cost or function makes a draw
depend on payloads or on the time, the draw at which that happens follows from the lane's clocks alone.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.mixing.clock import start_clocks
from streamdata.mixing.deals import Deals
from streamdata.mixing.tree import Node
from streamdata.run import Lane
from streamdata.sources.order.dealt_lane import DealtLane
from streamdata.states.progress import Progress

_MAX_LANES = 64
"""Of these at most each is looked at."""
_MAX_PLACES = 1 << 12
"""Of sources in lanes: for each the draws of its mixtures are counted."""
_MAX_TURNS = 1 << 16
"""Draws that start clocks of all lanes may be ahead, over all mixtures: each is a step of a heap."""
_MAX_BLOCKS = 1 << 22
"""Of all sources whose blocks differ in their records: they are counted one by one."""
_MAX_DRAWS = 10**6
"""Of a lane: a run adds its steps up one by one, and from then on may have rounded to another draw."""
_FUNCTIONS = ("single_process_fn", "process_fn", "max_bad")

Floats = npt.NDArray[np.float64]


class Repeat(NamedTuple):
    """When a source first repeats."""

    sample: int
    """Of the job, from 0: as many were delivered before it."""
    last: int
    """With this one the last lane has come to the second epoch; records repeat between both, or from here on."""


class Repeats:
    """Finds them.

    Args:
        top: The tree.
        lane: The topology.
        batch_size: Of a rank.
    """

    def __init__(self, top: Node, lane: Lane, batch_size: int) -> None:
        self._top, self._lane, self._batch_size = top, lane, batch_size
        self._deals = Deals(Progress({}), 0, lane.count)
        self._parents = {child.path: node for node in top.walk() for child in node.children}
        self._starts: dict[tuple[str, int], Floats] = {}
        self._steps: dict[str, Floats] = {}
        mixtures = sum(node.is_mixture for node in top.walk())
        self._max_blocks = _MAX_BLOCKS // max(1, len(self._parents))
        self._places_left = _MAX_PLACES
        self._is_small = lane.count <= _MAX_LANES and lane.count**2 * mixtures <= _MAX_TURNS

    def first(self, node: Node) -> Repeat | None:
        """Where it can be told exactly; else None."""
        if not (self._is_small and self._places_left >= self._lane.count and self._is_told(node)):
            return None
        self._places_left -= self._lane.count
        found = [self._in_lane(node, index) for index in range(self._lane.count)]
        return Repeat(min(found), max(found)) if max(found) <= _MAX_DRAWS * self._lane.count else None

    def _is_told(self, node: Node) -> bool:
        if any(getattr(node.dataset, name, None) for name in _FUNCTIONS) or not node.is_endless:
            return False
        source = node.source
        if source is None or source.count(np.zeros(1, np.int64), node.part) is None:
            return False
        if (source.records_per_block is None or node.part is not None) and source.num_blocks > self._max_blocks:
            return False
        while node.path:
            node = self._parents[node.path]
            settings = node.dataset
            is_plain = settings.customized_yield_fn is None and settings.cost is None and node.shares is None
            if not (is_plain and settings.cyclic and all(child.is_endless for child in node.children)):
                return False
        return True

    def _in_lane(self, node: Node, index: int) -> int:
        """The job's sample with which a lane comes to the second epoch."""
        number = _share_of_first_epoch(self._deals.lane(node, index))
        while node.path:
            parent = self._parents[node.path]
            place = [child.path for child in parent.children].index(node.path)
            starts, steps = self._clocks(parent, index)
            clock = starts[place] + number * steps[place]
            # Ties go to the source that the recipe lists first.
            before = np.ceil((clock - starts) / steps)
            before += (np.arange(len(starts)) < place) & (starts + before * steps == clock)
            before[place] = number
            number, node = int(np.maximum(before, 0).sum()), parent
        return self._of_job(number, index)

    def _clocks(self, node: Node, index: int) -> tuple[Floats, Floats]:
        """The start of each source's clock in a lane, and its steps."""
        if node.path not in self._steps:
            weights = np.array([weight for weight in node.weights.values() if isinstance(weight, int | float)])
            self._steps[node.path] = weights.sum() / weights
        steps, key = self._steps[node.path], (node.path, index)
        if key not in self._starts:
            rank, worker = divmod(index, self._lane.num_workers)
            lane = Lane(dp_size=self._lane.dp_size, dp_rank=rank, num_workers=self._lane.num_workers, worker=worker)
            names = [child.dataset.name for child in node.children]
            self._starts[key] = np.array(start_clocks(names, steps.tolist(), lane, node.seeds))
        return self._starts[key], steps

    def _of_job(self, number: int, index: int) -> int:
        """A lane's sample as one of the job: batches of all ranks by rank, of a rank its workers' in turn."""
        rank, worker = divmod(index, self._lane.num_workers)
        batch, within = divmod(number, self._batch_size)
        step = batch * self._lane.num_workers + worker
        return (step * self._lane.dp_size + rank) * self._batch_size + within


def _share_of_first_epoch(lane: DealtLane) -> int:
    """How many records of it a lane reads."""
    order, source, part = lane.order, lane.dealt.source, lane.dealt.part
    blocks = order.share(0)
    if part is None and source.records_per_block is not None:
        return blocks * source.records_per_block
    counted = source.count(order.blocks(0, 0, blocks), part)
    assert counted is not None, "a source whose records are counted"
    return counted
