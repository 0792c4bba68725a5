"""The first sample after a resume, early and late in an epoch."""

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from threading import Thread
from time import perf_counter

from streamdata import MergedDataset, to_state
from tests.benchmarks import jsonl, tar
from tests.benchmarks.data import jsonl_rows, tar_shards
from tests.benchmarks.measure import Row, Scale, anew
from tests.benchmarks.mixing import Ints

_FRACTIONS = (0.01, 0.5, 0.99)
_NOISE_MS = 1.0
_BILLION = 10**9

States = dict[str, object]


def rows(directory: Path, scale: Scale) -> Iterator[Row]:
    """From states to the first sample, with no file and no index open yet."""
    tars, lines = tar_shards(directory, scale.tar_records), jsonl_rows(directory, scale.jsonl_rows)
    ints = MergedDataset([Ints("ints", _BILLION)])
    yield _row(f"tar, {scale.tar_records:,} records", lambda: tar.merged(tars), _drawn(tar.merged(tars)), scale)
    yield _row(f"JSONL, {scale.jsonl_rows:,} rows", lambda: jsonl.merged(lines), _drawn(jsonl.merged(lines)), scale)
    yield _row("map-style, 10^9 records", lambda: MergedDataset([Ints("ints", _BILLION)]), _moved(ints), scale)


def _row(what: str, make: Callable[[], MergedDataset], states: list[States], scale: Scale) -> Row:
    times: list[list[float]] = [[] for _ in states]
    for _ in range(2 * scale.repetitions + 1):
        for found, start in zip(times, states, strict=True):
            found.append(_first_sample_ms(make(), start))
    early, middle, late = (median(found) for found in times)
    spread = max(early, middle, late) - min(early, middle, late)
    is_flat = spread <= max(_NOISE_MS, 0.25 * min(early, middle, late))
    worst = max(early, middle, late)
    return Row(
        work=f"first sample after resume at 1 %, 50 %, 99 %: {what}",
        reach="the same within noise, < 100 ms",
        got=f"{early:.1f}, {middle:.1f}, {late:.1f} ms ({late / early:.2f} x from 1 % to 99 %)",
        ok=is_flat and worst < 100,
        from_=f"medians of {2 * scale.repetitions + 1}; the slowest of all {max(map(max, times)):.1f} ms",
    )


def _first_sample_ms(dataset: MergedDataset, states: States) -> float:
    took: list[float] = []

    def resume() -> None:
        begin = perf_counter()
        dataset.set_dataloader_states(states)
        next(iter(dataset))
        took.append(1e3 * (perf_counter() - begin))

    thread = Thread(target=resume)  # open files and indexes are kept per thread: a new one has none
    thread.start()
    thread.join()
    return took[0]


def _drawn(dataset: MergedDataset) -> list[States]:
    """The states after these parts of an epoch, which is read to get there."""
    count = sum(1 for _ in anew(dataset))
    stops = [int(fraction * count) for fraction in _FRACTIONS]
    stream, states, before = iter(anew(dataset)), [], 0
    for stop in stops:
        *_, last = islice(stream, stop - before)
        states.append(json.loads(json.dumps(to_state(last))))
        before = stop
    return states


def _moved(dataset: MergedDataset) -> list[States]:
    """The states of an epoch that is too long to be read: those after its first sample, with other counts."""
    states = []
    for fraction in _FRACTIONS:
        state = json.loads(json.dumps(to_state(next(iter(anew(dataset))))))
        cursor = next(value for key, value in state.items() if key.endswith("/ints"))
        cursor["window"] = cursor["draws"] = state["cursor/0/0/0/0/"]["draws"] = int(fraction * _BILLION)
        states.append(state)
    return states
