"""Building many indexes at once: `jobs → processes and threads that each index some shards → index files`.

Of a node, one process indexes and the others wait for it. Local shards are indexed by processes, one shard at a time
each; remote ones by threads, since what takes time is their server: so many pieces are under way however many shards.
"""

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial

from streamdata.errors import one_line
from streamdata.io.file_cache import locked
from streamdata.io.one_pass import Ahead
from streamdata.io.remote.network import import_client
from streamdata.io.storage import is_remote
from streamdata.run.processes import ProcessError, processes
from streamdata.shards.index.index_file import IndexHeader
from streamdata.shards.index.indexing import Found, IndexJob, build, build_each, find

logger = logging.getLogger(__name__)
_MAX_PROCESSES = 16
_MAX_REQUESTS = 32
_MIN_BYTES = 256 << 20
"""Of shards that processes are started for; fewer are indexed sooner than these start."""
_SHARD_BYTES = 256 << 10
"""How many bytes are read in the time that a shard takes for itself, however small it is."""
_MAX_DEATHS = 4
"""Of processes, such as by lack of memory; after that many the rest is indexed here, one shard after another."""

Tasks = list[tuple[IndexJob, ...]]
"""The indexes of each shard, which are built in one pass over it."""
Work = Callable[..., tuple[IndexJob, ...]]
"""Indexes a shard; returns what cannot be built though the shard could be read."""
Report = Callable[[tuple[IndexJob, ...]], object]


def headers_of(jobs: Sequence[IndexJob], min_bytes: int | None = None) -> list[IndexHeader]:
    """The headers of all these indexes; those that are missing are built, by one process of the node.

    Args:
        jobs: The indexes.
        min_bytes: Of shards that processes are started for; by default as many as take longer than that.

    Raises:
        ShardError: A shard is damaged (of several, the first in order).
    """
    found = {job: find(job) for job in jobs}
    if not all(found.values()):
        with _once(jobs):
            _find_or_build(found, min_bytes)
    return [index.header for job in jobs if (index := found[job]) is not None]


def _once(jobs: Sequence[IndexJob]) -> AbstractContextManager[object]:
    """Let no other process of this node build the indexes of these shards meanwhile."""
    return locked("indexes", *sorted({job.url for job in jobs}))


def _find_or_build(found: dict[IndexJob, Found | None], min_bytes: int | None) -> None:
    # Looked for again: another process may have built them while this one waited.
    missing = [job for job, index in found.items() if index is None and find(job) is None]
    build_missing(missing, min_bytes=min_bytes)
    for job, index in found.items():
        if index is None:
            found[job] = find(job)
    for task in by_shard([job for job, index in found.items() if index is None]):
        # One that could not be indexed raises here what is wrong with it.
        found.update(zip(task, build(*task), strict=True))


def by_shard(jobs: Iterable[IndexJob]) -> Tasks:
    """The jobs of each shard together."""
    tasks: dict[str, list[IndexJob]] = {}
    for job in jobs:
        tasks.setdefault(job.url, []).append(job)
    return [tuple(task) for task in tasks.values()]


def build_missing(
    jobs: Sequence[IndexJob],
    *,
    min_bytes: int | None = None,
    num_processes: int | None = None,
    is_kept_beside: bool = True,
    report: Report = lambda _: None,
) -> set[IndexJob]:
    """Build indexes, many shards at a time; return those that cannot be built though their shards could be read.

    Those of a shard that fails are left out.

    Args:
        jobs: The indexes.
        min_bytes: As `headers_of`.
        num_processes: How many; by default one for each core.
        is_kept_beside: Whether they may be written beside their shards; else they are written in the cache.
        report: Called with the jobs of each shard that was indexed.
    """
    tasks = by_shard(jobs)
    work = partial(_build_quietly, is_kept_beside=is_kept_beside)
    remote, local = ([task for task in tasks if is_remote(task[0].url) is kind] for kind in (True, False))
    size = sum(max(task[0].stamp.size, _SHARD_BYTES) for task in local)
    count = min(num_processes or len(os.sched_getaffinity(0)), len(local), _MAX_PROCESSES)
    unbuilt: set[IndexJob] = set()
    if remote:
        _build_in_threads(remote, work, report, unbuilt)
    if count > 1 and size >= (_MIN_BYTES if min_bytes is None else min_bytes):
        logger.info("indexing %d shards of %d MB with %d processes", len(local), size >> 20, count)
        local = _build_in_processes(local, count, work, report, unbuilt)
    for task in local:
        unbuilt.update(work(task))
        report(task)
    return unbuilt


def _build_in_threads(tasks: Tasks, work: Work, report: Report, unbuilt: set[IndexJob]) -> None:
    logger.info("indexing %d remote shards", len(tasks))
    count = min(_MAX_REQUESTS, len(tasks))
    with ThreadPoolExecutor(_MAX_REQUESTS) as fetching, ThreadPoolExecutor(count) as threads:
        fetching.submit(import_client, tasks[0][0].url)
        ahead = Ahead(fetching, _MAX_REQUESTS // count)
        for task, failed in zip(tasks, threads.map(partial(work, ahead=ahead), tasks), strict=True):
            unbuilt.update(failed)
            report(task)


def _build_in_processes(tasks: Tasks, count: int, work: Work, report: Report, unbuilt: set[IndexJob]) -> Tasks:
    """Build indexes; return what is left where processes died."""
    waiting = sorted(
        tasks, key=lambda task: -task[0].stamp.size
    )  # the largest first, or it would end long after others
    left: Tasks = []
    for _ in range(_MAX_DEATHS):
        try:
            with processes(work, count) as team:
                for task, failed in team.run(tuple(waiting)):
                    waiting.remove(task)
                    unbuilt.update(failed)
                    report(task)
            return left
        except ProcessError as error:
            logger.warning("a process that indexes shards: %s; its shard is indexed here", error)
            waiting = [task for task in waiting if task != error.task]
            left += [error.task] if error.task else []
    return left + waiting


def _build_quietly(
    task: tuple[IndexJob, ...], _: object = None, *, is_kept_beside: bool, ahead: Ahead | None = None
) -> tuple[IndexJob, ...]:
    """Index a shard; return what cannot be built though the shard could be read."""
    try:
        built = build_each(*task, is_kept_beside=is_kept_beside, ahead=ahead)
    except Exception as error:  # whatever it is, the caller meets it again
        logger.debug("index of %s: %s", one_line(task[0].url), one_line(error))
        return ()
    return tuple(job for job, found in zip(task, built, strict=True) if not isinstance(found, Found))
