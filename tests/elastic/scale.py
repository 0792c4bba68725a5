"""What an elastic resume costs and keeps at the size of large jobs: `python -m tests.elastic.scale`.

States of thousands of lanes are not run but written: the first lane of a topology runs, and its entries are copied to
all others with numbers of their own. Each figure stands beside its target.
"""

import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from streamdata import MergedDataset, load_states, merge_states, save_states, to_state
from streamdata.sources.order.deal import Deal, num_windows
from streamdata.states.headers import UNIT, BlockCut, Leftovers
from streamdata.states.progress import LastCursors
from streamdata.states.table import empty_rows, table_of
from tests.elastic.evenness import distances, evenness
from tests.elastic.figures import Figure, States, Topology, resumed
from tests.memory import begin_peak, peak
from tests.streams import Numbers, in_lane

_BILLION = 10**9


def sources(count: int, size: int = _BILLION) -> Callable[[], MergedDataset]:
    """A mixture of that many sources with weights from 1 to 3."""
    return lambda: MergedDataset([Numbers(f"s{k:04}", size, 1 + k % 3) for k in range(count)], seed=5)


def written(
    make: Callable[[], MergedDataset], topology: Topology, before: States, rng: np.random.Generator
) -> Iterator[dict[str, Any]]:
    """The entries of the topology, rank by rank: each lane has drawn some ten thousand times its weight of a source."""
    weights = {dataset.name: dataset.percent for dataset in make().datasets}
    stream = in_lane(resumed(make, topology, 0, before), 0, topology.num_workers)
    first = to_state([sample for _, sample in zip(range(40 * len(make().datasets)), stream, strict=False)])
    newest = max((key for key in first if key.startswith("generation/")), key=lambda key: int(key.partition("/")[2]))
    number = newest.partition("/")[2]
    drawn = {key.split("/", 5)[5]: value for key, value in first.items() if key.startswith("cursor/")}
    drawn.pop("")
    # Of all sources, though so few samples need not have drawn each: what gave nothing would be owed ever more.
    cursors = {path: drawn.get(path, next(iter(drawn.values()))) for path in weights}
    for dp_rank in range(topology.dp_size):
        before_all = {key: value for key, value in first.items() if key.startswith("deal/")}
        entries = {**before_all, newest: first[newest], f"worker/{number}/0/{dp_rank}": topology.num_workers - 1}
        for worker in range(topology.num_workers):
            draws = rng.integers(10_000, 12_000, len(cursors)).tolist()
            lane = f"{number}/0/{dp_rank}/{worker}"
            # By their shares: else each change would owe most sources so much of the others that these are drawn alone.
            counts = [count * weights[path] for path, count in zip(cursors, draws, strict=True)]
            for (path, value), count in zip(cursors.items(), counts, strict=True):
                clock = count * 1.5 + dp_rank / 7
                entries[f"cursor/{lane}/{path}"] = {**value, "draws": count, "clock": clock, "window": count}
            # Workers take turns.
            top = {"draws": sum(counts), "clock": 0.0, "epoch": 0, "window": 0, "taken": 0, "batches": 100_000}
            entries[f"cursor/{lane}/"] = top
        yield entries


def saved(
    folder: Path, step: int, make: Callable[[], MergedDataset], topology: Topology, before: States, rng: Any
) -> None:
    """Write a step as its ranks would."""
    for dp_rank, entries in enumerate(written(make, topology, before, rng)):
        collected = before.copy() if hasattr(before, "copy") and before else {}
        collected.update(entries)
        save_states(folder, collected, step=step, rank=dp_rank, size=topology.dp_size)


def joined(make: Callable[[], MergedDataset], topology: Topology, before: States, rng: Any) -> dict[str, Any]:
    """The same in memory, beside what was there before."""
    states = dict(before)
    for entries in written(make, topology, before, rng):
        states.update(entries)
    return states


def first_of(make: Callable[[], MergedDataset], topology: Topology, states: States) -> Any:
    """The first sample of rank 0."""
    return next(in_lane(resumed(make, topology, 0, states), 0, topology.num_workers))


def first_sample_s(make: Callable[[], MergedDataset], topology: Topology, states: States, rank: int = 0) -> float:
    """Seconds from states that are parsed to the first sample of a rank."""
    begin = time.perf_counter()
    next(in_lane(resumed(make, topology, rank, states), 0, topology.num_workers))
    return time.perf_counter() - begin


class Cost(NamedTuple):
    """Of something that a process did."""

    seconds: float
    megabytes: float


