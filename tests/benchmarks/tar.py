"""Tar shards without decoding, beside webdataset, litdata in its own format, and a bare loop over a memory map."""

import mmap
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import webdataset
from orjson import loads
from torch.utils.data import IterableDataset, get_worker_info

from streamdata import MergedDataset, MetaDistributedWebDataset, mixed_collate
from tests.benchmarks.data import FIELDS, META_FIELDS, cached, tar_shards, tars_with_sidecars
from tests.benchmarks.measure import (
    BATCH_SIZE,
    FIRST_BATCHES,
    Beside,
    Row,
    Scale,
    Times,
    anew,
    apart,
    by_turns,
    compared,
    drain,
    identity,
    loading_time,
    per_second,
)
from tests.benchmarks.peers import Peer, optional_peer, write

_SHUFFLE_BUFFER = 1000
"""Records; the default of our sources."""
_ORDERS = {"in_order": "in order", "shuffled": "shuffled within about 1,000"}
"""Ours beside the peer's in the same order."""
LIMIT = "a bare loop over a map"
_WANTED = {"in_order": (0.6, 0.9), "shuffled": (0.5, 0.8)}
"""Of the limit, and of litdata."""
_WANTED_MAPPED = {"in_order": (0.7, 1.0), "shuffled": (0.62, 0.95)}
_WANTED_OF_TWO = {"in_order": 1.5, "shuffled": 1.4, "with_sidecar": 1.3}


def merged(place: Path, *, shuffle: bool = True, cyclic: bool = False, mapped: bool = False) -> MergedDataset:
    """The shards as users read them, with all fields of their sidecars, if they have some."""
    fields = META_FIELDS if any(place.glob("*.jsonl")) else ()
    source: Any = MetaDistributedWebDataset(str(place), meta_names=fields, mapped=mapped)
    source.name, source.percent = "tar", 1.0
    return MergedDataset([source], cyclic=cyclic, shuffle_streaming_subsets=shuffle)


def rows(directory: Path, scale: Scale) -> Iterator[Row]:
    """Compare in one process, in both orders, with a sidecar, then with workers."""
    place = tar_shards(directory, scale.tar_records)
    with optional_peer() as peer:
        litdata = litdata_tars(directory, place, scale) if peer else place
        yield from _one_process(place, litdata, peer, scale)
        yield _with_sidecar(directory, place, scale)
        yield from _workers(place, litdata, peer, scale)


def litdata_tars(directory: Path, place: Path, scale: Scale) -> Path:
    """The same records in litdata's format."""
    return cached(directory, f"litdata-tar-{scale.tar_records}", lambda made: write("tars", made, place))


def _one_process(place: Path, litdata: Path, peer: Peer | None, scale: Scale) -> Iterator[Row]:
    shuffled, in_order = merged(place), merged(place, shuffle=False)
    mapped_shuffled, mapped_in_order = merged(place, mapped=True), merged(place, shuffle=False, mapped=True)
    bare_shuffled, bare_in_order = _BareLoop(place, shuffled), _BareLoop(place, in_order)
    peers: dict[str, Callable[[], object]] = {
        "webdataset_in_order": lambda: drain(_webdataset(place)),
        "webdataset_shuffled": lambda: drain(_webdataset(place).shuffle(_SHUFFLE_BUFFER)),
    }
    if peer:
        peers["litdata_in_order"] = lambda: peer.time("litdata", litdata, shuffle=False)
        peers["litdata_shuffled"] = lambda: peer.time("litdata", litdata, shuffle=True)
    best = by_turns(
        scale.repetitions,
        shuffled=lambda: drain(anew(shuffled)),
        mapped_shuffled=lambda: drain(anew(mapped_shuffled)),
        bare_shuffled=lambda: bare_shuffled.run(_mapped(place)),
        in_order=lambda: drain(anew(in_order)),
        mapped_in_order=lambda: drain(anew(mapped_in_order)),
        bare_in_order=lambda: bare_in_order.run(_mapped(place)),
        **peers,
    )
    for name, what in _ORDERS.items():
        rates = _rates(best, name, scale.tar_records)
        of_limit, of_peer = _WANTED[name]
        yield compared(
            f"tar, {scale.tar_records:,} records of 4 members (30 KB), no workers, {what}",
            {LIMIT: of_limit, "litdata": of_peer, "webdataset": 10},
            _beside(best, name, peers),
            rates,
        )
        of_limit, of_peer = _WANTED_MAPPED[name]
        yield compared(
            f"the same with `mapped: true`, {what}",
            {LIMIT: of_limit, "litdata": of_peer},
            _beside(best, name, peers, "mapped_"),
            rates,
        )


def _beside(best: Times, name: str, peers: Collection[str], way: str = "") -> list[Beside]:
    names = [one.removesuffix(f"_{name}") for one in peers if one.endswith(name)]
    others = [best.beside(f"{way}{name}", f"{one}_{name}", one, is_peer=True) for one in names]
    return [best.beside(f"{way}{name}", f"bare_{name}", LIMIT), *others]


