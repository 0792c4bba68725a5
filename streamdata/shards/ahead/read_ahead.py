"""Bytes of shards before they are needed: `windows of each source → a queue of loads → requests → memory`.

`counts of the process → Meter → TrafficReport`: whether that is enough, and if not, what would help.

Each source of a lane has a queue of what it reads next (`Upcoming`), whose requests are sent in order of use while the
source is read. It grows with need: each time that its reader had to wait, one more request is under way, and twice as
many windows are ahead. All sources of a process share one bound of memory: half of it is for what is being read, to
which the loads of all sources are cut; the other half is for what comes after it. So no reader waits for memory.
Nothing here is part of a state, and what is read does not depend on it: only when.
"""

import os
import time
from collections import deque
from collections.abc import Hashable, Iterator
from concurrent.futures import Future
from copy import copy
from dataclasses import astuple, dataclass, field
from itertools import islice
from operator import sub
from typing import Any, Final, NamedTuple
from weakref import WeakSet

import numpy as np

from streamdata.errors import shown
from streamdata.io.cache.cached import cache_counts
from streamdata.io.cache.page_cache import Memory
from streamdata.io.remote.network import network
from streamdata.run import Lane
from streamdata.run.lane_link import NetworkCounts, Traffic, TrafficReport, network_counts, own_times
from streamdata.run.per_process import PerProcess
from streamdata.run.topology import MAX_CONNECTIONS, connections_of_process
from streamdata.shards.ahead.spans import read_spans
from streamdata.shards.ahead.windows import Chunk, Load, PlannedWindow

_BYTES: Final = 256 << 20
_VARIABLE: Final = "STREAMDATA_READ_AHEAD_BYTES"
_MOST_WINDOWS: Final = 256
_MOST_LOADS: Final = 8  # in the queue of a source, of the largest size
_FEWEST_UNDER_WAY: Final = 4
_STRETCH_S: Final = 30.0
"""Seconds for which a lane is observed before it is judged."""
_LIMITS: Final = 0.5
"""Stores limit a lane that waits for them for more than this share of its time."""
_MANY_RETRIES: Final = 0.05
_MOST_IN_FLIGHT: Final = 0.75
"""Share of the connections: with more in flight all of them are used."""
_SMALL_BYTES: Final = 1 << 20
"""Mean size of a request below which a store takes about as long to begin an answer as to send it."""


class AheadSettings(NamedTuple):
    """Settings of the read-ahead of one process."""

    read_ahead_bytes: int = _BYTES
    """Bytes of shards in memory at most, current windows included; only a record that alone has more than the share of
    its source comes on top. With 0 nothing is read before it is needed."""
    connections: int = MAX_CONNECTIONS
    """Requests that are under way at the same time, at most."""


def ahead_settings(read_ahead_bytes: Any, connections: Any) -> AheadSettings:
    """The read-ahead settings of this process: the recipe's, else the environment's, else the defaults.

    Args:
        read_ahead_bytes: What the recipe says, if it does; then the environment is not asked.
        connections: The connections of a node that the recipe gives, if it does.

    Raises:
        ValueError: The bound is not a whole number of at least 0, or the connections are not one above 0.
    """
    who, value, text = "read_ahead_bytes", read_ahead_bytes, os.environ.get(_VARIABLE)
    if value is None and text:
        who, value = f"{_VARIABLE} in the environment", int(text) if text.isdecimal() else text
    value = _BYTES if value is None else value
    if type(value) is not int or value < 0:
        raise ValueError(f"{who}: expected a whole number from 0 on, got {shown(value)}\n  Leave it out for 256 MiB.")
    return AheadSettings(value, connections_of_process(connections))


