"""JSONL rows, beside a bare loop over lines in memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from streamdata import JsonlIterableDataset, MergedDataset
from tests.benchmarks.data import jsonl_rows
from tests.benchmarks.measure import Row, Scale, anew, by_turns, drain


def merged(place: Path, *, shuffle: bool = True) -> MergedDataset:
    """The rows as users read them, one epoch."""
    source: Any = JsonlIterableDataset(str(place))
    source.name, source.percent = "jsonl", 1.0
    return MergedDataset([source], cyclic=False, shuffle_streaming_subsets=shuffle)


def rows(directory: Path, scale: Scale) -> Iterator[Row]:
    """What a row costs beside parsing it."""
    place = jsonl_rows(directory, scale.jsonl_rows)
    lines = [line for path in sorted(place.glob("*.jsonl")) for line in path.read_bytes().splitlines()]
    shuffled, in_order = merged(place), merged(place, shuffle=False)
    best = by_turns(
        2 * scale.repetitions,
        shuffled=lambda: drain(anew(shuffled)),
        in_order=lambda: drain(anew(in_order)),
        bare=lambda: _parse(lines),
    )
    micros = {name: 1e6 * seconds / len(lines) for name, seconds in best.items()}
    ours, bare = micros["shuffled"], micros["bare"]
    added, size = ours - bare, sum(map(len, lines)) // len(lines)
    yield Row(
        work=f"JSONL, rows of {size:,} bytes and 7 fields, no workers",
        reach="≤ 1.8 µs per row above bare orjson.loads",
        got=f"{added:.2f} µs ({ours / bare:.2f} x bare)",
        ok=added <= 1.8,
        from_=f"shuffled (default) {ours:.2f} µs, in order {micros['in_order']:.2f} µs; bare {bare:.2f} µs",
    )


def _parse(lines: list[bytes]) -> None:
    loads = orjson.loads
    for line in lines:
        row = loads(line)
    del row
