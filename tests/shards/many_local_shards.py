"""What each of many local shards takes of memory, and how many are open: `python -m tests.shards.many_local_shards`.

The shards of one source, of two records each, with their indexes; the memory is that above a source of ten shards, in a
fresh process that reads, and in a DataLoader worker of it.
"""

import argparse
import gc
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from torch.utils.data import DataLoader

from streamdata import JsonlIterableDataset, MergedDataset
from streamdata.run.per_process import MAX_OPEN_FILES
from tests.benchmarks.measure import resident_mb

MAX_BYTES = 1024
_READ = 800  # records, of as many shards: more than are kept open


class Taken(NamedTuple):
    """What shards take."""

    shard_bytes: float
    """Of the process that made the source and read records, for each shard."""
    worker_files: int
    """That a worker has open."""


def write(folder: Path, count: int) -> None:
    """JSONL shards of two records."""
    for number in range(count):
        (folder / f"{number:06d}.jsonl").write_bytes(b'{"n": 1}\n{"n": 2}\n')


def stream(folder: Path, count: int) -> MergedDataset:
    """The first shards of the folder as a mixture."""
    pattern = f"{folder}/{{000000..{count - 1:06d}}}.jsonl"
    return MergedDataset([JsonlIterableDataset(pattern, name="a", percent=1.0)])


def index(folder: Path, count: int) -> None:
    """Make the indexes: that is another process's work."""
    stream(folder, count)


def measure(folder: Path, count: int) -> Taken:
    """Read some records, in this process and in a worker."""
    _read(stream(folder, 10))
    before = _resident()
    many = stream(folder, count)
    _read(many)
    taken = _resident() - before
    warnings.simplefilter("ignore")  # that the iteration before was left
    batches = iter(DataLoader(many, None, num_workers=1))
    for _ in islice(batches, _READ):
        pass
    (worker,) = batches._workers  # type: ignore[attr-defined]
    return Taken(taken / count, len(os.listdir(f"/proc/{worker.pid}/fd")))


def _read(samples: MergedDataset) -> None:
    iterator: Iterator[object] = iter(samples)
    for _ in islice(iterator, _READ):
        pass


def _resident() -> float:
    gc.collect()
    return resident_mb() * 1e6


def main() -> None:
    """Measure two numbers of shards; end with 1 where one takes too much."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=[10_000, 100_000])
    counts, is_too_much = parser.parse_args().shards, False
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "shards")
        folder.mkdir()
        os.environ["STREAMDATA_CACHE"] = f"{place}/cache"
        write(folder, max(counts))
        for count in counts:
            began = time.monotonic()
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                process.submit(index, folder, count).result()
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                taken = process.submit(measure, folder, count).result()
            is_too_much |= taken.shard_bytes > MAX_BYTES or taken.worker_files > MAX_OPEN_FILES + 64
            seconds = time.monotonic() - began
            print(
                f"{count:,} shards: {taken.shard_bytes:.0f} bytes each (at most {MAX_BYTES}), "
                f"{taken.worker_files} files open in a worker, {seconds:.0f} s",
                flush=True,
            )
    sys.exit(is_too_much)


if __name__ == "__main__":
    main()
