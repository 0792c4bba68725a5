"""Where a lane stands after so many more samples, without reading any: `Run, samples → LaneEntries`.

The clocks of a mixture's sources do not depend on one another: each is drawn whenever its own is due. So it is counted
how often each is due before a time, to the bit as drawing one after another would (`ClockPace.advance`), that time is
chosen just below the draw that is looked for, and the few draws that are left are made one by one. How far a source has
come then is a matter of counting its blocks (`position_after`), and of a mixture within the mixture the same again.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Any, NamedTuple

import numpy as np

from streamdata.mixing.clock import Clocks
from streamdata.mixing.leaf import Run
from streamdata.mixing.lengths import count_samples
from streamdata.mixing.schedule import ClockPace
from streamdata.mixing.tree import Node
from streamdata.sources.order.dealt_lane import position_after
from streamdata.states.cursor import LaneEntries, NodeState
from streamdata.states.table import COUNTS

_FEW = 64
"""Draws that are made one by one rather than counted."""


class Due(NamedTuple):
    """Draws of a mixture, by source."""

    draws: list[int]
    """Draws of each source."""
    clocks: list[float]


def must_be_read(run: Run, node: Node, gives_one: Callable[[Node], bool]) -> bool:
    """Whether a lane's stream has to be read: not where each record gives one sample, and shares follow from time.

    Args:
        run: The lane.
        node: The top, or what is below it.
        gives_one: Whether each record of a source gives one sample although a function sees it, or some may be left
            out: what states say of the time in question.
    """
    if node.is_mixture:
        joins_or_weighs = node.dataset.customized_yield_fn is not None or node.dataset.cost is not None
        is_scheduled_within = node.shares is not None and node.path
        below = (must_be_read(run, child, gives_one) for child in node.children)
        return bool(joins_or_weighs or is_scheduled_within) or any(below)
    assert node.source is not None, "no mixture"
    if getattr(node.dataset, "process_fn", None) is not None:
        return True
    if node.source.count(np.zeros(1, np.int64), node.part) is None:
        return True
    may_differ = any(getattr(node.dataset, name, None) for name in ("single_process_fn", "max_bad"))
    return (may_differ or run.skips.of(node.path) is not None) and not gives_one(node)


def seek(run: Run, top: Node, samples: int) -> LaneEntries:
    """The entries of a lane after so many more samples, which must be there and need no reading (`must_be_read`)."""
    walk = _Walk(run)
    walk.mixture(top, samples)
    return walk.after


class _Walk:
    """Goes down the tree, and writes what the entries become."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.after = LaneEntries()
        self.after.cursors = {path: dict(held) for path, held in run.entries.cursors.items()}

    def mixture(self, node: Node, samples: int) -> None:
        """Draw so many samples from the sources of a mixture."""
        run = self._run
        clocks = Clocks(run, node, ())
        there = [run.deals.has_share(child, run.lane.index) for child in node.children]
        pairs = zip(node.children, there, strict=True)
        left = [count_samples(run, child) if is_there else 0.0 for child, is_there in pairs]
        due = _draw(clocks.begin(), clocks.pace(0.0), left, np.flatnonzero(there).tolist(), samples)
        for child, draws, clock in zip(node.children, due.draws, due.clocks, strict=True):
            if draws:
                self._child(child, draws, clock)
        if not node.path:
            drawn = sum(self.after.draws_below("").values())
            entry = {"draws": drawn, "clock": 0.0, "epoch": 0, "window": 0, "taken": 0}
            self.after.cursors.setdefault("", {})[run.generation] = entry

    def _child(self, node: Node, samples: int, clock: float) -> None:
        before = self._run.entries.node_state(node.path)
        entry: dict[str, Any] = {"draws": (before.draws if before else 0) + samples, "clock": clock}
        if node.is_mixture:
            self.mixture(node, samples)
            entry |= {"epoch": 0, "window": 0, "taken": 0}
        else:
            entry |= self._source(node, before, samples)
        if before is not None and before.tokens:
            entry["tokens"] = before.tokens
        self.after.cursors.setdefault(node.path, {})[self._run.generation] = entry

    def _source(self, node: Node, before: NodeState | None, samples: int) -> Mapping[str, Any]:
        lane = self._run.deals.lane(node, self._run.lane.index)
        start = lane.start if before is None else before.cursor.position
        position = position_after(lane, start, samples)
        counted = self._run.deals.counts(node.path, self._run.lane.index)
        counts = counted if before is None else [getattr(before.cursor, name) for name in COUNTS]
        cursor = dict(zip(("epoch", "window", "taken"), position, strict=False)) | dict(
            zip(COUNTS, counts, strict=True)
        )
        if getattr(node.dataset, "single_process_fn", None) is not None:
            cursor["records"] += samples
        return cursor


def _draw(clocks: Sequence[float], pace: ClockPace, left: Sequence[float], there: Sequence[int], samples: int) -> Due:
    """Draw so many samples from sources, the one with the lowest clock first and of equal ones the first.

    Args:
        clocks: Where they stand.
        pace: What moves them.
        left: How many samples each has.
        there: The sources that are drawn from, by number.
        samples: How many; so many must be there.
    """
    due = Due([0] * len(clocks), list(clocks))
    while there and (rest := samples - sum(due.draws)) > 4 * len(there) + _FEW:
        live = [i for i in there if due.draws[i] < left[i]]
        lowest = min(due.clocks[i] for i in live)
        # Shares add up to 1 at most, so that before this time no more than the rest is due, whatever the clocks are.
        # A step is 1 at least, and may lose half a unit of its clock in the rounding.
        steps = getattr(pace, "steps", None)
        share = 1.0 if steps is None else min(1.0, sum(1 / steps[i] for i in live) * (1 + 1e-9))
        span = (rest - len(live)) / share
        limit = lowest + span * max(0.0, 1 - math.ulp(lowest + span))
        for i in live:
            some = pace.advance(i, due.clocks[i], limit, left[i] - due.draws[i])
            due.draws[i] += some.draws
            due.clocks[i] = some.clock
        if samples - sum(due.draws) > rest - 2:  # clocks far ahead: nearly nothing is due so soon
            break
    # The last ones singly.
    heap = [(due.clocks[i], i) for i in there]
    heapify(heap)
    rest = samples - sum(due.draws)
    assert rest >= 0, "more was counted than is due"
    while rest:
        clock, i = heap[0]
        if due.draws[i] >= left[i]:
            heappop(heap)  # at its end; a mixture that ends with its first source is not asked for more
            continue
        due.draws[i] += 1
        rest -= 1
        due.clocks[i] = pace.due(i, clock, 1.0)
        heapreplace(heap, (due.clocks[i], i))
    return due
