"""The layout of a run's output directory.

manifest.json                 what came of the run; written when all tasks are done
run.json                      when, where and how fast: the only file that differs between runs
quarantine.jsonl              bad records, if there are any
data/                         the store; it appears by one rename, when all else is there
tasks/NNNNN.json              the marker of a task: once it is there, the task is done
tasks/NNNNN.quarantine.jsonl  the bad records of a task, if there are any
.work/                        only while the run is under way:
  plan.json                   what determines its output, so that another run is not mistaken for it
  lock, workers.lock          held by the run; shared by the processes that do its tasks
  tokenizer.json              for workers that encode texts alone
  staging/                    what tasks under way write
  data/                       what finished tasks wrote, each in directories `task_NNNNN`
"""

import os
from pathlib import Path


class Layout:
    """The paths of a run's output directory.

    Args:
        output: The directory; it need not exist.
    """

    def __init__(self, output: str | os.PathLike[str]) -> None:
        self.path = Path(output)
        self.manifest, self.facts = self.path / "manifest.json", self.path / "run.json"
        self.quarantine = self.path / "quarantine.jsonl"
        self.data, self.tasks, self.work = self.path / "data", self.path / "tasks", self.path / ".work"
        self.plan, self.lock, self.workers_lock = (self.work / name for name in ("plan.json", "lock", "workers.lock"))
        self.tokenizer = self.work / "tokenizer.json"
        self.staging, self.finished_data = self.work / "staging", self.work / "data"

    def marker(self, task: int) -> Path:
        """The marker of a task."""
        return self.tasks / f"{task:05d}.json"

    def task_quarantine(self, task: int) -> Path:
        """The bad records of a task."""
        return self.tasks / f"{task:05d}.quarantine.jsonl"

    def finished_tasks(self) -> list[int]:
        """The numbers of the tasks that have a marker."""
        return sorted(int(path.stem) for path in self.tasks.glob("*[0-9].json"))


def task_name(task: int) -> str:
    """The name of a task's directories in `data`, one in each domain."""
    return f"task_{task:05d}"
