"""Building many indexes at once: `jobs → processes that each index some shards → index files`."""

import logging
import os
from collections.abc import Sequence

from streamdata.run.processes import ProcessError, processes
from streamdata.shards.index_file import IndexHeader
from streamdata.shards.indexing import Job, Stamps, build, find

logger = logging.getLogger(__name__)
_WORTH_A_PROCESS = 256 << 20  # bytes of shards; fewer are indexed sooner than processes start
_MAX_PROCESSES = 16


def headers_of(jobs: Sequence[Job], stamps: Sequence[Stamps]) -> list[IndexHeader]:
    """The headers of all these indexes; those that are missing are built, in parallel where that pays.

    Raises:
        ShardError: A shard is damaged (of several, the first in order).
    """
    found = [find(job, stamp) for job, stamp in zip(jobs, stamps, strict=True)]
    missing = [place for place, entry in enumerate(found) if entry is None]
    size = sum(stamps[place][0].size for place in missing)
    count = min(len(os.sched_getaffinity(0)), len(missing), _MAX_PROCESSES)
    if count > 1 and size >= _WORTH_A_PROCESS:
        logger.info("indexing %d shards of %d MB with %d processes", len(missing), size >> 20, count)
        _build_in_processes([(jobs[place], stamps[place]) for place in missing], count)
    for place in missing:  # a shard that a process could not index raises here what is wrong with it
        found[place] = find(jobs[place], stamps[place]) or build(jobs[place], stamps[place])
    return [entry.header for entry in found if entry is not None]


def _build_in_processes(work: list[tuple[Job, Stamps]], count: int) -> None:
    work = sorted(work, key=lambda item: -item[1][0].size)  # the largest first, or it would end long after the others
    try:
        with processes(_build_quietly, count) as team:
            for _ in team.run(work):
                pass
    except ProcessError as error:
        logger.warning("a process that indexes shards: %s; those that are not indexed yet are indexed here", error)


def _build_quietly(item: tuple[Job, Stamps], _: object) -> None:
    """Index a shard; one that fails is left to the parent, which then says why."""
    try:
        build(*item)
    except Exception as error:  # whatever it is, the parent meets it again
        logger.debug("index of %s: %s", item[0], error)
