"""Rows of parquet, beside pyarrow's own batches of the same columns as Python's objects."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from streamdata import MergedDataset, ParquetDataset
from tests.benchmarks.data import PARQUET_KINDS, parquet_rows
from tests.benchmarks.measure import Row, Scale, by_turns, drain

_GROUPS = (1000, 10_000)
_SMALL = "rows of 600 bytes"
"""Of these the mixture's own microsecond per sample is most."""


def merged(path: Path, *, shuffle: bool = True) -> MergedDataset:
    """The rows as users read them, one epoch."""
    source: Any = ParquetDataset(str(path))
    source.name, source.percent = "parquet", 1.0
    return MergedDataset([source], cyclic=False, shuffle_streaming_subsets=shuffle)


def rows(directory: Path, scale: Scale) -> Iterator[Row]:
    """The rate of each kind of rows, in small row groups and large ones."""
    for kind in PARQUET_KINDS:
        for group in _GROUPS:
            path = parquet_rows(directory, kind, scale.parquet_rows, group)
            yield _row(path, kind, group, scale)


def _row(path: Path, kind: str, group: int, scale: Scale) -> Row:
    # A new source each time: a small one stays decoded, and its second epoch would be no reading.
    best = by_turns(
        scale.repetitions,
        shuffled=lambda: drain(iter(merged(path))),
        in_order=lambda: drain(iter(merged(path, shuffle=False))),
        pyarrow=lambda: _batches(path),
    )
    count = pq.read_metadata(path).num_rows
    micros = {name: 1e6 * seconds / count for name, seconds in best.items()}
    ratio, reach = micros["pyarrow"] / micros["shuffled"], 0.3 if kind == _SMALL else 0.8
    return Row(
        work=f"parquet, {kind}, groups of {group:,} rows, no workers",
        reach=f"≥ {reach} x iter_batches(1024) and to_pylist",
        got=f"{ratio:.2f} x",
        ok=ratio >= reach,
        from_=f"shuffled (default) {micros['shuffled']:.2f} µs a row, in order {micros['in_order']:.2f} µs; "
        f"pyarrow {micros['pyarrow']:.2f} µs",
    )


def _batches(path: Path) -> None:
    for batch in pq.ParquetFile(path).iter_batches(1024):
        for row in batch.to_pylist():
            del row
