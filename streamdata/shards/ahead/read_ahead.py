"""Bytes of shards before they are needed: `windows of each source → a queue of loads → requests → memory`.

Each source of a lane has a queue of what it reads next (`Upcoming`), which grows with need: it becomes twice as long
each time that its reader had to wait. Of what all sources of a process have queued, `ReadAhead` sends first what is due
first by the lane's clock, as long as there are connections and memory. Half of the bound of memory is for what is being
read, to which the loads of all sources are cut; the other half is for what comes after it. So no reader waits for
memory. Nothing here is part of a state, and what is read does not depend on it: only when.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, islice
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from streamdata.errors import shown
from streamdata.io.cache.page_cache import Memory
from streamdata.io.remote.network import MAX_CONNECTIONS, connections_of_process, network
from streamdata.io.storage import FileStamp, advise, is_remote, submit_memory
from streamdata.run.per_process import PerProcess
from streamdata.shards.ahead.spans import read_spans
from streamdata.shards.ahead.windows import Chunk, Load, PlannedWindow, Request

_BYTES: Final = 256 << 20
_VARIABLE: Final = "STREAMDATA_READ_AHEAD_BYTES"
Submit = Callable[[str, int, int, FileStamp], "Future[Memory]"]
"""Ask for the bytes of a shard from `begin` to `end`, of the version that was indexed; the answer has all of them."""
_MOST_WINDOWS: Final = 256
_MOST_LOADS: Final = 8  # in the queue of a source, of the largest size
_LOOK_S: Final = 0.05  # how often who waits for a request that is not sent looks whether it can be


class AheadSettings(NamedTuple):
    """Settings of the read-ahead of one process."""

    read_ahead_bytes: int = _BYTES
    """Bytes of shards in memory at most, current windows included; only a record that alone has more than the share of
    its source comes on top. With 0 nothing is read before it is needed."""
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


def _submit(url: str, begin: int, end: int, stamp: FileStamp) -> "Future[Memory]":
    if is_remote(url):
        return submit_memory(url, begin, end, stamp)
    answer: Future[Memory] = Future()  # of a source that has remote shards, too
    memory, _ = read_spans([url], [stamp], np.array([[0, begin, end]]))
    answer.set_result(bytes(memory))
    return answer


class ReadAhead:
    """The requests of all lanes of a process, within one memory bound.

    Args:
        submit: Asks for a range.
    """

    def __init__(self, submit: Submit = _submit) -> None:
        self._submit = submit
        self.num_requests = 0
        """Sent so far."""
        self.held_bytes = 0
        """Now: sent, and not let go of yet."""
        self.most_held_bytes = 0
        # Re-entrant: what is collected as garbage while it is held may be an iterator, which is then closed.
        self._lock = threading.RLock()
        self._thread = threading.local()
        self._lanes: list[LaneAhead] = []
        self._ahead_bytes = 0
        """Bytes of those that are held for loads that are not being read yet."""
        self._heaps: list[list[tuple[float, int, Load]]] = [[], []]
        """Loads by when their next request is due: those that are not being read yet, and those that are."""
        self._numbers = count()
        self._num_under_way = 0

    def join(self, lane: "LaneAhead") -> None:
        """Count a lane as reading; forget those that have stopped."""
        with self._lock:
            self._lanes = [one for one in self._lanes if one.upcoming and one is not lane] + [lane]

    def half(self) -> int:
        """Half of the bound, in bytes."""
        return max((lane.settings.read_ahead_bytes for lane in self._lanes), default=0) // 2

    def load_bytes(self) -> int:
        """The largest load of a source, such that the present loads of all sources fit into half of the bound."""
        num_sources = sum(max(lane.num_sources, len(lane.upcoming)) for lane in self._lanes)
        return max(1, self.half() // max(1, num_sources))

    def ask(self, load: Load, due: float, pace: float, *, now: bool) -> None:
        """Queue the requests of a load, or bring them forward.

        Args:
            load: The load.
            due: The clock of its lane at which its first record is due.
            pace: How far that clock goes on for each of its records.
            now: Whether its reader has come to it.
        """
        with self._lock:
            if load.asked_of is not self:
                load.begin(self)
            load.due, load.pace = due, pace
            if now and not load.is_present:
                load.is_present = True
                self._ahead_bytes -= load.sent_bytes
            self._push(load)
        self.send()

    def _push(self, load: Load) -> None:
        if load.is_waiting:
            heappush(self._heaps[load.is_present], (load.next_due, next(self._numbers), load))

    def drop(self, loads: Sequence[Load]) -> None:
        """Let go of loads; what is not answered yet is cancelled."""
        under_way: list[Future[Memory]] = []
        with self._lock:  # of all of them, before a connection that becomes free takes what another one has waiting
            has_waiting = any(load.is_waiting for load in loads)
            for load in loads:
                if load.asked_of is not self:  # one of a parent process is not this one's
                    continue
                self.held_bytes -= load.sent_bytes
                self._ahead_bytes -= 0 if load.is_present else load.sent_bytes
                under_way += load.forget()
            if has_waiting:  # a list in order is a heap
                self._heaps = [sorted(entry for entry in heap if entry[2].is_waiting) for heap in self._heaps]
        # Others have room now, and send when they next ask, or look while they wait. Nothing is sent here: it may be a
        # collection of garbage, in a thread that holds the lock of the network, or of a cache.
        for future in under_way:  # outside: whoever is told of it may hold a lock, and ask for this one
            with self._alone():
                future.cancel()

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Keep this thread from sending from within; yields whether it was not kept from it before."""
        was_alone = getattr(self._thread, "is_alone", False)
        self._thread.is_alone = True
        try:
            yield not was_alone
        finally:
            self._thread.is_alone = was_alone

    def send(self) -> None:
        """Send what can be sent now; not from within itself, as for an answer that is there at once."""
        with self._alone() as may_send:
            while may_send and (request := self._next()) is not None:
                try:
                    future = self._submit(request.url, request.begin, request.end, request.stamp)
                except Exception as error:  # raised by the record that needs it
                    future = Future()
                    future.set_exception(error)
                request.sent.set_result(future)
                future.add_done_callback(self._answered)
                if request.load.asked_of is not self:  # it was dropped meanwhile
                    future.cancel()

    def _answered(self, _: "Future[Memory]") -> None:
        with self._lock:
            self._num_under_way -= 1
        self.send()

    def _next(self) -> Request | None:
        """The request to be sent next; None where no more may be under way."""
        most = max((lane.settings.connections for lane in self._lanes), default=1)
        with self._lock:
            while self._num_under_way < most:
                ahead, present = self._heaps
                heaps = [heap for heap in (ahead, present) if heap and (heap is present or self._has_room(heap[0][2]))]
                if not heaps:
                    return None
                heap = min(heaps, key=itemgetter(0))
                load = heappop(heap)[2]
                if not load.is_waiting or load.is_present != (heap is present):
                    continue  # perhaps just now, with an iterator that was collected
                request = load.requests[load.num_sent]
                size = request.end - request.begin
                load.num_sent += 1
                load.sent_bytes += size
                self._ahead_bytes += 0 if load.is_present else size
                self.held_bytes += size
                self.most_held_bytes = max(self.most_held_bytes, self.held_bytes)
                self.num_requests += 1
                self._num_under_way += 1
                self._push(load)
                return request
            return None

    def _has_room(self, load: Load) -> bool:
        """Whether memory allows for the next request of a load ahead; one that is none any more takes none."""
        if load.is_present or not load.is_waiting:
            return True
        request = load.requests[load.num_sent]
        # Beside a record that is larger than its source's share less is ahead.
        ahead_bytes = max(self._ahead_bytes, self.held_bytes - self.half())
        return ahead_bytes + request.end - request.begin <= self.half()


