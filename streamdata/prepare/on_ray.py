"""Tasks on a Ray cluster. All of its machines need the inputs, the tokenizer and the output at the same paths."""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from streamdata.errors import needs
from streamdata.prepare.errors import PrepareError
from streamdata.prepare.inputs import Task
from streamdata.prepare.worker import Marker, Report, RunSpec, do_task

_MAX_RETRIES = 10  # of a task whose machine was lost
_CANCEL_TIMEOUT_S = 30


def run_on_ray(spec: RunSpec, tasks: Sequence[Task], report: Report, done: Callable[[Marker], None]) -> None:
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
        remote = ray.remote(num_cpus=1, max_retries=_MAX_RETRIES)(_do_task)
        waiting = iter(tasks)
        while True:
            num_new = max(_max_pending(ray) - len(pending), 0)  # machines come and go: fewer may be allowed than before
            pending |= {remote.remote(spec, task) for task in itertools.islice(waiting, num_new)}
            if not pending:
                return
            ready, rest = ray.wait(list(pending), num_returns=1)
            pending = set(rest)
            for reference in ready:
                marker = _result(ray, reference)
                report(Counter(marker["counts"]))
                done(marker)
    finally:
        _cancel(ray, list(pending))
        if is_ours:
            ray.shutdown()


def _max_pending(ray: Any) -> int:
    """As many as keep every core busy; the cluster would hold all tasks of a run in memory."""
    return 2 * int(ray.cluster_resources().get("CPU", 1))


def _cancel(ray: Any, pending: list[Any]) -> None:
    """Cancel tasks, and wait for them for a while: Ray kills a process some time after it was asked to.

    One that lives on for longer still holds the workers' lock, so that the next run waits for it.
    """
    for reference in pending:
        ray.cancel(reference, force=True)
    if pending:
        ray.wait(pending, num_returns=len(pending), timeout=_CANCEL_TIMEOUT_S, fetch_local=False)


def _result(ray: Any, reference: Any) -> Marker:
    try:
        found = ray.get(reference)
    except ray.exceptions.RayError as error:
        raise PrepareError(f"engine ray: a task was lost: {error}\n  Run again: finished tasks are kept.") from error
    if isinstance(found, Exception):
        raise found
    marker: Marker = found
    return marker


def _do_task(spec: RunSpec, task: Task) -> Marker | Exception:
    """A task in a process of Ray. Errors are returned: Ray would wrap those that are raised, and retry."""
    try:
        # Ray starts its processes in directories of its own, and inputs may be relative to that of the run.
        os.chdir(spec.directory)
        return do_task(spec, task, lambda _: None)
    except Exception as error:
        return error
