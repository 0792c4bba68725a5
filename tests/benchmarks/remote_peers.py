"""The same records through webdataset, litdata and MosaicML Streaming, from stores of the same delay and rate.

webdataset reads the tars, by curl, and keeps them in its cache; the others read formats and caches of their own, in
their environment (`peers.py`).
"""

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import webdataset

from streamdata import MergedDataset, MetaDistributedWebDataset, StreamLoader
from tests.benchmarks.data import cached
from tests.benchmarks.far_store import NUM_SHARDS, Store, store
from tests.benchmarks.measure import (
    BATCH_SIZE,
    NUM_WORKERS,
    Beside,
    Row,
    Scale,
    Times,
    apart,
    by_turns,
    compared,
    drain,
    per_second,
)
from tests.benchmarks.peers import MissingPeerError, asked

_SIZE = 30_000
_SHUFFLED_WITHIN = 1000  # records, as in ours
_READER = Path(__file__).with_name("peer_reader.py")


class _Epochs(NamedTuple):
    """Seconds of the first epoch, once the dataset is made, and of the second, from a cache; requests in both."""

    first: float
    second: float
    requests: int


def rows(directory: Path, scale: Scale, far: Store) -> Iterator[Row]:
    """A first epoch and one from the cache beside each peer's; `far` has our tars."""
    count = scale.remote_records
    yield from _compared("webdataset with curl", partial(_of_webdataset, far), far, scale)
    for name, title in ("litdata", "litdata"), ("mosaic", "MosaicML Streaming"):
        try:
            place = cached(directory, f"{name}-{count}-{_SIZE}", partial(_write, name, count))
            with store(place) as their:
                found = list(_compared(title, partial(_of_peer, name, their), far, scale))
                found += _loaded(their, far, scale) if name == "litdata" else ()
        except MissingPeerError as error:
            work = f"an epoch of the same, beside {title}"
            found = [Row(work=work, reach="≥ 1 x", got="not measured", ok=None, from_=str(error))]
        yield from found


def _compared(title: str, their: Callable[[], _Epochs], far: Store, scale: Scale) -> Iterator[Row]:
    ours, cached_ours, theirs = [], [], []
    for _ in range(min(3, scale.repetitions)):
        ours.append(_of_ours(far, cache=False))
        cached_ours.append(_of_ours(far, cache=True))
        theirs.append(their())
    rate = partial(per_second, scale.remote_records)

    def beside(which: str, ours: list[_Epochs]) -> tuple[Beside]:
        turns = {"ours": [getattr(one, which) for one in ours], "theirs": [getattr(one, which) for one in theirs]}
        return (Times(turns).beside("ours", "theirs", title, is_peer=True),)

    first, peer_first = min(one.first for one in ours), min(one.first for one in theirs)
    yield Row(
        work=f"an epoch of the same, shuffled, no workers, beside {title} from an empty cache",
        reach="≥ 1 x",
        got=f"{peer_first / first:.2f} x",
        ok=first <= peer_first,
        from_=f"{rate(first)}, {ours[0].requests // 2} requests; peer {rate(peer_first)}",
        beside=beside("first", ours),
    )
    second, peer_second = (min(one.second for one in those) for those in (cached_ours, theirs))
    yield Row(
        work="the same, a second epoch from the cache of each",
        reach="≥ 1 x",
        got=f"{peer_second / second:.2f} x",
        ok=second <= peer_second,
        from_=f"{rate(second)}, {cached_ours[0].requests} requests in both epochs; peer {rate(peer_second)}, "
        f"{theirs[0].requests} requests in both epochs",
        beside=beside("second", cached_ours),
    )


def _loaded(their: Store, far: Store, scale: Scale) -> Iterator[Row]:
    """A first epoch in batches, in both orders, from this process and from two workers."""
    ways = {
        f"{order}_{workers}": (order, workers) for order in ("shuffled", "in_order") for workers in (0, NUM_WORKERS)
    }
    works: dict[str, Callable[[], object]] = {}
    for name, way in ways.items():
        works[f"ours_{name}"] = partial(apart, _our_loading_time, far, *way)
        works[f"litdata_{name}"] = partial(_peer_loading_time, their, *way)
    best = by_turns(min(3, scale.repetitions), **works)
    for name, (order, workers) in ways.items():
        ours = f"ours_{name}"
        found = [best.beside(ours, f"litdata_{name}", "litdata", is_peer=True)]
        if workers:
            found.append(best.beside(ours, f"ours_{order}_0", "no workers"))
        yield compared(
            f"the same in batches of {BATCH_SIZE}, {order.replace('_', ' ')}, {workers or 'no'} workers",
            {one.name: 1 for one in found},
            found,
            ", ".join(f"{one} {per_second(scale.remote_records, best[one])}" for one in best if one.endswith(name)),
        )


def _our_loading_time(far: Store, order: str, num_workers: int) -> float:
    source: Any = MetaDistributedWebDataset("s3://data/", storage_options=far.options)
    source.name, source.percent = "tar", 1.0
    merged = MergedDataset([source], cyclic=False, shuffle_streaming_subsets=order == "shuffled")
    begin = time.perf_counter()
    drain(StreamLoader(merged, batch_size=BATCH_SIZE, num_workers=num_workers))
    return time.perf_counter() - begin


def _peer_loading_time(their: Store, order: str, num_workers: int) -> float:
    their.log()
    with TemporaryDirectory() as files:
        printed = asked(_READER, "load", "litdata", their.url, files, order, str(num_workers))
    return float(json.loads(printed.splitlines()[-1])[0])


def _two_epochs(dataset: Any) -> list[float]:
    times = [time.perf_counter()]
    for _ in range(2):
        drain(dataset)
        times.append(time.perf_counter())
    return [after - before for before, after in pairwise(times)]


def _of_ours(far: Store, *, cache: bool) -> _Epochs:
    far.log()
    with TemporaryDirectory() as pages:
        first, second = apart(_our_epochs, far, {"path": pages, "max_bytes": 10**9} if cache else None)
    return _Epochs(first, second, len(far.log()))


def _our_epochs(far: Store, cache: dict[str, Any] | None) -> list[float]:
    source: Any = MetaDistributedWebDataset("s3://data/", storage_options=far.options, cache=cache)
    source.name, source.percent = "tar", 1.0
    return _two_epochs(MergedDataset([source], cyclic=False))


def _of_webdataset(far: Store) -> _Epochs:
    far.log()
    with TemporaryDirectory() as files:
        first, second = apart(_webdataset_epochs, far, files)
    return _Epochs(first, second, len(far.log()))


def _webdataset_epochs(far: Store, files: str) -> list[float]:
    urls = [f"{far.url}/data/{shard:05d}.tar" for shard in range(NUM_SHARDS)]
    tars = webdataset.WebDataset(urls, cache_dir=files, shardshuffle=NUM_SHARDS, empty_check=False)
    return _two_epochs(tars.shuffle(_SHUFFLED_WITHIN))


def _of_peer(name: str, far: Store) -> _Epochs:
    far.log()
    with TemporaryDirectory() as files:
        first, second = json.loads(asked(_READER, "read", name, far.url, files).splitlines()[-1])
    return _Epochs(first, second, len(far.log()))


def _write(name: str, count: int, place: Path) -> None:
    asked(_READER, "write", name, str(place), str(count), str(_SIZE))
