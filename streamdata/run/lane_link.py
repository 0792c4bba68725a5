"""The link from the process that reads a lane to the trainer's: it travels with samples, and warns where users look.

It also brings what readers asked of stores: `TrafficReport of each process → Traffic of a dataset`. A report is no part
of states. Each has all that its process has asked for so far: one that is lost, or comes twice, changes nothing.
"""

import logging
import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import NamedTuple

from streamdata.run.per_process import PerProcess

logger = logging.getLogger("streamdata")


class Traffic(NamedTuple):
    """Counts of requests to stores by one or several processes.

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
        """Whether anything was requested from a store, or found in a cache."""
        return bool(self.requests or self.cache_hits)

    @property
    def waiting(self) -> float:
        """The fraction of their time that the processes waited for stores, 0 to 1."""
        return self.waited_s / self.read_s if self.read_s else 0.0


class TrafficReport(NamedTuple):
    """The traffic of a process that reads a dataset, sent to the trainer with its batches."""

    dataset: str
    """Unlike any other."""
    process: int
    traffic: Traffic
    limit: str | None
    """Once its stores were seen to be what limits it: how, and what would help."""
    times: Mapping[str, tuple[float, float]] = {}
    """Seconds of reading and, of these, of waiting, by path of the sources that were read since the last report."""


@dataclass
class NetworkCounts:
    """Counts of the requests that this process has sent to hosts so far.

    Attributes:
        requests: Attempts that were made.
        retries: Those of them that repeated one.
        num_bytes: Bytes that arrived in good answers.
        seconds: From first attempts to last bytes, summed over all requests.
        waited: Seconds that who reads has waited for answers; what was before `since` is start-up, and does not count.
        since: When the process began to read samples, by `time.perf_counter`; None before.
    """

    requests: int = 0
    retries: int = 0
    num_bytes: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    since: float | None = None  # the last field: what is counted stands before it


SourceTimes = dict[str, list[float]]
"""Seconds for which a process has read each source, all that its records go through included, and of these, seconds of
waiting for stores; by path of the source."""

# A forked process has read nothing and received no batch.
_times: PerProcess[defaultdict[str, defaultdict[int, SourceTimes]]] = PerProcess(
    partial(defaultdict, partial(defaultdict, dict))
)
_counts = PerProcess(NetworkCounts)
_of_processes: PerProcess[defaultdict[str, dict[int, Traffic]]] = PerProcess(partial(defaultdict, dict))
_said: set[object] = set()


def note(report: TrafficReport) -> None:
    """Keep another process's traffic report, and log how stores limit its lane."""
    if report.process != os.getpid():  # what this one has asked for, it knows
        _of_processes.get()[report.dataset][report.process] = report.traffic
        _times.get()[report.dataset][report.process].update((path, list(times)) for path, times in report.times.items())
    if report.limit is not None:
        log_once(report.dataset, report.limit)


def log_once(key: object, text: str) -> None:
    """Log a text about a dataset once per key, whichever process reports it."""
    if key not in _said:
        _said.add(key)
        for line in text.splitlines():
            logger.warning("%s", line)


def network_counts() -> NetworkCounts:
    """The counts of the requests of this process."""
    return _counts.get()


def own_times(dataset: str) -> SourceTimes:
    """The reading times of a dataset's sources in this process; readers add to them."""
    return _times.get()[dataset][os.getpid()]


def times_of(dataset: str) -> dict[str, tuple[float, float]]:
    """Seconds of reading and of waiting by source, summed over all processes whose batches arrived here."""
    sums: dict[str, tuple[float, float]] = {}
    # Copies: batches may be unpickled in another thread, which notes reports meanwhile.
    for times in list(_times.get()[dataset].values()):
        for path, (reading, waiting) in list(times.items()):
            before = sums.get(path, (0.0, 0.0))
            sums[path] = before[0] + reading, before[1] + waiting
    return sums


def traffic_of(dataset: str, own: Traffic) -> Traffic:
    """Sum the traffic of all processes whose batches arrived here and of this process, `own`."""
    return Traffic(*map(sum, zip(own, *_of_processes.get()[dataset].values(), strict=True)))


class DealText(NamedTuple):
    """The header of a deal as JSON; it may be large, so each lane sends it once."""

    key: str
    text: str


class Beginning(NamedTuple):
    """How an iteration of one lane began; the trainer compares it with what it has received."""

    rank: str
    """The dataset and the rank, unlike any other."""
    version: int
    """How often states had been set."""
    worker: int
    iteration: int
    """Counts the lane's iterations."""
    was_left: bool
    """Whether the lane had begun this pass before, and was left before it came to its end."""
    batches_before: int
    """How many batches the lane made in the iteration before, where that came to its end."""
    epoch_pass: int
    change: str | None = None
    """Text on the change of size, if another size wrote the states that were set."""
    deal: DealText | None = None
    """The header of earlier sizes."""


class Batches(NamedTuple):
    """Counts of the batches that a lane has made of a pass."""

    number: int = 0
    given: int = 0
    """Samples in all of them."""
    sizes: Sequence[Sequence[int]] = ()
    """Runs of batches with as many samples: the number of the first one, from 1, and the samples of each."""


