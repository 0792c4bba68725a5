"""Bytes of shards before they are needed: `windows of all lanes' sources → portions by due time → requests → memory`.

One `ReadAhead` per process. A lane's sources (`Upcoming`) make their next windows early; of these, portions are asked
for in the order in which they fall due, as long as there is room, and what was asked for is sent in that order, too. A
portion is what is held or let go of at once: a window, or as much of one as each source of the process has room for.
Nothing here is part of a state, and what is read does not depend on it: only when.
"""

import heapq
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from streamdata.remote.network import MAX_CONNECTIONS, network
from streamdata.shards.ahead_settings import AheadSettings
from streamdata.shards.coalesced import coalesced
from streamdata.shards.fetching import FetchThreads, Submit
from streamdata.shards.readers import Int64s
from streamdata.shards.storage import FileStamp, advise

_ENOUGH = 1.0  # seconds to wait for memory that others hold
_MOST_PORTIONS = 256  # of a source, asked for ahead
_SMALL_BYTES = 1 << 20  # where requests are smaller on average, several windows share theirs


class FileSpans(NamedTuple):
    """One span of some files for each record of a window; an empty one where the record has nothing there."""

    urls: Sequence[str]
    stamps: Sequence[FileStamp]
    spans: Int64s
    """File, begin and end, (n, 3)."""


class Coming(NamedTuple):
    """A window that is to be read."""

    key: Hashable
    content: Any
    """What its reader wants to have when it comes to it."""
    files: Sequence[FileSpans]
    order: Int64s
    """Its records, in the order in which they are used."""
    max_portion_bytes: int = sys.maxsize
    """Of a portion of it; one record may have more."""
    is_advice: bool = False
    """Whether its files are local, and the kernel is told to read them: its reader then reads them by itself, as where
    no file is named."""


@dataclass
class LaneAhead:
    """What is known of a lane; one for all its sources."""

    settings: AheadSettings = field(default_factory=AheadSettings)
    heap: Sequence[tuple[float, int]] = ()
    """Of the top mixture: its clocks, the lowest first."""
    num_sources: int = 0
    """How many sources of it are remote."""
    upcoming: "list[Upcoming]" = field(default_factory=list)

    def now(self) -> float:
        """The lane's clock."""
        return self.heap[0][0] if self.heap else 0.0

    def close(self) -> None:
        """Let go of all that its sources hold, and cancel what is under way."""
        for upcoming in list(self.upcoming):
            upcoming.close()


@dataclass
class Counts:
    """What was asked for in this process."""

    requests: int = 0
    num_bytes: int = 0
    held_bytes: int = 0
    """Now: asked for, and not let go of yet."""
    most_held_bytes: int = 0


class Request:
    """Some bytes of a file."""

    __slots__ = (
        "answer", "asked_of", "begin", "end", "first_use", "future", "is_dropped", "is_over", "is_sent", "stamp", "url",
    )  # fmt: skip

    def __init__(self, url: str, stamp: FileStamp, begin: int, end: int, first_use: int) -> None:
        self.url, self.stamp, self.begin, self.end, self.first_use = url, stamp, begin, end, first_use
        self.answer: Future[bytes] = Future()
        self.future: Future[bytes] | None = None
        self.asked_of: ReadAhead | None = None
        """Who counts its bytes, until it is dropped and nothing of it is under way."""
        self.is_sent = self.is_over = self.is_dropped = False


class WindowSlice(NamedTuple):
    """Some records of a window: numbers `begin` up to `end` in the order in which they are used."""

    coming: Coming
    begin: int
    end: int

    @property
    def chosen(self) -> Int64s:
        """Their positions in the window."""
        return self.coming.order[self.begin : self.end]


