"""Windows that are to be read: `files, spans of their records → requests of 1 to 8 MB → chunks of bytes in memory`.

A chunk is what is held of a window, or let go of, at once. A shard that is read from its start is one window.
"""

import io
import sys
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from streamdata.io.remote.addresses import options_of, signed_url
from streamdata.io.remote.hosts import health_of
from streamdata.io.remote.requests import HostHealth
from streamdata.io.storage import FileStamp, Int64s, is_remote
from streamdata.shards.ahead.spans import FileSpans

MAX_REQUEST_BYTES: Final = 8 << 20
"""Bytes of several spans that are one request, at most; a span that is larger is one request, too."""
_DISK = HostHealth()  # it is no host, and does not fail for a while


class Requested(NamedTuple):
    """The requests into which spans were joined."""

    pieces: list[tuple[int, int, int]]
    """Shard, begin and end of each request, in the order in which the spans first need them."""
    of_span: Int64s
    """The number of the request that holds each span; -1 for an empty one."""
    first_uses: list[int]
    """The number of the first span that each request holds."""


def coalesced(spans: Int64s, *, gaps: bool = True) -> Requested:
    """Join spans into requests, each less than twice as large as the bytes that are wanted of it.

    Args:
        spans: Shard, begin and end of each, (n, 3), in the order in which they are used.
        gaps: Whether spans may be joined that do not touch.
    """
    order = np.lexsort((spans[:, 1], spans[:, 0]))
    order = order[spans[order, 1] < spans[order, 2]]
    runs, run_of = _runs(spans[order], order)
    found: list[list[int]] = []  # shard, begin, end, bytes wanted, first span
    requests = []
    for shard, begin, end, first in runs.tolist():
        last = found[-1] if found else None
        if last is None or last[0] != shard or not _may_join(last, begin, end, gaps=gaps):
            last = [shard, begin, end, 0, first]
            found.append(last)
        last[3] += max(0, end - max(begin, last[2])) if last[3] else end - begin
        last[2], last[4] = max(last[2], end), min(last[4], first)
        requests.append(len(found) - 1)
    by_use = sorted(range(len(found)), key=lambda request: found[request][4])
    ranks = np.empty(len(found), np.int64)
    ranks[by_use] = np.arange(len(found))
    of_span = np.full(len(spans), -1, np.int64)
    if requests:
        of_span[order] = ranks[requests][run_of]
    in_order = [found[request] for request in by_use]
    return Requested([(shard, begin, end) for shard, begin, end, *_ in in_order], of_span, [one[4] for one in in_order])


def _runs(spans: Int64s, numbers: Int64s) -> tuple[Int64s, Int64s]:
    """Sorted spans, those that touch as one: shard, begin, end and least number of each run; and the run of each span.

    Where a run would be more than one request they stay as they are: the loop over them then joins as many as fit.
    """
    is_first = np.ones(len(spans), np.bool_)
    is_first[1:] = (spans[1:, 0] != spans[:-1, 0]) | (spans[1:, 1] > spans[:-1, 2])
    starts = np.flatnonzero(is_first)
    if len(starts):
        ends, least = np.maximum.reduceat(spans[:, 2], starts), np.minimum.reduceat(numbers, starts)
        if (ends - spans[starts, 1]).max() <= MAX_REQUEST_BYTES:
            return np.stack([spans[starts, 0], spans[starts, 1], ends, least], axis=1), np.cumsum(is_first) - 1
    return np.column_stack([spans, numbers]), np.arange(len(spans))


def _may_join(request: list[int], begin: int, end: int, *, gaps: bool) -> bool:
    _, first, last, wanted, _ = request
    if begin <= last:  # it touches, or it is the same record again
        return max(last, end) - first <= MAX_REQUEST_BYTES or end <= last
    return gaps and end - first <= MAX_REQUEST_BYTES and end - first < 2 * (wanted + end - begin)


class PlannedWindow(NamedTuple):
    """A window that will be read: its files, spans, and order of use."""

    key: Hashable
    content: Any
    """An object of its reader's, which has it back when it comes to the window."""
    files: Sequence[FileSpans]
    order: Int64s
    """Positions of its records, in the order in which they are used."""
    max_chunk_bytes: int = sys.maxsize
    """Bytes of a chunk of it, at most; one record may have more."""
    is_advice: bool = False
    """Whether its files are local, and the kernel is told to read them: its reader then reads them by itself, as where
    no file is named."""

    @property
    def num_bytes(self) -> int:
        """The bytes that are needed of the window."""
        return sum(int((file.spans[self.order, 2] - file.spans[self.order, 1]).sum()) for file in self.files)

    @property
    def may_share(self) -> bool:
        """Whether the window may share requests with the next one."""
        return bool(self.files) and not self.is_advice and self.max_chunk_bytes == sys.maxsize


class Request:
    """A request for a range of bytes of a file."""

    __slots__ = (
        "answer", "asked_of", "begin", "end", "first_use", "future", "host", "is_dropped", "is_over", "is_sent",
        "stamp", "url",
    )  # fmt: skip

    def __init__(self, url: str, stamp: FileStamp, begin: int, end: int, first_use: int) -> None:
        self.url, self.stamp, self.begin, self.end, self.first_use = url, stamp, begin, end, first_use
        self.answer: Future[bytes] = Future()
        self.future: Future[bytes] | None = None
        self.asked_of: object = None
        """Who counts its bytes, until it is dropped and nothing of it is under way."""
        self.host = health_of(signed_url(url), options_of(url)) if is_remote(url) else _DISK
        self.is_sent = self.is_over = self.is_dropped = False


