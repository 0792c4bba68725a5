import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.compat.jobs import SCRIPTS, assert_each_once, losses_by_hand, marks, needs, trained
from tests.launched import Job, launch, script

LIMIT_S = 600  # of a machine on which others work too


def start(folder: Path, ranks: int, *options: object) -> Job:
    """The script in so many ranks."""
    command = map(str, (SCRIPTS / "plain_loop.py", folder, *options))
    return launch(folder.with_suffix(".log"), ranks, script, *command)


def kill_one_that_saved(folder: Path, job: Job) -> None:
    """As soon as both ranks have saved; the agent then ends the other one."""
    deadline = time.monotonic() + LIMIT_S
    while job.is_alive() and time.monotonic() < deadline:
        notes = sorted((folder / "rows").glob("*.txt"))
        if len(notes) == 2 and all("saved" in path.read_text() for path in notes):
            os.kill(int(notes[0].stem.partition("-")[2]), signal.SIGKILL)
            break
        time.sleep(0.005)
    job.join(LIMIT_S)
    assert job.exitcode, f"nobody was killed:\n{folder.with_suffix('.log').read_text()[-3000:]}"


def finish(folder: Path, ranks: int, *options: object) -> None:
    """Run it to its end, which must be a good one."""
    job = start(folder, ranks, *options)
    job.join(LIMIT_S)
    assert job.exitcode == 0, folder.with_suffix(".log").read_text()[-3000:]


@pytest.mark.parametrize(
    "wrapper", [pytest.param([], id="ddp"), pytest.param(["--fsdp"], id="fsdp2", marks=needs("datasets"))]
)
def test_a_killed_job_goes_on_with_other_ranks_and_workers(tmp_path: Path, wrapper: list[str]) -> None:
    """Every row of the epoch once, over all legs; what was trained after the last save does not count.

    The loss of each source is that of all ranks.
    """
    folder = tmp_path / "run"
    kill_one_that_saved(folder, start(folder, 2, "--steps", 20, *wrapper))
    for path in (folder / "rows").glob("*.txt"):
        logged = next(line for line in path.read_text().splitlines() if line.startswith("losses "))
        assert json.loads(logged.removeprefix("losses ")) == pytest.approx(losses_by_hand(folder, steps=5), rel=1e-5)
    finish(folder, 3, "--steps", 5, "--workers", 1, *wrapper)
    rest = (240 - trained(folder).total()) // 4
    assert 0 < rest < 40
    finish(folder, 1, "--steps", rest, "--workers", 0, *wrapper)
    starts = {step for path in (folder / "rows").glob("*.txt") for step in marks(path.read_text().splitlines(), "res")}
    assert len(starts) == 3
    assert_each_once(folder)