class SharedRequests:
    """What brings the bytes of one part of a window, or of several windows that are used one after the other.

    Args:
        parts: The parts, of the same files.
        first: The number of the first of their records, counted as `Upcoming` counts.
        max_bytes: Spans that do not touch are joined only as long as all is not more than this, and never those of
            several windows: what lies between these was read just before, or is next.
    """

    def __init__(self, parts: Sequence[WindowSlice], first: int, max_bytes: int) -> None:
        self._make(parts, first, gaps=len(parts) == 1)
        if self.num_bytes > max_bytes:
            self._make(parts, first, gaps=False)
        self.num_users = [0] * len(self.requests)
        """How many portions have not been let go of that need each of them."""

    def _make(self, parts: Sequence[WindowSlice], first: int, *, gaps: bool) -> None:
        self.requests: list[Request] = []
        self.of_span: list[list[Int64s]] = [[] for _ in parts]
        """Of each part and each of its files: the number of the request for each span, or -1."""
        self.offsets: list[list[Int64s]] = [[] for _ in parts]
        """Likewise where each span begins in what its request brings."""
        ends = np.cumsum([part.end - part.begin for part in parts])[:-1]
        for which, file in enumerate(parts[0].coming.files):
            spans = np.concatenate([part.coming.files[which].spans[part.chosen] for part in parts])
            pieces, of_span, first_uses = coalesced(spans, gaps=gaps)
            begins = np.array([begin for _, begin, _ in pieces] or [0], np.int64)
            numbers = np.where(of_span < 0, -1, of_span + len(self.requests))
            for part, own in enumerate(np.split(numbers, ends)):
                self.of_span[part].append(own)
            for part, own in enumerate(np.split(spans[:, 1] - begins[of_span], ends)):
                self.offsets[part].append(own)
            self.requests += [
                Request(file.urls[shard], file.stamps[shard], begin, end, first + use)
                for (shard, begin, end), use in zip(pieces, first_uses, strict=True)
            ]
        self.num_bytes = sum(request.end - request.begin for request in self.requests)

    def anew(self, numbers: Iterable[int]) -> None:
        """Forget what was asked for: what was cancelled, or what the parent of a fork asked for, does not come."""
        for number in numbers:
            one = self.requests[number]
            self.requests[number] = Request(one.url, one.stamp, one.begin, one.end, one.first_use)


class Portion:
    """Some records of a window, and the requests that bring their bytes.

    Args:
        upcoming: Whose.
        part: The records.
        first: The number of the first of them, counted as `Upcoming` counts.
        shared: The requests.
        number: Of the part in these.
    """

    def __init__(
        self, upcoming: "Upcoming", part: WindowSlice, first: int, shared: SharedRequests, number: int
    ) -> None:
        self.begin, self.end, self.first, self.upcoming = part.begin, part.end, first, upcoming
        self.is_advice = part.coming.is_advice or not part.coming.files
        self.shared, self._of_span, self._offsets = shared, shared.of_span[number], shared.offsets[number]
        self._rows = np.full(len(part.coming.files[0].spans) if part.coming.files else 0, -1, np.int64)
        if part.coming.files:
            self._rows[part.chosen] = np.arange(part.end - part.begin)
        needed = np.unique(np.concatenate([*self._of_span, np.zeros(0, np.int64)]))
        self.numbers: list[int] = needed[needed >= 0].tolist()
        """Of the requests that it needs."""
        for one in self.numbers:
            shared.num_users[one] += 1
        self.is_for_free = False
        """Whether all of them had been asked for with others when it was asked for."""
        self._data: dict[int, bytes] = {}

    @property
    def requests(self) -> list[Request]:
        """Those that it needs."""
        return [self.shared.requests[number] for number in self.numbers]

    def unasked(self) -> list[Request]:
        """Its requests that were not asked for with another portion, in the order in which they are needed."""
        return sorted((one for one in self.requests if one.asked_of is None), key=lambda request: request.first_use)

    @property
    def num_bytes(self) -> int:
        """How many bytes are to be asked for with it."""
        return sum(one.end - one.begin for one in self.requests if one.asked_of is None)

    def leave(self) -> list[Request]:
        """Note that it was used; return what nobody needs any more."""
        users = self.shared.num_users
        for number in self.numbers:
            users[number] -= 1
        unused = [number for number in self.numbers if not users[number]]
        requests = [self.shared.requests[number] for number in unused]
        self.shared.anew(unused)  # these hold what was answered, as long as the others are read
        return requests

    def located(self, which: int, chosen: Int64s) -> tuple[Iterator[bytes], list[int]]:
        """The memory of some records of the portion, waited for one by one, and where each begins in its memory.

        Args:
            which: The number of their files in the window's.
            chosen: Positions in the window.
        """
        rows = self._rows[chosen]
        return map(self._memory, self._of_span[which][rows].tolist()), self._offsets[which][rows].tolist()

    def memories(self) -> Iterator[bytes]:
        """What each request brings, in the order in which they are used."""
        return map(self._memory, self.numbers)

    def _memory(self, number: int) -> bytes:
        if number < 0:
            return b""
        data = self._data.get(number)
        if data is None:
            data = self._data[number] = self.upcoming.wait(self, number)
        return data


