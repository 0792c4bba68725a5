"""Where the clocks of a mixture stand when a lane begins to read it, in pure functions.

| what the states say of a source, in this lane, pass and round | its clock | rule |
|---|---|---|
| nothing: a fresh start, a new pass or round, not drawn yet | its start | `start_clocks` |
| a clock | that clock | `begin_clocks` |
| it joined or returned, and was not drawn since | the lowest of the others then, or its own if higher | `_join` |
| the same, but the others had not been drawn then | its start | `_join` |
| its mixture's sources or weights changed, and it was not drawn since | at most a step above the lowest | `_reweigh` |
| the same, but the mixture is finite or has a cost | as if nothing had changed | `begin_clocks` |
| it was removed | none: its share goes to those that stay, whose weights have changed with it | `_reweigh` |

The last two rules look at the states before the change, and never at where the run stands by now. So all resumes of one
generation put a clock at the same value until its source is drawn, and from then on its own entry says it.
"""

import math
from collections.abc import Mapping, Sequence
from heapq import heapreplace
from typing import NamedTuple

import numpy as np

from streamdata.run import Lane, Permutation, stable_seed

# Its multiples, modulo 1, are spread evenly however many there are: what is a good start for ten sources is one for a
# thousand, and no table of starts is needed.
GOLDEN_RATIO = 0.6180339887498949


class History(NamedTuple):
    """What is known of one source of a mixture when a lane begins a round of it."""

    joined: int
    """The generation with which it joined, the last time that it did; 0 if it was there from the first."""
    clocks: Mapping[int, float | None]
    """Its last clock in each generation in which it was drawn; None where that was in another round."""

    def was_drawn_since(self, generation: int) -> bool:
        """Whether it has a clock, of any round, of that generation or a later one."""
        return bool(self.clocks) and max(self.clocks) >= generation

    def clock(self) -> float | None:
        """Its clock in this round, if it was drawn in it."""
        return self.clocks[max(self.clocks)] if self.clocks else None

    def clock_before(self, generation: int) -> float | None:
        """The same, at the moment when that generation began."""
        held = [number for number in self.clocks if number < generation]
        return self.clocks[max(held)] if held else None


def start_clocks(names: Sequence[str], steps: Sequence[float], lane: Lane, seeds: Sequence[object]) -> list[float]:
    """Return the clock of each source before the lane's first draw.

    The k-th of the sorted names starts at a golden-ratio fraction of its step, so that sources of equal weight do not
    come in clumps. The lane then starts as many draws into that one sequence as its turn says; the lanes together
    begin at consecutive draws, so that a global batch is a piece of the sequence.

    Args:
        names: Of the sources, in the order of the recipe (which decides ties).
        steps: What a draw adds to each source's clock: 1 / share.
        lane: Whose clocks.
        seeds: Of the mixture: they choose which rank is when in its turn.
    """
    # By name and not by position in the recipe: moving a source there must not change what comes next.
    ranks = {name: k for k, name in enumerate(sorted(names))}
    clocks = [ranks[name] * GOLDEN_RATIO % 1 * step for name, step in zip(names, steps, strict=True)]
    heap = sorted((clock, i) for i, clock in enumerate(clocks))
    for _ in range(_turn(lane, seeds)):
        clock, i = heap[0]
        clocks[i] = clock + steps[i]
        heapreplace(heap, (clocks[i], i))
    return clocks


def begin_clocks(
    starts: Sequence[float], steps: Sequence[float], histories: Sequence[History], reweighed: int
) -> list[float]:
    """Return the clock of each source when a lane begins a round, or goes on in it.

    Args:
        starts: What `start_clocks` says.
        steps: What a draw adds to each clock.
        histories: What the states say; without clocks where they say nothing of this round.
        reweighed: The generation with which the present sources and weights began; 0 where a change of them is not to
            move the clocks of sources that stayed.
    """
    # Once per generation, not per source: a thousand sources may have joined together.
    joined = {history.joined for history in histories}
    lowest_at = {generation: _lowest_before(generation, histories, starts) for generation in joined}
    clocks = [
        _join(history, start, lowest_at[history.joined]) for history, start in zip(histories, starts, strict=True)
    ]
    # Sources that were not drawn before the change do not count: they stand at their starts, which may be far behind.
    lowest = _lowest_before(reweighed, histories, [math.inf] * len(starts)) if reweighed else None
    if lowest is None:
        return clocks
    return [
        _reweigh(clock, lowest, start, step) if _has_moved(history, reweighed) else clock
        for clock, history, start, step in zip(clocks, histories, starts, steps, strict=True)
    ]


def _join(history: History, start: float, lowest: float | None) -> float:
    clock = history.clock()
    # Where nothing was drawn before it joined, as in each round that begins later, it starts together with the others.
    if lowest is None or history.was_drawn_since(history.joined):
        return start if clock is None else clock
    # At zero it would be drawn thousands of times in a row, until it had caught up with the others. Below its own clock
    # of before it left, it would be given again what it had had.
    return max(clock or 0.0, lowest)


def _has_moved(history: History, reweighed: int) -> bool:
    """Whether a change of weights moves the source's clock: it was there before, and was not drawn since."""
    was_there = history.joined < reweighed or history.clock() is not None  # a source that returns has one of before
    return was_there and not history.was_drawn_since(reweighed)


def _reweigh(clock: float, lowest: float, start: float, step: float) -> float:
    """A clock after a change of weights: as if the source had always had its present one."""
    # One that was not drawn yet can be far behind, and would be drawn many times in a row: it starts from the lowest.
    if clock < lowest:
        clock = lowest + start
    # One that was rare has a clock that its old, long step put far ahead: for that time it would not be drawn at all.
    return min(clock, lowest + step)


def _lowest_before(generation: int, histories: Sequence[History], starts: Sequence[float]) -> float | None:
    """The lowest clock at the moment when the generation began, of the sources of then; None before any draw."""
    there = [(history, start) for history, start in zip(histories, starts, strict=True) if history.joined < generation]
    clocks = [(history.clock_before(generation), start) for history, start in there]
    if all(clock is None for clock, _ in clocks):
        return None
    return min(start if clock is None else clock for clock, start in clocks)


def _turn(lane: Lane, seeds: Sequence[object]) -> int:
    """How many draws into the sequence the lane starts; each lane another number."""
    # The ranks are permuted anew for each worker: else the same ranks would be neighbours in every global batch.
    permutation = Permutation(lane.dp_size, stable_seed("turns", seeds, lane.worker))
    return int(permutation(np.array([lane.dp_rank]))[0]) + lane.worker * lane.dp_size
