"""Does tasks, each from its input to its marker: in this process, in others on this machine, or on a Ray cluster.

The output is the same wherever tasks are done. All machines of a cluster need the inputs, the tokenizer and the output
at the same paths.
"""

import fcntl
import functools
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import orjson

from streamdata.errors import PrepareError, needs
from streamdata.prepare.config import PrepareConfig, load_config
from streamdata.prepare.documents import DocumentMaker, TokenizedDocument
from streamdata.prepare.encode import TextTokenizer, make_backend
from streamdata.prepare.extract import Record
from streamdata.prepare.inputs import BadRecordError, DroppedRecordError, RawBatch, Task, TaskInput, parse
from streamdata.prepare.output import Staging
from streamdata.prepare.run_directory import Json, RunDirectory, json_bytes
from streamdata.run.processes import ProcessError, processes
from streamdata.run.publish import publish
from streamdata.text.tokenizer import load_tokenizer

Report = Callable[[Counter[str]], None]
MAX_BAD_BYTES = 1 << 26
"""Bytes of bad records in one task: they are in memory until it is done, and a compressed file of any size is one."""
_JSON: Final = orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS
_MAX_RETRIES: Final = 10  # of a task whose machine in a cluster was lost
_CANCEL_TIMEOUT_S: Final = 30


class RunSpec(NamedTuple):
    """The settings that all tasks of a run have in common; small and picklable.

    Attributes:
        config: As JSON.
        tokenizer: Its name, or the path of its directory.
        output: The run's output directory, absolute.
        directory: Where the run was started: inputs may be named from there.
    """

    config: str
    tokenizer: str
    output: str
    directory: str


class TaskRun:
    """The records of one task on their way to documents, with what is counted.

    Args:
        config: How many records may be bad.
        maker: Turns records into documents.
        task: Which task.

    Attributes:
        input: Reads the records.
        counts: Records, bytes, and what the output adds.
        quarantined: Bad records as lines of JSON, each with its number.
    """

    def __init__(self, config: PrepareConfig, maker: DocumentMaker, task: Task) -> None:
        self._may_quarantine = config.most_bad(1) > 0
        self._has_chats = config.has_chats()
        self._maker, self._task = maker, task
        self.input = TaskInput(task)
        self.counts: Counter[str] = Counter()
        self.quarantined: list[tuple[int, bytes]] = []
        self._quarantined_bytes = 0
        self._bad: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()

    def documents(self, batch: RawBatch) -> list[TokenizedDocument]:
        """The documents of a batch.

        Raises:
            PrepareError: A record is bad, and none may be.
        """
        self.counts.update(records=sum(record is not None for record in batch.records), bytes=batch.size_bytes)

        def failed(number: int, error: BadRecordError | DroppedRecordError) -> None:
            if isinstance(error, DroppedRecordError):
                self._dropped[error.reason] += 1
            else:
                self._quarantine(number, error, batch.records[number - batch.first])

        records: list[tuple[int, Record]] = []
        for number, raw in enumerate(batch.records, batch.first):
            try:
                if raw is not None:
                    # A chat may render numbers as text, such as arguments of tools: a rounded one would be trained.
                    records.append((number, parse(raw, self._task.url, exact=self._has_chats)))
            except BadRecordError as error:
                failed(number, error)
        made = list(self._maker.make(records, failed))
        if num_truncated := sum(document.num_truncated for document in made):
            self.counts["truncated"] += num_truncated
        return made

    def marker(self, files: dict[str, list[int | str]]) -> Json:
        """The results of the task once it is done: the same whichever process did it, and however often."""
        task = self._task
        return {
            "task": task.number,
            "input": {"url": task.url, "begin": task.begin, "end": task.end, "digest": self.input.digest()},
            "counts": dict(sorted(self.counts.items())),
            "dropped": dict(sorted(self._dropped.items())),
            "bad": dict(sorted(self._bad.items())),
            "files": files,
        }

    def left_out(self) -> Counter[str]:
        """Numbers of records that became no document, by reason."""
        return self._bad + self._dropped

    def _quarantine(self, number: int, error: BadRecordError, raw: Any) -> None:
        location = self.input.location(number)
        if not self._may_quarantine:
            field = f": {error.field}" if error.field else ""
            raise PrepareError(
                f"{location}{field}: {error.reason}: {error.message}\n"
                "  Correct the record, or let some be skipped by max_bad in the config."
            ) from error
        self._bad[error.reason] += 1
        self.counts["bad"] += 1
        record = raw.decode(errors="replace") if isinstance(raw, bytes) else raw
        entry = {"place": location, "reason": error.reason, "field": error.field, "message": error.message}
        line = orjson.dumps({**entry, "record": record}, option=_JSON, default=repr)
        self.quarantined.append((number, line))
        self._quarantined_bytes += len(line)
        if self._quarantined_bytes > MAX_BAD_BYTES:
            raise PrepareError(
                f"{location}: expected bad records of at most {MAX_BAD_BYTES} bytes in one task, "
                f"got more; this one: {error.reason}: {error.message}\n"
                "  Is the config made for this input? If so, correct the records, or split the file."
            )