_read_ahead = PerProcess(ReadAhead)


def read_ahead() -> ReadAhead:
    """The read-ahead of this process."""
    return _read_ahead.get()


@dataclass(eq=False)
class LaneAhead:
    """The read-ahead of one lane."""

    settings: AheadSettings = field(default_factory=AheadSettings)
    heap: Sequence[tuple[float, int]] = ()
    """The clocks of the top mixture, the lowest first."""
    num_sources: int = 0
    """How many of its sources are remote."""
    upcoming: "list[Upcoming]" = field(default_factory=list)
    """The queues of its sources that are being read."""

    def now(self) -> float:
        """The lane's present virtual time: its lowest clock."""
        return self.heap[0][0] if self.heap else 0.0

    def close(self) -> None:
        """Drop all that the lane's sources hold, and cancel pending requests."""
        read_ahead().drop([load for upcoming in list(self.upcoming) for load in upcoming.ended()])


class Upcoming:
    """The queue of what one source of a lane reads next.

    Args:
        lane: The lane.
        pace: How far the lane's clock goes on for each of its records, as far as is known before any was read.
    """

    def __init__(self, lane: LaneAhead, pace: float) -> None:
        self._lane, self._pace = lane, pace
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
        """Why there are no more windows; raised where the next one is due, whatever it is."""
        self._num_wanted, self._num_together, self._has_waited, self.is_on = 1, 1, False, True
        self._lane.upcoming.append(self)
        read_ahead().join(self._lane)

    def close(self) -> None:
        """Drop all loads, and cancel pending requests."""
        read_ahead().drop(self.ended())

    def ended(self) -> list[Load]:
        """Stop; return the loads to be dropped."""
        if not self.is_on:
            return []
        self.is_on = False
        self._lane.upcoming.remove(self)
        self._loads, self._chunks = iter(()), iter(())
        loads = list(self._queue)
        self._queue.clear()
        return loads

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
        lane = self._lane
        while True:
            since = lane.now()
            if not self._queue and not self._plan(since):
                assert self._error is not None, "a window is due, and none was planned"
                raise self._error
            load = self._queue[0]
            self._ask(load, since, now=True)
            self._fill(since)
            yield from load.chunks
            self._queue.popleft()
            read_ahead().drop([load])
            if load.num_records and lane.now() > since:
                self._pace = (lane.now() - since) / load.num_records
            # Further ahead only where that was too late: tiny sources would be read for epochs that nobody comes to.
            if self._has_waited:
                self._num_wanted, self._has_waited = min(2 * self._num_wanted, _MOST_WINDOWS), False

    def _fill(self, now: float) -> None:
        """Queue as many windows, or parts of them, after the present load as the source has needed so far."""
        ahead = read_ahead()
        most = min(ahead.half(), _MOST_LOADS * ahead.load_bytes())
        while sum(len(load.chunks) for load in islice(self._queue, 1, None)) < self._num_wanted:
            if sum(load.num_bytes for load in self._queue) > most or not self._plan(now):
                return

    def _plan(self, now: float) -> bool:
        """Queue the next load, if there is one; return whether there was."""
        load = next(self._loads, None)
        if load is None:
            return False
        due = now + self._pace * sum(before.num_records for before in self._queue)
        self._queue.append(load)
        self._ask(load, due, now=False)
        return True

    def _ask(self, load: Load, due: float, *, now: bool) -> None:
        if not load.chunks[0].window.is_advice:
            read_ahead().ask(load, due, self._pace, now=now)
        elif not now:
            for url, _, begin, end in load.ranges():
                advise(url, begin, end)

    def wait(self, load: Load, number: int) -> Memory:
        """Wait for a request of the present load; return its bytes."""
        if load.asked_of is not read_ahead():  # a parent process asked for it, whose answers do not come here
            read_ahead().join(self._lane)
            self._ask(load, self._lane.now(), now=True)
        request = load.requests[number]  # whose url names the file where this takes long
        if not (request.sent.done() and request.sent.result().done()):
            self._has_waited = True
            with network().waiting():
                while not futures.wait([request.sent], _LOOK_S).done:
                    read_ahead().send()
                return request.sent.result().result()
        return request.sent.result().result()

    def _planned(self, windows: Iterator[PlannedWindow]) -> Iterator[Load]:
        """Cut windows into loads, or join small ones: more where requests are small, or the queue is to be long."""
        chunks: list[Chunk] = []
        try:
            for window in windows:
                most = min(read_ahead().load_bytes(), window.max_load_bytes)
                for chunk in window.chunks(most):
                    size = sum(one.num_bytes for one in [*chunks, chunk])
                    if chunks and (size > most or not window.has_files_of(chunks[0].window)):
                        yield self._load(chunks)
                        chunks = []
                    chunks.append(chunk)
                    if len(chunks) >= max(self._num_together, self._num_wanted // 2):
                        yield self._load(chunks)
                        chunks = []
        except Exception as error:
            self._error = error
        if chunks:  # they come before what cannot be made
            yield self._load(chunks)

    def _load(self, chunks: list[Chunk]) -> Load:
        load = Load(chunks, read_ahead().load_bytes(), self.wait)
        # The first window is alone, so that it is there soon. Then three times as many each time: who uses half of what
        # can come waits for a sixth of the time at most.
        if load.has_small_requests:
            self._num_together = min(3 * self._num_together, _MOST_WINDOWS // 2)
        return load
