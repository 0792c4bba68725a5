"""Where the time goes in rows that miss their reach: `python -m tests.benchmarks.profiles` writes `docs/profiles.md`.

Each work runs in a process of its own under py-spy, which looks from outside at what each thread that has a core is in.
A moment counts for the innermost function of the package, with what that calls in C and in libraries.
"""

import atexit
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from streamdata import DatasetFactory, MergedDataset, PackTokens, StreamLoader, TensorCollate, mixed_collate
from streamdata.prepare.worker import Worker
from tests.benchmarks import balance, images, jsonl, mixing, parquet, prepare, remote, stores, tar
from tests.benchmarks.__main__ import DIRECTORY, machine
from tests.benchmarks.data import jsonl_rows, parquet_rows, tar_shards, tars_with_sidecars
from tests.benchmarks.far_store import Store, shards, store
from tests.benchmarks.measure import BATCH_SIZE, NUM_WORKERS, Scale, drain, loading_time
from tests.benchmarks.packing import documents

PAGE = Path(__file__).parents[2] / "docs" / "profiles.md"
_RECORD = "record --function --format raw --rate 250 --subprocesses --output"
_LEAST_S = 4.0
_BATCHES = 2000
_NAMED = 0.04
"""The share of a function that is named; the others are summed up."""
_WAITING = {"select", "poll", "_poll", "wait", "acquire", "notify"}
"""Functions of Python's own in which a thread waits for others, or for Python's lock."""
_DOCUMENTS, _IMAGES, _ROWS = "documents of 2.7 KB", "images of 20 KB", "rows of 600 bytes"
Collate = Callable[[list[Any]], object]


class Work(NamedTuple):
    """One row of the table."""

    name: str
    run: Callable[[], object]
    has_workers: bool = False


def measured(work: Work) -> None:
    """Run a work until it took long enough. Stacks are told by this function's name."""
    began = perf_counter()
    while perf_counter() - began < _LEAST_S:
        work.run()


def counts_of(raw: str) -> dict[str, Counter[str]]:
    """The moments of each function, of workers and of the process that has them.

    Args:
        raw: Lines of `process; frame; frame … number`, as py-spy writes them.
    """
    found: dict[str, Counter[str]] = {"": Counter(), "workers": Counter()}
    stacks = [(line.rpartition(" ")[0].split(";"), int(line.rpartition(" ")[2])) for line in raw.splitlines()]
    process = [max(at for at, frame in enumerate(frames) if frame.startswith("process ")) for frames, _ in stacks]
    stacks = [(frames[at:], number) for at, (frames, number) in zip(process, stacks, strict=True)]
    workers = {frames[0] for frames, _ in stacks if any(frame.startswith("_worker_loop ") for frame in frames)}
    for frames, number in stacks:
        is_thread = any(frame.startswith("_bootstrap_inner ") for frame in frames)
        is_run = is_thread or any(frame.startswith("measured ") for frame in frames)
        if is_run and frames[-1].partition(" ")[0].rpartition(".")[2] not in _WAITING:
            ours = [frame for frame in frames if "(streamdata/" in frame]
            where = _name(ours[-1]) if ours else "queues and other libraries"
            found["workers" if frames[0] in workers else ""][where] += number
    return found


def _name(frame: str) -> str:
    function, _, place = frame.partition(" (streamdata/")
    return f"`{place.partition(':')[0].rstrip(')')}: {function.partition('.<locals>')[0]}`"


def works(scale: Scale, far: Store) -> Iterator[Work]:
    """Ours of the rows that miss what they should reach; `far` has tars of its own."""
    tars, lines = tar_shards(DIRECTORY, scale.tar_records), jsonl_rows(DIRECTORY, scale.jsonl_rows)
    for shuffle in (False, True):
        how = "shuffled" if shuffle else "in order"
        yield Work(f"tar, {how}", partial(_drained, partial(tar.merged, tars, shuffle=shuffle)))
        yield Work(f"tar, {how}, mapped", partial(_drained, partial(tar.merged, tars, shuffle=shuffle, mapped=True)))
        yield Work(f"JSONL, {how}", partial(_drained, partial(jsonl.merged, lines, shuffle=shuffle)))
    both = tars_with_sidecars(DIRECTORY, scale.tar_records)
    yield Work("tar with sidecars, shuffled", partial(_drained, partial(tar.merged, both)))
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
    photographs = images.photographs(DIRECTORY, scale)
    for backend in images.BACKENDS:
        made = partial(images.merged, photographs, str(photographs / "tokenizer"), backend, cyclic=False)
        yield Work(f"JPEGs, {backend}", partial(_drained, made))
    yield Work("mixing 1,000 sources of ints", lambda: drain(islice(_mixed(), scale.draws)))
    yield Work("prepare text, one worker", lambda: _prepared(prepare.corpus(DIRECTORY, scale.prepare_kilobytes)))
    yield Work("object store, later epochs from the page cache", lambda: drain(_cached(far)))
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
    yield Work("object store, shuffled, two workers", partial(_batches, far), has_workers=True)


def _drained(make: Callable[[], MergedDataset]) -> None:
    drain(iter(make()))


def _loaded(make: Callable[[], MergedDataset], collate: Collate) -> None:
    loading_time(make(), collate, _BATCHES)


@cache
def _cached(far: Store) -> MergedDataset:
    """Tars of the store, with pages on disk as long as the process lives."""
    pages = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, pages)
    return remote.merged(far, cache={"path": pages, "max_bytes": 10**9})


@cache
def _mixed() -> Iterator[Any]:
    """An endless stream, under way."""
    return iter(MergedDataset(mixing.ints(1000)))


def _prepared(place: Path) -> None:
    with tempfile.TemporaryDirectory() as root:
        prepared = prepare.Prepared(place, Path(root))
        worker = Worker(prepared.job())
        for task in prepared.tasks(1):
            worker.do(task, lambda _: None)


def _batches(far: Store) -> None:
    drain(StreamLoader(remote.merged(far), batch_size=BATCH_SIZE, num_workers=NUM_WORKERS))


def main() -> None:
    """Profile all works, and write the page; with a number and a store's endpoint, run that work."""
    if sys.argv[1:]:
        work = list(works(Scale(), Store(None, sys.argv[2])))[int(sys.argv[1])]
        if not work.has_workers:
            work.run()  # caches and indexes are warm
        measured(work)
        return
    with store(shards(DIRECTORY, Scale().remote_records, 30_000)) as far:
        _write(list(works(Scale(), far)), far)


def _write(every: list[Work], far: Store) -> None:
    page = [machine(), "", "| work | share of its time, by function |", "|---|---|"]
    for number, work in enumerate(every):
        with tempfile.NamedTemporaryFile() as raw:
            record = [str(Path(sys.executable).with_name("py-spy")), *_RECORD.split(), raw.name, "--"]
            ours = [sys.executable, "-m", "tests.benchmarks.profiles", str(number), far.url]
            subprocess.run([*record, *ours], check=True, capture_output=True)
            found = counts_of(Path(raw.name).read_text(encoding="utf-8"))
        for role, counts in found.items():
            if total := counts.total():
                shown = [(where, count) for where, count in counts.most_common() if count >= _NAMED * total]
                shown.append(("others", total - sum(count for _, count in shown)))
                name = ": ".join(filter(None, (work.name, role or "trainer" * work.has_workers)))
                page.append(f"| {name} | {', '.join(f'{where} {count / total:.0%}' for where, count in shown)} |")
                print(page[-1], flush=True)
    PAGE.write_text("\n".join([*page, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
