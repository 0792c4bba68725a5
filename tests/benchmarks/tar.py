"""Tar shards without decoding, beside webdataset and beside a bare loop over a memory map."""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import webdataset

from streamdata import MergedDataset, MetaDistributedWebDataset, mixed_collate
from tests.benchmarks.data import FIELDS, tar_shards
from tests.benchmarks.measure import (
    BATCH_SIZE,
    FIRST_BATCHES,
    Row,
    Scale,
    anew,
    apart,
    by_turns,
    drain,
    identity,
    loading_time,
    per_second,
)

_SHUFFLE_BUFFER = 1000
"""Records; the default of our sources."""
_ORDERS = {"in_order": "in order", "shuffled": "shuffled within about 1,000"}
"""Ours beside the peer's in the same order."""


def merged(place: Path, *, shuffle: bool = True, cyclic: bool = False) -> MergedDataset:
    """The shards as users read them."""
    source: Any = MetaDistributedWebDataset(str(place))
    source.name, source.percent = "tar", 1.0
    return MergedDataset([source], cyclic=cyclic, shuffle_streaming_subsets=shuffle)


def rows(directory: Path, scale: Scale) -> Iterator[Row]:
    """Compare in one process, in both orders, then with workers."""
    place = tar_shards(directory, scale.tar_records)
    yield from _one_process(place, scale)
    yield from _workers(place, scale)


def _one_process(place: Path, scale: Scale) -> Iterator[Row]:
    shuffled, in_order = merged(place), merged(place, shuffle=False)
    maps = _mapped(place)
    bare_shuffled, bare_in_order = _BareLoop(place, shuffled), _BareLoop(place, in_order)
    best = by_turns(
        scale.repetitions,
        shuffled=lambda: drain(anew(shuffled)),
        bare_shuffled=lambda: bare_shuffled.run(_mapped(place)),
        bare_shuffled_again=lambda: bare_shuffled.run(maps),
        in_order=lambda: drain(anew(in_order)),
        bare_in_order=lambda: bare_in_order.run(_mapped(place)),
        bare_in_order_again=lambda: bare_in_order.run(maps),
        peer_in_order=lambda: drain(_webdataset(place)),
        peer_shuffled=lambda: drain(_webdataset(place).shuffle(_SHUFFLE_BUFFER)),
    )
    rates = {name: per_second(scale.tar_records, seconds) for name, seconds in best.items()}
    for name, what in _ORDERS.items():
        ratio = best[f"peer_{name}"] / best[name]
        yield Row(
            work=f"tar, {scale.tar_records:,} records of 4 members (30 KB), no workers, {what}",
            reach="≥ 10 x webdataset",
            got=f"{ratio:.1f} x",
            ok=ratio >= 10,
            from_=f"{rates[name]}; webdataset likewise {rates[f'peer_{name}']}",
        )
    for name, what in _ORDERS.items():
        share = best[f"bare_{name}"] / best[name]
        bare, again = rates[f"bare_{name}"], rates[f"bare_{name}_again"]
        yield Row(
            work=f"the same, {what}",
            reach="≥ 0.5 of a bare loop over a map, same order",
            got=f"{share:.2f}",
            ok=share >= 0.5,
            from_=f"{rates[name]}; bare loop over a fresh map {bare} (over one that has all pages in place {again})",
        )


def _webdataset(place: Path) -> webdataset.WebDataset:
    return webdataset.WebDataset([str(path) for path in sorted(place.glob("*.tar"))], shardshuffle=False)


def _mapped(place: Path) -> list[mmap.mmap]:
    maps = []
    for path in sorted(place.glob("*.tar")):
        with path.open("rb") as file:
            maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return maps


class _BareLoop:
    """Copies the members of a dataset's records, in its order, out of maps by known offsets into the same dict."""

    def __init__(self, place: Path, dataset: MergedDataset) -> None:
        spans = np.load(place / "spans.npy")
        shards = {str(path): number for number, path in enumerate(sorted(place.glob("*.tar")))}
        self._plan = []
        for sample in anew(dataset):
            shard, record = shards[sample["__url__"]], int(sample["__key__"]) % spans.shape[1]
            self._plan.append((shard, sample["__key__"], sample["__url__"], *map(tuple, spans[shard, record].tolist())))
        self._check(_mapped(place), next(iter(anew(dataset))))

    def _check(self, maps: list[mmap.mmap], expected: dict[str, Any]) -> None:
        shard, _, _, *spans = self._plan[0]
        for field, (begin, end) in zip(FIELDS, spans, strict=True):
            assert maps[shard][begin:end] == expected[field], f"the bare loop reads another {field}"

    def run(self, maps: list[mmap.mmap]) -> None:
        """Read all records."""
        for shard, key, url, (a, b), (c, d), (e, f), (g, h) in self._plan:
            data = maps[shard]
            sample = {
                "__key__": key, "__url__": url, "cls": data[a:b], "jpg": data[c:d], "json": data[e:f], "txt": data[g:h],
            }  # fmt: skip
        del sample


def _workers(place: Path, scale: Scale) -> Iterator[Row]:
    # Not the last ones of webdataset's only epoch, when one worker has no more.
    batches = 15 * (scale.tar_records // BATCH_SIZE) // 16 - FIRST_BATCHES
    best = by_turns(
        min(scale.repetitions, 3),
        in_order=lambda: apart(_our_loading_time, place, batches, False),
        peer_in_order=lambda: apart(_their_loading_time, place, batches, 0),
        shuffled=lambda: apart(_our_loading_time, place, batches, True),
        peer_shuffled=lambda: apart(_their_loading_time, place, batches, _SHUFFLE_BUFFER),
    )
    rates = {name: per_second(batches * BATCH_SIZE, seconds) for name, seconds in best.items()}
    for name, what in _ORDERS.items():
        ratio = best[f"peer_{name}"] / best[name]
        yield Row(
            work=f"the same, two workers, batches of {BATCH_SIZE}, {what}",
            reach="≥ 5 x webdataset",
            got=f"{ratio:.1f} x",
            ok=ratio >= 5,
            from_=f"mixed_collate {rates[name]}; webdataset, identity collate {rates[f'peer_{name}']}; each apart",
        )


def _our_loading_time(place: Path, batches: int, shuffle: bool) -> float:
    return loading_time(merged(place, shuffle=shuffle, cyclic=True), mixed_collate, batches)


def _their_loading_time(place: Path, batches: int, shuffle_buffer: int) -> float:
    dataset = _webdataset(place)
    return loading_time(dataset.shuffle(shuffle_buffer) if shuffle_buffer else dataset, identity, batches)
