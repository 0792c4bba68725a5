"""Tars in a store: an S3 API behind a proxy with a delay per request and a rate per connection, in another process.

Both are Python on the machine that reads from them, so that rates say little; shares within one run and counts do.
"""

import os
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import webdataset

from streamdata import MergedDataset, MetaDistributedWebDataset
from streamdata.io.remote.addresses import Address, StorageOptions
from streamdata.io.remote.network import network
from tests.benchmarks import remote_peers
from tests.benchmarks.far_store import NUM_SHARDS, Store, shards, store
from tests.benchmarks.measure import (
    Row,
    Scale,
    apart,
    by_turns,
    drain,
    identity,
    loading_time,
    per_second,
    resident_mb,
)
from tests.benchmarks.web_server import Served, nginx, served_by_nginx

_READ_AHEAD, _BESIDE = 32 << 20, 64 << 20  # bytes: the bound, and what else a process that reads takes
_PIECE = 8 << 20  # bytes of a shard that the bare client asks for at once


def rows(directory: Path, scale: Scale) -> Iterator[Row]:
    """Rates beside the bare client's and the peer's, requests, waiting, starts, and a second pass from a cache."""
    place = shards(directory, scale.remote_records, 30_000)
    with store(place) as far:
        yield from _shuffled(far, scale)
        yield _in_order(far, scale)
        yield from _starts(far, place, scale)
        yield _memory(far, scale)
        yield from remote_peers.rows(directory, scale, far)
    yield _of_nginx(place, scale)
    place = shards(directory, scale.cached_records, 30_000)
    with store(place) as far:
        yield _cached(far, place, scale)
    with store(shards(directory, scale.small_remote_records, 1000)) as far:
        yield _requests(far, scale.small_remote_records)


def merged(far: Store | Served, paths: Any = "s3://data/", **options: Any) -> MergedDataset:
    """A mixture of the store's tars alone."""
    shuffle, cyclic = options.pop("shuffle", True), options.pop("cyclic", False)
    read_ahead = options.pop("read_ahead_bytes", None)
    source: Any = MetaDistributedWebDataset(paths, storage_options=far.options, **options)
    source.name, source.percent = "tar", 1.0
    return MergedDataset([source], cyclic=cyclic, shuffle_streaming_subsets=shuffle, read_ahead_bytes=read_ahead)


def _our_time(far: Store | Served, count: int, need: float, paths: str = "s3://data/") -> float:
    """For so many records, of which the consumer needs each for so many seconds; indexes are built before."""
    stream = merged(far, paths)
    begin = time.perf_counter()
    for number, _ in enumerate(islice(stream, count), 1):
        rest = begin + number * need - time.perf_counter()
        if need and rest > 0:
            time.sleep(rest)
    return time.perf_counter() - begin


def _bare_time(far: Store | Served, ranges: list[tuple[str, int, int]], root: str = "s3://") -> float:
    options = StorageOptions(**(far.options or {}))
    begin = time.perf_counter()
    for answer in [network().submit(Address(root + path, options), first, end) for path, first, end in ranges]:
        answer.result()
    return time.perf_counter() - begin


def _ranges(log: list[tuple[str, str, str]]) -> list[tuple[str, int, int]]:
    found = []
    for method, path, asked in log:
        if method == "GET" and path.endswith(".tar") and asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            found.append((path, int(first), int(last) + 1))
    return found


def _shuffled(far: Store, scale: Scale) -> Iterator[Row]:
    count = scale.remote_records
    apart(_our_time, far, 1, 0.0)  # the indexes are built
    far.log()
    apart(_our_time, far, count, 0.0)
    ranges = _ranges(far.log())
    best = by_turns(
        min(3, scale.repetitions),
        ours=lambda: apart(_our_time, far, count, 0.0),
        bare=lambda: apart(_bare_time, far, ranges),
    )
    share = best["bare"] / best["ours"]
    yield Row(
        work=f"{count:,} records of 30 KB in {NUM_SHARDS} tars in a store (30 ms, 40 MB/s per connection), shuffled",
        reach="≥ 0.7 of the same client fetching the same ranges bare",
        got=f"{share:.2f}",
        ok=share >= 0.7,
        from_=f"{per_second(count, best['ours'])}; bare {per_second(count, best['bare'])}, {len(ranges)} requests",
    )
    need = 2 * best["bare"] / count
    took = min(apart(_our_time, far, count, need) for _ in range(min(3, scale.repetitions)))
    waiting = 1 - count * need / took
    yield Row(
        work="the same, to a consumer that takes half of the link",
        reach="≤ 20 % of its time waiting",
        got=f"{waiting:.0%}",
        ok=waiting <= 0.2,
        from_=f"{took:.2f} s; its own {count * need:.2f} s",
    )


