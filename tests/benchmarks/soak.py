"""Millions of samples through workers, while what the processes hold is looked at: `python -m tests.benchmarks.soak`.

One mixture of tars with sidecars, JSON Lines, parquet and a store, many epochs of each. After a warm-up nothing may
grow: the script ends with 1 where a process's memory has a slope above 1 KB in 1,000 samples, or where descriptors or
blocks of shared memory are more at the end than after the warm-up.
"""

import argparse
import io
import json
import os
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils.data import DataLoader

from streamdata import (
    DatasetFactory,
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    ParquetDataset,
    StoreWriter,
    mixed_collate,
    named,
    to_state,
)

_RECORDS = 4_000  # of each source: epochs are short, so that many begin
_SHARDS = 8
_LOOKS = 60
_MAX_SLOPE = 1024.0 / 1000  # bytes a sample


class Look(NamedTuple):
    """What a process has: the trainer is the first."""

    samples: int
    resident: list[int]
    descriptors: list[int]
    shared: int


def write_data(folder: Path) -> None:
    """A little of each kind, in several shards."""
    for shard in range(_SHARDS):
        numbers = range(shard, _RECORDS, _SHARDS)
        (folder / f"{shard}.jsonl").write_text("".join(json.dumps({"n": n, "text": "x" * 40}) + "\n" for n in numbers))
        pq.write_table(pa.table({"n": list(numbers), "text": ["y" * 40 for _ in numbers]}), folder / f"{shard}.parquet")
        with tarfile.open(folder / f"{shard}.tar", "w") as archive:
            for n in numbers:
                info = tarfile.TarInfo(f"{n}.txt")
                info.size = 40
                archive.addfile(info, io.BytesIO(b"z" * 40))
        lines = "".join(json.dumps({"key": str(n), "score": n}) + "\n" for n in numbers)
        (folder / f"{shard}.meta.jsonl").write_text(lines)
    with StoreWriter("bin", folder / "store", {"sequence": "int32"}) as writer:
        for n in range(_RECORDS):
            writer.append({"sequence": np.full(17, n, np.int32)})


def mixture(folder: Path) -> MergedDataset:
    """One source of each kind, all endless."""
    store = DatasetFactory.load("seq", str(folder / "store"), window_size=16)
    return MergedDataset(
        [
            MetaDistributedWebDataset(f"{folder}/*.tar", meta_names=["score"], name="tar", percent=1.0),
            JsonlIterableDataset(f"{folder}/?.jsonl", name="lines", percent=1.0),
            ParquetDataset(f"{folder}/*.parquet", name="rows", percent=1.0),
            named(store, name="store", percent=1.0),
        ]
    )


def look(samples: int) -> Look:
    """This process and its children."""
    pids = [os.getpid(), *_children()]
    return Look(samples, list(map(_resident, pids)), list(map(_descriptors, pids)), _shared_blocks(pids))


def _shared_blocks(pids: list[int]) -> int:
    """How many blocks of shared memory have a name of theirs, as torch gives them."""
    return sum(any(f"_{pid}_" in name for pid in pids) for name in os.listdir("/dev/shm"))  # noqa: S108


def _children() -> Iterator[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        yield from map(int, file.read().split())


def _resident(pid: int) -> int:
    """Bytes that are its own: pages that processes share grow in each as it touches them."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) << 10 for line in file if line.startswith("Private_"))


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def soak(folder: Path, samples: int, workers: int, batch_size: int) -> list[Look]:
    """Read so many samples, and look from time to time."""
    loader = DataLoader(
        mixture(folder),
        batch_size,
        num_workers=workers,
        collate_fn=mixed_collate,
        prefetch_factor=4 if workers else None,
    )
    looks, states, every = [], {}, max(1, samples // batch_size // _LOOKS)
    for number, batch in enumerate(loader):
        states.update(to_state(batch))
        if number % every == 0:
            looks.append(look(number * batch_size))
        if (number + 1) * batch_size >= samples:
            break
    return looks


def slopes(looks: list[Look]) -> list[float]:
    """Of each process, bytes a sample after the first third, by least squares."""
    warm = looks[len(looks) // 3 :]
    at = np.array([each.samples for each in warm], float)
    resident = np.array([each.resident for each in warm], float)
    return [float(slope) for slope in np.polyfit(at, resident, 1)[0]]


def main() -> int:
    """Run it, and say what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=3_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=512)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STREAMDATA_CACHE"] = f"{folder}/cache"
        write_data(Path(folder))
        began = time.monotonic()
        looks = soak(Path(folder), arguments.samples, arguments.workers, arguments.batch_size)
    seconds, found = time.monotonic() - began, slopes(looks)
    warm, last = looks[len(looks) // 3], looks[-1]
    print(f"{last.samples:,} samples of four sources by {arguments.workers} workers in {seconds:.0f} s; trainer first:")
    print(
        "  MB of its own, after a third and at the end:",
        [(a >> 20, b >> 20) for a, b in zip(warm.resident, last.resident, strict=True)],
    )
    print("  bytes of memory a sample since then:", [round(slope, 3) for slope in found])
    print("  descriptors:", warm.descriptors, "→", last.descriptors, " shared memory:", warm.shared, "→", last.shared)
    grows = max(found) > _MAX_SLOPE or any(b > a for a, b in zip(warm.descriptors, last.descriptors, strict=True))
    return int(grows or last.shared > warm.shared)


if __name__ == "__main__":
    sys.exit(main())
