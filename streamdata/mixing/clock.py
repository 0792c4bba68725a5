"""Where the clocks of a mixture start, so that it is even within a lane and across lanes."""

from collections.abc import Sequence
from heapq import heapreplace

import numpy as np

from streamdata.run import Lane, Permutation, stable_seed

GOLDEN_RATIO = 0.6180339887498949


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
    ranks = {name: k for k, name in enumerate(sorted(names))}
    clocks = [ranks[name] * GOLDEN_RATIO % 1 * step for name, step in zip(names, steps, strict=True)]
    heap = sorted((clock, i) for i, clock in enumerate(clocks))
    for _ in range(_turn(lane, seeds)):
        clock, i = heap[0]
        clocks[i] = clock + steps[i]
        heapreplace(heap, (clocks[i], i))
    return clocks


def _turn(lane: Lane, seeds: Sequence[object]) -> int:
    permutation = Permutation(lane.dp_size, stable_seed("turns", seeds, lane.worker))
    return int(permutation(np.array([lane.dp_rank]))[0]) + lane.worker * lane.dp_size
