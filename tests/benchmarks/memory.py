"""Memory: the process over an epoch, the heap and the disk per record."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from streamdata import JsonlIterableDataset, MergedDataset, MetaDistributedWebDataset
from tests.benchmarks import jsonl, tar
from tests.benchmarks.data import index_bytes, jsonl_rows, many_lines, many_members, tar_shards
from tests.benchmarks.measure import Row, Scale, drain, resident_mb

_FLAT_MB = 2.0
_LOOKS = 40  # at the resident memory, per epoch
_MAX_HEAP_BYTES = 0.05  # per record: a look-ahead more or less, over 10^5 records or more


def rows(directory: Path, scale: Scale) -> Iterator[Row]:
    """Flat over an epoch, and per record only on disk."""
    tars, lines = tar_shards(directory, scale.tar_records), jsonl_rows(directory, scale.jsonl_rows)
    with ProcessPoolExecutor(1, mp_context=get_context("forkserver")) as fresh_process:
        looks = [fresh_process.submit(_resident_mb, *what) for what in (("tar", tars), ("jsonl", lines))]
        yield _flat_row(f"tar, {scale.tar_records:,} records", looks[0].result())
        yield _flat_row(f"JSONL, {scale.jsonl_rows:,} rows", looks[1].result())
    few, many = scale.many_records
    yield _index_row("JSONL", _lines_source, {count: many_lines(directory, count) for count in (few, many)})
    smaller = (few // 10, many // 10)  # a tar of so many records is large
    yield _index_row("tar with sidecar", _members_source, {count: many_members(directory, count) for count in smaller})


def _flat_row(what: str, resident: list[float]) -> Row:
    quarter = len(resident) // 4
    first, last = max(resident[:quarter]), max(resident[-quarter:])
    return Row(
        work=f"memory over an epoch: {what}",
        reach="flat",
        got=f"{last - first:+.1f} MB ({last / first:.3f} x)",
        ok=last - first <= _FLAT_MB,
        from_=f"the most resident in its first quarter {first:.0f} MB, in its last {last:.0f} MB",
    )


def _resident_mb(kind: str, place: Path) -> list[float]:
    """The resident memory along an epoch, in MB."""
    dataset = tar.merged(place) if kind == "tar" else jsonl.merged(place)
    count = sum(1 for _ in dataset)  # an epoch before: what is allocated once has been
    found = []
    for number, _ in enumerate(dataset):
        if number % max(1, count // _LOOKS) == 0:
            found.append(resident_mb())
    return found


def _lines_source(place: Path) -> Any:
    return JsonlIterableDataset(str(place / "rows.jsonl"))


def _members_source(place: Path) -> Any:
    return MetaDistributedWebDataset(str(place / "shard.tar"), meta_names=["aspect"])


def _index_row(what: str, make: Callable[[Path], Any], places: dict[int, Path]) -> Row:
    for place in places.values():
        make(place)  # the index is built
    (few, small), (many, large) = places.items()
    _heap_bytes(make, small)  # what is made once has been
    heaps = _heap_bytes(make, small), _heap_bytes(make, large)
    heap = (heaps[1] - heaps[0]) / (many - few)
    disk = index_bytes(large) / many
    return Row(
        work=f"index per record: {what}",
        reach="≤ 24 bytes on disk, none in the heap",
        got=f"{disk:.1f} bytes ({disk / 24:.2f} x), {max(0.0, heap):.2f} in the heap",
        ok=disk <= 24 and heap <= _MAX_HEAP_BYTES,
        from_=f"heap at most {heaps[0] / 1e3:.0f} KB of {few:,} records, {heaps[1] / 1e3:.0f} KB of {many:,}",
    )


def _heap_bytes(make: Callable[[Path], Any], place: Path) -> int:
    """The most that the heap grows from before the source is made until its first samples are drawn."""
    gc.collect()
    tracemalloc.start()
    source = make(place)
    source.name, source.percent = "source", 1.0
    drain(sample for sample, _ in zip(MergedDataset([source]), range(100), strict=False))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak
