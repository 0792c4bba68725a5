"""Runs all of it: `inputs → tasks → an engine that does them → a store, its manifest and what was bad`."""

import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from streamdata.errors import PrepareError, one_of_two
from streamdata.prepare.config import PrepareConfig, load_config
from streamdata.prepare.encode import TextTokenizer, check_backend
from streamdata.prepare.extract import with_record_format
from streamdata.prepare.inputs import Task, plan_tasks
from streamdata.prepare.run_directory import Json, RunDirectory, make_plan
from streamdata.prepare.worker import RunSpec, run_local, run_on_ray
from streamdata.text.tokenizer import load_tokenizer

Engine = Literal["local", "ray"]
ShowProgress = Callable[["RunProgress"], None]


class Pipeline:
    """Turns raw records into a store that `DatasetFactory` reads.

    Args:
        config: The settings: a `PrepareConfig`, a mapping, the path of a YAML or JSON file, or a preset's name.
        tokenizer: The path of a tokenizer's directory, or its name on the hub.
        tokenizer_path: AstrAI's name of `tokenizer`, instead of it.

    Raises:
        RecipeError: The config has errors; the message lists all of them.
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
        """Write the store, or resume an interrupted run.

        Args:
            inputs: Files, directories, globs or brace expressions of JSON Lines (`.jsonl`, `.ndjson`, compressed or
                not; `.json`, of lines or an array, by name or glob), .parquet, and .txt with one document in each.
            output: A directory: new, or of an earlier run with the same config and inputs.
            output_dir: AstrAI's name of `output`, instead of it.
            workers: Processes on this machine.
            shard: (i, n) runs only tasks i, i + n, i + 2n …; `merge` joins the n outputs.
            engine: `ray` uses the machines of a Ray cluster, which share a file system, instead of local processes.
            overwrite: Start again, discarding what an earlier run has written to `output`.
            progress: A function called often with the run's progress.

        Returns:
            The manifest.

        Raises:
            TypeError: There is no output, or two.
            PrepareError: The output directory cannot be used, or more records are bad than the config accepts.
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
            spec = RunSpec(self.config.model_dump_json(), self.tokenizer, str(directory.path.absolute()), os.getcwd())
            run = RunProgress(self.config, directory, own, progress)
            missing = run.missing(own)
            if engine == "ray":
                run_on_ray(spec, missing, run.report, run.count)
            else:
                run_local(spec, missing, workers, run.report, run.count)
            facts = {"engine": engine, "workers": workers, **run.facts()}
            return directory.finish(plan, [task.number for task in own], facts)


class RunProgress:
    """Counts how far a run is, and how fast.

    Args:
        config: How many records may be bad.
        directory: The run's.
        tasks: The run's.
        show: Called with this after each report.
    """

    def __init__(
        self, config: PrepareConfig, directory: RunDirectory, tasks: Sequence[Task], show: ShowProgress | None
    ) -> None:
        self._config, self._directory, self._show = config, directory, show
        self._total_bytes = sum(task.end - task.begin for task in tasks)
        self._began = time.time()
        self._counts: Counter[str] = Counter()
        """Records, bytes, tokens … since this process began."""
        self._finished: Counter[str] = Counter()
        """Records, bytes and bad records of finished tasks, whenever they were done."""
        self._skipped_bytes = 0

    def missing(self, tasks: Sequence[Task]) -> list[Task]:
        """The tasks that are not done yet; those that an earlier run has done are counted."""
        missing = []
        for task in tasks:
            if self._directory.marker(task.number).exists():
                self.count(self._directory.read_marker(task.number))
            else:
                missing.append(task)
        self._skipped_bytes = self._finished["bytes"]
        return missing

    def report(self, counts: Counter[str]) -> None:
        """Count what was done since the last report, and show it."""
        self._counts.update(counts)
        if self._show is not None:
            self._show(self)

    def count(self, marker: Json) -> None:
        """Count a finished task.

        Raises:
            PrepareError: More records are bad than all of the input may have.
        """
        size_bytes = marker["input"]["end"] - marker["input"]["begin"]
        self._finished.update(
            records=marker["counts"].get("records", 0), bytes=size_bytes, bad=sum(marker["bad"].values())
        )
        records, bad = self._finished["records"], self._finished["bad"]
        expected = records * self._total_bytes / max(self._finished["bytes"], 1)
        if bad > self._config.most_bad(max(expected, records)):
            raise PrepareError(
                f"prepare: expected at most {self._config.max_bad} bad records in about {expected:,.0f}, "
                f"got {bad:,} in {records:,}{self._directory.first_bad()}\n"
                f"  See {self._directory.tasks}/*.quarantine.jsonl; correct them, or raise max_bad, and run again."
            )

    def facts(self) -> Json:
        """When, where and how fast this process ran, for `run.json`."""
        facts = {"host": platform.node(), "python": platform.python_version(), "began": self._began}
        return {**facts, "seconds": time.time() - self._began, "counts": dict(sorted(self._counts.items()))}

    def line(self) -> str:
        """Records, tokens a second, megabytes a second and the time left, in one line."""
        took = max(time.time() - self._began, 1e-9)
        counts, done = self._counts, self._counts["bytes"]
        left = max(self._total_bytes - self._skipped_bytes - done, 0)
        part = min((self._skipped_bytes + done) / self._total_bytes, 1) if self._total_bytes else 1
        remaining = f"{timedelta(seconds=round(left * took / done))} left" if done else "starting"
        bad = f"  {counts['bad']:,} bad" if counts["bad"] else ""
        speed = f"{counts['tokens'] / took:,.0f} tokens/s  {done / took / 1e6:.3g} MB/s"
        return f"{part:4.0%}  {counts['records']:,} records{bad}  {speed}  {remaining}"
