"""Trainers that are killed, under each start method: `python -m tests.faults.killed_trainers`.

Of each: how long its workers live on, and what is left in shared memory. It ends with an error where a worker lives
for more than 2 s (5 s where it was still importing), or anything is left. Nothing else may use /dev/shm meanwhile.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

import torch
import torch.multiprocessing
from torch.utils.data import DataLoader

from streamdata import BlendableDataset, MergedDataset, StreamLoader, mixed_collate, named
from tests.faults.started import alive, in_shared_memory, seconds_until, tagged

MAX_S = 2.0
MAX_AT_START_S = 5.0
"""Of a worker that is spawned or imports: until that is over, nothing of ours is in it."""
METHODS = ("fork", "spawn", "forkserver")


class Tensors:
    """A map-style dataset of tensors that go through shared memory."""

    def __len__(self) -> int:
        return 5000

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((100_000,), float(index)), "index": index}


def make_loader(kind: str, method: str) -> Any:
    """The loaders that trainers hold, with two workers."""
    stream = MergedDataset([named(Tensors(), name="a", percent=1)])
    options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": method}
    if kind == "StreamLoader":
        return StreamLoader(stream, 4, **options)
    if kind == "map-style":
        return DataLoader(BlendableDataset([Tensors()], [1.0], 100_000), 4, **options)
    return DataLoader(stream, 4, collate_fn=mixed_collate, **options)


def train(kind: str, method: str, sharing: str) -> None:
    """Receive batches until somebody ends it; say when each has come."""
    if sharing != "default":
        torch.multiprocessing.set_sharing_strategy(sharing)
    print("begun", flush=True)
    for number, _ in zip(count(), make_loader(kind, method)):
        print(json.dumps(number), flush=True)
        time.sleep(0.01)


class Outcome(NamedTuple):
    """What became of a trainer's processes."""

    num_processes: int
    workers_s: float
    all_s: float
    left: list[str]


def kill(kind: str, method: str, sharing: str, num_lines: int, later_s: float) -> Outcome:
    """Start a trainer, kill it some time after it has said so much, and look until its processes are gone."""
    environment, before = tagged(), in_shared_memory()
    line = [sys.executable, "-m", "tests.faults.killed_trainers", "train", kind, method, sharing]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(line, env=environment, **streams) as trainer:
        assert trainer.stdout is not None, "it is a pipe"
        for _ in range(num_lines):
            assert trainer.stdout.readline(), "it has ended before it was killed"
        time.sleep(later_s)
        started = alive(environment)
        os.kill(trainer.pid, signal.SIGKILL)
        began = time.monotonic()
        seconds_until(lambda: not any(map(is_worker, alive(environment).values())))
        workers_s = time.monotonic() - began
        seconds_until(lambda: not alive(environment))
        all_s = time.monotonic() - began
    left = sorted(alive(environment).values())
    for pid in alive(environment):
        os.kill(pid, signal.SIGKILL)
    return Outcome(len(started), workers_s, all_s, [*left, *sorted(in_shared_memory() - before)])


def is_worker(command: str) -> bool:
    """Whether a process is more than torch's or Python's own helper, which removes what the others shared."""
    return "torch_shm_manager" not in command and "resource_tracker" not in command


def cases() -> Iterator[tuple[str, str, str, int, float]]:
    """Each loader under each method, killed in full flow; and one of them at moments of its start."""
    for kind in ("DataLoader", "StreamLoader", "map-style"):
        for method in METHODS:
            for sharing in ("default", "file_system"):
                yield kind, method, sharing, 20, 0.0
    for method in METHODS:
        for later_s in (0.0, 0.02, 0.05, 0.1, 0.3, 0.6, 1.0, 2.0, 3.0):
            yield "DataLoader", method, "default", 1, later_s


def main() -> None:
    """All cases."""
    if sys.argv[1:2] == ["train"]:
        train(*sys.argv[2:])
        return
    num_bad = 0
    for kind, method, sharing, num_lines, later_s in cases():
        if sys.argv[1:] and sys.argv[1] != kind:
            continue
        found = kill(kind, method, sharing, num_lines, later_s)
        num_bad += found.workers_s > (MAX_S if num_lines > 1 else MAX_AT_START_S) or bool(found.left)
        moment = "in full flow" if num_lines > 1 else f"{later_s} s after its start"
        print(
            f"{kind:12} {method:10} {sharing:11} {moment:22} {found.num_processes} processes, workers gone after "
            f"{found.workers_s:.2f} s, all after {found.all_s:.2f} s, left {found.left or 'nothing'}",
            flush=True,
        )
    sys.exit(num_bad > 0)


if __name__ == "__main__":
    main()