class Upcoming:
    """What a source of a lane reads next. It counts the records that it plans, from 0.

    Args:
        lane: The lane.
        pace: How far the lane's clock goes on for each of its records, as far as is known before any was read.
        is_alone: Make no window before it is asked for.
    """

    def __init__(self, lane: LaneAhead, pace: float, *, is_alone: bool = False) -> None:
        self._lane, self._pace, self._is_alone = lane, pace, is_alone
        self.is_on = False
        """Whether it was begun, and not closed since."""
        self._pid = os.getpid()
        self._coming: Iterator[Coming] | None = None
        self._clear()

    def _clear(self) -> None:
        self._planned: deque[tuple[Coming | Exception, deque[Portion]]] = deque()
        self._portions: deque[Portion] = deque()
        """Of the present window, those that are still to come."""
        self._present: Portion | None = None
        self._unasked: deque[Portion] = deque()
        """Of all that are to come, those that were not asked for yet."""
        self.waiting: deque[Request] = deque()
        """What was asked for, and is not under way yet."""
        self._pulled: Coming | Exception | None = None
        """A window that was made, and is not planned yet."""
        self._num_together = 1
        """So many windows share their requests."""
        self._num_planned = self._num_used = 0
        self._since = self._begun = self._lane.now()
        self._most_ahead, self._num_ahead, self._num_for_free, self._has_waited = 1, 0, 0, False

    @property
    def holds(self) -> bool:
        """Whether some portion of it is in memory, or asked for."""
        return self._present is not None or self._num_ahead > 0

    def begin(self, coming: Iterator[Coming]) -> None:
        """Plan these windows from now on."""
        self._coming, self._pid, self.is_on = coming, os.getpid(), True
        self._clear()
        self._lane.upcoming.append(self)
        read_ahead().join(self._lane)

    def close(self) -> None:
        """Let go of everything, and cancel what is under way."""
        if not self.is_on:
            return
        self._coming, self.is_on = None, False
        self._lane.upcoming.remove(self)
        for portion in self._all():
            read_ahead().drop(portion.requests)
        self._clear()

    def alone(self) -> "Upcoming":
        """The same for what comes between, and is read as it is needed."""
        return Upcoming(self._lane, self._pace, is_alone=True)

    def enter(self, key: Hashable) -> Coming:
        """The next window, which is the one of that key; what is left of the one before is let go of.

        Raises:
            Exception: It could not be made, for whatever reason.
        """
        while self._portions:  # its reader did not come to its end
            self._take_up()
        self._leave()
        if not self._planned:
            self._plan()
        assert self._planned, f"window {key} is due, and none was planned"
        coming, self._portions = self._planned.popleft()
        if isinstance(coming, Exception):
            raise coming
        assert coming.key == key, f"window {key} is due, and {coming.key} was planned"
        return coming

    def portions(self) -> Iterator[Portion]:
        """Those of the window that was entered; with each the one before is let go of."""
        ahead = read_ahead()
        while self._portions:
            portion, is_asked = self._take_up()
            if not is_asked:
                ahead.make_room(portion.num_bytes)
                ahead.ask_for(portion)
            ahead.fill(self._lane)
            yield portion

    def _take_up(self) -> tuple[Portion, bool]:
        """Go on to the next portion of the window; return it, and whether it was asked for."""
        self._leave()
        portion = self._present = self._portions.popleft()
        self._begun = self._since = self._lane.now()
        self._num_used = portion.first
        is_asked = not (self._unasked and self._unasked[0] is portion)
        if is_asked:
            self._num_ahead -= 1
            self._num_for_free -= portion.is_for_free
        else:
            self._unasked.popleft()
        return portion, is_asked

    def _leave(self) -> None:
        """Let go of the present portion."""
        portion, now = self._present, self._lane.now()
        if portion is None:
            return
        self._present = None
        read_ahead().drop(portion.leave())
        if now > self._begun:
            self._pace = (now - self._begun) / (portion.end - portion.begin)
        # Further ahead only where that was too late: tiny sources would be read for epochs that nobody comes to.
        if self._has_waited:
            self._most_ahead, self._has_waited = min(2 * self._most_ahead, _MOST_PORTIONS), False

    def used(self, count: int) -> None:
        """Note that so many records of the present portion were used."""
        if self._present is not None:
            self._num_used, self._since = self._present.first + count, self._lane.now()

    def wait(self, portion: Portion, number: int) -> bytes:
        """The bytes of a request of the present portion."""
        if self._pid != os.getpid():
            self._ask_again(portion)
        answer = portion.shared.requests[number].answer
        if answer.done():
            return answer.result()
        self._has_waited = True
        with network().waiting():
            return answer.result()

    def due(self, number: int) -> float:
        """How far the lane's clock goes on until the record of this number falls due."""
        return self._since - self._lane.now() + (number - self._num_used) * self._pace

    def next_due(self) -> float:
        """Likewise for what would be asked for next; infinite where nothing is."""
        if self._is_alone or not self.is_on:
            return math.inf
        if self._num_ahead - self._num_for_free >= self._most_ahead:
            return math.inf
        return self.due(self._unasked[0].first if self._unasked else self._num_planned)

    def next_portion(self) -> Portion | None:
        """What is to be asked for next; it stays so until `asked`."""
        # Windows of which nothing is read have no portions, and there may be nothing but such.
        while not self._unasked and len(self._planned) < _MOST_PORTIONS and self._plan():
            pass
        return self._unasked[0] if self._unasked else None

    def asked(self) -> None:
        """Note that it was asked for."""
        portion = self._unasked.popleft()
        portion.is_for_free = len(portion.numbers) > 0 and not portion.num_bytes
        self._num_ahead += 1
        self._num_for_free += portion.is_for_free

    def last_due(self) -> float:
        """How far the lane's clock goes on until the last portion falls due that was asked for ahead; or -1."""
        ahead = self._asked_ahead()
        return self.due(ahead[-1].first) if ahead else -1.0

    def give_back(self) -> None:
        """Let go of the last portion that was asked for ahead; it is asked for again."""
        *others, portion = self._asked_ahead()
        held = [self._present] if self._present is not None else []
        needed = {number for one in [*held, *others] if one.shared is portion.shared for number in one.numbers}
        own = [number for number in portion.numbers if number not in needed]
        read_ahead().drop([portion.shared.requests[number] for number in own])
        portion.shared.anew(own)
        self._unasked.appendleft(portion)
        self._num_ahead -= 1
        self._num_for_free -= portion.is_for_free

    def _asked_ahead(self) -> list[Portion]:
        return [portion for portion in self._all() if portion is not self._present][: self._num_ahead]

    def _all(self) -> list[Portion]:
        present = [] if self._present is None else [self._present]
        return [*present, *self._portions, *(portion for _, portions in self._planned for portion in portions)]

    def _plan(self) -> bool:
        """Make the next window, or the next ones; False if there is none."""
        if self._coming is None or (self._planned and isinstance(self._planned[-1][0], Exception)):
            return False
        found = self._windows()
        if not isinstance(found, list):
            if found is not None:  # raised where the window is due, whatever it is
                self._planned.append((found, deque()))
            return False
        try:
            portions = self._portions_of(found)
        except Exception as error:
            self._planned.append((error, deque()))
            return False
        for coming, own in zip(found, portions, strict=True):
            self._planned.append((coming, own))
            self._unasked += own
            self._num_planned += len(coming.order)
        return True

    def _windows(self) -> list[Coming] | Exception | None:
        """The next window and those that share its requests; or why there is none."""
        first = self._pull()
        if not isinstance(first, Coming):
            return first
        found, size = [first], _size(first)
        while len(found) < self._num_together and _may_share(first):
            self._pulled = self._pull()
            if not isinstance(self._pulled, Coming) or not _may_share(self._pulled):
                break
            size += _size(self._pulled)
            if size > read_ahead().portion_bytes():
                break
            found.append(self._pulled)
            self._pulled = None
        return found

    def _pull(self) -> Coming | Exception | None:
        found, self._pulled = self._pulled, None
        try:
            return found if found is not None or self._coming is None else next(self._coming, None)
        except Exception as error:
            return error

    def _portions_of(self, windows: list[Coming]) -> list[deque[Portion]]:
        """The portions of each of some windows, which share their requests if there are several."""
        if len(windows) == 1:
            found = [deque(self._cut(windows[0]))]
        else:
            parts = [WindowSlice(coming, 0, len(coming.order)) for coming in windows]
            shared = SharedRequests(parts, self._num_planned, read_ahead().portion_bytes())
            ends = np.cumsum([part.end for part in parts])
            firsts = (self._num_planned + ends - [part.end for part in parts]).tolist()
            found = [
                deque([Portion(self, part, first, shared, number)] if part.end else [])
                for number, (part, first) in enumerate(zip(parts, firsts, strict=True))
            ]
        made = next((own[0].shared for own in found if own), None)
        # The first one is alone, so that it is there soon. Then three times as many each time: who uses half of what
        # can come waits for a sixth of the time at most.
        if made is not None and len(made.requests) > 1 and made.num_bytes < _SMALL_BYTES * len(made.requests):
            self._num_together = min(3 * self._num_together, _MOST_PORTIONS // 2)
        return found

    def _cut(self, coming: Coming) -> Iterator[Portion]:
        most = min(read_ahead().portion_bytes(), coming.max_portion_bytes)
        if not coming.files:  # nothing is asked for: its reader has it at hand
            ends = np.zeros(len(coming.order), np.int64)
        else:
            sizes: Int64s = sum((file.spans[:, 2] - file.spans[:, 1] for file in coming.files), np.zeros(1, np.int64))
            ends = np.cumsum(sizes[coming.order])
        begin = 0
        while begin < len(ends):
            before = int(ends[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, before + most, side="right")))
            part, first = WindowSlice(coming, begin, end), self._num_planned + begin
            yield Portion(self, part, first, SharedRequests([part], first, most), 0)
            begin = end

    def _ask_again(self, portion: Portion) -> None:
        """In a fork: ask for what the parent had asked for."""
        self._pid = os.getpid()
        for shared in {id(one.shared): one.shared for one in self._all()}.values():
            shared.anew(range(len(shared.requests)))
        self._unasked = deque(one for one in self._all() if one is not portion)
        self.waiting.clear()
        self._num_ahead = self._num_for_free = 0
        read_ahead().join(self._lane)
        read_ahead().ask_for(portion)