def _rates(best: Times, name: str, count: int) -> str:
    return ", ".join(f"{one} {per_second(count, seconds)}" for one, seconds in best.items() if one.endswith(name))


def _with_sidecar(directory: Path, place: Path, scale: Scale) -> Row:
    """Reads the same tars with a line of JSON beside each record, and without."""
    both = tars_with_sidecars(directory, scale.tar_records)
    lines = {path.name: path.read_bytes().splitlines() for path in sorted(both.glob("*.jsonl"))}
    joined, alone = merged(both), merged(place)
    bare = _BareLoop(place, alone)
    best = by_turns(
        scale.repetitions,
        joined=lambda: drain(anew(joined)),
        alone=lambda: drain(anew(alone)),
        bare=lambda: (bare.run(_mapped(place)), [loads(line) for some in lines.values() for line in some]),
    )
    share = best["joined"] / best["alone"] - 1
    return Row(
        work="the same with sidecars of 6 fields (200 bytes a line), shuffled",
        reach="the join takes ≤ 35 % of the read",
        got=f"{share:.0%}",
        ok=share <= 0.35,
        from_=", ".join(f"{name} {per_second(scale.tar_records, seconds)}" for name, seconds in best.items()),
        beside=(best.beside("joined", "bare", "bare loop over a map, and orjson.loads of each line"),),
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
        self._plan, self._place = [], place
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
        drain(self._samples(maps, self._plan))

    def samples(self, first: int, step: int) -> Iterator[dict[str, Any]]:
        """Read every `step`-th record, from maps of its own."""
        return self._samples(_mapped(self._place), self._plan[first::step])

    @staticmethod
    def _samples(maps: list[mmap.mmap], plan: list[Any]) -> Iterator[dict[str, Any]]:
        for shard, key, url, (a, b), (c, d), (e, f), (g, h) in plan:
            data = maps[shard]
            yield {
                "__key__": key, "__url__": url, "cls": data[a:b], "jpg": data[c:d], "json": data[e:f], "txt": data[g:h],
            }  # fmt: skip


def _workers(place: Path, litdata: Path, peer: Peer | None, scale: Scale) -> Iterator[Row]:
    # Not the last ones of webdataset's only epoch, when one worker has no more.
    batches = 15 * (scale.tar_records // BATCH_SIZE) // 16 - FIRST_BATCHES
    both = tars_with_sidecars(place.parent, scale.tar_records)
    peers: dict[str, Callable[[], object]] = {
        "webdataset_in_order": lambda: apart(_their_loading_time, place, batches, 0),
        "webdataset_shuffled": lambda: apart(_their_loading_time, place, batches, _SHUFFLE_BUFFER),
    }
    if peer:
        peers["litdata_in_order"] = lambda: peer.time("litdata", litdata, shuffle=False, batches=batches)
        peers["litdata_shuffled"] = lambda: peer.time("litdata", litdata, shuffle=True, batches=batches)
    best = by_turns(
        min(scale.repetitions, 3),
        in_order=lambda: apart(_our_loading_time, place, batches, False),
        shuffled=lambda: apart(_our_loading_time, place, batches, True),
        with_sidecar=lambda: apart(_our_loading_time, both, batches, True),
        bare_in_order=lambda: apart(_bare_loading_time, place, batches, False),
        bare_shuffled=lambda: apart(_bare_loading_time, place, batches, True),
        bare_with_sidecar=lambda: apart(_bare_loading_time, place, batches, True),
        **peers,
    )
    for name, what in (_ORDERS | {"with_sidecar": "with sidecars, shuffled"}).items():
        asked = {LIMIT: _WANTED_OF_TWO[name]} | ({} if name == "with_sidecar" else {"webdataset": 5})
        yield compared(
            f"the same, two workers, batches of {BATCH_SIZE}, mixed_collate beside identity collate, {what}",
            asked,
            _beside(best, name, peers),
            _rates(best, name, batches * BATCH_SIZE),
        )


def _our_loading_time(place: Path, batches: int, shuffle: bool) -> float:
    return loading_time(merged(place, shuffle=shuffle, cyclic=True), mixed_collate, batches)


def _bare_loading_time(place: Path, batches: int, shuffle: bool) -> float:
    return loading_time(_BareSamples(_BareLoop(place, merged(place, shuffle=shuffle))), identity, batches)


class _BareSamples(IterableDataset[dict[str, Any]]):
    def __init__(self, loop: _BareLoop) -> None:
        self._loop = loop

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        while True:
            yield from self._loop.samples(first, step)


def _their_loading_time(place: Path, batches: int, shuffle_buffer: int) -> float:
    dataset = _webdataset(place)
    return loading_time(dataset.shuffle(shuffle_buffer) if shuffle_buffer else dataset, identity, batches)
