"""The next windows of a lane's sources: `windows of each source → chunks, each with the time at which it falls due`."""

import math
import os
from collections import deque
from collections.abc import Hashable, Iterator

import numpy as np

from streamdata.io.remote.network import network
from streamdata.io.remote.requests import HostHealth
from streamdata.io.storage import Int64s
from streamdata.shards.ahead.read_ahead import LaneAhead, read_ahead
from streamdata.shards.ahead.windows import Chunk, PlannedWindow, Request, SharedRequests, WindowSlice

_MOST_PORTIONS = 256  # of a source, asked for ahead
_SMALL_BYTES = 1 << 20  # where requests are smaller on average, several windows share theirs


class Upcoming:
    """Plans what one source of a lane reads next, in windows and chunks; records are numbered from 0 as planned.

    Args:
        lane: The lane.
        pace: How far the lane's clock goes on for each of its records, as far as is known before any was read.
        is_alone: Make no window before it is asked for.
    """

    def __init__(self, lane: LaneAhead, pace: float, *, is_alone: bool = False) -> None:
        self._lane, self._pace, self._is_alone = lane, pace, is_alone
        self.is_on = False
        """Whether it was begun, and not closed since."""
        self.host: HostHealth | None = None
        """The host of its latest requests."""
        self._pid = os.getpid()
        self._windows: Iterator[PlannedWindow] | None = None
        self._clear()

    def _clear(self) -> None:
        self._planned: deque[tuple[PlannedWindow | Exception, deque[Chunk]]] = deque()
        self._chunks: deque[Chunk] = deque()
        """Chunks of the present window that are still to come."""
        self._present: Chunk | None = None
        self._unasked: deque[Chunk] = deque()
        """Chunks that are to come and were not asked for yet."""
        self.waiting: deque[Request] = deque()
        """Requests that were asked for, and are not under way yet."""
        self._pulled: PlannedWindow | Exception | None = None
        """A window that was made, and is not planned yet."""
        self._num_together = 1
        """The number of windows that share their requests."""
        self._num_planned = self._num_used = 0
        self._since = self._begun = self._lane.now()
        self._most_ahead, self._num_ahead, self._num_for_free, self._has_waited = 1, 0, 0, False

    @property
    def holds(self) -> bool:
        """Whether any chunk of the source is in memory or requested."""
        return self._present is not None or self._num_ahead > 0

    def begin(self, windows: Iterator[PlannedWindow]) -> None:
        """Start planning these windows."""
        self._windows, self._pid, self.is_on = windows, os.getpid(), True
        self._clear()
        self._lane.upcoming.append(self)
        read_ahead().join(self._lane)

    def close(self) -> None:
        """Stop planning, drop all chunks, and cancel pending requests."""
        read_ahead().drop(self.ended())

    def ended(self) -> list[Request]:
        """Stop planning; return the requests to be dropped."""
        if not self.is_on:
            return []
        self._windows, self.is_on = None, False
        self._lane.upcoming.remove(self)
        requests = [request for chunk in self._all() for request in chunk.requests]
        self._clear()
        return requests

    def alone(self) -> "Upcoming":
        """Make a second plan for reads in between, such as an open burst; it requests only what is needed now."""
        return Upcoming(self._lane, self._pace, is_alone=True)

    def enter(self, key: Hashable) -> PlannedWindow:
        """Go to the next window, whose key is `key`; the rest of the previous one is dropped.

        Raises:
            Exception: Planning the window failed, for whatever reason.
        """
        while self._chunks:  # its reader did not come to its end
            self._take_up()
        self._leave()
        if not self._planned:
            self._plan()
        assert self._planned, f"window {key} is due, and none was planned"
        window, self._chunks = self._planned.popleft()
        if isinstance(window, Exception):
            raise window
        assert window.key == key, f"window {key} is due, and {window.key} was planned"
        return window

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks of the current window, requesting each if needed; each one replaces the one before."""
        ahead = read_ahead()
        while self._chunks:
            chunk, is_asked = self._take_up()
            if not is_asked:
                ahead.make_room(chunk.num_bytes)
                ahead.ask_for(chunk)
            ahead.fill(self._lane)
            yield chunk

    def _take_up(self) -> tuple[Chunk, bool]:
        """Go on to the next chunk of the window; return it, and whether it was asked for."""
        self._leave()
        chunk = self._present = self._chunks.popleft()
        self._begun = self._since = self._lane.now()
        self._num_used = chunk.first
        is_asked = not (self._unasked and self._unasked[0] is chunk)
        if is_asked:
            self._num_ahead -= 1
            self._num_for_free -= chunk.is_for_free
        else:
            self._unasked.popleft()
        return chunk, is_asked

    def _leave(self) -> None:
        """Let go of the present chunk."""
        chunk, now = self._present, self._lane.now()
        if chunk is None:
            return
        self._present = None
        read_ahead().drop(chunk.leave())
        if now > self._begun:
            self._pace = (now - self._begun) / (chunk.end - chunk.begin)
        # Further ahead only where that was too late: tiny sources would be read for epochs that nobody comes to.
        if self._has_waited:
            self._most_ahead, self._has_waited = min(2 * self._most_ahead, _MOST_PORTIONS), False

    def used(self, count: int) -> None:
        """Record that the first `count` records of the present chunk were used."""
        if self._present is not None:
            self._num_used, self._since = self._present.first + count, self._lane.now()

    def wait(self, chunk: Chunk, number: int) -> bytes:
        """Wait for a request of the present chunk; return its bytes."""
        if self._pid != os.getpid():  # in a fork: what the parent had asked for is asked for anew
            self._pid = os.getpid()
            for shared in {id(one.shared): one.shared for one in self._all()}.values():
                shared.anew(range(len(shared.requests)))
            self._unasked = deque(one for one in self._all() if one is not chunk)
            self.waiting.clear()
            self._num_ahead = self._num_for_free = 0
            read_ahead().join(self._lane)
            read_ahead().ask_for(chunk)
        request = chunk.shared.requests[number]
        if request.answer.done():
            return request.answer.result()
        self._has_waited = True
        with network().waiting():
            return request.answer.result()

    def due(self, number: int) -> float:
        """How far the lane's clock must advance until record number `number` is due."""
        return self._since - self._lane.now() + (number - self._num_used) * self._pace

    def next_due(self) -> float:
        """Time until the next unrequested chunk is due; inf if there is none."""
        if self._is_alone or not self.is_on:
            return math.inf
        if self._num_ahead - self._num_for_free >= self._most_ahead:
            return math.inf
        return self.due(self._unasked[0].first if self._unasked else self._num_planned)

    def next_chunk(self) -> Chunk | None:
        """The next chunk to be requested; it stays the same until `asked` is called."""
        # Windows of which nothing is read have no chunks, and there may be nothing but such.
        while not self._unasked and len(self._planned) < _MOST_PORTIONS and self._plan():
            pass
        return self._unasked[0] if self._unasked else None

    def asked(self) -> None:
        """Mark the next chunk as requested."""
        chunk = self._unasked.popleft()
        chunk.is_for_free = len(chunk.numbers) > 0 and not chunk.num_bytes
        self._num_ahead += 1
        self._num_for_free += chunk.is_for_free

    def last_due(self) -> float:
        """Time until the last chunk requested ahead is due; -1 if there is none."""
        ahead = self._asked_ahead()
        return self.due(ahead[-1].first) if ahead else -1.0

    def give_back(self) -> None:
        """Drop the last chunk requested ahead; it will be requested again."""
        *others, chunk = self._asked_ahead()
        held = [self._present] if self._present is not None else []
        needed = {number for one in [*held, *others] if one.shared is chunk.shared for number in one.numbers}
        own = [number for number in chunk.numbers if number not in needed]
        read_ahead().drop([chunk.shared.requests[number] for number in own])
        chunk.shared.anew(own)
        self._unasked.appendleft(chunk)
        self._num_ahead -= 1
        self._num_for_free -= chunk.is_for_free

    def _asked_ahead(self) -> list[Chunk]:
        return [chunk for chunk in self._all() if chunk is not self._present][: self._num_ahead]

    def _all(self) -> list[Chunk]:
        present = [] if self._present is None else [self._present]
        return [*present, *self._chunks, *(chunk for _, chunks in self._planned for chunk in chunks)]

    def _plan(self) -> bool:
        """Make the next window, or the next ones; False if there is none."""
        if self._windows is None or (self._planned and isinstance(self._planned[-1][0], Exception)):
            return False
        found = self._next_windows()
        if not isinstance(found, list):
            if found is not None:  # raised where the window is due, whatever it is
                self._planned.append((found, deque()))
            return False
        try:
            chunks = self._chunks_of(found)
        except Exception as error:
            self._planned.append((error, deque()))
            return False
        for window, own in zip(found, chunks, strict=True):
            self._planned.append((window, own))
            self._unasked += own
            self._num_planned += len(window.order)
        return True

    def _next_windows(self) -> list[PlannedWindow] | Exception | None:
        """The next window and those that share its requests; or why there is none."""
        first = self._pull()
        if not isinstance(first, PlannedWindow):
            return first
        found, size = [first], first.num_bytes
        while len(found) < self._num_together and first.may_share:
            self._pulled = self._pull()
            if not isinstance(self._pulled, PlannedWindow) or not self._pulled.may_share:
                break
            size += self._pulled.num_bytes
            if size > read_ahead().chunk_bytes():
                break
            found.append(self._pulled)
            self._pulled = None
        return found

    def _pull(self) -> PlannedWindow | Exception | None:
        found, self._pulled = self._pulled, None
        try:
            return found if found is not None or self._windows is None else next(self._windows, None)
        except Exception as error:
            return error

    def _chunks_of(self, windows: list[PlannedWindow]) -> list[deque[Chunk]]:
        """The chunks of each of some windows, which share their requests if there are several."""
        if len(windows) == 1:
            found = [deque(self._cut(windows[0]))]
        else:
            parts = [WindowSlice(window, 0, len(window.order)) for window in windows]
            shared = SharedRequests(parts, self._num_planned, read_ahead().chunk_bytes())
            ends = np.cumsum([part.end for part in parts])
            firsts = (self._num_planned + ends - [part.end for part in parts]).tolist()
            found = [
                deque([Chunk(self, part, first, shared, number)] if part.end else [])
                for number, (part, first) in enumerate(zip(parts, firsts, strict=True))
            ]
        made = next((own[0].shared for own in found if own), None)
        # The first one is alone, so that it is there soon. Then three times as many each time: who uses half of what
        # can come waits for a sixth of the time at most.
        if made is not None and len(made.requests) > 1 and made.num_bytes < _SMALL_BYTES * len(made.requests):
            self._num_together = min(3 * self._num_together, _MOST_PORTIONS // 2)
        return found

    def _cut(self, window: PlannedWindow) -> Iterator[Chunk]:
        most = min(read_ahead().chunk_bytes(), window.max_chunk_bytes)
        if not window.files:  # nothing is asked for: its reader has it at hand
            ends = np.zeros(len(window.order), np.int64)
        else:
            sizes: Int64s = sum((file.spans[:, 2] - file.spans[:, 1] for file in window.files), np.zeros(1, np.int64))
            ends = np.cumsum(sizes[window.order])
        begin = 0
        while begin < len(ends):
            before = int(ends[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, before + most, side="right")))
            part, first = WindowSlice(window, begin, end), self._num_planned + begin
            yield Chunk(self, part, first, SharedRequests([part], first, most), 0)
            begin = end
