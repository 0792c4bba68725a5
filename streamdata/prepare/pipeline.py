"""Runs all of it: `inputs → tasks → an engine that does them → a store, its manifest and what was bad`."""

import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from streamdata.errors import PrepareError, one_of_two
from streamdata.prepare.config import PrepareConfig, load_config
from streamdata.prepare.encode import TextTokenizer, check_backend
from streamdata.prepare.extract import with_record_format
from streamdata.prepare.inputs import Task, plan_tasks
from streamdata.prepare.run_directory import Json, RunDirectory, make_plan
from streamdata.prepare.worker import Marker, RunSpec, run_local, run_on_ray
from streamdata.text.tokenizer import load_tokenizer

Engine = Literal["local", "ray"]
ShowProgress = Callable[["RunProgress"], None]


class Pipeline:
    """Turns raw records into a store that `DatasetFactory` reads.

    Args:
        config: How: a `PrepareConfig`, a mapping, the path of a YAML or JSON file, or a preset's name.
        tokenizer: The path of a tokenizer's directory, or its name on the hub.
        tokenizer_path: AstrAI's name of `tokenizer`, instead of it.

    Raises:
        RecipeError: The config has errors; all are named.
        TypeError: There is no tokenizer, or two.
    """

    def __init__(
        self,
        config: PrepareConfig | Mapping[str, Any] | str | os.PathLike[str],
        tokenizer: str | os.PathLike[str] | None = None,
        *,
        tokenizer_path: str | os.PathLike[str] | None = None,
    ) -> None:
        self.config = load_config(config)
        self.tokenizer = os.fspath(one_of_two("Pipeline", tokenizer=tokenizer, tokenizer_path=tokenizer_path))

    def run(
        self,
        inputs: str | Sequence[str],
        output: str | os.PathLike[str] | None = None,
        *,
        output_dir: str | os.PathLike[str] | None = None,
        workers: int = 1,
        shard: tuple[int, int] | None = None,
        engine: Engine = "local",
        overwrite: bool = False,
        progress: ShowProgress | None = None,
    ) -> Json:
        """Write the store, or go on where a run that was interrupted stood.

        Args:
            inputs: Files, directories, globs or brace expressions of JSON Lines (`.jsonl`, `.ndjson`, compressed or
                not; `.json`, of lines or an array, by name or glob), .parquet, and .txt with one document in each.
            output: A directory, new or of an earlier run of the same.
            output_dir: AstrAI's name of `output`, instead of it.
            workers: Processes on this machine.
            shard: (i, n): only tasks i, i + n, i + 2n …; n such outputs are joined by `merge`.
            engine: `ray` for the machines of a Ray cluster instead, which share a file system.
            overwrite: Start again, whatever an earlier run has written to `output`.
            progress: Called often, with how far the run is.

        Returns:
            The manifest.

        Raises:
            TypeError: There is no output, or two.
            PrepareError: The output directory cannot be used, or records are bad, more than the config accepts.
            ShardError: An input is damaged.
        """
        folder = one_of_two("prepare", output=output, output_dir=output_dir)
        if workers < 1 or (shard is not None and not 0 <= shard[0] < shard[1]):
            raise PrepareError(
                f"prepare: expected at least one worker and a shard i/n with 0 <= i < n, got {workers} and {shard}"
            )
        tokenizer = load_tokenizer(self.tokenizer)
        tasks = plan_tasks(inputs, self.config.task_bytes)
        self.config = with_record_format(self.config, tasks)
        plan = make_plan(self.config, self.tokenizer, tokenizer, tasks, shard)
        directory = RunDirectory(folder)
        with directory.opened(plan, overwrite=overwrite):
            own = tasks if shard is None else tasks[shard[0] :: shard[1]]
            TextTokenizer.save(tokenizer, directory.tokenizer)
            check_backend(self.config, tokenizer, own)
            run = _Run(self.config, directory, own, progress)
            spec = RunSpec(self.config.model_dump_json(), self.tokenizer, str(directory.path.absolute()), os.getcwd())
            run.do(spec, engine, workers)
            return run.finish(plan, {"engine": engine, "workers": workers})


