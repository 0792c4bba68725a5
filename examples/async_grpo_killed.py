"""Kills `async_grpo.py` five times, goes on with other numbers of workers, and compares the books.

`python examples/async_grpo_killed.py run`, a minute or two on two cores. Each start has logged how it settled which
prompt. What it settled after the checkpoint from which the next one went on is undone, and does not count; of what is
left each prompt of each epoch must be there once, as done or as dropped.
"""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

TRAIN = Path(__file__).with_name("async_grpo.py")
WORKERS = [4, 2, 5, 1, 3, 4]
"""Of each start; all but the last are killed."""
NUM_PROMPTS = 100


class Books(NamedTuple):
    """What all starts of a run have settled."""

    ends: Counter[str]
    """How many prompts were done, how many dropped, where that counts."""
    prompts: Counter[tuple[int, int]]
    """How often each, by epoch and row, was settled, where that counts."""
    num_undone: int
    """Settlements after the checkpoint from which the next start went on."""


def start(run: Path, workers: int, epochs: int) -> subprocess.Popen[bytes]:
    """Start a training, in a process group of its own, to be killed with its workers."""
    command = [sys.executable, str(TRAIN), str(run), f"--workers={workers}", f"--epochs={epochs}"]
    return subprocess.Popen(command, start_new_session=True)  # noqa: S603  our own script


def kill_after(number: int, process: Any, run: Path) -> None:
    """Kill a training and its workers once it has settled so many prompts more, wherever they are then.

    Raises:
        AssertionError: It ended before.
    """
    before = len(_logs(run))
    while len(logs := _logs(run)) == before or len(logs[-1]) <= number:
        assert process.poll() is None, "the training ended before it was killed"
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _logs(run: Path) -> list[list[dict[str, Any]]]:
    """The lines of each start. A process that is killed may leave half a line, of what no checkpoint has."""
    files = (path.read_text() for path in sorted(run.glob("log-*.jsonl")))
    return [[json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")] for text in files]


def books_of(run: Path) -> Books:
    """Read the logs of all starts, each cut back to the checkpoint from which the next one went on."""
    counted, num_undone = [], 0
    for (_, *lines), following in pairwise([*_logs(run), None]):
        saved = following[0]["resumed"] if following else math.inf
        counted += [line for line in lines if line["step"] < saved]
        num_undone += sum(line["step"] >= saved for line in lines)
    ends, prompts = (line["end"] for line in counted), ((line["epoch"], line["row"]) for line in counted)
    return Books(Counter(ends), Counter(prompts), num_undone)


def compare(books: Books, epochs: int) -> str:
    """Say in words how the prompts have ended.

    Raises:
        AssertionError: One has not ended, or has ended twice.
    """
    wanted = Counter((epoch, row) for epoch in range(epochs) for row in range(NUM_PROMPTS))
    lost, repeated = sorted(wanted - books.prompts), sorted(books.prompts - wanted)
    assert not lost, f"lost: {lost}"
    assert not repeated, f"repeated: {repeated}"
    return (
        f"{wanted.total():,} prompts, each once: {books.ends['done']:,} done, {books.ends['dropped']:,} dropped; "
        f"{books.num_undone:,} settled after a checkpoint, and undone with the weights"
    )


def main(run: str, epochs: int = 20, seed: int = 0) -> None:
    """Train, kill, go on, and compare the books."""
    rng, folder, share = random.Random(seed), Path(run), epochs * NUM_PROMPTS // len(WORKERS)
    for workers in WORKERS[:-1]:
        kill_after(rng.randint(share // 2, share), start(folder, workers, epochs), folder)
    assert start(folder, WORKERS[-1], epochs).wait() == 0, "the training failed"
    print(compare(books_of(folder), epochs))


if __name__ == "__main__":
    main(*sys.argv[1:])