def _size(coming: Coming) -> int:
    """Bytes that are wanted of a window."""
    return sum(int((file.spans[coming.order, 2] - file.spans[coming.order, 1]).sum()) for file in coming.files)


def _may_share(coming: Coming) -> bool:
    """Whether a window may share its requests with the next one."""
    return bool(coming.files) and not coming.is_advice and coming.max_portion_bytes == sys.maxsize


class ReadAhead:
    """Asks for portions of all lanes of a process, by due time, within one bound.

    Args:
        submit: Asks for a range; by default threads that read.
    """

    def __init__(self, submit: Submit | None = None) -> None:
        self.counts = Counts()
        self._submit = submit or FetchThreads(MAX_CONNECTIONS).submit
        # Re-entrant: what is collected as garbage while it is held may be an iterator, which is then closed.
        self._lock = threading.RLock()
        self._freed = threading.Condition(self._lock)
        self._num_dropped = 0
        """Requests that nobody wants, and that take memory yet."""
        self._lanes: list[LaneAhead] = []
        self._num_under_way = 0
        self._sending = threading.local()

    def join(self, lane: LaneAhead) -> None:
        """Note a lane that reads; those that read no more are forgotten."""
        with self._lock:
            self._lanes = [one for one in self._lanes if one.upcoming and one is not lane] + [lane]

    def portion_bytes(self) -> int:
        """How much of a window each source may hold: so much that half of the bound is enough for the present ones."""
        lanes = self._lanes
        num_sources = sum(max(lane.num_sources, len(lane.upcoming)) for lane in lanes)
        return max(1, _most_bytes(lanes) // (2 * num_sources))

    def fill(self, lane: LaneAhead) -> None:
        """Ask for what the sources of a lane will need, the next due first, as long as there is room."""
        sources = list(lane.upcoming)
        dues = [(due, number) for number, one in enumerate(sources) if (due := one.next_due()) < math.inf]
        heapq.heapify(dues)
        while dues:
            number = dues[0][1]
            upcoming = sources[number]
            portion = upcoming.next_portion()
            if portion is not None:
                if not self._has_room(portion):
                    return
                upcoming.asked()
                self.ask_for(portion)
            if portion is not None and (due := upcoming.next_due()) < math.inf:
                heapq.heapreplace(dues, (due, number))
            else:
                heapq.heappop(dues)

    def _has_room(self, portion: Portion) -> bool:
        """Whether there is room for a portion, beside what each source that holds nothing may need at any moment."""
        lanes = self._lanes
        hold_nothing = sum(lane.num_sources - sum(one.holds for one in lane.upcoming) for lane in lanes)
        hold_nothing -= not portion.upcoming.holds
        kept = max(0, hold_nothing) * self.portion_bytes()
        return self.counts.held_bytes + portion.num_bytes + kept <= _most_bytes(lanes)

    def make_room(self, num_bytes: int) -> None:
        """Let go of what was asked for ahead, the last due first, until there is room for what is needed now.

        There is, unless another lane began to read in this process since that was asked for.
        """
        while self.counts.held_bytes + num_bytes > _most_bytes(self._lanes):
            sources = [upcoming for lane in self._lanes for upcoming in lane.upcoming]
            last = max(sources, key=Upcoming.last_due, default=None)
            if last is not None and last.last_due() >= 0:
                last.give_back()
                continue
            with self._lock:  # what is under way of that takes memory until it has come
                if not self._num_dropped:
                    return
                self._freed.wait(_ENOUGH)

    def ask_for(self, portion: Portion) -> None:
        """Send the requests of a portion when it is their turn."""
        requests, num_bytes = portion.unasked(), portion.num_bytes
        with self._lock:
            for request in requests:
                request.asked_of = self
            if not portion.is_advice:
                portion.upcoming.waiting += requests
            self.counts.held_bytes += num_bytes
            self.counts.most_held_bytes = max(self.counts.most_held_bytes, self.counts.held_bytes)
        if portion.is_advice:
            for request in requests:
                advise(request.url, request.begin, request.end)
        else:
            self._send()

    def drop(self, requests: Sequence[Request]) -> None:
        """Let go of what some requests brought; those that are not answered yet are cancelled."""
        under_way = []
        # One of a parent process is not this one's, and its lock may be held for ever.
        mine = [request for request in requests if request.asked_of is self and not request.is_dropped]
        with self._lock:
            for request in mine:
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
                future = self._submitted(request)
                request.future = future
                future.add_done_callback(partial(self._answered, request))
                if request.is_dropped:
                    future.cancel()
        finally:
            self._sending.is_under_way = False

    def _next(self) -> Request | None:
        """The request that falls due next, of all that wait; None where no more may be under way."""
        with self._lock:
            if self._num_under_way >= max((lane.settings.connections for lane in self._lanes), default=1):
                return None
            heads: list[tuple[float, deque[Request]]] = []
            for lane in self._lanes:
                for upcoming in list(lane.upcoming):
                    waiting = upcoming.waiting
                    while waiting and waiting[0].is_dropped:
                        waiting.popleft()
                    if waiting:
                        heads.append((upcoming.due(waiting[0].first_use), waiting))
            if not heads:
                return None
            # Its queue, not the source: that may have been collected as garbage meanwhile, and be closed.
            request = min(heads, key=itemgetter(0))[1].popleft()
            request.is_sent = True
            self._num_under_way += 1
            self.counts.requests += 1
            self.counts.num_bytes += request.end - request.begin
            return request

    def _submitted(self, request: Request) -> "Future[bytes]":
        try:
            return self._submit(request.url, request.begin, request.end, request.stamp)
        except Exception as error:  # raised by the record that needs it
            failed: Future[bytes] = Future()
            failed.set_exception(error)
            return failed

    def _answered(self, request: Request, future: "Future[bytes]") -> None:
        with self._lock:
            self._num_under_way -= 1
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


_of_process: dict[int, ReadAhead] = {}


def read_ahead() -> ReadAhead:
    """The one of this process, made when it is first asked for."""
    # By process: in a fork, that of the parent has no threads, and its lock may be held for ever.
    found = _of_process.get(os.getpid())
    if found is None:
        _of_process.clear()
        found = _of_process[os.getpid()] = ReadAhead()
    return found
