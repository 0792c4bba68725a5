"""Building many indexes at once: `jobs → processes that each index some shards → index files`."""

import logging
import os
from collections.abc import Sequence

from streamdata.run.processes import ProcessError, processes
from streamdata.shards.index_file import IndexHeader
from streamdata.shards.indexing import IndexJob, build, find

logger = logging.getLogger(__name__)
_MAX_PROCESSES = 16
_MAX_DEATHS = 4
"""Of processes, such as by lack of memory; after that many the rest is indexed here, one shard after another."""


def headers_of(jobs: Sequence[IndexJob], min_bytes: int = 256 << 20) -> list[IndexHeader]:
    """The headers of all these indexes; those that are missing are built.

    Args:
        jobs: The indexes.
        min_bytes: Of shards that processes are started for; fewer are indexed sooner than these start.

    Raises:
        ShardError: A shard is damaged (of several, the first in order).
    """
    found = {job: find(job) for job in jobs}
    missing = [job for job in jobs if found[job] is None]
    size = sum(job.stamp.size for job in missing)
    count = min(len(os.sched_getaffinity(0)), len(missing), _MAX_PROCESSES)
    if count > 1 and size >= min_bytes:
        logger.info("indexing %d shards of %d MB with %d processes", len(missing), size >> 20, count)
        _build_in_processes(missing, count)
    for job in missing:  # a shard that a process could not index raises here what is wrong with it
        found[job] = find(job) or build(job)
    return [index.header for job in jobs if (index := found[job]) is not None]


def _build_in_processes(jobs: list[IndexJob], count: int) -> None:
    waiting = sorted(jobs, key=lambda job: -job.stamp.size)  # the largest first, or it would end long after the others
    for _ in range(_MAX_DEATHS):
        try:
            with processes(_build_quietly, count) as team:
                for job, _ in team.run(tuple(waiting)):
                    waiting.remove(job)
            return
        except ProcessError as error:
            logger.warning("a process that indexes shards: %s; its shard is indexed here", error)
            waiting = [job for job in waiting if job != error.task]


def _build_quietly(job: IndexJob, _: object) -> None:
    """Index a shard; one that fails is left to the parent, which then says why."""
    try:
        build(job)
    except Exception as error:  # whatever it is, the parent meets it again
        logger.debug("index of %s: %s", job.url, error)
