"""Tasks on this machine: one after another, or by a pool of processes; what comes out is the same."""

import multiprocessing
import pickle
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from streamdata.prepare.errors import PrepareError
from streamdata.prepare.inputs import Task
from streamdata.prepare.worker import Job, Marker, Report, Worker, at_work
from streamdata.run.trainer import end_with_trainer

Done = Callable[[Marker], None]


def run_local(job: Job, tasks: Sequence[Task], workers: int, report: Report, done: Done) -> None:
    """Do tasks.

    Args:
        job: What they have in common.
        tasks: Those to do.
        workers: How many processes; 1 is this one.
        report: Told how much was done, often.
        done: Told of each finished task; what it raises ends the run.

    Raises:
        PrepareError: A record is bad, or a worker died.
        Exception: What a task raised. Tasks under way are given up; finished ones stay.
    """
    if workers == 1 or len(tasks) <= 1:
        worker = Worker(job) if tasks else None
        for task in tasks:
            assert worker is not None, "there are tasks"
            done(worker.do(task, report))
        return
    with _Pool(job, min(workers, len(tasks))) as pool:
        pool.run(tasks, report, done)


class _Pool:
    """Processes, each at one task at a time."""

    def __init__(self, job: Job, workers: int) -> None:
        self._job, self._workers = job, workers
        self._processes: dict[Connection, BaseProcess] = {}
        self._tasks: dict[Connection, Task] = {}

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")  # the tokenizer has threads, which a fork would lose
        with _interrupts_kept_back():
            for _ in range(self._workers):
                ours, theirs = context.Pipe()
                process = context.Process(target=_work, args=(self._job, theirs), daemon=True)
                process.start()
                theirs.close()
                self._processes[ours] = process
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for connection, process in self._processes.items():
            process.kill()
            process.join()
            connection.close()

    def run(self, tasks: Sequence[Task], report: Report, done: Done) -> None:
        waiting = iter(tasks)
        for connection in self._processes:
            self._next(connection, waiting)
        while self._tasks:
            for connection in _ready(list(self._tasks)):
                what, value = self._receive(connection)
                if what == "report":
                    report(value)
                elif what == "done":
                    done(value)
                    self._next(connection, waiting)
                else:
                    raise pickle.loads(value)  # noqa: S301 (our own worker's)

    def _next(self, connection: Connection, waiting: Any) -> None:
        self._tasks.pop(connection, None)
        task = next(waiting, None)
        if task is not None:
            self._tasks[connection] = task
            connection.send(task)

    def _receive(self, connection: Connection) -> tuple[str, Any]:
        try:
            what, value = connection.recv()
            return what, value
        except (EOFError, ConnectionResetError) as error:
            task, process = self._tasks[connection], self._processes[connection]
            process.join()
            raise PrepareError(
                f"worker: expected it to finish bytes {task.begin} to {task.end} of '{task.url}', "
                f"it died with exit code {process.exitcode}\n"
                "  If the memory ran out, use fewer workers. Run again: finished tasks are kept."
            ) from error


@contextmanager
def _interrupts_kept_back() -> Iterator[None]:
    """Ctrl-C reaches every process of the terminal, but the run ends its own: they inherit that it is blocked."""
    resource_tracker.ensure_running()  # it would be started on the way, and unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ready(connections: list[Connection]) -> list[Connection]:
    """Those of them that have something to tell, once one has."""
    return [found for found in wait(connections) if isinstance(found, Connection)]


def _work(job: Job, connection: Connection) -> None:
    """A process of the pool. It ends with the run, however that ends."""
    end_with_trainer()
    with at_work(Path(job.work)):
        try:
            worker = Worker(job)
            while True:
                task = connection.recv()
                connection.send(("done", worker.do(task, lambda counts: _report(connection, counts))))
        except EOFError:
            return
        except Exception as error:
            connection.send(("error", _pickled(error)))


def _report(connection: Connection, counts: Counter[str]) -> None:
    connection.send(("report", counts))


def _pickled(error: Exception) -> bytes:
    try:
        data = pickle.dumps(error)
        pickle.loads(data)  # noqa: S301 (it was made here: some errors go in and do not come out)
    except Exception:
        return pickle.dumps(PrepareError(f"worker: {type(error).__name__}: {error}"))
    return data
