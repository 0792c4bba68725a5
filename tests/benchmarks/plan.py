"""Packing plans for a corpus, beside best fit decreasing as it is mostly written: one document at a time."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from streamdata.text.plan import plan_bfd
from tests.benchmarks.measure import Row, Scale, by_turns, per_second

ROW_LENGTH, MEAN_LENGTH, SIGMA = 8192, 1000, 1.0
AT_MOST_S, FILL = 3.0, 0.995


def rows(directory: Path, scale: Scale) -> Iterator[Row]:
    """One process, lengths of a lognormal distribution, which a row's length bounds."""
    normal = np.log(MEAN_LENGTH) - SIGMA**2 / 2
    drawn = np.random.default_rng(0).lognormal(normal, SIGMA, scale.planned_documents)
    lengths = drawn.astype(np.int64).clip(1, ROW_LENGTH)
    best = by_turns(
        min(scale.repetitions, 3),
        ours=lambda: plan_bfd(lengths, ROW_LENGTH),
        peer=lambda: _one_by_one(lengths),
    )
    plan = plan_bfd(lengths, ROW_LENGTH)
    assert plan.num_rows == _one_by_one(lengths)
    yield Row(
        work=f"planning BFD for {len(lengths):,} documents, mean length {MEAN_LENGTH:,}, rows of {ROW_LENGTH:,}",
        reach=f"≤ {AT_MOST_S:.0f} s, fill ≥ {FILL}",
        got=f"{best['ours']:.2f} s, fill {plan.fill:.5f}",
        ok=best["ours"] <= AT_MOST_S and plan.fill >= FILL,
        from_=f"plan_bfd {per_second(len(lengths), best['ours'])}; a sorted list of rooms, document by document and "
        f"without saying which is where, {per_second(len(lengths), best['peer'])}",
    )


def _one_by_one(lengths: np.ndarray) -> int:
    """How many rows; rooms in use are a sorted list."""
    rooms: list[int] = []
    for length in np.sort(lengths)[::-1].tolist():
        place = bisect_left(rooms, length)
        room = rooms.pop(place) if place < len(rooms) else ROW_LENGTH
        insort(rooms, room - length)
    return len(rooms)