def _our_workers(far: Store, batches: int) -> float:
    return loading_time(merged(far, shuffle=False, cyclic=True), identity, batches)


def _peer_workers(far: Store, place: list[str], batches: int) -> float:
    dataset = webdataset.WebDataset(
        [f"pipe:curl -s {far.url}/{path}" for path in place], shardshuffle=False, empty_check=False
    ).repeat()
    return loading_time(dataset, identity, batches)


def _in_order(far: Store, scale: Scale) -> Row:
    batches = max(2, scale.remote_records // 64 - 8)
    place = [f"data/{shard:05d}.tar" for shard in range(NUM_SHARDS)]
    best = by_turns(
        min(3, scale.repetitions),
        ours=lambda: apart(_our_workers, far, batches),
        peer=lambda: apart(_peer_workers, far, place, batches),
    )
    share = best["peer"] / best["ours"]
    return Row(
        work="the same, in order, two workers",
        reach="≥ 0.8 of webdataset with curl",
        got=f"{share:.2f}",
        ok=share >= 0.8,
        from_=f"{per_second(64 * batches, best['ours'])}; webdataset {per_second(64 * batches, best['peer'])}",
    )


def _start_time(far: Store, indexes: str, paths: Any) -> float:
    """Until the first record is there; indexes are kept in that directory."""
    os.environ["STREAMDATA_CACHE"] = indexes
    begin = time.perf_counter()
    next(iter(merged(far, paths)))
    return time.perf_counter() - begin


def _starts(far: Store, place: Path, scale: Scale) -> Iterator[Row]:
    paths = "s3://plain/"
    sizes = {f"plain/{path.name}": path.stat().st_size for path in place.glob("*.tar")}
    whole = [
        (path, first, min(size, first + _PIECE)) for path, size in sizes.items() for first in range(0, size, _PIECE)
    ]
    times: dict[str, list[float]] = {"ours": [], "bare": []}
    for _ in range(min(3, scale.repetitions)):
        with TemporaryDirectory() as indexes:
            far.log()
            times["ours"].append(apart(_start_time, far, indexes, paths))
            log = far.log()
            times["bare"].append(apart(_bare_time, far, whole))
            far.log()
            apart(_start_time, far, indexes, paths)
            again = far.log()
    # The next start has the indexes: what it asks for is read for records. Of them a piece more or less was read ahead.
    asked, of_records = (sum(last - first for _, first, last in _ranges(one)) for one in (log, again))
    share = min(times["bare"]) / min(times["ours"])
    yield Row(
        work=f"cold start over {NUM_SHARDS} tars in a store, without a manifest, until the first record",
        reach="≥ 0.7 of the same client fetching all bytes bare; each byte at most once for the indexes",
        got=f"{share:.2f}",
        ok=share >= 0.7 and asked - of_records <= 1.01 * sum(sizes.values()),
        from_=f"{min(times['ours']):.2f} s; bare {min(times['bare']):.2f} s; {len(log)} requests, "
        f"{asked / 1e6:.0f} MB, of them {(asked - of_records) / 1e6:.0f} for the indexes of "
        f"{sum(sizes.values()) / 1e6:.0f}; the next start {len(again)} requests",
    )
    with TemporaryDirectory() as indexes:
        far.log()
        apart(_start_time, far, indexes, "s3://data/")
        log = far.log()
    others = [one for one in log if not one[1].endswith((".tar", ".index"))]
    yield Row(
        work="start by a manifest, on a node that knows nothing",
        reach="≤ 3 requests for the manifest, and nothing else but records and rows of indexes",
        got=f"{len(others)} requests",
        ok=len(others) <= 3,
        from_=f"{len(log)} in all: " + ", ".join(sorted({f"{method} {path}" for method, path, _ in others})),
    )


def _second_pass(options: dict[str, Any], paths: str, cache: dict[str, Any] | None) -> float:
    source: Any = MetaDistributedWebDataset(paths, storage_options=options, cache=cache)
    source.name, source.percent = "tar", 1.0
    dataset = MergedDataset([source], cyclic=False)
    drain(dataset)
    begin = time.perf_counter()
    drain(dataset)
    return time.perf_counter() - begin


def _cached(far: Store, place: Path, scale: Scale) -> Row:
    times: dict[str, list[float]] = {"ours": [], "local": []}
    for _ in range(scale.repetitions):
        with TemporaryDirectory() as pages:
            far.log()
            cache = {"path": pages, "max_bytes": 10**9}
            times["ours"].append(apart(_second_pass, far.options, "s3://data/", cache))
            asked = sum(last - first for _, first, last in _ranges(far.log()))
            times["local"].append(apart(_second_pass, None, str(place), None))
    ours, local = median(times["ours"]), median(times["local"])
    count = scale.cached_records
    size = sum(path.stat().st_size for path in place.glob("*.tar"))
    return Row(
        work=f"a second pass of {count:,} such records, from the cache",
        reach="≥ 0.8 of the same from local files",
        got=f"{local / ours:.2f}",
        ok=local / ours >= 0.8,
        from_=f"medians of {len(times['ours'])} by turns: {per_second(count, ours)}; local {per_second(count, local)}; "
        f"{asked / size:.2f} of the bytes asked for in both passes",
    )


def _requests(far: Store, records: int) -> Row:
    apart(_our_time, far, 1, 0.0)
    far.log()
    count = records // 8
    apart(_our_time, far, count, 0.0)
    asked = len(far.log())
    return Row(
        work=f"requests per sample, shuffled, {records:,} records of 1 KB in {NUM_SHARDS} tars",
        reach="≤ 0.05",
        got=f"{asked / count:.3f}",
        ok=asked / count <= 0.05,
        from_=f"{asked} requests, with those of the start, for {count:,} samples",
    )


def _memory(far: Store, scale: Scale) -> Row:
    first, most = apart(_resident_mb, far)
    aim = (_READ_AHEAD + _BESIDE) / 1e6
    return Row(
        work=f"memory over an epoch of the same, with {_READ_AHEAD / 1e6:.0f} MB of `read_ahead_bytes`",
        reach=f"at most that and {_BESIDE / 1e6:.0f} MB more than after the first sample",
        got=f"{most - first:+.0f} MB",
        ok=most - first <= aim,
        from_=f"{scale.remote_records * 0.03:.0f} MB of records; {first:.0f} MB after the first, at most {most:.0f} MB",
    )


def _resident_mb(far: Store) -> tuple[float, float]:
    """After the first sample, and at most in an epoch."""
    stream = iter(merged(far, read_ahead_bytes=_READ_AHEAD))
    next(stream)
    first = resident_mb()
    return first, max([first, *(resident_mb() for number, _ in enumerate(stream) if number % 100 == 0)])


def _of_nginx(place: Path, scale: Scale) -> Row:
    work = "the same over http from nginx, as fast as it is, shuffled"
    reach = "≥ 0.7 of the same client fetching the same ranges bare"
    program = nginx()
    if program is None:
        return Row(work=work, reach=reach, got="not measured", ok=None, from_="nginx is not installed")
    with served_by_nginx(program, place) as served:
        count, root = scale.remote_records, f"{served.url}/"
        apart(_our_time, served, count, 0.0, root)
        ranges = _ranges(served.log())
        best = by_turns(
            scale.repetitions,
            ours=lambda: apart(_our_time, served, count, 0.0, root),
            bare=lambda: apart(_bare_time, served, ranges, root),
        )
    share = best["bare"] / best["ours"]
    return Row(
        work=work,
        reach=reach,
        got=f"{share:.2f}",
        ok=share >= 0.7,
        from_=f"{per_second(count, best['ours'])}; bare {per_second(count, best['bare'])}, {len(ranges)} requests",
    )
