"""The output directory of a run: of this run alone, and either unfinished or finished."""

import fcntl
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from streamdata.prepare.errors import PrepareError
from streamdata.prepare.layout import Layout
from streamdata.prepare.manifest import Json, differences, json_bytes, make_manifest
from streamdata.shards.publish import publish


class RunDirectory(Layout):
    """The output directory of a run, as the one process knows it that takes it, watches over it and finishes it."""

    def read_plan(self) -> Json | None:
        """The plan, or the manifest, of the run that is there; None where there is none.

        Raises:
            PrepareError: The directory holds something else.
        """
        for path in (self.manifest, self.plan):
            if path.exists():
                plan = read_json(path)
                if "made_by" not in plan:
                    raise _foreign(self.path, path.name)
                return plan
        if self.path.exists() and not self.path.is_dir():
            raise _foreign(self.path, "a file")
        others = [entry.name for entry in self.path.iterdir()] if self.path.exists() else []
        if set(others) - {".work"}:
            raise _foreign(self.path, ", ".join(sorted(others)[:4]))
        return None

    def is_finished(self) -> bool:
        """Whether the run has ended, and its store is there."""
        return self.data.exists() and not self.work.exists()

    @contextmanager
    def opened(self, plan: Json, *, overwrite: bool) -> Iterator[None]:
        """Make the directory ready for a run of this plan, and keep others out.

        Raises:
            PrepareError: It holds something else, a run that differs, or one that another process is at.
        """
        before = self.read_plan()
        changes = [] if before is None else differences(before, plan)
        if changes and not overwrite:
            raise PrepareError(
                f"output '{self.path}': expected a run of the same inputs, config and tokenizer, got a change in "
                + "; ".join(changes)
                + "\n  Name another directory, or use overwrite (--overwrite) to begin anew."
            )
        self.work.mkdir(parents=True, exist_ok=True)
        with self._locked():
            if overwrite:
                self._clear()
            publish(self.plan, [json_bytes(plan)])  # first: without it, the rest would be taken for somebody else's
            self.tasks.mkdir(exist_ok=True)
            shutil.rmtree(self.staging, ignore_errors=True)
            for path in (*self.path.glob(".*.tmp"), *self.tasks.glob(".*.tmp")):  # of a process killed in publishing
                path.unlink()
            yield

    def read_marker(self, task: int) -> Json:
        """The marker of a task that is done.

        Raises:
            PrepareError: It is damaged.
        """
        return read_json(self.marker(task))

    def finish(self, plan: Json, tasks: Sequence[int], facts: Json) -> Json:
        """Make the run whole, from its markers. A run that was killed in the midst of this does it again.

        Args:
            plan: The run's.
            tasks: The numbers of all its tasks.
            facts: For `run.json`.

        Returns:
            The manifest.

        Raises:
            PrepareError: What a task wrote is gone, or there is no token in it, and it is no part of a run.
        """
        manifest = make_manifest(plan, map(self._kept_marker, tasks))
        if not manifest["counts"].get("tokens") and plan["shard"] is None:
            left_out = (manifest["dropped"] | manifest["bad"]).items()
            reasons = ", ".join(f"{count} {reason}" for reason, count in left_out)
            raise PrepareError(
                f"output '{self.path}': expected tokens, got none of {manifest['counts'].get('records', 0)} records: "
                f"{reasons or 'the inputs are empty'}\n  Check the config and the inputs."
            )
        parts = [path.read_bytes() for task in tasks if (path := self.task_quarantine(task)).exists()]
        if parts:
            publish(self.quarantine, parts)
        publish(self.facts, [json_bytes(facts)])
        publish(self.manifest, [json_bytes(manifest)])
        if self.finished_data.exists():
            remove(self.data)  # of a run that was to be overwritten
            self.finished_data.rename(self.data)
        self.data.mkdir(exist_ok=True)  # a part may have no task
        shutil.rmtree(self.work)
        return manifest

    def _kept_marker(self, task: int) -> Json:
        """The marker of a task whose files are there, where `finish` takes them from."""
        marker = self.read_marker(task)
        data = self.finished_data if self.finished_data.exists() else self.data
        for name in marker["files"]:
            if not (data / name).exists():
                raise PrepareError(
                    f"output '{self.path}': expected '{data / name}', which task {task} wrote, got none\n"
                    "  Use overwrite (--overwrite) to begin anew; if this is a merge, for the part of that task first."
                )
        return marker

    def _clear(self) -> None:
        """Remove what an earlier run left. Its markers go first, and at once: without them nothing of it counts."""
        old_tasks = self.work / "tasks"
        remove(old_tasks)
        if self.tasks.exists():
            self.tasks.rename(old_tasks)
        for path in (old_tasks, self.finished_data, self.data):
            remove(path)
        for path in (self.facts, self.quarantine, self.manifest):  # the last says whose directory this is
            path.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the run's lock, and wait for workers that a killed run left to end."""
        with self.lock.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise PrepareError(
                    f"output '{self.path}': expected no other run, got one that is at it now\n  Wait for its end."
                ) from error
            with self.workers_lock.open("a") as workers:
                fcntl.flock(workers, fcntl.LOCK_EX)
            yield


def remove(path: Path) -> None:
    """Remove a directory, if it is there."""
    if path.exists():
        shutil.rmtree(path)


def read_json(path: Path) -> Json:
    """What a file of a run says.

    Raises:
        PrepareError: It is damaged.
    """
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(found, dict):
        raise _damaged(path, type(found).__name__)
    return found


def _damaged(path: Path, got: str) -> PrepareError:
    return PrepareError(f"file '{path}': expected a JSON object, got {got}\n  Remove what is damaged, and run again.")


def _foreign(path: Path, what: str) -> PrepareError:
    return PrepareError(
        f"output '{path}': expected an empty directory or one of this command, got {what}\n  Name another directory."
    )