class RunProgress:
    """How far a run is, and how fast.

    Args:
        total_bytes: Of input, in all.

    Attributes:
        counts: Records, bytes, tokens … since this process began.
        skipped_bytes: Input that an earlier run has done.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.counts: Counter[str] = Counter()
        self.skipped_bytes = 0
        self._began = time.monotonic()

    def line(self) -> str:
        """Records, tokens a second, megabytes a second and the time left, in one line."""
        took = max(time.monotonic() - self._began, 1e-9)
        done, left = self.counts["bytes"], max(self.total_bytes - self.skipped_bytes - self.counts["bytes"], 0)
        part = (self.skipped_bytes + done) / self.total_bytes if self.total_bytes else 1
        remaining = f"{_duration(left * took / done)} left" if done else "starting"
        percent, tokens = f"{min(part, 1):4.0%}", f"{self.counts['tokens'] / took:,.0f} tokens/s"
        bad = f"  {self.counts['bad']:,} bad" if self.counts["bad"] else ""
        return (
            f"{percent}  {self.counts['records']:,} records{bad}  {tokens}  {done / took / 1e6:.3g} MB/s  {remaining}"
        )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class _Run:
    """The tasks of one run, and what is known of them so far."""

    def __init__(
        self, config: PrepareConfig, directory: RunDirectory, tasks: Sequence[Task], progress: ShowProgress | None
    ) -> None:
        self._config, self._directory, self._tasks = config, directory, tasks
        self._progress = RunProgress(sum(task.end - task.begin for task in tasks))
        self._show = progress or (lambda _: None)
        self._began = time.time()
        self._bad, self._records, self._bytes = 0, 0, 0
        """Of finished tasks, whenever they were done."""

    def do(self, spec: RunSpec, engine: Engine, workers: int) -> None:
        missing = []
        for task in self._tasks:
            if self._directory.marker(task.number).exists():
                self._count(self._directory.read_marker(task.number))
                self._progress.skipped_bytes += task.end - task.begin
            else:
                missing.append(task)
        if engine == "ray":
            run_on_ray(spec, missing, self._report, self._count)
        else:
            run_local(spec, missing, workers, self._report, self._count)

    def finish(self, plan: Json, facts: Json) -> Json:
        max_bad = self._config.most_bad(self._records)
        if self._bad > max_bad:
            raise self._too_many(f"at most {max_bad:g} of {self._records:,} records to be bad")
        took = time.time() - self._began
        facts |= {"host": platform.node(), "python": platform.python_version(), "began": self._began, "seconds": took}
        facts |= {"counts": dict(sorted(self._progress.counts.items()))}
        return self._directory.finish(plan, [task.number for task in self._tasks], facts)

    def _report(self, counts: Counter[str]) -> None:
        self._progress.counts.update(counts)
        self._show(self._progress)

    def _count(self, marker: Marker) -> None:
        """Count a finished task; end the run as soon as more records are bad than all of its input may have."""
        self._bad += sum(marker["bad"].values())
        self._records += marker["counts"].get("records", 0)
        self._bytes += marker["input"]["end"] - marker["input"]["begin"]
        expected = self._records * self._progress.total_bytes / max(self._bytes, 1)
        if self._bad > self._config.most_bad(max(expected, self._records)):
            raise self._too_many(f"at most {self._config.max_bad} bad records in about {expected:,.0f}")

    def _too_many(self, expected: str) -> PrepareError:
        return PrepareError(
            f"prepare: expected {expected}, got {self._bad:,} in {self._records:,}{self._directory.first_bad()}\n"
            f"  See {self._directory.tasks}/*.quarantine.jsonl; correct them, or raise max_bad, and run again."
        )
