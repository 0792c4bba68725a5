"""How a lane sees its stores: `counts of its process → TrafficReport`, and whether they limit it."""

import os
import time
from typing import Final, NamedTuple

from streamdata.io.cache.cached import cache_counts
from streamdata.io.remote.network import MAX_CONNECTIONS, network
from streamdata.run import Lane
from streamdata.run.lane_link import Traffic, TrafficReport, own_times
from streamdata.shards.ahead.read_ahead import AheadSettings

_STRETCH_S: Final = 30.0
"""Seconds for which a lane is observed before it is judged."""
_LIMITS: Final = 0.5
"""Stores limit a lane that waits for them for more than this share of its time."""
_MANY_RETRIES: Final = 0.05
_MOST_IN_FLIGHT: Final = 0.75
"""Share of the connections: with more in flight all of them are used."""
_SMALL_BYTES: Final = 1 << 20
"""Mean size of a request below which a store takes about as long to begin an answer as to send it."""


class _Since(NamedTuple):
    """The counts at the begin of a stretch, for differences."""

    time: float
    requests: float
    retries: float
    num_bytes: float
    seconds: float
    waited: float


def own_traffic() -> Traffic:
    """The traffic of this process to stores so far."""
    counts, caches = network().counts, cache_counts()
    read_s = time.perf_counter() - counts.since if counts.since is not None else 0.0
    return Traffic(
        counts.requests,
        counts.retries,
        counts.num_bytes,
        sum(cache.reads for cache in caches),
        sum(cache.hits for cache in caches),
        counts.waited if read_s else 0.0,
        read_s,
    )


class Meter:
    """Measures a lane's traffic and waiting while it is read, and finds how stores limit it.

    Args:
        dataset: Unlike any other.
        lane: The lane.
        settings: How it reads ahead.
    """

    def __init__(self, dataset: str, lane: Lane, settings: AheadSettings) -> None:
        self._dataset, self._lane, self._settings = dataset, lane, settings
        network().counts.begin()
        self._since = _now()
        self._limit: str | None = None
        self.times = own_times(dataset)
        """Reading times of the sources of this process; the reader adds to them."""
        self._sent: dict[str, float] = {}

    def report(self) -> TrafficReport | None:
        """The traffic since the start, if there is any; called with each batch."""
        # Of a thousand sources a batch was made of a few: the others' times have not changed.
        times = {path: (one[0], one[1]) for path, one in self.times.items() if self._sent.get(path) != one[0]}
        self._sent.update((path, reading) for path, (reading, _) in times.items())
        if not times and not network().counts.requests and not cache_counts():
            return None
        return TrafficReport(self._dataset, os.getpid(), own_traffic(), self.limit(), times)

    def limit(self) -> str | None:
        """Describe how stores limit the lane, and what would help; None if they have not so far."""
        if self._limit is None and time.perf_counter() - self._since.time >= _STRETCH_S:
            now = _now()
            stretch = _Since(*(after - before for after, before in zip(now, self._since, strict=True)))
            self._since = now
            if stretch.waited > _LIMITS * stretch.time:
                self._limit = self._described(stretch)
        return self._limit

    def _described(self, stretch: _Since) -> str:
        took, requests, connections = stretch.time, max(1, stretch.requests), self._settings.connections
        in_flight, mean_bytes = stretch.seconds / took, stretch.num_bytes / requests
        if stretch.retries > _MANY_RETRIES * stretch.requests:
            help_ = "fewer `connections`, or a higher rate of the store, which refuses or breaks off requests"
        elif in_flight > _MOST_IN_FLIGHT * connections:
            more = "more workers" if connections >= MAX_CONNECTIONS else "more `connections` of the node"
            help_ = f"{more}, since all {connections} of this process are used, unless its link is full"
        else:
            help_ = f"more `read_ahead_bytes` (now {self._settings.read_ahead_bytes}), since connections are idle"
        if mean_bytes < _SMALL_BYTES:
            help_ += "; larger `block_bytes` or `block_size`, or fewer and larger shards, so that requests are larger"
        if not cache_counts():
            help_ += "; a `cache` on a disk of the node, for what is read again"
        who = f"rank {self._lane.dp_rank}, worker {self._lane.worker}"
        return (
            f"the network is the limit: {who} waited {stretch.waited / took:.0%} of {took:.0f} s for shards, which "
            f"came at {stretch.num_bytes / took / 1e6:.3g} MB/s by {requests / took:.3g} requests a second of "
            f"{mean_bytes / 1e6:.2g} MB, {in_flight:.1f} at a time, {stretch.retries:.0f} of them repeated\n"
            f"  What may help: {help_}."
        )


def _now() -> _Since:
    counts = network().counts
    return _Since(time.perf_counter(), counts.requests, counts.retries, counts.num_bytes, counts.seconds, counts.waited)
