"""JSONL rows, beside a bare loop over lines in memory, and beside torchdata's loader over a generator of lines."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from orjson import loads
from torch.utils.data import IterableDataset, get_worker_info

from streamdata import JsonlIterableDataset, MergedDataset, mixed_collate
from tests.benchmarks.data import jsonl_rows
from tests.benchmarks.measure import (
    BATCH_SIZE,
    Row,
    Scale,
    anew,
    apart,
    by_turns,
    compared,
    drain,
    identity,
    loading_time,
    per_second,
)
from tests.benchmarks.peers import Peer, optional_peer

LIMIT = "orjson.loads of lines in memory"
_WANTED = {"in_order": ("in order", 0.64), "shuffled": ("shuffled (default)", 0.58)}


def merged(place: Path, *, shuffle: bool = True, cyclic: bool = False) -> MergedDataset:
    """The rows as users read them."""
    source: Any = JsonlIterableDataset(str(place))
    source.name, source.percent = "jsonl", 1.0
    return MergedDataset([source], cyclic=cyclic, shuffle_streaming_subsets=shuffle)


def rows(directory: Path, scale: Scale) -> Iterator[Row]:
    """What a row costs beside parsing it, in one process and from two workers."""
    place = jsonl_rows(directory, scale.jsonl_rows)
    with optional_peer() as peer:
        yield from _one_process(place, peer, scale)
        yield _two_workers(place, peer, scale)


def _one_process(place: Path, peer: Peer | None, scale: Scale) -> Iterator[Row]:
    lines = _lines(place)
    shuffled, in_order = merged(place), merged(place, shuffle=False)
    best = by_turns(
        scale.repetitions,
        shuffled=lambda: drain(anew(shuffled)),
        in_order=lambda: drain(anew(in_order)),
        bare=lambda: drain(map(loads, lines)),
        **_torchdata(place, peer),
    )
    micros = {name: 1e6 * seconds / len(lines) for name, seconds in best.items()}
    size = sum(map(len, lines)) // len(lines)
    for name, (what, least) in _WANTED.items():
        others = [best.beside(name, "torchdata", "torchdata", is_peer=True)] if peer else []
        yield compared(
            f"JSONL, {len(lines):,} rows of {size:,} bytes and 7 fields, no workers, {what}",
            {LIMIT: least},
            [best.beside(name, "bare", LIMIT), *others],
            ", ".join(f"{one} {micros[one]:.2f} µs a row" for one in (name, "bare", "torchdata") if one in micros),
        )


def _torchdata(place: Path, peer: Peer | None, **options: int) -> dict[str, Callable[[], object]]:
    return {"torchdata": lambda: peer.time("torchdata", place, **options)} if peer else {}


def _lines(place: Path) -> list[bytes]:
    return [line for path in sorted(place.glob("*.jsonl")) for line in path.read_bytes().splitlines()]


def _two_workers(place: Path, peer: Peer | None, scale: Scale) -> Row:
    batches = scale.jsonl_rows // BATCH_SIZE
    best = by_turns(
        min(scale.repetitions, 5),
        ours=lambda: apart(_our_loading_time, place, batches),
        bare=lambda: apart(_bare_loading_time, place, batches),
        **_torchdata(place, peer, batches=batches),
    )
    others = [best.beside("ours", "torchdata", "torchdata", is_peer=True)] if peer else []
    return compared(
        f"the same, two workers, batches of {BATCH_SIZE}, shuffled, mixed_collate beside identity collate",
        {LIMIT: 0.65, "torchdata": 1.15},
        [best.beside("ours", "bare", LIMIT), *others],
        ", ".join(f"{name} {per_second(batches * BATCH_SIZE, seconds)}" for name, seconds in best.items()),
    )


def _our_loading_time(place: Path, batches: int) -> float:
    return loading_time(merged(place, cyclic=True), mixed_collate, batches)


def _bare_loading_time(place: Path, batches: int) -> float:
    return loading_time(_BareRows(_lines(place)), identity, batches)


class _BareRows(IterableDataset[dict[str, Any]]):
    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        mine = self._lines[info.id :: info.num_workers] if info else self._lines
        while True:
            yield from map(loads, mine)
