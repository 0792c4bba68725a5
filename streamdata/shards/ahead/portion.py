"""What is held of a window, or let go of, at once: `some of its records → their requests → their bytes in memory`."""

from collections import deque
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from streamdata.io.remote.retries import StoreHealth
from streamdata.io.storage import Int64s
from streamdata.shards.ahead.coming import Request, SharedRequests, WindowSlice


class Reader(Protocol):
    """The source of a lane that portions are read by: what read-ahead asks it, and tells it."""

    store: StoreHealth | None
    waiting: deque[Request]

    @property
    def holds(self) -> bool: ...

    def wait(self, portion: "Portion", number: int) -> bytes: ...

    def used(self, count: int) -> None: ...

    def due(self, number: int) -> float: ...

    def next_due(self) -> float: ...

    def next_portion(self) -> "Portion | None": ...

    def asked(self) -> None: ...

    def last_due(self) -> float: ...

    def give_back(self) -> None: ...

    def ended(self) -> list[Request]: ...


class Portion:
    """Some records of a window, and the requests that bring their bytes.

    Args:
        upcoming: Whose.
        part: The records.
        first: The number of the first of them, counted as `Upcoming` counts.
        shared: The requests.
        number: Of the part in these.
    """

    def __init__(self, upcoming: Reader, part: WindowSlice, first: int, shared: SharedRequests, number: int) -> None:
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
