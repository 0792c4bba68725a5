"""Rows of alike cost at the same step: what of a step is lost to its slowest rank, how full rows are, what it takes.

The loss is the mean over steps of the largest cost of a rank's row, divided by the mean of all ranks. Beside it is what
ranks reach that exchange documents: those of a step, the dearest first, each to the rank that has least, however many
tokens that are.
"""

from collections.abc import Iterator
from heapq import heapify, heapreplace
from itertools import islice
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from streamdata import Cost, PackTokens
from tests.benchmarks.measure import Row, Scale, by_turns, drain

MODEL = Cost.of_model(num_params=6.7e9, hidden=4096, layers=32)
WANTED = {8192: 1.025, 32768: 1.045, 131072: 1.10}
"""Largest loss, by tokens of a row."""
FILL, RATE = 0.99, 0.9
ROWS = {8192: 128, 32768: 128, 131072: 96}
"""Rows of a burst, by tokens of a row."""


class Part(NamedTuple):
    """Documents whose lengths are lognormal."""

    mean: float
    """Of the logarithm, in rows of 8,192 tokens."""
    sigma: float
    growth: float
    """By how much the mean grows where a row is e times as long."""


SHAPES = {
    "chats": [Part(6.3, 1.1, 0.5)],
    "code": [Part(6.5, 1.6, 0.5)],
    "mixture": [Part(5.5, 0.6, 0.0), Part(7.8, 0.9, 0.5)],
}
"""In equal parts."""


def lengths(shape: str, count: int, row_length: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Tokens of documents, at least 16 and at most a row."""
    parts, longer = SHAPES[shape], np.log(row_length / 8192)
    drawn = [rng.lognormal(part.mean + part.growth * longer, part.sigma, count // len(parts)) for part in parts]
    return rng.permutation(np.concatenate(drawn)).astype(np.int64).clip(16, row_length)


def rows(directory: Path, scale: Scale) -> Iterator[Row]:
    """One process; documents of ids with labels beside them, already in memory."""
    for row_length, most in WANTED.items():
        losses: dict[str, list[float]] = {"today": [], "aligned": [], "in all": [], "bound": []}
        fills = []
        for shape in SHAPES:
            rng = np.random.default_rng(0)
            ranks = [Rank(shape, row_length, scale.balanced_steps, rng) for _ in range(scale.balanced_ranks)]
            losses["today"].append(loss(np.array([rank.today for rank in ranks])))
            aligned = np.array([rank.aligned for rank in ranks])
            losses["aligned"].append(loss(aligned))
            losses["in all"].append(float(aligned.max(0).sum() / aligned.mean(0).sum()))
            losses["bound"].append(loss(longest_first([rank.documents for rank in ranks])))
            fills.append(float(np.mean([rank.fill for rank in ranks])))
        told = {name: ", ".join(f"{value:.3f}" for value in values) for name, values in losses.items()}
        yield Row(
            work=f"rows of {row_length:,} tokens, bursts of {ROWS[row_length]}, a 7B model on {scale.balanced_ranks} "
            f"ranks, {scale.balanced_steps} steps: {', '.join(SHAPES)}",
            reach=f"largest ÷ mean cost of a step ≤ {most}, fill ≥ {FILL}",
            got=f"{told['aligned']}, fill {', '.join(f'{fill:.4f}' for fill in fills)}",
            ok=max(losses["aligned"]) <= most and min(fills) >= FILL,
            from_=f"of all steps together {told['in all']}; without {told['today']}; longest first over each step "
            f"{told['bound']}",
        )
    yield _rate(scale)


class Rank:
    """What one rank gives in some steps, of one row each.

    Args:
        shape: Of its documents.
        row_length: Tokens of a row.
        steps: How many.
        rng: Draws the documents.
    """

    def __init__(self, shape: str, row_length: int, steps: int, rng: np.random.Generator) -> None:
        num_rows, ids = ROWS[row_length], np.arange(row_length)
        per_row = row_length / lengths(shape, 10_000, row_length, np.random.default_rng(1)).mean()
        count = int(1.2 * per_row * (-(-steps // num_rows) + 1) * num_rows) // 2 * 2
        samples: list[Any] = [{"input_ids": ids[:n]} for n in lengths(shape, count, row_length, rng).tolist()]

        def sizes(pieces: Any, *_: Any) -> dict[str, npt.NDArray[np.int64]]:
            return {"sizes": np.array([piece.end - piece.begin for piece in pieces])}

        # What is joined is no matter here, and would be gigabytes.
        with patch.object(PackTokens, "_output", lambda _, *given: sizes(*given)):
            packers = PackTokens(row_length), PackTokens(row_length, balance=MODEL, rows=num_rows)
            today, balanced = ([row["sizes"] for row in islice(one(iter(samples)), steps)] for one in packers)
        self.today, self.aligned = ([sum(costs_of(row)) for row in given] for given in (today, balanced))
        self.documents = [costs_of(row) for row in today]
        self.fill = sum(row.sum() for row in balanced) / (row_length * steps)


def costs_of(sizes: npt.NDArray[np.int64]) -> list[float]:
    """The costs of documents."""
    costs: list[float] = (MODEL.linear * sizes + MODEL.quadratic * sizes.astype(float) ** 2).tolist()
    return costs


def loss(costs: npt.NDArray[np.float64]) -> float:
    """The mean over steps of largest ÷ mean, of costs (ranks, steps)."""
    return float((costs.max(0) / costs.mean(0)).mean())


def longest_first(ranks: list[list[list[float]]]) -> npt.NDArray[np.float64]:
    """Costs (ranks, steps) where ranks exchange the documents of a step, given rank by rank and step by step."""
    found = []
    for step in zip(*ranks, strict=True):
        heap = [0.0] * len(ranks)
        heapify(heap)
        for cost in sorted((cost for row in step for cost in row), reverse=True):
            heapreplace(heap, heap[0] + cost)
        found.append(heap)
    return np.array(found).T


def _rate(scale: Scale) -> Row:
    row_length = 8192
    ids, packers = np.arange(row_length), {"plain": PackTokens(row_length)}
    packers["balanced"] = PackTokens(row_length, balance=MODEL, rows=ROWS[row_length])
    ratios, told = [], []
    for shape in SHAPES:
        drawn = lengths(shape, scale.packed_documents, row_length, np.random.default_rng(0)).tolist()
        samples: list[Any] = [{"input_ids": ids[:n], "labels": ids[:n]} for n in drawn]

        def time_of(pack: PackTokens, samples: list[Any] = samples) -> float:
            begin = process_time()  # others may take the core meanwhile
            drain(pack(iter(samples)))
            return process_time() - begin

        best = by_turns(
            scale.repetitions,
            plain=lambda: time_of(packers["plain"]),
            balanced=lambda: time_of(packers["balanced"]),
        )
        ratios.append(best["plain"] / best["balanced"])
        told.append(" and ".join(f"{best[name] / len(samples) * 1e6:.1f}" for name in packers))
    return Row(
        work=f"packing {scale.packed_documents:,} documents into rows of {row_length:,}: {', '.join(SHAPES)}",
        reach=f"≥ {RATE} x the rate without balance",
        got=", ".join(f"{ratio:.2f} x" for ratio in ratios),
        ok=min(ratios) >= RATE,
        from_=f"µs per sample without and with: {'; '.join(told)}; time of the process",
    )
