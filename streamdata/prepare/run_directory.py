"""The output directory of a run: of this run alone, and either unfinished or finished."""

import fcntl
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from streamdata.prepare.errors import PrepareError
from streamdata.prepare.layout import Layout
from streamdata.prepare.manifest import Json, differences, json_bytes, make_manifest
from streamdata.prepare.quarantine import first_bad
from streamdata.run.publish import publish, sync


class RunDirectory(Layout):
    """The output directory of a run, for the one process that leads it."""

    def read_plan(self) -> Json | None:
        """The plan of the run that is there, or its manifest; None if the directory is missing or empty.

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
        """Make the directory ready for a run of this plan, and lock it.

        Raises:
            PrepareError: It holds something else, a run that differs, or one that is under way in another process.
        """
        before = self.read_plan()
        changes = [] if before is None else differences(before, plan)
        if changes and not overwrite:
            raise PrepareError(
                f"output '{self.path}': expected a run of the same inputs, config and tokenizer, got a change in "
                + "; ".join(changes)
                + "\n  Name another directory, or use overwrite (--overwrite) to start again."
            )
        self.work.mkdir(parents=True, exist_ok=True)
        with self._locked():
            if overwrite:
                self._clear()
            publish(self.plan, [json_bytes(plan)])  # first: without it, the rest would be taken for somebody else's
            self.tasks.mkdir(exist_ok=True)
            self._remove_unpublished()
            try:
                yield
            except BaseException:
                self._remove_left_behind()
                raise

    def read_marker(self, task: int) -> Json:
        """The marker of a task that is done.

        Raises:
            PrepareError: It is damaged.
        """
        return read_json(self.marker(task))

    def finish(self, plan: Json, tasks: Sequence[int], facts: Json) -> Json:
        """Finish the run, from its markers. If it is killed before the end of this, the next run does it again.

        Args:
            plan: The run's.
            tasks: The numbers of all its tasks.
            facts: For `run.json`.

        Returns:
            The manifest.

        Raises:
            PrepareError: What a task wrote is missing, or a run that is not a part of another has no tokens.
        """
        manifest = make_manifest(plan, map(self._kept_marker, tasks))
        if not manifest["counts"].get("tokens") and plan["shard"] is None:
            left_out = (manifest["dropped"] | manifest["bad"]).items()
            reasons = ", ".join(f"{count} {reason}" for reason, count in left_out)
            raise PrepareError(
                f"output '{self.path}': expected tokens, got none of {manifest['counts'].get('records', 0)} records: "
                f"{reasons or 'the inputs are empty'}{first_bad(self)}\n  Check the config and the inputs."
            )
        parts = [path.read_bytes() for task in tasks if (path := self.task_quarantine(task)).exists()]
        if parts:
            publish(self.quarantine, parts)
        self._remove_left_behind()
        publish(self.facts, [json_bytes(facts)])
        publish(self.manifest, [json_bytes(manifest)])
        # This rename makes the store visible. Where it was done before, a run was killed between here and the end, and
        # the data are what the markers say: `_kept_marker` has looked.
        if self.finished_data.exists():
            remove(self.data)  # of a run that was to be overwritten
            self.finished_data.rename(self.data)
            sync(self.path)  # before what says how to do it again is removed
        self.data.mkdir(exist_ok=True)  # a part may have no task
        shutil.rmtree(self.work)
        return manifest

    def _remove_left_behind(self) -> None:
        """Remove what workers of this run were writing when they were killed.

        While one lives on, as in a cluster, that is left to the next run.
        """
        with suppress(BlockingIOError, FileNotFoundError), self._workers_locked(fcntl.LOCK_NB):
            self._remove_unpublished()

    def _remove_unpublished(self) -> None:
        """Remove what processes were writing when they were killed."""
        shutil.rmtree(self.staging, ignore_errors=True)
        for path in (*self.path.glob(".*.tmp"), *self.tasks.glob(".*.tmp")):
            path.unlink()

    def _kept_marker(self, task: int) -> Json:
        """The marker of a task whose files are there, where `finish` takes them from."""
        marker = self.read_marker(task)
        data = self.finished_data if self.finished_data.exists() else self.data
        for name in marker["files"]:
            if not (data / name).exists():
                raise PrepareError(
                    f"output '{self.path}': expected '{data / name}', which task {task} wrote, got none\n"
                    "  Use overwrite (--overwrite) to start again; if this is a merge, for the part of that task first."
                )
        return marker

    def _clear(self) -> None:
        """Remove what an earlier run has written.

        Its markers go first, by one rename: without them, nothing else of it is relied on. The manifest goes last: as
        long as it is there, a directory whose clearing was interrupted is not taken for somebody else's.
        """
        old_tasks = self.work / "tasks"
        remove(old_tasks)
        if self.tasks.exists():
            self.tasks.rename(old_tasks)
        for path in (old_tasks, self.finished_data, self.data):
            remove(path)
        for path in (self.facts, self.quarantine, self.manifest):
            path.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the run's lock, and wait for the workers of a run that was killed, which may still write."""
        with self.lock.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise PrepareError(
                    f"output '{self.path}': expected no other run, got one that is under way\n  Wait for its end."
                ) from error
            with self._workers_locked():
                pass
            yield

    @contextmanager
    def _workers_locked(self, how: int = 0) -> Iterator[None]:
        """Let no worker begin a task.

        Raises:
            BlockingIOError: One is at a task, and `how` is not to wait for it.
        """
        with self.workers_lock.open("a") as workers:
            fcntl.flock(workers, fcntl.LOCK_EX | how)
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