class Worker:
    """Does tasks, one after another.

    Args:
        spec: How to do them, and where to write.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._config, self._directory = load_config(json.loads(spec.config)), RunDirectory(spec.output)
        has_chats = self._config.has_chats()
        self._tokenizer = load_tokenizer(spec.tokenizer) if has_chats else TextTokenizer.load(self._directory.tokenizer)
        self._maker = DocumentMaker(self._config, self._tokenizer, make_backend(self._config, self._tokenizer))

    def do(self, task: Task, report: Report) -> Json:
        """Do a task and publish it.

        Args:
            task: Which.
            report: Called after each batch with what was counted in it.

        Raises:
            PrepareError: A record is bad, and none may be.
            ShardError: The input is damaged.
        """
        run = TaskRun(self._config, self._maker, task)
        reported: Counter[str] = Counter()
        with Staging(self._config, self._tokenizer, self._directory, task.number, run.counts) as staging:
            for batch in run.input.batches():
                staging.add(run.documents(batch))
                report(run.counts - reported)
                reported = run.counts.copy()
            files = staging.publish()
        if run.quarantined:
            publish(self._directory.task_quarantine(task.number), [line for _, line in sorted(run.quarantined)])
        # The marker is last: whoever finds it relies on all else, wherever a process was killed.
        marker = run.marker(files)
        publish(self._directory.marker(task.number), [json_bytes(marker)])
        return marker


_worker = functools.lru_cache(maxsize=1)(Worker)


def do_task(spec: RunSpec, task: Task, report: Report) -> Json:
    """Do a task in a process of its own, which does others of the spec later, and may outlive the run for a moment."""
    with RunDirectory(spec.output).workers_locked(fcntl.LOCK_SH):
        return _worker(spec).do(task, report)


def run_local(spec: RunSpec, tasks: Sequence[Task], workers: int, report: Report, done: Callable[[Json], None]) -> None:
    """Do tasks on this machine: one after another, or in several processes.

    Args:
        spec: What they have in common.
        tasks: Those to do.
        workers: How many processes; 1 is this one.
        report: Called often, with what was counted since the last call.
        done: Called with the marker of each finished task; what it raises ends the run.

    Raises:
        PrepareError: A record is bad, or a worker died.
        Exception: What a task raised. Tasks under way are given up; finished ones stay.
    """
    if not tasks:
        return
    if min(workers, len(tasks)) == 1:
        worker = Worker(spec)
        for task in tasks:
            done(worker.do(task, report))
        return
    try:
        with processes(functools.partial(do_task, spec), min(workers, len(tasks))) as team:
            for _, marker in team.run(tasks, report=report):
                done(marker)
    except ProcessError as error:
        task = error.task
        raise PrepareError(
            f"worker: expected it to finish bytes {task.begin} to {task.end} of '{task.url}', got: {error}\n"
            "  If the memory ran out, use fewer workers. Run again: finished tasks are kept."
        ) from error


def run_on_ray(spec: RunSpec, tasks: Sequence[Task], report: Report, done: Callable[[Json], None]) -> None:
    """Do tasks on the cluster that this process is connected to, else on the one that RAY_ADDRESS names.

    Args:
        spec: What they have in common.
        tasks: Those to do.
        report: Called with what was counted in each finished task.
        done: Called with the marker of each finished task; what it raises ends the run.

    Raises:
        ImportError: ray is not installed.
        PrepareError: A record is bad, or a task was lost too often.
        Exception: What a task raised.
    """
    with needs("ray", "ray", "engine ray: it"):
        import ray
    is_ours = not ray.is_initialized()
    if is_ours:
        ray.init(log_to_driver=False)
    pending: set[Any] = set()
    try:
        remote = ray.remote(num_cpus=1, max_retries=_MAX_RETRIES)(_do_on_ray)
        waiting = iter(tasks)
        while True:
            # As many as keep every core busy, since the cluster would hold all tasks of a run in memory. Machines come
            # and go: fewer may be allowed than before.
            max_pending = 2 * int(ray.cluster_resources().get("CPU", 1))
            num_new = max(max_pending - len(pending), 0)
            pending |= {remote.remote(spec, task) for task in itertools.islice(waiting, num_new)}
            if not pending:
                return
            ready, rest = ray.wait(list(pending), num_returns=1)
            pending = set(rest)
            for reference in ready:
                marker = ray.get(reference)
                if isinstance(marker, Exception):
                    raise marker
                report(Counter(marker["counts"]))
                done(marker)
    except ray.exceptions.RayError as error:
        raise PrepareError(f"engine ray: a task was lost: {error}\n  Run again: finished tasks are kept.") from error
    finally:
        for reference in pending:
            ray.cancel(reference, force=True)
        # Ray kills a process some time after it was asked to. One that lives on for longer than this still holds the
        # workers' lock, so that the next run waits for it.
        if pending:
            ray.wait(list(pending), num_returns=len(pending), timeout=_CANCEL_TIMEOUT_S, fetch_local=False)
        if is_ours:
            ray.shutdown()


def _do_on_ray(spec: RunSpec, task: Task) -> Json | Exception:
    """A task in a process of Ray. Errors are returned: Ray would wrap those that are raised, and retry."""
    try:
        # Ray starts its processes in directories of its own, and inputs may be relative to that of the run.
        os.chdir(spec.directory)
        return do_task(spec, task, lambda _: None)
    except Exception as error:
        return error
