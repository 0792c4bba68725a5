"""Keeps the output directory of a run: of one run alone, and either unfinished or finished.

`config, tokenizer, inputs → plan`, which tells runs apart; `plan, markers of tasks → manifest`. Its files:

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

import fcntl
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from streamdata.errors import PrepareError, shown
from streamdata.prepare.config import PrepareConfig
from streamdata.prepare.encode import vocabulary_size
from streamdata.prepare.inputs import Task
from streamdata.run.publish import publish, sync
from streamdata.text.tokenizer import tokenizer_digest

Json = dict[str, Any]
VERSION: Final = 3
RESULTS: Final = ("counts", "dropped", "bad", "files")
"""The keys that a manifest has beside its plan, and the digests of inputs."""
_NOT_IN_DIGEST: Final = {"max_bad"}
"""Keys that change no output: more bad records may be accepted when an interrupted run goes on."""
_MAX_FIELDS: Final = 20


class RunDirectory:
    """The output directory of a run, with the paths of its files.

    Args:
        output: The directory; it need not exist.
    """

    def __init__(self, output: str | os.PathLike[str]) -> None:
        self.path = Path(output)
        self.manifest, self.facts = self.path / "manifest.json", self.path / "run.json"
        self.quarantine = self.path / "quarantine.jsonl"
        self.data, self.tasks, self.work = self.path / "data", self.path / "tasks", self.path / ".work"
        self.plan, self.tokenizer = self.work / "plan.json", self.work / "tokenizer.json"
        self.staging, self.finished_data = self.work / "staging", self.work / "data"

    def marker(self, task: int) -> Path:
        """The path of a task's marker."""
        return self.tasks / f"{task:05d}.json"

    def task_quarantine(self, task: int) -> Path:
        """The path of a task's bad records."""
        return self.tasks / f"{task:05d}.quarantine.jsonl"

    def read_marker(self, task: int) -> Json:
        """The marker of a task that is done.

        Raises:
            PrepareError: It is damaged.
        """
        return _read_json(self.marker(task))

    def read_plan(self) -> Json | None:
        """The plan of the run that is there, or its manifest; None if the directory is missing or empty.

        Raises:
            PrepareError: The directory holds something else.
        """
        others = sorted({entry.name for entry in self.path.glob("*")} - {".work"})
        got = "a file" if self.path.exists() and not self.path.is_dir() else ", ".join(others[:4])
        if path := next((path for path in (self.manifest, self.plan) if path.exists()), None):
            plan = _read_json(path)
            if "made_by" in plan:
                return plan
            got = path.name
        if got:
            raise PrepareError(
                f"output '{self.path}': expected an empty directory or one of this command, got {got}\n"
                "  Name another directory."
            )
        return None

    def is_finished(self) -> bool:
        """Whether the run has ended, and its store is there."""
        return self.data.exists() and not self.work.exists()

    def first_bad(self) -> str:
        """A message about the first bad record: what is wrong with one is mostly wrong with all; empty without one."""
        for path in (self.quarantine, *sorted(self.tasks.glob("*.quarantine.jsonl"))):
            if path.exists():
                with path.open("rb") as file:
                    entry = json.loads(file.readline())
                where = f"{entry['place']}: {entry['field']}: " if entry["field"] else f"{entry['place']}: "
                return f"\n  The first is {where}{entry['reason']}: {entry['message']}{_fields_said(entry)}"
        return ""

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
        with (self.work / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise PrepareError(
                    f"output '{self.path}': expected no other run, got one that is under way\n  Wait for its end."
                ) from error
            with self.workers_locked(fcntl.LOCK_EX):
                pass  # the workers of a run that was killed may still write
            if overwrite:
                # Markers go first, by one rename: without them, nothing else of an earlier run is relied on. The
                # manifest goes last: as long as it is there, a directory whose clearing was interrupted is not taken
                # for somebody else's.
                old_tasks = self.work / "tasks"
                remove(old_tasks)
                if self.tasks.exists():
                    self.tasks.rename(old_tasks)
                for path in (old_tasks, self.finished_data, self.data):
                    remove(path)
                for path in (self.facts, self.quarantine, self.manifest):
                    path.unlink(missing_ok=True)
            publish(self.plan, [json_bytes(plan)])  # first: without it, the rest would be taken for somebody else's
            self.tasks.mkdir(exist_ok=True)
            self._remove_unpublished()
            try:
                yield
            except BaseException:
                self._remove_left_behind()
                raise

    @contextmanager
    def workers_locked(self, how: int) -> Iterator[None]:
        """Hold the lock of workers: shared by those at a task, alone by a run that lets none begin.

        Args:
            how: As for `fcntl.flock`.

        Raises:
            FileNotFoundError: The run has ended.
            BlockingIOError: A worker is at a task, and `how` is not to wait for it.
        """
        with (self.work / "workers.lock").open("a") as lock:
            fcntl.flock(lock, how)
            yield

    def finish(self, plan: Json, tasks: Sequence[int], facts: Json) -> Json:
        """Finish the run, from its markers. If it is killed before the end of this, the next run does it again.

        Args:
            plan: The run's.
            tasks: The numbers of all its tasks.
            facts: For `run.json`.

        Returns:
            The manifest.

        Raises:
            PrepareError: A file that a task wrote is missing, or a run that is not a part of another has no tokens.
        """
        manifest = make_manifest(plan, map(self._kept_marker, tasks))
        if not manifest["counts"].get("tokens") and plan["shard"] is None:
            left_out = (manifest["dropped"] | manifest["bad"]).items()
            reasons = ", ".join(f"{count} {reason}" for reason, count in left_out)
            raise PrepareError(
                f"output '{self.path}': expected tokens, got none of {manifest['counts'].get('records', 0)} records: "
                f"{reasons or 'the inputs are empty'}{self.first_bad()}\n  Check the config and the inputs."
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

    def _remove_left_behind(self) -> None:
        """Remove what workers of this run were writing when they were killed.

        While one lives on, as in a cluster, that is left to the next run.
        """
        with suppress(BlockingIOError, FileNotFoundError), self.workers_locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
            self._remove_unpublished()

    def _remove_unpublished(self) -> None:
        shutil.rmtree(self.staging, ignore_errors=True)
        for path in (*self.path.glob(".*.tmp"), *self.tasks.glob(".*.tmp")):
            path.unlink()


def remove(path: Path) -> None:
    """Remove a directory, if it is there."""
    if path.exists():
        shutil.rmtree(path)


def json_bytes(value: Any) -> bytes:
    """JSON to read and to compare."""
    return json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n"


def _read_json(path: Path) -> Json:
    try:
        found = json.loads(path.read_bytes())
        got = type(found).__name__
    except ValueError as error:
        found, got = None, str(error)
    if not isinstance(found, dict):
        raise PrepareError(
            f"file '{path}': expected a JSON object, got {got}\n  Remove what is damaged, and run again."
        )
    return found


def _fields_said(entry: Json) -> str:
    """The names of a bad record's fields, where it has any and they are not named yet."""
    if "the fields" in entry["message"]:
        return ""
    found = entry["record"]
    if isinstance(found, str):  # a line; a row of parquet has its fields already
        try:
            found = json.loads(found)
        except ValueError:
            return ""
    if not isinstance(found, dict):
        return f"\n  It is {shown(found)}."
    more = ", …" if len(found) > _MAX_FIELDS else ""
    return f"\n  Its fields are {', '.join(shown(name) for name in list(found)[:_MAX_FIELDS])}{more}." if found else ""


def make_plan(
    config: PrepareConfig, name: str, tokenizer: Any, tasks: Sequence[Task], shard: tuple[int, int] | None
) -> Json:
    """All that determines the output of a run, as plain JSON.

    Args:
        config: As it was given.
        name: The tokenizer's, for people who read the manifest.
        tokenizer: The tokenizer itself.
        tasks: Of all inputs.
        shard: Which part of the tasks this run does, and of how many parts; None for all.
    """
    digested = json.dumps(config.model_dump(exclude=_NOT_IN_DIGEST), sort_keys=True)
    stamps = {task.url: task.stamp for task in tasks}
    size = vocabulary_size(tokenizer)
    return {
        "made_by": f"streamdata prepare {VERSION}",
        "config": config.model_dump(exclude_defaults=True),
        "config_digest": hashlib.blake2b(digested.encode(), digest_size=16).hexdigest(),
        "tokenizer": {"name": name, "digest": tokenizer_digest(tokenizer), "vocabulary": size},
        "inputs": [{"url": url, "size": stamp.size, "mtime_ns": stamp.version} for url, stamp in stamps.items()],
        "num_tasks": len(tasks),
        "shard": None if shard is None else list(shard),
    }


def differences(before: Json, now: Json) -> list[str]:
    """The differences between two plans, in words."""
    if before.get("made_by") != now["made_by"]:
        return [f"it was made by {shown(before.get('made_by'))}, this is {shown(now['made_by'])}"]
    found = []
    if before["config_digest"] != now["config_digest"]:
        configs = (PrepareConfig.model_validate(plan["config"]) for plan in (before, now))
        old, new = (config.model_dump(exclude=_NOT_IN_DIGEST) for config in configs)
        found.append(f"the config: {', '.join(key for key in new if old[key] != new[key])}")
    if before["tokenizer"]["digest"] != now["tokenizer"]["digest"]:
        found.append(f"the tokenizer: was {before['tokenizer']['name']}, is {now['tokenizer']['name']}")
    if before["shard"] != now["shard"]:
        found.append(f"the shard: was {before['shard']}, is {now['shard']}")
    stamps: list[dict[str, str]] = [
        {entry["url"]: f"{entry['size']} bytes of mtime {entry['mtime_ns']}" for entry in plan["inputs"]}
        for plan in (before, now)
    ]
    for url in sorted(stamps[0].keys() | stamps[1].keys()):
        was, is_now = (each.get(url, "not there") for each in stamps)
        if was != is_now:
            found.append(f"the input '{url}': was {was}, is {is_now}")
    return found


def make_manifest(plan: Json, markers: Iterable[Json]) -> Json:
    """The results of a run, from its markers alone: the same on one machine and on many, and in any order of tasks.

    Args:
        plan: The run's.
        markers: Of all its tasks, in the order of tasks.
    """
    totals: dict[str, Counter[str]] = {name: Counter() for name in ("counts", "dropped", "bad")}
    digests: dict[str, list[str]] = {}
    files, num_files = hashlib.sha256(), 0
    for marker in markers:
        for name, total in totals.items():
            total.update(marker[name])
        digests.setdefault(marker["input"]["url"], []).append(marker["input"]["digest"])
        for path, (size, digest) in sorted(marker["files"].items()):
            files.update(f"{path} {size} {digest}\n".encode())
            num_files += 1
    inputs = []
    for entry in plan["inputs"]:  # the digest of a file is one of those of its tasks
        joined = "".join(digests.get(entry["url"], ())).encode()
        inputs.append(entry | {"digest": hashlib.blake2b(joined, digest_size=16).hexdigest()})
    return {
        **plan,
        "inputs": inputs,
        **{name: dict(sorted(total.items())) for name, total in totals.items()},
        "files": {"number": num_files, "digest": files.hexdigest()},
    }
