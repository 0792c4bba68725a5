"""Workers that are killed, 25 under each start method: `python -m tests.faults.killed_workers`.

A trainer goes on after each with the same loader. It ends with an error where an error comes later than 10 s after a
kill, is not one that names the worker's process, or where the batches are not those of a run that nobody disturbed.
"""

import multiprocessing
import os
import random
import signal
import sys
import time
from typing import Any

import torch

from streamdata import MergedDataset, StreamLoader, named

KILLS = 25
MAX_S = 10.0
WORKERS = 2


class Slow:
    """A map-style dataset that takes a while for each record."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(0.002)
        return {"x": torch.full((5000,), index), "n": index}


def make_loader(method: str | None) -> StreamLoader:
    """Two sources; without a method, of workers that nobody kills."""
    sources = [named(Slow(3000), name="a", percent=2, single_process_fn=dict), named(Slow(700), name="b", percent=1)]
    return StreamLoader(MergedDataset(sources, seed=4), 4, WORKERS, multiprocessing_context=method or "fork")


def kill_often(method: str) -> tuple[list[list[int]], list[float], list[str], int]:
    """What a trainer receives while its workers are killed, after how long it hears of each, and what it hears."""
    rng, received, seconds, messages, num_again = random.Random(method), [], [], [], 0
    loader = make_loader(method)
    while len(seconds) < KILLS:
        killed, began, left = 0, 0.0, rng.randrange(1, 12)
        try:
            for batch in loader:
                received.append(batch["n"].tolist())
                left -= 1
                if not left:
                    workers = [child.pid for child in multiprocessing.active_children() if child.pid]
                    killed, began = rng.choice(workers), time.monotonic()
                    time.sleep(rng.random() * 0.01)
                    os.kill(killed, signal.SIGKILL)
                elif not killed or rng.random() < 0.5:
                    time.sleep(rng.random() * 0.01)
        except (RuntimeError, OSError) as error:
            if not killed:  # raised in the loop's own body, and once more where the loop goes on
                num_again += 1
                continue
            seconds.append(time.monotonic() - began)
            text = "\n".join([str(error), *getattr(error, "__notes__", ())])
            messages.append(f"{str(killed) in text.replace(')', ' ').split()} {text}")
    received += [batch["n"].tolist() for batch, _ in zip(loader, range(20), strict=False)]
    return received, seconds, messages, num_again


def main() -> None:
    """Each method."""
    for method in sys.argv[1:] or ("fork", "spawn", "forkserver"):
        received, seconds, messages, num_again = kill_often(method)
        wanted = [batch["n"].tolist() for batch, _ in zip(make_loader(None), received, strict=False)]
        assert received == wanted, f"{method}: not the batches of the undisturbed run"
        assert max(seconds) <= MAX_S, f"{method}: {max(seconds):.1f} s until an error"
        named_pid = sum(message.startswith("True") for message in messages)
        print(
            f"{method}: {len(seconds)} kills, errors after {max(seconds):.2f} s at most, {named_pid} name the process, "
            f"{num_again} came twice; "
            f"{len(received)} batches, all those of an undisturbed run\n  such as: {messages[-1]}",
            flush=True,
        )


if __name__ == "__main__":
    main()
