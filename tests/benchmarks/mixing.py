"""Mixing itself: sources that cost next to nothing, beside a bare loop over them."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from streamdata import MergedDataset
from tests.benchmarks.measure import Row, Scale, anew, by_turns, drain


class Ints:
    """A map-style dataset of ints in memory."""

    def __init__(self, name: str, size: int, percent: float = 1.0) -> None:
        self.name, self.percent, self.values = name, percent, range(size)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> int:
        return self.values[index]


def ints(count: int) -> list[Ints]:
    """So many sources, with different weights."""
    return [Ints(f"source-{number:04d}", 1_000_000, 1 + number % 7) for number in range(count)]


def rows(directory: Path, scale: Scale) -> Iterator[Row]:
    """Ten sources and a thousand, once the stream is under way; and from its start."""
    few, many = scale.sources
    micros = _micros(few, many, scale)
    yield Row(
        work=f"mixing {few} in-memory sources of ints, with all sample fields",
        reach="≤ 2 µs per sample",
        got=f"{micros['few']:.2f} µs ({micros['few'] / micros['few_bare']:.0f} x bare)",
        ok=micros["few"] <= 2,
        from_=_from(micros, "few", scale),
    )
    ratio = micros["many"] / micros["few"]
    yield Row(
        work=f"the same with {many:,} sources",
        reach=f"≤ 1.5 x that with {few}",
        got=f"{ratio:.2f} x",
        ok=ratio <= 1.5,
        from_=_from(micros, "many", scale),
    )


def _from(micros: dict[str, float], name: str, scale: Scale) -> str:
    start, bare = micros[f"{name}_start"], micros[f"{name}_bare"]
    return f"{micros[name]:.2f} µs, the first {scale.draws:,} with start {start:.2f} µs; bare loop {bare:.2f} µs"


def _micros(few: int, many: int, scale: Scale) -> dict[str, float]:
    """Per sample, in µs."""
    draws = scale.draws
    fresh = {"few": MergedDataset(ints(few)), "many": MergedDataset(ints(many))}
    running = {name: iter(dataset) for name, dataset in fresh.items()}
    for name, count in (("few", few), ("many", many)):
        drain(islice(running[name], scale.warm_up * count))
    part = draws // 4  # short turns, many of them: some fall into quiet moments
    best = by_turns(
        4 * scale.repetitions,
        few=lambda: drain(islice(running["few"], part)),
        many=lambda: drain(islice(running["many"], part)),
        few_bare=lambda: _bare(fresh["few"].datasets, part),
        many_bare=lambda: _bare(fresh["many"].datasets, part),
    )
    micros = {name: 1e6 * seconds / part for name, seconds in best.items()}
    start = by_turns(
        min(scale.repetitions, 3),
        few_start=lambda: drain(islice(anew(fresh["few"]), draws)),
        many_start=lambda: drain(islice(anew(fresh["many"]), draws)),
    )
    return micros | {name: 1e6 * seconds / draws for name, seconds in start.items()}


def _bare(datasets: Sequence[Ints], draws: int) -> None:
    for index in range(draws // len(datasets)):
        for dataset in datasets:
            dataset[index]
