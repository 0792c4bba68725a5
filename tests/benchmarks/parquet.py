"""Rows of parquet, beside pyarrow's own batches of the same columns as Python's objects."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from torch.utils.data import IterableDataset

from streamdata import MergedDataset, ParquetDataset, mixed_collate
from tests.benchmarks.data import PARQUET_KINDS, parquet_rows
from tests.benchmarks.measure import (
    BATCH_SIZE,
    Row,
    Scale,
    apart,
    by_turns,
    compared,
    drain,
    identity,
    loading_time,
    per_second,
)

_GROUPS = (1000, 10_000)
_SMALL = "rows of 600 bytes"
"""Of these the mixture's own microsecond per sample is most."""
_ONE_GROUP = "documents of 2.7 KB"
"""Of these a file of one group is read too, of about 200 MB."""
LIMIT = "iter_batches(1024) and to_pylist"


def merged(path: Path, *, shuffle: bool = True, cyclic: bool = False) -> MergedDataset:
    """The rows as users read them."""
    source: Any = ParquetDataset(str(path))
    source.name, source.percent = "parquet", 1.0
    return MergedDataset([source], cyclic=cyclic, shuffle_streaming_subsets=shuffle)


def rows(directory: Path, scale: Scale) -> Iterator[Row]:
    """The rate of each kind of rows, in small row groups and large ones; and from two workers."""
    for kind in PARQUET_KINDS:
        for group in (*_GROUPS, *[scale.parquet_rows] * (kind == _ONE_GROUP)):
            path = parquet_rows(directory, kind, scale.parquet_rows, group)
            yield _row(path, kind, group, scale)
    yield _two_workers(parquet_rows(directory, _SMALL, scale.parquet_rows, _GROUPS[0]), scale)


def _row(path: Path, kind: str, group: int, scale: Scale) -> Row:
    # A new source each time: a small one stays decoded, and its second epoch would be no reading.
    best = by_turns(
        scale.repetitions,
        shuffled=lambda: drain(iter(merged(path))),
        in_order=lambda: drain(iter(merged(path, shuffle=False))),
        pyarrow=lambda: drain(_rows(path)),
    )
    file = pq.ParquetFile(path)
    micros = {name: 1e6 * seconds / file.metadata.num_rows for name, seconds in best.items()}
    megabytes = file.metadata.row_group(0).total_byte_size / 1e6
    least = 0.65 if group not in _GROUPS else 0.6 if kind == _SMALL else 0.8
    return compared(
        f"parquet, {kind}, groups of {min(group, file.metadata.num_rows):,} rows ({megabytes:.0f} MB), no workers",
        {LIMIT: least},
        [best.beside("shuffled", "pyarrow", LIMIT)],
        f"shuffled (default) {micros['shuffled']:.2f} µs a row, in order {micros['in_order']:.2f} µs; "
        f"pyarrow {micros['pyarrow']:.2f} µs",
    )


def _rows(path: Path) -> Iterator[Any]:
    for batch in pq.ParquetFile(path).iter_batches(1024):
        yield from batch.to_pylist()


def _two_workers(path: Path, scale: Scale) -> Row:
    batches = scale.parquet_rows // BATCH_SIZE
    best = by_turns(
        min(scale.repetitions, 5),
        ours=lambda: apart(_our_loading_time, path, batches),
        bare=lambda: apart(_bare_loading_time, path, batches),
    )
    return compared(
        f"{_SMALL}, groups of {_GROUPS[0]:,} rows, two workers, batches of {BATCH_SIZE}, shuffled, mixed_collate "
        "beside identity collate",
        {LIMIT: 0.6},
        [best.beside("ours", "bare", LIMIT)],
        ", ".join(f"{name} {per_second(batches * BATCH_SIZE, seconds)}" for name, seconds in best.items()),
    )


def _our_loading_time(path: Path, batches: int) -> float:
    return loading_time(merged(path, cyclic=True), mixed_collate, batches)


def _bare_loading_time(path: Path, batches: int) -> float:
    return loading_time(_Endless(path), identity, batches)


class _Endless(IterableDataset[Any]):
    """Each worker reads the file from its start: what two of them deliver, not which rows, is compared."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from _rows(self._path)