@dataclass(eq=False)
class LaneAhead:
    """The read-ahead of one lane."""

    settings: AheadSettings = field(default_factory=AheadSettings)
    num_sources: int = 0
    """How many of its sources are remote."""
    upcoming: "list[Upcoming]" = field(default_factory=list)
    """The queues of its sources that are being read."""

    def expect(self, *, is_remote: bool) -> None:
        """Count a source that will be read; a remote one limits the connections of this process."""
        if is_remote:
            self.num_sources += 1
            network().limit(self.settings.connections)

    def close(self) -> None:
        """Drop all that the lane's sources hold, and cancel pending requests."""
        for upcoming in list(self.upcoming):
            upcoming.close()

    def fair_share(self) -> tuple[int, int]:
        """Bytes of a source's load, so that the present ones of all fit into half of the bound; and its connections."""
        reading = [lane for lane in list(_lanes.get()) if lane.upcoming]
        num_sources = max(1, sum(max(lane.num_sources, len(lane.upcoming)) for lane in reading))
        return max(1, self.settings.read_ahead_bytes // 2 // num_sources), self.settings.connections // num_sources


_lanes: PerProcess[WeakSet[LaneAhead]] = PerProcess(WeakSet)


def held_bytes() -> tuple[int, int]:
    """Bytes that were asked for and not let go of, in all lanes of this process: of present loads, and ahead."""
    held = [one.held_bytes() for lane in list(_lanes.get()) for one in list(lane.upcoming)]
    return sum(present for present, _ in held), sum(ahead for _, ahead in held)


class Upcoming:
    """The queue of what one source of a lane reads next.

    Args:
        lane: The lane.
    """

    def __init__(self, lane: LaneAhead) -> None:
        self._lane = lane
        self.is_on = False
        """Whether it was begun, and not closed since."""

    def begin(self, windows: Iterator[PlannedWindow]) -> None:
        """Start with the first of these windows."""
        self._queue: deque[Load] = deque()
        """The present load, and those after it."""
        self._loads, self._chunks = self._planned(windows), self._in_order()
        self._chunk: Chunk | None = None
        """The one that is being read."""
        self._error: Exception | None = None
        """Why there are no more loads; raised where the next one is due, whatever it is."""
        self._num_wanted, self._has_waited, self.is_on = 1, False, True
        self._lane.upcoming.append(self)
        self._join()
        self._most_under_way = max(_FEWEST_UNDER_WAY, self._lane.fair_share()[1])

    def _join(self) -> None:
        """Begin in this process, to which nothing of what a parent process has under way comes."""
        self._pid, self._num_under_way = os.getpid(), 0
        for load in self._queue:
            load.forget()
        _lanes.get().add(self._lane)

    def held_bytes(self) -> tuple[int, int]:
        """Bytes that were asked for and not let go of: of the present load, and ahead."""
        sent = [load.sent_bytes for load in list(self._queue)]
        return sum(sent[:1]), sum(sent[1:])

    def close(self) -> None:
        """Drop all loads, and cancel pending requests."""
        if self.is_on:
            self.is_on = False
            self._lane.upcoming.remove(self)
            self._loads, self._chunks, self._chunk, loads = iter(()), iter(()), None, list(self._queue)
            self._queue.clear()
            for load in reversed(loads if self._pid == os.getpid() else []):
                load.drop()

    def enter(self, key: Hashable) -> PlannedWindow:
        """Go to the next window, whose key is `key`; the rest of the previous one is dropped.

        Raises:
            Exception: Planning the window failed, for whatever reason.
        """
        while self._chunk is not None and not self._chunk.is_last:  # its reader did not come to its end
            self._chunk = next(self._chunks)
        self._chunk = next(self._chunks)
        window = self._chunk.window
        assert window.key == key, f"window {key} is due, and {window.key} was planned"
        return window

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks of the current window; each one replaces the one before."""
        while self._chunk is not None and self._chunk.begin < self._chunk.end:
            yield self._chunk
            if self._chunk.is_last:
                return
            self._chunk = next(self._chunks)

    def _in_order(self) -> Iterator[Chunk]:
        """Yield all chunks; a load is let go of when what comes after it is asked for."""
        for upcoming in list(self._lane.upcoming):  # what comes next of all: it is waited for at the same time
            upcoming.fill()
        while True:
            if not self._queue and not self._plan():
                assert self._error is not None, "a window is due, and none was planned"
                raise self._error
            load = self._queue[0]
            self.fill()
            yield from load.chunks
            self._queue.popleft()
            self._num_under_way -= len(load.answers)
            load.drop()
            # Further ahead only where that was too late: tiny sources would be read for epochs that nobody comes to.
            if self._has_waited:
                self._num_wanted, self._has_waited = min(2 * self._num_wanted, _MOST_WINDOWS), False

    def fill(self) -> None:
        """Send what is needed next, as far ahead as the source has needed so far, and as there is room."""
        while self._num_under_way < self._most_under_way:
            load = next((load for load in self._queue if load.unsent), None)
            if not (self._plan() if load is None else self._send(load, load.unsent[0])):
                return

    def _send(self, load: Load, number: int) -> bool:
        """Send a request, unless it is ahead of the present load and has no room; return whether it was sent."""
        request, (present, ahead) = load.requests[number], held_bytes()
        half = self._lane.settings.read_ahead_bytes // 2
        # Beside a record that is larger than its source's share less is ahead.
        if load is not self._queue[0] and request.end - request.begin > half - ahead - max(0, present - half):
            return False
        load.send(number)
        self._num_under_way += 1
        return True

    def take(self, load: Load, number: int) -> Memory:
        """Wait for a request of the present load, and have what comes next sent; return its bytes."""
        if self._pid != os.getpid():
            self._join()
        if number not in load.answers:
            self._send(load, number)
        request, answer = load.requests[number], load.answers[number]  # its url names the file where this takes long
        self._num_under_way -= 1
        if isinstance(answer, Future) and not answer.done():
            self._has_waited = True
            self._most_under_way += self._most_under_way < self._lane.settings.connections
        self.fill()
        if isinstance(answer, Future):
            with network().waiting():
                answer = answer.result()
        elif answer is None:  # of a local shard
            span = np.array([[0, request.begin, request.end]])
            answer = bytes(read_spans([request.url], [request.stamp], span)[0])
        del load.answers[number]
        return answer

    def _plan(self) -> bool:
        """Queue the next load, as many windows, or parts of them, ahead as was needed; return whether there is one."""
        num_ahead = sum(len(load.chunks) for load in islice(self._queue, 1, None))
        is_enough = self._queue and num_ahead >= self._num_wanted
        if is_enough or self.held_bytes()[1] > _MOST_LOADS * self._lane.fair_share()[0]:
            return False
        self._queue += (planned := list(islice(self._loads, 1)))
        return bool(planned)

    def _planned(self, windows: Iterator[PlannedWindow]) -> Iterator[Load]:
        """Cut windows into loads; join small ones, half as many as are wanted ahead, so that requests are larger."""
        chunks: list[Chunk] = []
        try:
            for window in windows:
                most = self._lane.fair_share()[0]
                for chunk in window.chunks(most):
                    size = sum(one.num_bytes for one in [*chunks, chunk])
                    if chunks and (size > most or window.shards() != chunks[0].window.shards()):
                        yield Load(chunks, most, self.take)
                        chunks = []
                    chunks.append(chunk)
                    if len(chunks) >= self._num_wanted // 2:
                        yield Load(chunks, most, self.take)
                        chunks = []
        except Exception as error:
            self._error = error
        if chunks:  # they come before what cannot be made
            yield Load(chunks, self._lane.fair_share()[0], self.take)


def own_traffic() -> Traffic:
    """The traffic of this process to stores so far."""
    counts, caches = network_counts(), cache_counts()
    read_s = time.perf_counter() - counts.since if counts.since is not None else 0.0
    of_caches = sum(cache.reads for cache in caches), sum(cache.hits for cache in caches)
    waited = counts.waited if read_s else 0.0
    return Traffic(counts.requests, counts.retries, counts.num_bytes, *of_caches, waited, read_s)


class Meter:
    """Measures a lane's traffic and waiting while it is read, and finds how stores limit it.

    Args:
        dataset: Unlike any other.
        lane: The lane.
        settings: How it reads ahead.
    """

    def __init__(self, dataset: str, lane: Lane, settings: AheadSettings) -> None:
        self._dataset, self._lane, self._settings = dataset, lane, settings
        self._since, counts = time.perf_counter(), network_counts()
        if counts.since is None:  # what was waited for before is start-up
            counts.since, counts.waited = self._since, 0.0
        self._before = copy(counts)
        self._limit: str | None = None
        self.times = own_times(dataset)
        """Reading times of the sources of this process; the reader adds to them."""
        self._sent: dict[str, float] = {}

    def report(self) -> TrafficReport | None:
        """The traffic since the start, if there is any; called with each batch."""
        # Of a thousand sources a batch was made of a few: the others' times have not changed.
        times = {path: (one[0], one[1]) for path, one in self.times.items() if self._sent.get(path) != one[0]}
        self._sent.update((path, reading) for path, (reading, _) in times.items())
        if not times and not network_counts().requests and not cache_counts():
            return None
        return TrafficReport(self._dataset, os.getpid(), own_traffic(), self.limit(), times)

    def limit(self) -> str | None:
        """Describe how stores limit the lane, and what would help; None if they have not so far."""
        took = time.perf_counter() - self._since
        if self._limit is None and took >= _STRETCH_S:
            now = copy(network_counts())
            stretch = NetworkCounts(*map(sub, astuple(now)[:-1], astuple(self._before)[:-1]))
            self._since, self._before = self._since + took, now
            if stretch.waited > _LIMITS * took:
                self._limit = self._described(stretch, took)
        return self._limit

    def _described(self, stretch: NetworkCounts, took: float) -> str:
        requests, connections = max(1, stretch.requests), self._settings.connections
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