class LaneLink:
    """Carries facts about a lane to the trainer with each batch; samples refer to it, and pickle it as None.

    A DataLoader's worker cannot warn where the user looks, and it does not know which of its batches were received.
    So each batch brings along how the lane began, and the trainer warns; and what its process has asked of stores.

    Args:
        batches: What batches of this pass the lane had delivered when the iteration began; None if that is not known.
        beginning: How it began, if it is to be compared.
        note_batches: Called with how many batches the lane has made in this iteration.
        report: Returns what its process has asked of stores, None for nothing.
    """

    def __init__(
        self,
        batches: Batches | None,
        beginning: Beginning | None,
        note_batches: Callable[[int], None],
        report: Callable[[], TrafficReport | None],
    ) -> None:
        self._batches, self._beginning, self._note_batches = batches, beginning, note_batches
        self._report = report
        self._made = 0

    def next_batch(self, given: int) -> Batches | None:
        """Count a batch, after which the lane has given `given` samples; return all that it has made."""
        self._made += 1
        self._note_batches(self._made)
        if self._batches is not None:
            number, before, sizes = self._batches
            if not sizes or sizes[-1][1] != given - before:
                sizes = [*sizes, [number + 1, given - before]]
            self._batches = Batches(number + 1, given, sizes)
        return self._batches

    @property
    def batches(self) -> Batches | None:
        """The batches of this pass that the lane has made; None if that is not known, or not counted."""
        return self._batches if self._made else None

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Beginning | None, int, TrafficReport | None]]:
        beginning = self._beginning
        if beginning is not None and self._made > 1:  # the header is large, and came with the first batch
            beginning = beginning._replace(deal=None)
        # Called where the batch is unpickled: whatever the trainer makes of it, it has come there.
        return receive, (beginning, self._made, self._report())


# Where torch's DataLoader takes, and throws away, what its persistent workers had ready; and torchdata's.
_EMPTIES_QUEUE = "_reset"
_DATALOADERS = ("torch.utils.data.dataloader", "torchdata.stateful_dataloader.stateful_dataloader")


_received: dict[tuple[str, int], tuple[int, int]] = {}
"""The last iteration of each lane, by rank and worker, with how many of its batches came."""
_warned: defaultdict[str, set[int]] = defaultdict(set)
_deals: dict[str, tuple[int, DealText | None]] = {}
"""Headers of earlier sizes that lanes have sent, by dataset, with the version of its states."""


def receive(beginning: Beginning | None, batches: int, report: TrafficReport | None) -> None:
    """Record in the trainer that a lane's batch arrived; warn at its first if the last iteration was left early."""
    if report is not None:
        note(report)
    if beginning is None:
        return
    # A DataLoader that empties its queue throws away what comes: it begins anew with workers that live on.
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  what the inspect module itself uses
    while frame is not None and frame.f_code.co_name != _EMPTIES_QUEUE:
        frame = frame.f_back
    if frame is not None and frame.f_globals.get("__name__") in _DATALOADERS:
        return
    announce(beginning)
    note_deal(beginning.rank.partition("/")[0], beginning.version, beginning.deal)
    lane = (beginning.rank, beginning.worker)
    iteration, before = _received.get(lane, (0, 0))
    _received[lane] = beginning.iteration, batches
    if iteration == beginning.iteration:
        return
    # Of an iteration that this process saw nothing of, it has received nothing.
    received = before if iteration == beginning.iteration - 1 else 0
    if beginning.was_left or received < beginning.batches_before:
        warn_once(beginning)


def note_deal(dataset: str, version: int, deal: DealText | None) -> None:
    """Keep the deal of an iterator state that a loader restored, for the lanes of the next pass."""
    if deal is not None:
        _deals[dataset] = version, deal


def noted_deal(dataset: str, version: int) -> DealText | None:
    """The deal noted since states were set, from an iterator state or from workers' batches; None if there is none."""
    # Of an earlier version of the states it is void.
    held, deal = _deals.get(dataset, (-1, None))
    return deal if held == version else None


def announce(beginning: Beginning) -> None:
    """Log a change of topology: once for all lanes of the rank and all passes, each time states are set."""
    if beginning.change is not None:
        log_once((beginning.rank, beginning.version), beginning.change)


def warn_once(beginning: Beginning) -> None:
    """Warn that a pass was left early: once for all lanes of the iteration that follows."""
    workers = _warned[beginning.rank]
    if beginning.worker in workers:  # it warned of an earlier one
        workers.clear()
    if not workers:
        what = "begins again where it began, and what was delivered comes again"
        if not beginning.was_left:
            what = "begins: the workers had read the one before to its end, and what they had ready of it is lost"
        warnings.warn(
            f"MergedDataset: the iteration before was left before its end; pass {beginning.epoch_pass} {what}\n"
            "  To go on where it was left, call set_dataloader_states(states); to choose the pass, set_epoch(epoch).",
            UserWarning,
            stacklevel=2,
        )
    workers.add(beginning.worker)
