"""Bytes of shards before they are needed: `windows of all lanes' sources → chunks by due time → requests → memory`.

One `ReadAhead` per process. A lane's sources (`Upcoming`) make their next windows early; of these, chunks are asked
for in the order in which they fall due, as long as there is room, and what was asked for is sent in that order, too. A
chunk is what is held or let go of at once: a window, or as much of one as each source of the process has room for.
Nothing here is part of a state, and what is read does not depend on it: only when.
"""

import heapq
import math
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

from streamdata.errors import shown
from streamdata.io.remote.network import MAX_CONNECTIONS, connections_of_process
from streamdata.io.remote.requests import HostHealth
from streamdata.io.storage import FileStamp, advise, cut_short, is_remote, opened_anew, submit_range
from streamdata.run.per_process import PerProcess
from streamdata.shards.ahead.windows import Chunk, Reader, Request

_BYTES: Final = 256 << 20
_VARIABLE: Final = "STREAMDATA_READ_AHEAD_BYTES"
Submit = Callable[[str, int, int, FileStamp], "Future[bytes]"]
"""Ask for the bytes of a shard from `begin` to `end`, of the version that was indexed; the answer has all of them."""
_ENOUGH = 1.0  # seconds to wait for memory that others hold
_TIMES_FREE = 3  # as many requests as there are connections free may a host have under way, where there are several


class AheadSettings(NamedTuple):
    """Settings of the read-ahead of one process."""

    read_ahead_bytes: int = _BYTES
    """Bytes of shards in memory at most, current windows included. With 0 nothing is read before it is needed."""
    connections: int = MAX_CONNECTIONS
    """Requests that are under way at the same time, at most."""


def ahead_settings(read_ahead_bytes: int | None, connections: int | None) -> AheadSettings:
    """The read-ahead settings of this process, from the recipe or the environment.

    Args:
        read_ahead_bytes: What the recipe says, if it does; then the environment is not asked.
        connections: The connections of a node that the recipe gives, if it does.

    Raises:
        ValueError: A value is out of range.
    """
    return AheadSettings(checked_bytes(read_ahead_bytes), connections_of_process(connections))


def checked_bytes(read_ahead_bytes: Any) -> int:
    """The bound of the read-ahead in bytes: the recipe's, else the environment's, else the default.

    Raises:
        ValueError: The bound is not a whole number of at least 0.
    """
    who, value = "read_ahead_bytes", read_ahead_bytes
    if value is None and (text := os.environ.get(_VARIABLE)):
        who, value = f"{_VARIABLE} in the environment", int(text) if text.isdecimal() else text
    if value is None:
        return _BYTES
    if type(value) is not int or value < 0:
        raise ValueError(
            f"{who}: expected a whole number of at least 0, got {shown(value)}\n  Leave it out to have the "
            "default: 256 MiB."
        )
    return value


@dataclass
class Counts:
    """Counts of read-ahead requests in this process."""

    requests: int = 0
    num_bytes: int = 0
    held_bytes: int = 0
    """Now: asked for, and not let go of yet."""
    most_held_bytes: int = 0


@dataclass
class LaneAhead:
    """The read-ahead's view of one lane, shared by all of its sources."""

    settings: AheadSettings = field(default_factory=AheadSettings)
    heap: Sequence[tuple[float, int]] = ()
    """The clocks of the top mixture, the lowest first."""
    num_sources: int = 0
    """How many sources of it are remote."""
    upcoming: list[Reader] = field(default_factory=list)

    def now(self) -> float:
        """The lane's present virtual time: its lowest clock."""
        return self.heap[0][0] if self.heap else 0.0

    def close(self) -> None:
        """Drop all that the lane's sources hold, and cancel pending requests."""
        # Together: the connections that one of them frees would be taken by what the next had waiting.
        read_ahead().drop([request for upcoming in list(self.upcoming) for request in upcoming.ended()])


