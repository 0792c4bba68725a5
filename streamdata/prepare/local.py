"""Tasks on this machine: one after another, or in several processes; what comes out is the same."""

import functools
from collections.abc import Callable, Sequence

from streamdata.prepare.errors import PrepareError
from streamdata.prepare.inputs import Task
from streamdata.prepare.worker import Marker, Report, RunSpec, Worker, do_task
from streamdata.run.processes import ProcessError, processes


def run_local(
    spec: RunSpec, tasks: Sequence[Task], workers: int, report: Report, done: Callable[[Marker], None]
) -> None:
    """Do tasks.

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
