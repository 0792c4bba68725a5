import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.trainers.jobs import ENVIRONMENT, ROOT, assert_each_once, command, marks, needs, run, trained


def run_and_kill(folder: Path, *options: object) -> None:
    """Two ranks with two workers each; one rank is killed as soon as all have saved."""
    log = folder / "output"
    folder.mkdir()
    with log.open("w") as output:
        job = subprocess.Popen(
            command("plain_loop", folder, *options, ranks=2), cwd=ROOT, env=ENVIRONMENT, stdout=output, stderr=output
        )
        deadline = time.monotonic() + 120
        while job.poll() is None and time.monotonic() < deadline:
            notes = sorted((folder / "rows").glob("*.txt"))
            if len(notes) == 2 and all("saved" in path.read_text() for path in notes):
                os.kill(int(notes[0].stem.partition("-")[2]), signal.SIGKILL)
                break
            time.sleep(0.005)
        assert job.wait(timeout=60), f"nobody was killed:\n{log.read_text()[-3000:]}"


@pytest.mark.parametrize(
    "wrapper", [pytest.param([], id="ddp"), pytest.param(["--fsdp"], id="fsdp2", marks=needs("datasets"))]
)
def test_a_killed_job_goes_on_with_other_ranks_and_workers(tmp_path: Path, wrapper: list[str]) -> None:
    """Every row of the epoch once, over all legs; what was trained after the last save does not count."""
    folder = tmp_path / "run"
    run_and_kill(folder, "--steps", 20, *wrapper)
    run("plain_loop", folder, "--steps", 5, "--workers", 1, *wrapper, ranks=3)
    rest = (240 - trained(folder).total()) // 4
    assert 0 < rest < 40
    run("plain_loop", folder, "--steps", rest, "--workers", 0, *wrapper, ranks=1)
    starts = {step for path in (folder / "rows").glob("*.txt") for step in marks(path.read_text().splitlines(), "res")}
    assert len(starts) == 3
    assert_each_once(folder)
