"""How even a global batch is, by where the clocks of its lanes start: `python -m tests.benchmarks.clock_table`.

For each rule, the standard deviation over batches of the worst source's share, in batches of 64 ranks with 2 samples
each; and how far a source strays from its share within one lane, in samples, at worst. The rule that streamdata has is
`start_clocks` itself; the others are what else one would think of.
"""

import sys
from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace

import numpy as np
import numpy.typing as npt

from streamdata.mixing.clock import start_clocks
from streamdata.run import Lane

WEIGHTINGS = {".7 .2 .1": [0.7, 0.2, 0.1], ".5 .3 .2": [0.5, 0.3, 0.2], ".5 and 25 x .02": [0.5, *[0.02] * 25]}
RANKS, SAMPLES = 64, 2

Draws = npt.NDArray[np.int64]


def drawn(clocks: Sequence[float], steps: Sequence[float], count: int) -> Draws:
    """The number of the source of each of `count` draws, by the lowest clock."""
    heap = [(clock, source) for source, clock in enumerate(clocks)]
    heapify(heap)
    sources = np.empty(count, np.int64)
    for number in range(count):
        clock, source = heap[0]
        sources[number] = source
        heapreplace(heap, (clock + steps[source], source))
    return sources


def from_zero(steps: Sequence[float], rank: int, count: int) -> Draws:
    """All clocks of all lanes start at zero."""
    return drawn([0.0] * len(steps), steps, count)


def from_phases(steps: Sequence[float], rank: int, count: int) -> Draws:
    """Each clock of each lane starts at a random part of its step."""
    phases = np.random.default_rng(rank).random(len(steps))
    return drawn((phases * steps).tolist(), steps, count)


def at_random(steps: Sequence[float], rank: int, count: int) -> Draws:
    """No clocks: independent draws."""
    return np.random.default_rng(rank).choice(len(steps), count, p=1 / np.array(steps))


def by_turns(steps: Sequence[float], rank: int, count: int) -> Draws:
    """The lanes begin one draw after another in one sequence, started by the golden ratio."""
    names = [f"s{number:02}" for number in range(len(steps))]
    lane = Lane(dp_size=RANKS, dp_rank=rank, num_workers=1, worker=0)
    return drawn(start_clocks(names, steps, lane, (0,)), steps, count)


RULES: dict[str, Callable[[Sequence[float], int, int], Draws]] = {
    "all lanes from zero": from_zero,
    "a phase per lane and source": from_phases,
    "independent random draws": at_random,
    "this rule": by_turns,
}


def deviation_of_batches(rule: str, weights: Sequence[float], batches: int) -> float:
    """The standard deviation of the worst source's share in a global batch."""
    steps = (sum(weights) / np.array(weights)).tolist()
    lanes = [RULES[rule](steps, rank, SAMPLES * batches).reshape(batches, SAMPLES) for rank in range(RANKS)]
    sources = np.stack(lanes, axis=1).reshape(batches, -1)
    shares = (sources[:, :, None] == np.arange(len(weights))).mean(axis=1)
    return float(np.sqrt(((shares - np.array(weights) / sum(weights)) ** 2).mean(axis=0)).max())


def deviation_in_a_lane(rule: str, weights: Sequence[float], draws: int) -> float:
    """How far a source of the first lane strays from its share, in samples."""
    share = np.array(weights) / sum(weights)
    sources = RULES[rule]((1 / share).tolist(), 0, draws)
    counts = np.cumsum(sources[:, None] == np.arange(len(weights)), axis=0)
    return float(np.abs(counts - np.arange(1, draws + 1)[:, None] * share).max())


def main(batches: int = 400) -> None:
    """Print the table."""
    print("|", " | ".join(["", *WEIGHTINGS]), "|")
    for rule in RULES:
        cells = [
            f"{deviation_of_batches(rule, weights, batches):.3f}, {deviation_in_a_lane(rule, weights, 5000):.1f}"
            for weights in WEIGHTINGS.values()
        ]
        print("|", " | ".join([rule, *cells]), "|")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