class WindowSlice(NamedTuple):
    """A slice of a window's records: numbers `begin` up to `end`, in order of use."""

    window: PlannedWindow
    begin: int
    end: int

    @property
    def chosen(self) -> Int64s:
        """The positions of the slice's records in the window."""
        return self.window.order[self.begin : self.end]


class SharedRequests:
    """Requests for the bytes of one part of a window, or of several windows used one after another.

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
        """How many chunks have not been let go of that need each of them."""

    def _make(self, parts: Sequence[WindowSlice], first: int, *, gaps: bool) -> None:
        self.requests: list[Request] = []
        self.of_span: list[list[Int64s]] = [[] for _ in parts]
        """The number of the request for each span, or -1, for each part and each of its files."""
        self.offsets: list[list[Int64s]] = [[] for _ in parts]
        """The offset of each span in what its request brings, for each part and each of its files."""
        ends = np.cumsum([part.end - part.begin for part in parts])[:-1]
        for which, file in enumerate(parts[0].window.files):
            spans = np.concatenate([part.window.files[which].spans[part.chosen] for part in parts])
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
        """Replace requests by fresh ones, where the old were cancelled or belong to a fork's parent."""
        for number in numbers:
            one = self.requests[number]
            self.requests[number] = Request(one.url, one.stamp, one.begin, one.end, one.first_use)


class Reader(Protocol):
    """The interface between read-ahead and the source of a lane that reads chunks."""

    host: HostHealth | None
    waiting: deque[Request]

    @property
    def holds(self) -> bool: ...

    def wait(self, chunk: "Chunk", number: int) -> bytes: ...

    def used(self, count: int) -> None: ...

    def due(self, number: int) -> float: ...

    def next_due(self) -> float: ...

    def next_chunk(self) -> "Chunk | None": ...

    def asked(self) -> None: ...

    def last_due(self) -> float: ...

    def give_back(self) -> None: ...

    def ended(self) -> list[Request]: ...


class Chunk:
    """A slice of a window's records, with the requests for their bytes.

    Args:
        upcoming: Whose.
        part: The records.
        first: The number of the first of them, counted as `Upcoming` counts.
        shared: The requests.
        number: Of the part in these.
    """

    def __init__(self, upcoming: Reader, part: WindowSlice, first: int, shared: SharedRequests, number: int) -> None:
        self.begin, self.end, self.first, self.upcoming = part.begin, part.end, first, upcoming
        self.is_advice = part.window.is_advice or not part.window.files
        self.shared, self._of_span, self._offsets = shared, shared.of_span[number], shared.offsets[number]
        self._rows = np.full(len(part.window.files[0].spans) if part.window.files else 0, -1, np.int64)
        if part.window.files:
            self._rows[part.chosen] = np.arange(part.end - part.begin)
        needed = np.unique(np.concatenate([*self._of_span, np.zeros(0, np.int64)]))
        self.numbers: list[int] = needed[needed >= 0].tolist()
        """Numbers of the requests that it needs."""
        for one in self.numbers:
            shared.num_users[one] += 1
        self.is_for_free = False
        """Whether all of them had been asked for with others when it was asked for."""
        self._data: dict[int, bytes] = {}

    @property
    def requests(self) -> list[Request]:
        """The requests that the chunk needs."""
        return [self.shared.requests[number] for number in self.numbers]

    @property
    def num_bytes(self) -> int:
        """The bytes that have to be requested for the chunk."""
        return sum(one.end - one.begin for one in self.requests if one.asked_of is None)

    def leave(self) -> list[Request]:
        """Mark the chunk as used; return the requests that no other chunk needs."""
        users = self.shared.num_users
        for number in self.numbers:
            users[number] -= 1
        unused = [number for number in self.numbers if not users[number]]
        requests = [self.shared.requests[number] for number in unused]
        self.shared.anew(unused)  # these hold what was answered, as long as the others are read
        return requests

    def located(self, which: int, chosen: Int64s) -> tuple[Iterator[bytes], list[int]]:
        """The memory of each of these records, waited for one by one, and the offset of each in its memory.

        Args:
            which: The number of their files in the window's.
            chosen: Positions in the window.
        """
        rows = self._rows[chosen]
        return map(self._memory, self._of_span[which][rows].tolist()), self._offsets[which][rows].tolist()

    def memories(self) -> Iterator[bytes]:
        """Yield the bytes of each request, in order of use."""
        return map(self._memory, self.numbers)

    def _memory(self, number: int) -> bytes:
        if number < 0:
            return b""
        data = self._data.get(number)
        if data is None:
            data = self._data[number] = self.upcoming.wait(self, number)
        return data


class ChunkBytes(io.RawIOBase):
    """A file object over the chunks of a shard that is read from its start.

    Args:
        chunks: What was asked for of it.
    """

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._data = (data for chunk in chunks for data in chunk.memories())
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._data, b""))
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size