def apart(work: Callable[[], object]) -> Cost:
    """Do it in a process of its own: the time, and by how much its memory grew at most."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writes)
        with os.fdopen(reads) as file:
            text = file.read()
        os.waitpid(pid, 0)
        if not text:
            raise RuntimeError("it failed in a process of its own, see above")
        return Cost(*json.loads(text))
    code = 1
    try:
        # What the parent had is there from the start; the highest mark begins anew.
        before = begin_peak()
        begin = time.perf_counter()
        work()
        seconds = time.perf_counter() - begin
        os.write(writes, json.dumps([seconds, (peak() - before) / (1 << 20)]).encode())
        code = 0
    except BaseException as error:  # a fork must never go on as its parent
        print(repr(error), file=sys.stderr)
    finally:
        os._exit(code)


def deals() -> Iterator[Figure]:
    """8,192 lanes become 6,144, of 100 sources of 10^9 records."""
    rng, make = np.random.default_rng(0), sources(100)
    old, new = Topology(1024, 8), Topology(768, 8)
    what = f"{old.lanes:,} → {new.lanes:,} lanes, 100 sources of 10^9"
    with tempfile.TemporaryDirectory() as folder:
        saved(Path(folder), 1, make, old, {}, rng)
        cost = apart(lambda: first_sample_s(make, new, load_states(folder)))
        first = f"{cost.seconds:.1f} s, {cost.megabytes:.0f} MB"
        yield Figure(f"{what}: files of all lanes to the first sample", "≤ 10 s", first, cost.seconds <= 10)
        states = load_states(folder)
        header = next(value for key, value in to_state(first_of(make, new, states)).items() if key.startswith("deal/"))
        size = len(json.dumps(header)) / 1e6
        yield Figure(f"{what}: header", "≤ 20 MB", f"{size:.1f} MB", size <= 20)
        saved(Path(folder), 2, make, new, states, rng)
        (file,) = Path(folder, "step-2").glob("deal-*")
        size = file.stat().st_size / 1e6
        yield Figure(f"{what}: as saved, once", "≤ 5 MB", f"{size:.1f} MB", size <= 5)
        states = load_states(folder)
        size = sum(len(json.dumps({key: value})) for key, value in states.items()) / (new.lanes * 100)
        yield Figure(f"{what}: all states, of each source and lane", "≤ 300 bytes", f"{size:.0f} bytes", size <= 300)
        cost = apart(partial(first_sample_s, make, new, states))
        later = f"{cost.seconds:.2f} s, {cost.megabytes:.0f} MB"
        yield Figure(f"{what}: a later load, columns to the first sample", "≤ 2 s", later, cost.seconds <= 2)


def read_twice() -> Iterator[Figure]:
    """Windows that a change divides: two lanes read their bytes, once."""
    rng, cut = np.random.default_rng(2), BlockCut(5_000_000, 15, 64 * UNIT, 1, 0)
    for old, new in ((8192, 6144), (64, 48), (8, 6)):
        rows = empty_rows(old)
        rows["window"], rows["taken"] = rng.integers(20, 25, old), rng.integers(1, 960, old)
        last = LastCursors(rows, np.arange(old))
        left = Deal("a", cut, 0, old, Leftovers()).left_by(last, np.zeros(old, np.bool_))
        after = Deal("a", cut, 0, new, left)
        divided, windows_left = int((after.stretches["stop"] >= 0).sum()), int(num_windows(left.stretches, cut).sum())
        got = f"{divided:,} of {windows_left:,} windows left, {divided / new:.2f} of each lane"
        yield Figure(f"{old:,} → {new:,} lanes: windows that two lanes read", "≤ 1 of each lane", got, divided <= new)


def first_samples() -> Iterator[Figure]:
    """Small jobs from parsed states, large ones from their files."""
    rng = np.random.default_rng(1)
    make, old, new = sources(10), Topology(16, 4), Topology(24, 3)
    states = joined(make, old, {}, rng)
    parsed = table_of(states)
    took = [apart(lambda: first_sample_s(make, new, parsed)).seconds for _ in range(9)]
    early = median(took)
    yield Figure("first sample, 64 old lanes x 10 sources", "≤ 200 ms", f"{1e3 * early:.0f} ms", early <= 0.2)
    changed, topology = states, old
    for change in range(20):
        topology = (new, old)[change % 2]
        changed = merge_states(joined(make, topology, changed, rng))  # as save_states leaves out what no resume needs
    parsed = table_of(changed)
    later = [apart(lambda: first_sample_s(make, Topology(20, 2), parsed)).seconds for _ in range(9)]
    ratio = median(later) / early
    yield Figure("after 20 changes, each saved", "≤ 2 x", f"{1e3 * median(later):.0f} ms, {ratio:.2f} x", ratio <= 2)
    make, old, new = sources(50), Topology(1024, 8), Topology(768, 8)
    with tempfile.TemporaryDirectory() as folder:
        saved(Path(folder), 1, make, old, {}, rng)
        cost = apart(lambda: first_sample_s(make, new, load_states(folder)))
    what = "first sample from the files, 8,192 old lanes x 50 sources"
    yield Figure(what, "≤ 3 s", f"{cost.seconds:.2f} s", cost.seconds <= 3)
    make, topology = sources(1000), Topology(1, 8)
    states = joined(make, topology, {}, rng)
    cost = apart(lambda: first_sample_s(make, topology, states))
    what = "first sample of one rank's own states, 8 lanes x 1,000 sources"
    yield Figure(what, "(none)", f"{cost.seconds:.2f} s, {cost.megabytes:.0f} MB", True)


PARTS = {"deals": deals, "twice": read_twice, "first": first_samples, "distances": distances, "evenness": evenness}


def main(names: list[str]) -> int:
    """Print the figures; return how many miss their target."""
    missed = 0
    logging.disable(logging.WARNING)  # a line for each change
    for name in names or PARTS:
        for figure in PARTS[name]():
            missed += not figure.is_met
            print(
                f"{'ok  ' if figure.is_met else 'MISS'} {figure.what}: {figure.got}; target {figure.target}", flush=True
            )
    print(f"{missed} missed; this process had {peak() >> 20} MB at most")
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