class ReadAhead:
    """Requests chunks for all lanes of a process in order of due time, within one memory bound.

    Args:
        submit: Asks for a range; by default a remote one of its host, and a local one of threads that read.
    """

    def __init__(self, submit: Submit | None = None) -> None:
        self.counts = Counts()
        self._submit = submit or self._fetch
        self._threads = ThreadPoolExecutor(MAX_CONNECTIONS, "streamdata-fetch")
        # Re-entrant: what is collected as garbage while it is held may be an iterator, which is then closed.
        self._lock = threading.RLock()
        self._freed = threading.Condition(self._lock)
        self._num_dropped = 0
        """Requests that nobody wants, and that take memory yet."""
        self._lanes: list[LaneAhead] = []
        self._under_way: Counter[HostHealth] = Counter()
        """How many requests, by host."""
        self._sending = threading.local()

    def _fetch(self, url: str, begin: int, end: int, stamp: FileStamp) -> "Future[bytes]":
        if is_remote(url):
            return submit_range(url, begin, end, stamp)

        def read() -> bytes:
            file = opened_anew(url)  # what each of the threads kept open would be thousands of files
            data = file.read(end - begin, begin)
            file.check(stamp)
            if len(data) != end - begin:
                raise cut_short(url, begin, end - begin, len(data))
            return data

        return self._threads.submit(read)

    def join(self, lane: LaneAhead) -> None:
        """Add a lane that reads; forget those that have stopped."""
        with self._lock:
            self._lanes = [one for one in self._lanes if one.upcoming and one is not lane] + [lane]

    def chunk_bytes(self) -> int:
        """The largest chunk of a source, such that the present chunks of all sources fit into half of the bound."""
        lanes = self._lanes
        num_sources = sum(max(lane.num_sources, len(lane.upcoming)) for lane in lanes)
        return max(1, _most_bytes(lanes) // (2 * num_sources))

    def fill(self, lane: LaneAhead) -> None:
        """Request the chunks that a lane's sources will need, the next due first, while there is room."""
        sources = list(lane.upcoming)
        dues = [(due, number) for number, one in enumerate(sources) if (due := one.next_due()) < math.inf]
        heapq.heapify(dues)
        while dues:
            number = dues[0][1]
            upcoming = sources[number]
            chunk = upcoming.next_chunk()
            if chunk is not None:
                # Beside what each source that holds nothing may need at any moment.
                hold_nothing = sum(one.num_sources - sum(up.holds for up in one.upcoming) for one in self._lanes)
                kept = max(0, hold_nothing - (not upcoming.holds)) * self.chunk_bytes()
                if self.counts.held_bytes + chunk.num_bytes + kept > _most_bytes(self._lanes):
                    return
                upcoming.asked()
                self.ask_for(chunk)
            if chunk is not None and (due := upcoming.next_due()) < math.inf:
                heapq.heapreplace(dues, (due, number))
            else:
                heapq.heappop(dues)

    def make_room(self, num_bytes: int) -> None:
        """Drop chunks requested ahead, the last due first, until `num_bytes` fit.

        They fit already, unless another lane of this process began to read since those chunks were requested.
        """
        while self.counts.held_bytes + num_bytes > _most_bytes(self._lanes):
            sources = [upcoming for lane in self._lanes for upcoming in lane.upcoming]
            last = max(sources, key=lambda one: one.last_due(), default=None)
            if last is not None and last.last_due() >= 0:
                last.give_back()
                continue
            with self._lock:  # what is under way of that takes memory until it has come
                if not self._num_dropped:
                    return
                self._freed.wait(_ENOUGH)

    def ask_for(self, chunk: Chunk) -> None:
        """Queue the requests of a chunk; each is sent when its turn comes."""
        requests, num_bytes = [one for one in chunk.requests if one.asked_of is None], chunk.num_bytes
        requests.sort(key=attrgetter("first_use"))
        with self._lock:
            for request in requests:
                request.asked_of = self
                chunk.upcoming.host = request.host
            if not chunk.is_advice:
                chunk.upcoming.waiting += requests
            self.counts.held_bytes += num_bytes
            self.counts.most_held_bytes = max(self.counts.most_held_bytes, self.counts.held_bytes)
        if chunk.is_advice:
            for request in requests:
                advise(request.url, request.begin, request.end)
        else:
            self._send()

    def drop(self, requests: Sequence[Request]) -> None:
        """Release the bytes of requests; those not answered yet are cancelled."""
        under_way = []
        with self._lock:
            for request in requests:
                # One of a parent process is not this one's; one that several chunks share comes several times.
                if request.asked_of is not self or request.is_dropped:
                    continue
                request.is_dropped = True
                self._num_dropped += 1
                self._settle(request)
                if request.is_sent and not request.is_over and request.future is not None:
                    under_way.append(request.future)
        for future in under_way:  # outside: whoever is told of it asks for the lock
            future.cancel()

    def _settle(self, request: Request) -> None:
        """Count the bytes of a request no more, once nobody wants them and they are not under way."""
        if request.asked_of is self and request.is_dropped and (request.is_over or not request.is_sent):
            request.asked_of = None
            self._num_dropped -= 1
            self.counts.held_bytes -= request.end - request.begin
            self._freed.notify_all()

    def _send(self) -> None:
        # An answer that is there at once leads back here: the loop that sent it goes on.
        if getattr(self._sending, "is_under_way", False):
            return
        self._sending.is_under_way = True
        try:
            while (request := self._next()) is not None:
                try:
                    future = self._submit(request.url, request.begin, request.end, request.stamp)
                except Exception as error:  # raised by the record that needs it
                    future = Future()
                    future.set_exception(error)
                request.future = future
                future.add_done_callback(partial(self._answered, request))
                if request.is_dropped:
                    future.cancel()
        finally:
            self._sending.is_under_way = False

    def _next(self) -> Request | None:
        """The request that falls due next, of all that wait; None where no more may be under way."""
        with self._lock:
            most = max((lane.settings.connections for lane in self._lanes), default=1)
            # What waits to be asked again, for up to two minutes, has no connection meanwhile.
            free = most - sum(number for host, number in self._under_way.items() if host.failing_since is None)
            if free <= 0:
                return None
            heads: list[tuple[float, deque[Request]]] = []
            sources = [upcoming for lane in self._lanes for upcoming in lane.upcoming]
            have_several_hosts = len({upcoming.host for upcoming in sources} - {None}) > 1
            for upcoming in sources:
                waiting = upcoming.waiting
                while waiting and waiting[0].is_dropped:
                    waiting.popleft()
                # A slow host would soon have all connections, and what is due of the others would wait for it.
                most_of_host = _TIMES_FREE * free if have_several_hosts else most
                if waiting and self._under_way[waiting[0].host] < most_of_host:
                    heads.append((upcoming.due(waiting[0].first_use), waiting))
            if not heads:
                return None
            # Its queue, not the source: that may have been collected as garbage meanwhile, and be closed.
            request = min(heads, key=itemgetter(0))[1].popleft()
            request.is_sent = True
            self._under_way[request.host] += 1
            self.counts.requests += 1
            self.counts.num_bytes += request.end - request.begin
            return request

    def _answered(self, request: Request, future: "Future[bytes]") -> None:
        with self._lock:
            self._under_way[request.host] -= 1
            request.is_over = True
            self._settle(request)
        if not request.is_dropped:
            if future.cancelled():
                request.answer.set_exception(CancelledError())
            elif (error := future.exception()) is not None:
                request.answer.set_exception(error)
            else:
                request.answer.set_result(future.result())
        self._send()


def _most_bytes(lanes: Sequence[LaneAhead]) -> int:
    return max(lane.settings.read_ahead_bytes for lane in lanes)


_read_ahead = PerProcess(ReadAhead)


def read_ahead() -> ReadAhead:
    """The read-ahead of this process."""
    return _read_ahead.get()
