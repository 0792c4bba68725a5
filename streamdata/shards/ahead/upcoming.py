"""What a lane's sources read next: `windows of each source → portions, each with the time at which it falls due`."""

import math
import os
from collections import deque
from collections.abc import Hashable, Iterator

import numpy as np

from streamdata.io.remote.network import network
from streamdata.io.remote.requests import StoreHealth
from streamdata.io.storage import Int64s
from streamdata.shards.ahead.read_ahead import LaneAhead, read_ahead
from streamdata.shards.ahead.windows import Coming, Portion, Request, SharedRequests, WindowSlice

_MOST_PORTIONS = 256  # of a source, asked for ahead
_SMALL_BYTES = 1 << 20  # where requests are smaller on average, several windows share theirs


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
        self.store: StoreHealth | None = None
        """Which one its latest requests were for."""
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
        read_ahead().drop(self.ended())

    def ended(self) -> list[Request]:
        """Plan no more; return what is to be dropped."""
        if not self.is_on:
            return []
        self._coming, self.is_on = None, False
        self._lane.upcoming.remove(self)
        requests = [request for portion in self._all() for request in portion.requests]
        self._clear()
        return requests

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
        found, size = [first], first.num_bytes
        while len(found) < self._num_together and first.may_share:
            self._pulled = self._pull()
            if not isinstance(self._pulled, Coming) or not self._pulled.may_share:
                break
            size += self._pulled.num_bytes
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
