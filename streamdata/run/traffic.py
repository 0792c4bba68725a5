"""Requests of readers to stores elsewhere, and their waits: `TrafficReport of each process → Traffic of a dataset`.

A report travels with batches, beside what they hold, and is no part of states. Each has all that its process has asked
for so far, so that one that is lost, or comes twice, changes nothing.
"""

import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from streamdata.run.per_process import PerProcess

logger = logging.getLogger("streamdata")


class Traffic(NamedTuple):
    """Counts of what some processes have asked of stores.

    Attributes:
        requests: Attempts that were made.
        retries: Those of them that repeated one.
        num_bytes: Bytes that arrived.
        cache_hits: Reads that the page cache answered whole.
        cached_bytes: Bytes that were read from it.
        waited_s: How long the processes waited for bytes, since they began to read samples.
        read_s: How long ago that is. Both are sums over the processes.
    """

    requests: int = 0
    retries: int = 0
    num_bytes: int = 0
    cache_hits: int = 0
    cached_bytes: int = 0
    waited_s: float = 0.0
    read_s: float = 0.0

    @property
    def is_any(self) -> bool:
        """Whether anything was asked for, or found in a cache."""
        return bool(self.requests or self.cache_hits)

    @property
    def waiting(self) -> float:
        """The share of their time that the processes waited, 0 to 1."""
        return self.waited_s / self.read_s if self.read_s else 0.0


class TrafficReport(NamedTuple):
    """Traffic of a process that reads a dataset, sent with its batches."""

    dataset: str
    """Unlike any other."""
    process: int
    traffic: Traffic
    limit: str | None
    """Once its stores were seen to be what limits it: how, and what would help."""
    times: Mapping[str, tuple[float, float]] = {}
    """By path, of sources that were read since the last report: seconds of reading and, of these, of waiting."""


SourceTimes = dict[str, list[float]]
"""By path of a source: how long a process has read it, all that its records go through included, and how long of that
it has waited for stores; seconds."""

# A forked process has read nothing and received no batch.
_times: PerProcess[defaultdict[str, defaultdict[int, SourceTimes]]] = PerProcess(
    lambda: defaultdict(lambda: defaultdict(dict))
)
_of_processes: PerProcess[defaultdict[str, dict[int, Traffic]]] = PerProcess(lambda: defaultdict(dict))
_said: set[str] = set()


def note(report: TrafficReport) -> None:
    """Keep a report; log what limits a dataset, once for all who read it."""
    if report.process != os.getpid():  # what this one has asked for, it knows
        _of_processes.get()[report.dataset][report.process] = report.traffic
        _times.get()[report.dataset][report.process].update((path, list(times)) for path, times in report.times.items())
    if report.limit is not None and report.dataset not in _said:
        _said.add(report.dataset)
        for line in report.limit.splitlines():
            logger.warning("%s", line)


def own_times(dataset: str) -> SourceTimes:
    """Times of a dataset's sources in this process; whoever reads one adds to them."""
    return _times.get()[dataset][os.getpid()]


def times_of(dataset: str) -> dict[str, tuple[float, float]]:
    """Seconds of reading and of waiting of each source, over all processes whose batches came here, and this one."""
    sums: dict[str, tuple[float, float]] = {}
    # Copies: batches may be unpickled in another thread, which notes reports meanwhile.
    for times in list(_times.get()[dataset].values()):
        for path, (reading, waiting) in list(times.items()):
            before = sums.get(path, (0.0, 0.0))
            sums[path] = before[0] + reading, before[1] + waiting
    return sums


def traffic_of(dataset: str, own: Traffic) -> Traffic:
    """Add up the traffic of all processes whose batches came here, and of this one, which is `own`."""
    return total([own, *_of_processes.get()[dataset].values()])


def total(parts: Iterable[Traffic]) -> Traffic:
    """The sum."""
    return Traffic(*map(sum, zip(*parts, strict=True)))
