"""Packing a stream of tokenized samples, a lookahead at a time: how full rows are, and what planning costs."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Any
from unittest.mock import patch

import numpy as np

from streamdata import PackTokens
from streamdata.text import plan
from tests.benchmarks.measure import Row, Scale, by_turns, drain

ROW_LENGTH, LOOKAHEAD, MEDIAN_LENGTH, SIGMA = 8192, 1000, 400, 1.2
FILL, PLANNING_US, ALL_US = 0.99, 3.0, 4.5


def rows(directory: Path, scale: Scale) -> Iterator[Row]:
    """One process, no workers; documents of int64 ids with labels beside them, already in memory."""
    samples = documents(scale)
    lengths = np.array([len(sample["input_ids"]) for sample in samples])
    pack = PackTokens(ROW_LENGTH, LOOKAHEAD)
    packed = list(pack(iter(samples)))[:-1]  # the end of the stream is no matter here
    num_tokens = [len(row["input_ids"]) for row in packed]
    stretches = [lengths[begin:end] for begin, end in pairwise(range(0, len(lengths) + 1, LOOKAHEAD))]
    best = by_turns(
        min(scale.repetitions, 3),
        planning=lambda: _time_of(lambda: drain(plan.plan_bfd_head(stretch, ROW_LENGTH) for stretch in stretches)),
        all=lambda: _time_of(lambda: drain(pack(iter(samples)))),
        no_copying=lambda: _time_of(lambda: _without_copying(pack, samples)),
        copying=lambda: _time_of(lambda: _copied(samples, packed)),
    )
    each = {name: seconds / len(samples) * 1e6 for name, seconds in best.items()}
    fill = sum(num_tokens) / (len(num_tokens) * ROW_LENGTH)
    yield Row(
        work=f"packing {len(samples):,} documents, median length {MEDIAN_LENGTH}, sigma {SIGMA}, into rows of "
        f"{ROW_LENGTH:,}, {LOOKAHEAD:,} at a time",
        reach=f"planning ≤ {PLANNING_US:.0f} µs per sample, fill ≥ {FILL}",
        got=f"{each['planning']:.2f} µs, fill {fill:.4f}",
        ok=each["planning"] <= PLANNING_US and fill >= FILL,
        from_=f"PackTokens in all {each['all']:.1f} µs per sample, {each['no_copying']:.1f} of them before it joins "
        f"rows; ids and labels joined by a bare loop: {each['copying']:.1f}; time of the process",
    )
    yield Row(
        work="the same, PackTokens as a whole",
        reach=f"≤ {ALL_US} µs per sample",
        got=f"{each['all']:.1f} µs",
        ok=each["all"] <= ALL_US,
        from_="time of the process",
        beside=(best.beside("all", "copying", "ids and labels joined by a bare loop"),),
    )


def documents(scale: Scale) -> list[dict[str, Any]]:
    """Samples of int64 ids and labels, of lengths as those of web pages."""
    drawn = np.random.default_rng(0).lognormal(np.log(MEDIAN_LENGTH), SIGMA, scale.packed_documents)
    ids = np.arange(ROW_LENGTH)
    return [{"input_ids": ids[:size], "labels": ids[:size]} for size in drawn.astype(np.int64).clip(1, ROW_LENGTH)]


def _time_of(work: Callable[[], object]) -> float:
    """What the process takes, in s: others may take the core meanwhile."""
    begin = process_time()
    work()
    return process_time() - begin


def _without_copying(pack: PackTokens, samples: list[dict[str, Any]]) -> None:
    with patch.object(PackTokens, "_output", lambda *_: {}):
        drain(pack(iter(samples)))


def _copied(samples: list[dict[str, Any]], packed: list[dict[str, Any]]) -> None:
    """Rows of as many documents, in their sequence: what no packing can do without."""
    begin = 0
    for row in packed:
        end = begin + len(row["cu_seqlens"]) - 1
        for name in ("input_ids", "labels"):
            np.concatenate([sample[name] for sample in samples[begin:end]])
        begin = end
