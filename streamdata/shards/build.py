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
from contextlib import suppress
from pathlib import Path

from streamdata.shards.index_file import IndexHeader
from streamdata.shards.indexing import Job, Stamps, build, find
from streamdata.shards.storage import FileStamp

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
    processes = min(len(os.sched_getaffinity(0)), len(missing), _MAX_PROCESSES)
    if processes > 1 and size >= _WORTH_A_PROCESS:
        logger.info("indexing %d shards of %d MB with %d processes", len(missing), size >> 20, processes)
        _run_processes([(jobs[place], stamps[place]) for place in missing], processes)
    for place in missing:  # a shard that a process could not index raises here what is wrong with it
        found[place] = find(jobs[place], stamps[place]) or build(jobs[place], stamps[place])
    return [entry.header for entry in found if entry is not None]


def _run_processes(work: list[tuple[Job, Stamps]], processes: int) -> None:
    work = sorted(work, key=lambda item: -item[1][0].size)
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    command = [sys.executable, "-P", "-m", "streamdata.shards.build"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for first in range(processes):
            environment = {**os.environ, "PYTHONPATH": path}
            child = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)  # noqa: S603  # our own
            started.append(child)
            _send(child, json.dumps(work[first::processes]).encode() + b"\n")
        for child in started:
            if child.wait() != 0:
                logger.warning("a process that indexes ended with %d; its shards are indexed here", child.returncode)
    finally:
        for child in started:
            child.kill()
            child.wait()
            _send(child, None)


def _send(child: "subprocess.Popen[bytes]", line: bytes | None) -> None:
    """Send a line to a process, or close its input; that it has ended already shows in its return code."""
    assert child.stdin is not None, "the process was started with a pipe"
    with suppress(BrokenPipeError):
        if line is None:
            child.stdin.close()
        else:
            child.stdin.write(line)
            child.stdin.flush()


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def main() -> None:
    """Index the shards named on standard input; one that fails is left to the parent, which then says why."""
    work = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for job, (shard, sidecar) in work:
        try:
            build(Job(*job), (FileStamp(*shard), FileStamp(*sidecar)))
        except Exception as error:  # whatever it is, the parent meets it again
            logger.debug("index of %s: %s", job, error)


if __name__ == "__main__":
    main()
