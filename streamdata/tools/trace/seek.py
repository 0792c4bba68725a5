"""Where a lane stands after so many more samples, without reading any: `Run, samples → LaneEntries`.

The clocks of a mixture's sources do not depend on one another: each is drawn whenever its own is due. So it is counted
how often each is due before a time, to the bit as drawing one after another would (`ClockPace.advance`), that time is
chosen just below the draw that is looked for, and the few draws that are left are made one by one. How far a source has
come then is a matter of counting its blocks (`position_after`), and of a mixture within the mixture the same again.
"""

import math
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from typing import Any, Final

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


def must_be_read(run: Run, node: Node, after: LaneEntries | None) -> bool:
    """Whether a lane's stream has to be read: not where each record gives one sample, and shares follow from time.

    Args:
        run: The lane.
        node: The top, or what is below it.
        after: Its entries at the end of the time in question; None where no states tell of it.
    """
    if node.is_mixture:
        joins_or_weighs = node.dataset.customized_yield_fn is not None or node.dataset.cost is not None
        is_scheduled_within = node.shares is not None and node.path
        below = (must_be_read(run, child, after) for child in node.children)
        return bool(joins_or_weighs or is_scheduled_within) or any(below)
    assert node.source is not None, "no mixture"
    if getattr(node.dataset, "process_fn", None) is not None:
        return True
    if node.source.count(np.zeros(1, np.int64), node.part) is None:
        return True
    may_differ = any(getattr(node.dataset, name, None) for name in ("single_process_fn", "max_bad"))
    return (may_differ or run.skips.of(node.path) is not None) and not _gave_one(run, node, after)


def _gave_one(run: Run, node: Node, after: LaneEntries | None) -> bool:
    """Whether each record that a lane has read of a source by then gave one sample, by what was counted."""
    if after is None or not node.is_endless:
        return False  # what was lost after its last sample, no entry says
    began, ended = run.entries.node_state(node.path), after.node_state(node.path)
    if ended is None:
        return True  # nothing was drawn of it
    if ended.cursor.output or (began is not None and began.cursor.output):
        return False
    counts = _counts(run, node, began)
    grown = {name: getattr(ended.cursor, name) - count for name, count in counts.items()}
    if any(grown[name] for name in ("dropped", "bad", "skipped")):
        return False
    drawn = ended.draws - (began.draws if began else 0)
    return getattr(node.dataset, "single_process_fn", None) is None or grown["records"] == drawn


def _counts(run: Run, node: Node, state: NodeState | None) -> dict[str, int]:
    """The counts of a source in a lane; if it has read nothing yet, its part of what earlier sizes had counted."""
    if state is None:
        return dict(zip(COUNTS, run.deals.counts(node.path, run.lane.index), strict=True))
    return {name: getattr(state.cursor, name) for name in COUNTS}


def seek(run: Run, top: Node, samples: int) -> LaneEntries:
    """The entries of a lane after so many more samples, which must be there and need no reading (`must_be_read`)."""
    after = LaneEntries()
    after.cursors = {path: dict(held) for path, held in run.entries.cursors.items()}
    _draw_from(run, top, samples, after)
    drawn = sum(after.draws_below("").values())
    after.cursors.setdefault("", {})[run.generation] = {"draws": drawn, "clock": 0.0, **_NO_POSITION}
    return after


def _draw_from(run: Run, node: Node, samples: int, after: LaneEntries) -> None:
    """Write what the entries below a mixture become once so many samples were drawn of it."""
    clocks = Clocks(run, node, ())
    there = [run.deals.has_share(child, run.lane.index) for child in node.children]
    left = [count_samples(run, child) if has else 0.0 for child, has in zip(node.children, there, strict=True)]
    draws, ends = _draw(clocks.begin(), clocks.pace(0.0), left, np.flatnonzero(there).tolist(), samples)
    for child, drawn, clock in zip(node.children, draws, ends, strict=True):
        if not drawn:
            continue
        before = run.entries.node_state(child.path)
        entry: dict[str, Any] = {"draws": (before.draws if before else 0) + drawn, "clock": clock}
        if child.is_mixture:
            _draw_from(run, child, drawn, after)
            entry |= _NO_POSITION
        else:
            lane = run.deals.lane(child, run.lane.index)
            position = position_after(lane, lane.start if before is None else before.cursor.position, drawn)
            entry |= dict(zip(_NO_POSITION, position, strict=False)) | _counts(run, child, before)
            if getattr(child.dataset, "single_process_fn", None) is not None:
                entry["records"] += drawn
        if before is not None and before.tokens:
            entry["tokens"] = before.tokens
        after.cursors.setdefault(child.path, {})[run.generation] = entry


_NO_POSITION: Final = {"epoch": 0, "window": 0, "taken": 0}
"""The position of a mixture: where it stands, its sources say."""


def _draw(
    clocks: Sequence[float], pace: ClockPace, left: Sequence[float], there: Sequence[int], samples: int
) -> tuple[list[int], list[float]]:
    """Draw so many samples from sources, the one with the lowest clock first and of equal ones the first.

    Args:
        clocks: Where they stand.
        pace: What moves them.
        left: How many samples each has.
        there: The sources that are drawn from, by number.
        samples: How many; so many must be there.

    Returns:
        The draws of each source, and where the clocks stand then.
    """
    draws, clocks = [0] * len(clocks), list(clocks)
    while there and (rest := samples - sum(draws)) > 4 * len(there) + _FEW:
        live = [i for i in there if draws[i] < left[i]]
        lowest = min(clocks[i] for i in live)
        # Shares add up to 1 at most, so that before this time no more than the rest is due, whatever the clocks are.
        # A step is 1 at least, and may lose half a unit of its clock in the rounding.
        steps = getattr(pace, "steps", None)
        share = 1.0 if steps is None else min(1.0, sum(1 / steps[i] for i in live) * (1 + 1e-9))
        span = (rest - len(live)) / share
        limit = lowest + span * max(0.0, 1 - math.ulp(lowest + span))
        for i in live:
            some = pace.advance(i, clocks[i], limit, left[i] - draws[i])
            draws[i] += some.draws
            clocks[i] = some.clock
        if samples - sum(draws) > rest - 2:  # clocks far ahead: nearly nothing is due so soon
            break
    # The last ones singly.
    heap = [(clocks[i], i) for i in there]
    heapify(heap)
    rest = samples - sum(draws)
    assert rest >= 0, "more was counted than is due"
    while rest:
        clock, i = heap[0]
        if draws[i] >= left[i]:
            heappop(heap)  # at its end; a mixture that ends with its first source is not asked for more
            continue
        draws[i] += 1
        rest -= 1
        clocks[i] = pace.due(i, clock, 1.0)
        heapreplace(heap, (clocks[i], i))
    return draws, clocks
