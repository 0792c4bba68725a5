"""Windows that are to be read: `files, spans of their records → requests of up to 8 MB → the memory of each record`.

A shard that is read from its start is one window.
"""

import io
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from streamdata.io.cache.page_cache import Memory
from streamdata.io.storage import FileStamp, Int64s, advise, is_remote, submit_memory
from streamdata.shards.ahead.spans import FileSpans, coalesced


class PlannedWindow(NamedTuple):
    """A window that will be read: its files, spans, and order of use."""

    key: Hashable
    content: Any
    """An object of its reader's, which has it back when it comes to the window."""
    files: Sequence[FileSpans]
    """None of a shard that its reader reads by itself."""
    order: Int64s
    """Positions of its records, in the order in which they are used."""

    def chunks(self, max_bytes: int) -> "Iterator[Chunk]":
        """Divide the window into chunks of so many bytes at most; one record may have more.

        One at a time: a list would hold what was read of the first ones while the last ones are planned.
        """
        sizes = [np.diff(file.spans[self.order, 1:])[:, 0] for file in self.files]
        ends = np.cumsum(np.sum(sizes, axis=0) if sizes else np.zeros(len(self.order), np.int64))
        begin, before = 0, 0
        if not len(ends):
            yield Chunk(self, 0, 0, 0)
        while begin < len(ends):
            end = max(begin + 1, int(np.searchsorted(ends, before + max_bytes, side="right")))
            yield Chunk(self, begin, end, int(ends[end - 1]) - before)
            begin, before = end, int(ends[end - 1])

    def shards(self) -> list[int]:
        """Identify its files: it may share requests with windows of the same ones."""
        return [id(file.urls) for file in self.files]


class Chunk:
    """Records of a window whose bytes come with one load: numbers `begin` up to `end`, in order of use.

    Args:
        window: The window.
        begin: The first record.
        end: After the last one.
        num_bytes: How many bytes they need.
    """

    load: "Load"
    """It brings their bytes; set when that is planned."""
    rows: Int64s
    """The number of each of its records in the load, by position in the window."""

    def __init__(self, window: PlannedWindow, begin: int, end: int, num_bytes: int) -> None:
        self.window, self.begin, self.end, self.num_bytes = window, begin, end, num_bytes
        self.positions = window.order[begin:end]
        self.is_last = end == len(window.order)

    def located(self, which: int, chosen: Int64s) -> Iterator[tuple[Memory, int]]:
        """The memory of each of these records, waited for one by one, and where it begins there.

        Args:
            which: The number of their files in the window's.
            chosen: Positions in the window.
        """
        load, rows = self.load, self.rows[chosen]
        for number, begin in zip(load.of_span[rows, which].tolist(), load.begins[rows, which].tolist(), strict=True):
            memory, first = load.held.get(number) or load.receive(number)
            yield memory, begin - first


class Request(NamedTuple):
    """A request for a range of bytes of a file."""

    url: str
    begin: int
    end: int
    stamp: FileStamp


def submit(url: str, begin: int, end: int, stamp: FileStamp) -> "Memory | Future[Memory] | None":
    """Ask for bytes of a shard; None for those of a local one, which the kernel is told to read."""
    if is_remote(url):
        return submit_memory(url, begin, end, stamp)
    advise(url, begin, end)
    return None


class Load:
    """Bytes that are asked for, held and let go of together: those of a chunk of a window, or of several windows'.

    Args:
        chunks: What is read with it, in order of use; of windows that have the same files.
        max_bytes: What lies between records is requested with them only if all is not more than this for sure, and
            never between those of several windows: that was read just before, or is next.
        take: Waits for the request with a number; returns its bytes.
    """

    def __init__(self, chunks: Sequence[Chunk], max_bytes: int, take: "Callable[[Load, int], Memory]") -> None:
        self.chunks, self._take, files = chunks, take, chunks[0].window.files
        num_records, wanted = 0, sum(chunk.num_bytes for chunk in chunks)
        for chunk in chunks:
            chunk.load, chunk.rows = self, np.zeros(int(chunk.window.order.max(initial=-1)) + 1, np.int64)
            chunk.rows[chunk.positions] = np.arange(num_records, num_records + chunk.end - chunk.begin)
            num_records += chunk.end - chunk.begin
        # One row for each record, with a span for each of its files; these are told apart by their shards' numbers.
        spans = np.zeros((num_records, len(files), 3), np.int64)
        for which in range(len(files)):
            spans[:, which] = np.concatenate([chunk.window.files[which].spans[chunk.positions] for chunk in chunks])
            spans[:, which, 0] = spans[:, which, 0] * len(files) + which
        pieces, of_span = coalesced(spans.reshape(-1, 3), gaps=len(chunks) == 1 and 2 * wanted <= max_bytes)
        self.of_span, self.begins = of_span.reshape(num_records, len(files)), spans[:, :, 1]
        self.requests: list[Request] = []
        for number, begin, end in pieces:
            shard, which = divmod(number, len(files))
            self.requests.append(Request(files[which].urls[shard], begin, end, files[which].stamps[shard]))
        self._by_use = [number for number in dict.fromkeys(of_span.tolist()) if number >= 0]
        self.held: dict[int, tuple[Memory, int]] = {-1: (b"", 0)}  # the latter of spans without bytes
        self.forget()

    def forget(self) -> None:
        """Let go of what is under way, as if it had not been sent."""
        self.sent_bytes, self.unsent = 0, deque(self._by_use)
        """Bytes of the requests that were sent; and the numbers of others, in order of use."""
        self.answers: dict[int, Memory | Future[Memory] | None] = {}
        """By number, what came of requests that were sent, until it is taken."""

    def send(self, number: int) -> None:
        """Send a request."""
        request = self.requests[number]
        self.unsent.remove(number)
        try:
            self.answers[number] = submit(*request)
        except Exception as error:  # raised by the record that needs it
            self.answers[number] = failed = Future[Memory]()
            failed.set_exception(error)
        self.sent_bytes += request.end - request.begin

    def drop(self) -> None:
        """Cancel what is not answered yet, and leave the cycle with the chunks, which would keep all bytes for long."""
        self.chunks = ()
        for answer in reversed(self.answers.values()):  # the last first: what takes its place is to stay
            if isinstance(answer, Future):
                answer.cancel()

    def memories(self) -> Iterator[memoryview]:
        """Yield the bytes of each request, as they lie in the files."""
        for number, request in enumerate(self.requests):
            memory, first = self.receive(number)
            yield memoryview(memory)[request.begin - first : request.end - first]

    def receive(self, number: int) -> tuple[Memory, int]:
        """Wait for a request; return its memory, and which of the file's bytes is the first there."""
        memory = self._take(self, number)
        self.held[number] = memory, self.requests[number].begin if isinstance(memory, bytes) else 0
        return self.held[number]


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
