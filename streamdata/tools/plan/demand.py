"""How much a run takes of each source, and when it repeats: `tree, samples → of each source; the end of the stream`.

Shares are followed as if samples could be divided; a lane keeps to them within a few samples. Where nothing ends, that
is samples times the mean share. Where sources end, what they leave is shared among the others, or ends the stream.

A lane draws its share of an epoch, and goes on with the next one. Where no schedule, cost or function makes a draw
depend on payloads or on the time, the draw at which that happens follows from the lane's clocks alone.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.mixing.clock import start_clocks
from streamdata.mixing.deals import Deals
from streamdata.mixing.tree import Node, mean_node_shares, node_shares, num_in
from streamdata.run import Lane
from streamdata.sources.order.dealt_lane import DealtLane
from streamdata.states.progress import Progress
from streamdata.tools.plan.draws import Costs


class Demand(NamedTuple):
    """Samples that a run takes of each source."""

    samples: dict[str, float]
    """Samples of each source, by path."""
    ends_after: float | None
    """How many samples the stream has, where these are fewer than the run asks for."""
    ended: list[str]
    """The sources that are at their end before, by path."""


class Stream:
    """The stream of a tree as far as shares and sizes tell it.

    Args:
        top: The tree.
        records_per_sample: Of each source with functions, by path; 1 of others.
        costs: Of samples on average, where mixtures have costs.
    """

    def __init__(self, top: Node, records_per_sample: Mapping[str, float], costs: Costs) -> None:
        self._top, self._records_per_sample, self._costs = top, records_per_sample, costs
        self._totals: dict[str, float] = {}
        self._means: Mapping[str, float] = {}

    def demand(self, samples: float) -> Demand:
        """Follow a run of so many samples."""
        # In the time of schedules, which count what the top draws: samples, or their costs.
        self._means = self._mean_shares(samples)
        self._totals = {}
        total = self._total(self._top)
        taken: dict[str, float] = {}
        self._spread(self._top, min(samples, total), taken)
        ended = [node.path for node in self._top.leaves() if 0 < self._total(node) <= taken[node.path] * (1 + 1e-9)]
        return Demand(taken, total if total < samples else None, ended)

    def _mean_shares(self, samples: float) -> Mapping[str, float]:
        leaves = mean_node_shares(self._top, samples)
        return {node.path: math.fsum(leaves[leaf.path] for leaf in node.leaves()) for node in self._top.walk()}

    def _fractions(self, node: Node) -> dict[str, float]:
        """The part of a mixture's samples that each child gives."""
        shares = {child.path: self._means[child.path] for child in node.children}
        if node.dataset.cost is not None:
            shares = {child.path: shares[child.path] / self._cost(node, child) for child in node.children}
        total = math.fsum(shares.values())
        return {path: share / total if total else 0.0 for path, share in shares.items()}

    def _cost(self, mixture: Node, node: Node) -> float:
        """The cost of a sample of a node in a mixture above it."""
        if not node.is_mixture:
            return self._costs.get((mixture.path, node.path), 1.0)
        fractions = self._fractions(node)
        return math.fsum(fractions[child.path] * self._cost(mixture, child) for child in node.children) or 1.0

    def _total(self, node: Node) -> float:
        """How many samples a node has."""
        if node.path not in self._totals:
            self._totals[node.path] = self._count(node)
        return self._totals[node.path]

    def _count(self, node: Node) -> float:
        if node.is_endless:
            return math.inf
        if node.is_mixture:
            return math.fsum(self._allot(node, math.inf).values())
        records = num_in(node, "records")
        if records is None:
            return math.inf
        return records * node.epochs.end / self._records_per_sample.get(node.path, 1.0)

    def _allot(self, node: Node, samples: float) -> dict[str, float]:
        """Draw of each child until a mixture has so many samples, or ends."""
        fractions = self._fractions(node)
        rest = {child.path: self._total(child) for child in node.children}
        drawn = dict.fromkeys(rest, 0.0)
        active = {path for path, fraction in fractions.items() if fraction and rest[path]}
        while active and samples > 0:
            total = math.fsum(fractions[path] for path in active)
            until = {path: rest[path] * total / fractions[path] for path in active}
            step = min(samples, *until.values())
            if math.isinf(step):
                return {path: math.inf if path in active else drawn[path] for path in drawn}
            for path in active:
                drawn[path] += step * fractions[path] / total
                rest[path] -= step * fractions[path] / total
            samples -= step
            ended = {path for path in active if until[path] <= step}
            active -= ended
            if ended and node.dataset.stop == "first_exhausted":
                break
        return drawn

    def _spread(self, node: Node, samples: float, taken: dict[str, float]) -> None:
        if not node.is_mixture:
            taken[node.path] = samples
            return
        drawn = self._allot(node, samples)
        for child in node.children:
            self._spread(child, drawn[child.path], taken)


NUM_MOMENTS: Final = 48
_MAX_SOURCES: Final = 32
_BARS: Final = " ▁▂▃▄▅▆▇█"


class SourceShares(NamedTuple):
    """The share of the whole stream that a source has, at moments evenly over the run."""

    name: str
    shares: list[float]


def share_lines(top: Node, samples: float) -> list[SourceShares]:
    """The shares of up to 32 sources that change most, where some mixture follows a schedule; else none."""
    if not top.has_schedule:
        return []
    moments = [node_shares(top, samples * (moment + 0.5) / NUM_MOMENTS) for moment in range(NUM_MOMENTS)]
    lines = [SourceShares(node.path, [shares[node.path].overall for shares in moments]) for node in top.leaves()]
    most = sorted(lines, key=lambda line: min(line.shares) - max(line.shares))[:_MAX_SOURCES]
    return [line for line in lines if line in most]


def bars(shares: Sequence[float], highest: float) -> str:
    """Shares as bars of one line, the highest as high as it is; what is not 0 is seen."""
    steps = len(_BARS) - 1
    heights = (max(share > 0, round(steps * share / highest)) if highest else 0 for share in shares)
    return "".join(_BARS[height] for height in heights)


_MAX_LANES = 64
"""More lanes than these are not looked at one by one."""
_MAX_PLACES = 1 << 12
"""Sources times lanes: for each the draws of its mixtures are counted."""
_MAX_TURNS = 1 << 16
"""Draws that start clocks of all lanes may be ahead, over all mixtures: each is a step of a heap."""
_MAX_BLOCKS = 1 << 22
"""Blocks of all sources whose blocks differ in their records: they are counted one by one."""
_MAX_DRAWS = 10**6
"""Draws of a lane: a run adds its steps up one by one, and from then on may have rounded to another draw."""
_FUNCTIONS = ("single_process_fn", "process_fn", "max_bad")

Floats = npt.NDArray[np.float64]


class Repeat(NamedTuple):
    """The samples of the job with which lanes come to the second epoch of a source."""

    sample: int
    """The first one, from 0: as many were delivered before it."""
    last: int
    """With this one the last lane has come there; records repeat between both, or from here on."""


class Repeats:
    """Finds when sources first repeat.

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
        """The first repeat of a source where it can be told exactly; else None."""
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
    """How many records of the first epoch a lane reads."""
    order, source, part = lane.order, lane.dealt.source, lane.dealt.part
    blocks = order.share(0)
    if part is None and source.records_per_block is not None:
        return blocks * source.records_per_block
    counted = source.count(order.blocks(0, 0, blocks), part)
    assert counted is not None, "a source whose records are counted"
    return counted
