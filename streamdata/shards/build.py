"""Building many indexes at once: `jobs → processes that each index some shards → index files`.

Run as `python -m streamdata.shards.build`, it is one of these processes: it gets its jobs as one line of JSON on its
standard input, and ends at once when that is closed, so that it cannot outlive whoever started it. Processes of
multiprocessing would not do: scripts without a `__main__` guard would run again, and daemonic workers may have none.
"""

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from streamdata.shards.indexing import Job, Stamps, build, find
from streamdata.shards.storage import Stamp

logger = logging.getLogger(__name__)
_WORTH_A_PROCESS = 256 << 20  # bytes of shards; fewer are indexed sooner than processes start
_MAX_PROCESSES = 16


def build_missing(jobs: Sequence[Job], stamps: Sequence[Stamps]) -> None:
    """Build the indexes that are missing, in parallel where that pays.

    Raises:
        ShardError: A shard is damaged (of several, the first in order).
    """
    missing = [place for place, job in enumerate(jobs) if find(job, stamps[place]) is None]
    size = sum(stamps[place][0].size for place in missing)
    processes = min(len(os.sched_getaffinity(0)), len(missing), _MAX_PROCESSES)
    if processes > 1 and size >= _WORTH_A_PROCESS:
        logger.info("indexing %d shards of %d MB with %d processes", len(missing), size >> 20, processes)
        _run_processes([(jobs[place], stamps[place]) for place in missing], processes)
        missing = [place for place in missing if find(jobs[place], stamps[place]) is None]
    for place in missing:  # those that failed too: here they raise what went wrong
        build(jobs[place], stamps[place])


def _run_processes(work: list[tuple[Job, Stamps]], processes: int) -> None:
    work = sorted(work, key=lambda item: -item[1][0].size)
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    command = [sys.executable, "-P", "-m", "streamdata.shards.build"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for first in range(processes):
            environment = {**os.environ, "PYTHONPATH": path}
            child = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)  # noqa: S603  # our own module
            started.append(child)
            assert child.stdin is not None, "the process was started with a pipe"
            child.stdin.write(json.dumps(work[first::processes]).encode() + b"\n")
            child.stdin.flush()
        for child in started:
            if child.wait() != 0:
                logger.warning("a process that indexes ended with %d; its shards are indexed here", child.returncode)
    finally:
        for child in started:
            child.kill()
            child.wait()
            if child.stdin is not None:
                child.stdin.close()


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def main() -> None:
    """Index the shards named on standard input; one that fails is left to the parent, which then says why."""
    work = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for job, (shard, sidecar) in work:
        try:
            build(Job(*job), (Stamp(*shard), Stamp(*sidecar)))
        except Exception as error:  # whatever it is, the parent meets it again
            logger.debug("index of %s: %s", job, error)


if __name__ == "__main__":
    main()
