"""Real processes that are killed: `python -m tests.elastic.torchrun_soak --kills 10 --seed 0`.

torchrun's agent starts 1 to 4 ranks with 0 to 2 workers each over tars, JSONL, compressed JSONL, a token store and
packed documents; one rank is killed at random, the job goes on with another number of ranks and workers, ten times in
a row, and then to its end. Each rank's log is cut back to the step that was loaded; together they must be the epoch.
"""

import argparse
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.elastic import checkpoints, real_data, real_trainer
from tests.elastic.real_trainer import STEPS_PER_LEG
from tests.launched import Job, launch


class Size(NamedTuple):
    """Of a job."""

    ranks: int
    workers: int


def run_leg(folder: Path, leg: int, size: Size, *, kill_after: int | None, rng: random.Random) -> None:
    """Start a job; kill one of its ranks once they have delivered so many batches, or let it come to its end."""
    for pid in folder.glob("pid-*"):
        pid.unlink()
    weights = {name: rng.choice((1, 1, 2)) for name in real_data.SIZES}
    trainer = (str(folder), str(leg), str(size.workers), json.dumps(weights))
    job = launch(folder / f"output-{leg}", size.ranks, real_trainer.main, *trainer)
    if kill_after is not None:
        _kill_one(folder, leg, job, kill_after, rng)
    job.join(300)
    ended = len(list(folder.glob(f"ended-{leg}-*")))
    if job.exitcode != 0 and kill_after is None:
        raise AssertionError(f"the job failed:\n{(folder / f'output-{leg}').read_text()[-4000:]}")
    assert kill_after is None or ended in (0, size.ranks), "it ended apart"


def _kill_one(folder: Path, leg: int, job: Job, kill_after: int, rng: random.Random) -> None:
    while job.is_alive():
        if _num_batches(folder, leg) >= kill_after:
            os.kill(int(rng.choice(sorted(folder.glob("pid-*"))).read_text()), signal.SIGKILL)
            return
        time.sleep(0.01)
    if not list(folder.glob(f"ended-{leg}-*")):
        raise AssertionError(f"the job failed:\n{(folder / f'output-{leg}').read_text()[-4000:]}")


def _num_batches(folder: Path, leg: int) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob(f"log-{leg}-*.jsonl"))


def kept(folder: Path, leg: int) -> Counter:
    """What a leg delivered up to the step that its ranks saved last together."""
    step = checkpoints.load(folder / "steps").step
    tokens: Counter = Counter()
    for path in folder.glob(f"log-{leg}-*.jsonl"):
        # A killed process may have left half a line, of a batch that it had not saved.
        for line in path.read_text().split("\n")[:-1]:
            batch = json.loads(line)
            if batch["step"] <= step:
                tokens.update((name, value, *part) for name, _, value, *part in batch["tokens"])
    assert step < (leg + 1) * STEPS_PER_LEG
    return tokens


def check(tokens: Counter) -> None:
    """All of the epoch, each once."""
    want = Counter((name, *token) for name, parts in real_data.all_tokens().items() for token in parts)
    assert tokens == want, f"again {list((tokens - want).items())[:5]}, missing {list((want - tokens).items())[:5]}"


def run(folder: Path, sizes: list[Size], rng: random.Random, *, batches: range = range(10, 60)) -> Counter:
    """Kill all but the last leg; return how many tokens each delivered."""
    real_data.write(folder)
    delivered, tokens = Counter(), Counter()
    for leg, size in enumerate(sizes):
        kill_after = rng.choice(batches) if leg + 1 < len(sizes) else None
        run_leg(folder, leg, size, kill_after=kill_after, rng=rng)
        fresh = kept(folder, leg)
        delivered[leg] = fresh.total()
        tokens += fresh
    check(tokens)
    return delivered


def main() -> None:
    """Run it, and print what each leg delivered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    sizes = [Size(rng.randint(1, 4), rng.randint(0, 2))]
    while len(sizes) <= arguments.kills:
        size = Size(rng.randint(1, 4), rng.randint(0, 2))
        if (size.ranks, max(1, size.workers)) != (sizes[-1].ranks, max(1, sizes[-1].workers)):
            sizes.append(size)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        delivered = run(Path(folder), sizes, rng)
    print(f"{arguments.kills} kills, seed {arguments.seed}, {time.monotonic() - begin:.0f} s: the union is the epoch,")
    legs = zip(sizes, delivered.values(), strict=True)
    print(f"{delivered.total()} tokens: " + ", ".join(f"{s.ranks} x {s.workers}: {count}" for s, count in legs))


if __name__ == "__main__":
    main()
