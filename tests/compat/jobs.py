"""The scripts of examples/trainers as processes, and what they were trained on."""

import importlib.util
import os
import runpy
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "trainers"
EPOCH = range(240)
LIMIT_S = 300
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "TRL_DISABLE_TELEMETRY": "1",
}


def needs(*modules: str) -> pytest.MarkDecorator:
    """Skips the tests of a trainer that is not installed."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}; see `make test-trainers`")


def command(script: str, *options: object, ranks: int | None = None) -> list[str]:
    """As a user would type it; with `ranks`, under torchrun."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    return [sys.executable, *launcher, str(SCRIPTS / f"{script}.py"), *map(str, options)]


def run(script: str, *options: object, ranks: int | None = None, fails: bool = False) -> str:
    """Run a script to its end, which must be a good one unless it `fails`; return what it printed."""
    job = subprocess.run(
        command(script, *options, ranks=ranks),
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert bool(job.returncode) == fails, job.stdout[-5000:]
    return job.stdout


def killed_after(mark: str, folder: Path, script: str, *options: object) -> None:
    """Kill a script, and all that it has started, once it has written a mark among its rows."""
    begun = {*(folder / "rows").glob("*.txt")}
    line, log = command(script, folder, *options), folder.with_suffix(".log").open("w")
    with log, subprocess.Popen(line, cwd=ROOT, env=ENVIRONMENT, stdout=log, stderr=log, start_new_session=True) as job:
        deadline = time.monotonic() + LIMIT_S
        while not any(mark in path.read_text() for path in (folder / "rows").glob("*.txt") if path not in begun):
            assert job.poll() is None, Path(log.name).read_text()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.005)
        os.killpg(job.pid, signal.SIGKILL)


def trained(folder: Path) -> Counter[int]:
    """How often each row was trained on, over all ranks and legs.

    A leg that was killed counts up to the step from which the next one was resumed.
    """
    files = [path.read_text().splitlines() for path in (folder / "rows").glob("*.txt")]
    starts = sorted({step for lines in files for step in marks(lines, "resumed")})
    rows: Counter[int] = Counter()
    for lines in files:
        begin = max(marks(lines, "resumed"), default=0)
        end = min((start for start in starts if start > begin), default=None)
        rows.update(row for line in until(lines, end) for row in map(int, line.split()))
    return rows


def losses_by_hand(folder: Path, steps: int, accumulate: int = 1) -> dict[str, float]:
    """The mean loss of each source in the first steps of a job, row by row: trained again on those that it noted."""
    model = runpy.run_path(str(SCRIPTS / "tiny.py"))["TinyModel"](str(folder / "again"))
    optimizer = torch.optim.AdamW(model.parameters())
    files = [path.read_text().splitlines() for path in (folder / "rows").glob("*.txt")]
    ranks = [[line.split() for line in lines if line[0].isdigit()] for lines in files]
    losses: dict[str, list[float]] = {"rows_from_0": [], "rows_from_120": []}
    for step in range(steps):
        batches = [batch for rank in ranks for batch in rank[step * accumulate : (step + 1) * accumulate]]
        for row in (int(row) for batch in batches for row in batch):
            tokens = (torch.arange(16) * 7 + row) % 256
            loss = cross_entropy(model.head(model.embedding(tokens[:-1])), tokens[1:])
            (loss / sum(map(len, batches))).backward()
            losses[f"rows_from_{row // 120 * 120}"].append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return {name: sum(found) / len(found) for name, found in losses.items()}


def marks(lines: list[str], word: str) -> list[int]:
    """The steps of the lines that begin with a word."""
    return [int(line.split()[1]) for line in lines if line.startswith(word)]


def until(lines: list[str], step: int | None) -> Iterator[str]:
    """The lines of rows before the one that says that this step was saved; all of them where no step is given."""
    assert step is None or f"saved {step}" in lines
    for line in lines:
        if step is not None and line == f"saved {step}":
            return
        if line[0].isdigit():
            yield line


def assert_each_once(folder: Path, times: int = 1) -> None:
    """All rows of the epoch, and no other."""
    assert trained(folder) == Counter(dict.fromkeys(EPOCH, times))
