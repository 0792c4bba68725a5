"""Windows that are to be read: `files, spans of their records → loads of requests of up to 8 MB → chunks of records`.

A shard that is read from its start is one window.
"""

import io
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

import numpy as np

from streamdata.io.cache.page_cache import Memory
from streamdata.io.storage import FileStamp, Int64s
from streamdata.shards.ahead.spans import FileSpans

MAX_REQUEST_BYTES: Final = 8 << 20
"""Bytes of several spans that are one request, at most; a span that is larger is one request, too."""


_SMALL_BYTES: Final = 1 << 20


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
    of_span = np.full(len(spans), -1, np.int64)
    order = np.lexsort((spans[:, 1], spans[:, 0]))
    order = order[spans[order, 1] < spans[order, 2]]
    if not len(order):
        return Requested([], of_span, [])
    shards, begins, ends = spans[order].T
    # Runs, so that the loop below has few turns: spans that touch, between the same two multiples of the bound.
    cells = np.stack([shards, begins // MAX_REQUEST_BYTES, (ends - 1) // MAX_REQUEST_BYTES])
    is_first = np.append(True, (cells[:, 1:] != cells[:, :-1]).any(axis=0) | (begins[1:] > ends[:-1]))
    starts = np.flatnonzero(is_first)
    last_ends, first_uses = np.maximum.reduceat(ends, starts), np.minimum.reduceat(order, starts)
    runs = np.stack([shards[starts], begins[starts], last_ends, first_uses], axis=1)
    found: list[list[int]] = []  # shard, begin, end, bytes wanted, first use
    requests = []
    for shard, begin, end, first_use in runs.tolist():
        last = found[-1] if found else None
        if last is None or last[0] != shard or not _may_join(last, begin, end, gaps=gaps):
            last = [shard, begin, begin, 0, first_use]
            found.append(last)
        last[3] += max(0, end - max(begin, last[2]))
        last[2], last[4] = max(last[2], end), min(last[4], first_use)
        requests.append(len(found) - 1)
    by_use = sorted(range(len(found)), key=lambda request: found[request][4])
    ranks = np.empty(len(found), np.int64)
    ranks[by_use] = np.arange(len(found))
    of_span[order] = ranks[requests][np.cumsum(is_first) - 1]
    in_order = [found[request] for request in by_use]
    return Requested([(shard, begin, end) for shard, begin, end, *_ in in_order], of_span, [one[4] for one in in_order])


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
    max_load_bytes: int = sys.maxsize
    """Bytes of it that are held at once, at most; one record may have more."""
    is_advice: bool = False
    """Whether its files are local, and the kernel is told to read them: its reader then reads them by itself, as where
    no file is named."""

    def chunks(self, max_bytes: int) -> "list[Chunk]":
        """Divide the window into chunks of so many bytes at most; one record may have more."""
        sizes = np.zeros(len(self.order), np.int64)
        for file in self.files:
            _, begins, ends_of_spans = file.spans[self.order].T
            sizes += ends_of_spans - begins
        ends = np.cumsum(sizes)
        chunks, begin, before = [], 0, 0
        while begin < len(ends):
            end = max(begin + 1, int(np.searchsorted(ends, before + max_bytes, side="right")))
            chunks.append(Chunk(self, begin, end, int(ends[end - 1]) - before))
            begin, before = end, int(ends[end - 1])
        return chunks or [Chunk(self, 0, 0, 0)]

    def has_files_of(self, other: "PlannedWindow") -> bool:
        """Whether its shards are those of another window, so that both may share requests."""
        pairs = zip(self.files, other.files, strict=False)
        return len(self.files) == len(other.files) and all(one.urls is its.urls for one, its in pairs)


class Chunk:
    """Records of a window whose bytes come with one load: numbers `begin` up to `end`, in order of use.

    Args:
        window: The window.
        begin: The first record.
        end: After the last one.
        num_bytes: How many bytes they need.
    """

    def __init__(self, window: PlannedWindow, begin: int, end: int, num_bytes: int) -> None:
        self.window, self.begin, self.end, self.num_bytes = window, begin, end, num_bytes
        self.is_last, self.is_advice = end == len(window.order), window.is_advice or not window.files

    @property
    def positions(self) -> Int64s:
        """The positions of its records in the window."""
        return self.window.order[self.begin : self.end]

    def join(self, load: "Load", first: int) -> None:
        """Have the records come with a load, as those from number `first` on."""
        self.load, self._rows = load, np.zeros(int(self.window.order.max(initial=-1)) + 1, np.int64)
        self._rows[self.positions] = np.arange(first, first + self.end - self.begin)

    def located(self, which: int, chosen: Int64s) -> Iterator[tuple[Memory, int]]:
        """The memory of each of these records, waited for one by one, and where it begins there.

        Args:
            which: The number of their files in the window's.
            chosen: Positions in the window.
        """
        return self.load.located(self._rows[chosen], which)


class Request(NamedTuple):
    """A request for a range of bytes of a file."""

    load: "Load"
    url: str
    stamp: FileStamp
    begin: int
    end: int
    first_use: int
    """The number of the load's first record that needs it."""
    sent: "Future[Future[Memory]]"
    """Gives the future of its bytes, once it is sent."""


class Load:
    """Bytes that are asked for, held and let go of together: those of a chunk of a window, or of several windows'.

    Args:
        chunks: What is read with it, in order of use; of windows that have the same files.
        max_bytes: Spans that do not touch are joined only as long as all is not more than this, and never those of
            several windows: what lies between these was read just before, or is next.
        wait: Waits for the request with a number.
    """

    due = pace = 0.0
    """The clock of its lane at which its first record is due, and how far that goes on for each record."""
    is_present = False
    """Whether its records are being read."""
    asked_of: object = None
    """Who sends its requests, and counts its bytes; None if nobody does."""
    requests: Sequence[Request] = ()
    """In order of use."""
    num_sent = sent_bytes = 0
    """How many of its requests were sent, and their bytes."""

    def __init__(self, chunks: Sequence[Chunk], max_bytes: int, wait: "Callable[[Load, int], Memory]") -> None:
        self.chunks, self._wait = chunks, wait
        self.num_records = 0
        for chunk in chunks:
            chunk.join(self, self.num_records)
            self.num_records += chunk.end - chunk.begin
        self._join(gaps=len(chunks) == 1)
        if self.num_bytes > max_bytes:
            self._join(gaps=False)
        self._held: dict[int, tuple[Memory, int]] = {}

    def _join(self, *, gaps: bool) -> None:
        files = self.chunks[0].window.files
        # One row for each record, with a span for each of its files; these are told apart by their shards' numbers.
        spans = np.zeros((self.num_records, len(files), 3), np.int64)
        for which in range(len(files)):
            of_chunks = [chunk.window.files[which].spans[chunk.positions] for chunk in self.chunks]
            spans[:, which] = np.concatenate(of_chunks)
            spans[:, which, 0] = spans[:, which, 0] * len(files) + which
        self._pieces, of_span, self._first_uses = coalesced(spans.reshape(-1, 3), gaps=gaps)
        self._of_span, self._begins = of_span.reshape(self.num_records, len(files)), spans[:, :, 1]
        self.num_bytes = sum(end - begin for _, begin, end in self._pieces)

    @property
    def is_waiting(self) -> bool:
        """Whether it has requests that are still to be sent."""
        return self.num_sent < len(self.requests)

    @property
    def has_small_requests(self) -> bool:
        """Whether it has several, which are small on average."""
        return len(self._pieces) > 1 and self.num_bytes < _SMALL_BYTES * len(self._pieces)

    @property
    def next_due(self) -> float:
        """When the next request is due."""
        return self.due + self.pace * self.requests[self.num_sent].first_use

    def begin(self, asked_of: object) -> None:
        """Make its requests, none of which is sent."""
        self.asked_of, self.num_sent, self.sent_bytes, self.is_present = asked_of, 0, 0, False
        files = self.chunks[0].window.files
        uses = [first_use // len(files) for first_use in self._first_uses]
        self.requests = [Request(self, *one, use, Future()) for one, use in zip(self.ranges(), uses, strict=True)]

    def ranges(self) -> Iterator[tuple[str, FileStamp, int, int]]:
        """Yield url, version, begin and end of each request, in order of use."""
        files = self.chunks[0].window.files
        for number, begin, end in self._pieces:
            shard, which = divmod(number, len(files))
            yield files[which].urls[shard], files[which].stamps[shard], begin, end

    def forget(self) -> "list[Future[Memory]]":
        """Drop its requests, and what they brought; return those that were sent."""
        requests, self.requests, self.asked_of = self.requests, (), None
        self._held.clear()
        return [request.sent.result() for request in requests if request.sent.done()]

    def located(self, rows: Int64s, which: int) -> Iterator[tuple[Memory, int]]:
        """Yield what `Chunk.located` does, of records that are numbered in the load."""
        held = self._held
        for number, begin in zip(self._of_span[rows, which].tolist(), self._begins[rows, which].tolist(), strict=True):
            memory, first = held.get(number) or self._receive(number)
            yield memory, begin - first

    def memories(self) -> Iterator[memoryview]:
        """Yield the bytes of each request, in order of use."""
        for number, (_, begin, end) in enumerate(self._pieces):
            memory, first = self._receive(number)
            yield memoryview(memory)[begin - first : end - first]

    def _receive(self, number: int) -> tuple[Memory, int]:
        """Wait for a request; return its memory, and which of the file's bytes is the first there."""
        if number < 0:
            return b"", 0
        memory = self._wait(self, number)
        self._held[number] = memory, self._pieces[number][1] if isinstance(memory, bytes) else 0
        return self._held[number]


class ChunkBytes(io.RawIOBase):
    """A file object over the chunks of a shard that is read from its start.

    Args:
        chunks: What was asked for of it.
    """

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._data = (data for chunk in chunks for data in chunk.load.memories())
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = next(self._data, self._rest)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size
