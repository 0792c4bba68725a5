"""Loops under data and context parallelism: killed, and resumed with other numbers of both."""

import os
import signal
import time
from collections import defaultdict
from pathlib import Path

import pytest

from tests.compat.jobs import EPOCH, SCRIPTS, marks, needs, until
from tests.launched import Job, launch, script

LIMIT_S = 600  # of a machine on which others work too


def start(name: str, folder: Path, *options: object) -> Job:
    """A script in four ranks."""
    words = (SCRIPTS / f"{name}.py", folder, "--workers", 0, *options)
    return launch(folder.with_suffix(".log"), 4, script, *map(str, words))


def kill_one_that_saved(folder: Path, job: Job) -> None:
    """As soon as all ranks have saved; the agent then ends the others."""
    deadline = time.monotonic() + LIMIT_S
    while job.is_alive() and time.monotonic() < deadline:
        notes = sorted((folder / "rows").glob("*.txt"))
        if len(notes) == 4 and all("saved" in path.read_text() for path in notes):
            os.kill(int(notes[-1].stem.partition("-")[2]), signal.SIGKILL)
            break
        time.sleep(0.005)
    job.join(LIMIT_S)
    assert job.exitcode, f"nobody was killed:\n{folder.with_suffix('.log').read_text()[-3000:]}"


def finish(name: str, folder: Path, *options: object) -> None:
    """Run it to its end, which must be a good one."""
    job = start(name, folder, *options)
    job.join(LIMIT_S)
    assert job.exitcode == 0, folder.with_suffix(".log").read_text()[-3000:]


def trained(folder: Path) -> list[int]:
    """The rows that were trained on, one replica after another within each leg, up to what the next leg resumed from.

    Raises:
        AssertionError: Members of a group have trained on different rows.
    """
    files = [path.read_text().splitlines() for path in (folder / "rows").glob("*.txt")]
    starts = sorted({step for lines in files for step in marks(lines, "resumed")})
    replicas = defaultdict(list)
    for lines in files:
        (begin,), (replica,) = marks(lines, "resumed"), marks(lines, "member")
        end = min((start for start in starts if start > begin), default=None)
        replicas[begin, replica].append([line.split() for line in until(lines, end)])
    for members in replicas.values():
        assert all(rows == members[0] for rows in members)
    return [int(row) for _, members in sorted(replicas.items()) for batch in members[0] for row in batch]


@pytest.mark.parametrize("legs", [[(5, 4)], pytest.param([(5, 1), (50, 4)], marks=pytest.mark.long)], ids=str)
@pytest.mark.parametrize("name", ["titan_group", pytest.param("megatron_group", marks=needs("megatron"))])
def test_a_killed_job_goes_on_with_other_data_and_context_parallel_ranks(
    tmp_path: Path, name: str, legs: list[tuple[int, int]]
) -> None:
    """2 × 2, 4 × 1, 1 × 4: each row of the epoch once over data parallel ranks, batches equal within a group."""
    folder = tmp_path / "run"
    kill_one_that_saved(folder, start(name, folder, "--steps", 25, "--cp", 2))
    for steps, cp in legs:
        finish(name, folder, "--steps", steps, "--cp", cp)
    rows = trained(folder)[: len(EPOCH)]  # the long job goes on into the next epoch
    assert len({*rows}) == len(rows)
    assert len(rows) == len(EPOCH) or len(legs) == 1
