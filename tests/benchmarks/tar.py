"""Tar shards without decoding, beside webdataset and beside a bare loop over a memory map."""

import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import webdataset

from streamdata import MergedDataset, MetaDistributedWebDataset, mixed_collate
from tests.benchmarks.data import FIELDS, tar_shards
from tests.benchmarks.measure import BATCH_SIZE, Row, Scale, by_turns, drain, identity, loading_time, per_second

_WORKER_MARGIN = 20  # batches that are not timed, at the start and at the end of webdataset's only epoch


def merged(place: Path, *, shuffle: bool = True, cyclic: bool = False) -> MergedDataset:
    """The shards as users read them."""
    source: Any = MetaDistributedWebDataset(str(place))
    source.name, source.percent = "tar", 1.0
    return MergedDataset([source], cyclic=cyclic, shuffle_streaming_subsets=shuffle)


def rows(directory: Path, scale: Scale) -> Iterator[Row]:
    """Compare in one process, in both orders, then with workers."""
    place = tar_shards(directory, scale.tar_records)
    yield from _one_process(place, scale)
    yield _workers(place, scale)


def _one_process(place: Path, scale: Scale) -> Iterator[Row]:
    shuffled, in_order = merged(place), merged(place, shuffle=False)
    best = by_turns(
        scale.repetitions,
        shuffled=lambda: drain(shuffled),
        bare_shuffled=_bare_loop(place, shuffled),
        in_order=lambda: drain(in_order),
        bare_in_order=_bare_loop(place, in_order),
        peer=lambda: drain(_webdataset(place)),
    )
    ratio, count = best["peer"] / best["shuffled"], scale.tar_records
    rates = {name: per_second(count, seconds) for name, seconds in best.items()}
    yield Row(
        work=f"tar, {count:,} records of 4 members (30 KB), no workers",
        reach="≥ 10 x webdataset",
        got=f"{ratio:.1f} x",
        ok=ratio >= 10,
        from_=f"shuffled (default) {rates['shuffled']}, in order {rates['in_order']}; webdataset, in order {rates['peer']}",
    )
    for name, what in (("shuffled", "shuffled (default)"), ("in_order", "in order")):
        share = best[f"bare_{name}"] / best[name]
        yield Row(
            work=f"the same, {what}",
            reach="≥ 0.5 of a bare loop over a map, same order",
            got=f"{share:.2f}",
            ok=share >= 0.5,
            from_=f"{rates[name]}; bare loop {rates[f'bare_{name}']}",
        )


def _webdataset(place: Path) -> webdataset.WebDataset:
    return webdataset.WebDataset([str(path) for path in sorted(place.glob("*.tar"))], shardshuffle=False)


def _bare_loop(place: Path, dataset: MergedDataset) -> Callable[[], None]:
    """Copy the members of the same records, in the same order, out of a map by known offsets into the same dict."""
    maps, plan = _plan(place, dataset)

    def loop() -> None:
        for shard, key, url, (a, b), (c, d), (e, f), (g, h) in plan:
            data = maps[shard]
            members = {"cls": data[a:b], "jpg": data[c:d], "json": data[e:f], "txt": data[g:h]}
            sample = {"__key__": key, "__url__": url, **members}
            del members, sample

    found, expected = _first(maps, plan), next(iter(dataset))
    assert all(expected[field] == found[field] for field in FIELDS), "the bare loop reads something else"
    return loop


def _plan(place: Path, dataset: MergedDataset) -> tuple[list[mmap.mmap], list[tuple]]:
    paths = sorted(place.glob("*.tar"))
    maps = []
    for path in paths:
        with path.open("rb") as file:
            maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    spans = np.load(place / "spans.npy")
    per_shard, numbers = spans.shape[1], {str(path): number for number, path in enumerate(paths)}
    plan = []
    for sample in dataset:
        shard, record = numbers[sample["__url__"]], int(sample["__key__"]) % per_shard
        plan.append((shard, sample["__key__"], sample["__url__"], *map(tuple, spans[shard, record].tolist())))
    return maps, plan


def _first(maps: list[mmap.mmap], plan: list[tuple]) -> dict[str, bytes]:
    shard, _, _, *spans = plan[0]
    return {field: maps[shard][begin:end] for field, (begin, end) in zip(FIELDS, spans, strict=True)}


def _workers(place: Path, scale: Scale) -> Row:
    batches = scale.tar_records // BATCH_SIZE - _WORKER_MARGIN
    endless = merged(place, cyclic=True)
    best = by_turns(
        min(scale.repetitions, 3),
        ours=lambda: loading_time(endless, mixed_collate, batches),
        peer=lambda: loading_time(_webdataset(place), identity, batches),
    )
    ratio = best["peer"] / best["ours"]
    rates = {name: per_second(batches * BATCH_SIZE, seconds) for name, seconds in best.items()}
    return Row(
        work=f"the same, two workers, batches of {BATCH_SIZE}",
        reach="≥ 5 x webdataset",
        got=f"{ratio:.1f} x",
        ok=ratio >= 5,
        from_=f"mixed_collate {rates['ours']}; webdataset, identity collate {rates['peer']}",
    )
