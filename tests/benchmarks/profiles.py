"""Where the time goes in rows that miss their reach: `python -m tests.benchmarks.profiles` writes `docs/profiles.md`.

Each work runs under a timer of CPU time. At each of its signals the innermost function of the package counts; what it
calls in C, or in a library, is its own time.
"""

import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from multiprocessing.util import Finalize, register_after_fork
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from streamdata import DatasetFactory, MergedDataset, PackTokens, TensorCollate, mixed_collate
from tests.benchmarks import balance, jsonl, parquet, stores, tar
from tests.benchmarks.__main__ import DIRECTORY, machine
from tests.benchmarks.data import jsonl_rows, parquet_rows, tar_shards
from tests.benchmarks.measure import Scale, drain, loading_time
from tests.benchmarks.packing import documents

PAGE = Path(__file__).parents[2] / "docs" / "profiles.md"
_PACKAGE = str(Path(sys.modules["streamdata"].__file__ or "").parent) + "/"
_INTERVAL_S, _LEAST_S = 0.001, 3.0
_BATCHES = 2000
_NAMED = 0.04
"""The share of a function that is named; the others are summed up."""
Collate = Callable[[list[Any]], object]
_DOCUMENTS, _IMAGES, _ROWS = "documents of 2.7 KB", "images of 20 KB", "rows of 600 bytes"


class Work(NamedTuple):
    """One row of the table."""

    name: str
    run: Callable[[], object]
    has_workers: bool = False


class Sampler:
    """Counts functions at each signal, here and, once it has a folder, in processes that multiprocessing forks."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.folder: Path | None = None
        signal.signal(signal.SIGPROF, self._count)
        register_after_fork(self, Sampler._in_child)

    def start(self, interval: float = _INTERVAL_S) -> None:
        """Begin to count, or with 0 stop."""
        signal.setitimer(signal.ITIMER_PROF, interval, interval)

    def _count(self, _: int, frame: FrameType | None) -> None:
        inner = frame
        while frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
            frame = frame.f_back
        if frame is not None:
            file, function = frame.f_code.co_filename.removeprefix(_PACKAGE), frame.f_code.co_qualname
            self.counts[f"`{file}: {function.partition('.<locals>')[0]}`"] += 1
        elif inner is not None:  # of a library's own thread or loop, or of the benchmark
            self.counts[str(inner.f_globals["__name__"]).partition(".")[0].replace("tests", "the loop")] += 1

    def _in_child(self) -> None:
        if self.folder is not None:
            self.counts.clear()
            self.start()
            Finalize(self, self._write, exitpriority=0)

    def _write(self) -> None:
        self.start(0)
        with tempfile.NamedTemporaryFile("w", dir=self.folder, delete=False, encoding="utf-8") as file:
            file.write("\n".join(self.counts.elements()))


def profiled(sampler: Sampler, work: Work) -> Iterator[tuple[str, Counter[str]]]:
    """The counts of each kind of process, after a run that warms caches and indexes."""
    work.run()
    with tempfile.TemporaryDirectory() as folder:
        sampler.folder = Path(folder) if work.has_workers else None
        sampler.counts.clear()
        began = time.process_time()
        sampler.start()
        while True:
            work.run()
            if work.has_workers or time.process_time() - began > _LEAST_S:
                break
        sampler.start(0)
        sampler.folder = None
        lines = [line for file in Path(folder).iterdir() for line in file.read_text(encoding="utf-8").splitlines()]
    if lines:
        yield f"{work.name}: workers", Counter(lines)
        yield f"{work.name}: trainer", sampler.counts.copy()
    else:
        yield work.name, sampler.counts.copy()


def works(scale: Scale) -> Iterator[Work]:
    """Ours of the rows that miss what they should reach."""
    tars, lines = tar_shards(DIRECTORY, scale.tar_records), jsonl_rows(DIRECTORY, scale.jsonl_rows)
    for shuffle in (False, True):
        how = "shuffled" if shuffle else "in order"
        yield Work(f"tar, {how}", partial(_drained, partial(tar.merged, tars, shuffle=shuffle)))
        yield Work(f"JSONL, {how}", partial(_drained, partial(jsonl.merged, lines, shuffle=shuffle)))
    for kind, groups in (
        (_DOCUMENTS, (1000, 10_000, scale.parquet_rows)),
        (_IMAGES, (1000, 10_000)),
        (_ROWS, (1000, 10_000)),
    ):
        for group in groups:
            path = parquet_rows(DIRECTORY, kind, scale.parquet_rows, group)
            yield Work(
                f"parquet, {kind}, groups of {group:,} at most", partial(_drained, partial(parquet.merged, path))
            )
    tokens = stores.token_store(DIRECTORY, scale.window_tokens)
    windows = DatasetFactory.load("seq", tokens, stores.WINDOW)
    order = np.random.default_rng(1).permutation(len(windows))[: scale.windows].tolist()
    yield Work("token windows, 32 at a time", partial(stores.read_batches, windows, order))
    yield Work("token windows, one at a time", partial(stores.read_each, windows, order))
    yield Work(
        "token windows through MergedDataset, first epoch", lambda: drain(islice(stores.alone(tokens), scale.windows))
    )
    pack, samples = PackTokens(8192, 1000), documents(scale)
    yield Work("PackTokens", lambda: drain(pack(iter(samples))))
    balanced = PackTokens(8192, balance=balance.MODEL, rows=balance.ROWS[8192])
    yield Work("PackTokens with `balance`", lambda: drain(balanced(iter(samples))))
    small = parquet_rows(DIRECTORY, _ROWS, scale.parquet_rows, 1000)
    loaded: tuple[tuple[str, Callable[[], MergedDataset], Collate], ...] = (
        ("tar, in order", lambda: tar.merged(tars, shuffle=False, cyclic=True), mixed_collate),
        ("tar, shuffled", lambda: tar.merged(tars, cyclic=True), mixed_collate),
        ("JSONL, shuffled", lambda: jsonl.merged(lines, cyclic=True), mixed_collate),
        (f"parquet, {_ROWS}", lambda: parquet.merged(small, cyclic=True), mixed_collate),
        ("token windows, TensorCollate", lambda: stores.alone(tokens), TensorCollate()),
        ("token windows of four stores, mixed_collate", lambda: stores.mixture(tokens), mixed_collate),
    )
    for name, make, collate in loaded:
        yield Work(f"{name}, two workers", partial(_loaded, make, collate), has_workers=True)


def _drained(make: Callable[[], MergedDataset]) -> None:
    drain(iter(make()))


def _loaded(make: Callable[[], MergedDataset], collate: Collate) -> None:
    loading_time(make(), collate, _BATCHES)


def main() -> None:
    """Profile all works, and write the page."""
    sampler = Sampler()
    page = [f"{machine()}", "", "| work | share of its CPU time, by function |", "|---|---|"]
    for work in works(Scale()):
        for name, counts in profiled(sampler, work):
            total = counts.total()
            shown = [(where, count) for where, count in counts.most_common() if count >= _NAMED * total]
            shown.append(("others", total - sum(count for _, count in shown)))
            page.append(f"| {name} | {', '.join(f'{where} {count / total:.0%}' for where, count in shown)} |")
            print(page[-1], flush=True)
    PAGE.write_text("\n".join([*page, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
