"""One task from its input to its marker: what a worker does, in whatever process it runs."""

import fcntl
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from streamdata.prepare.config import PrepareConfig
from streamdata.prepare.documents import DocumentMaker, TokenizedDocument
from streamdata.prepare.encode import Backend, GigatokenBackend, TextTokenizer, TokenizersBackend
from streamdata.prepare.errors import BadRecordError, DroppedRecordError, PrepareError
from streamdata.prepare.inputs import RawBatch, Task, TaskInput
from streamdata.prepare.layout import Layout
from streamdata.prepare.load_config import load_config
from streamdata.prepare.manifest import json_bytes
from streamdata.prepare.output import Staging
from streamdata.prepare.records import parse
from streamdata.prepare.sections import Record
from streamdata.run.publish import publish
from streamdata.text.tokenizer import load_tokenizer

Marker = dict[str, Any]
Report = Callable[[Counter[str]], None]
MAX_BAD_BYTES = 1 << 26
"""They are in memory until the task is done, and a compressed file is one task, of any size."""


@dataclass(frozen=True)
class RunSpec:
    """What all tasks of a run have in common; small and picklable.

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


@contextmanager
def workers_locked(layout: Layout) -> Iterator[None]:
    """Hold the lock that workers share; a run that takes the directory over waits until it is free.

    Raises:
        FileNotFoundError: The run has ended.
    """
    with layout.workers_lock.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


class TaskRun:
    """The records of one task on their way to documents, with what is counted.

    Args:
        config: How many records may be bad.
        maker: Turns records into documents.
        task: Which task.
        max_bad_bytes: The task's bad records together; more are an error.

    Attributes:
        input: What is read.
        counts: Records, bytes, and what the output adds.
    """

    def __init__(
        self, config: PrepareConfig, maker: DocumentMaker, task: Task, *, max_bad_bytes: int = MAX_BAD_BYTES
    ) -> None:
        self._may_quarantine = config.most_bad(1) > 0
        self._has_chats = config.has_chats()
        self._maker, self._task, self._max_bad_bytes = maker, task, max_bad_bytes
        self.input = TaskInput(task)
        self.counts: Counter[str] = Counter()
        self._quarantined: list[tuple[int, bytes]] = []
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
        url = self._task.url
        for number, raw in enumerate(batch.records, batch.first):
            try:
                if raw is not None:
                    # A chat may render numbers as text, such as arguments of tools: a rounded one would be trained.
                    records.append((number, raw if isinstance(raw, dict) else parse(raw, url, exact=self._has_chats)))
            except BadRecordError as error:
                failed(number, error)
        return [document for _, document in self._maker.make(records, failed)]

    def marker(self, files: dict[str, list[int | str]]) -> Marker:
        """What is known of the task once it is done. It is the same whichever process did it, and however often."""
        task, counts = self._task, self.counts
        return {
            "task": task.number,
            "input": {"url": task.url, "begin": task.begin, "end": task.end, "digest": self.input.digest()},
            "counts": dict(sorted(counts.items())),
            "dropped": dict(sorted(self._dropped.items())),
            "bad": dict(sorted(self._bad.items())),
            "files": files,
        }

    def quarantined(self) -> list[bytes]:
        """Lines of JSON, one per bad record, in the order of the input."""
        return [line for _, line in sorted(self._quarantined)]

    def left_out(self) -> Counter[str]:
        """How many records became no document, by reason."""
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
        self._quarantined.append((number, line))
        self._quarantined_bytes += len(line)
        if self._quarantined_bytes > self._max_bad_bytes:
            raise PrepareError(
                f"{location}: expected bad records of at most {self._max_bad_bytes} bytes in one task, "
                f"got more; this one: {error.reason}: {error.message}\n"
                "  Is the config made for this input? If so, correct the records, or split the file."
            )


_JSON = orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS


class Worker:
    """Does tasks, one after another.

    Args:
        spec: How to do them, and where to write.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._config = load_config(json.loads(spec.config))
        self._layout = layout = Layout(spec.output)
        has_chats = self._config.has_chats()
        self._tokenizer = load_tokenizer(spec.tokenizer) if has_chats else TextTokenizer.load(layout.tokenizer)
        self._maker = DocumentMaker(self._config, self._tokenizer, make_backend(self._config, self._tokenizer))

    def do(self, task: Task, report: Report) -> Marker:
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
        with Staging(self._config, self._tokenizer, self._layout, task.number, run.counts) as staging:
            for batch in run.input.batches():
                staging.add(run.documents(batch))
                report(run.counts - reported)
                reported = run.counts.copy()
            files = staging.publish()
        if quarantined := run.quarantined():
            publish(self._layout.task_quarantine(task.number), quarantined)
        # The marker is last: whoever finds it relies on all else, wherever a process was killed.
        marker = run.marker(files)
        publish(self._layout.marker(task.number), [json_bytes(marker)])
        return marker


@functools.lru_cache(maxsize=1)
def _worker(spec: RunSpec) -> Worker:
    return Worker(spec)


def do_task(spec: RunSpec, task: Task, report: Report) -> Marker:
    """Do a task in a process of its own, which does others of the spec later, and may outlive the run for a moment."""
    with workers_locked(Layout(spec.output)):
        return _worker(spec).do(task, report)


def make_backend(config: PrepareConfig, tokenizer: Any) -> Backend:
    """What encodes texts, as the config says."""
    return GigatokenBackend(tokenizer) if config.backend == "gigatoken" else TokenizersBackend(tokenizer)
