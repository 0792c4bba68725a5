"""Files that are read once, mostly forward: `url + FileStamp → bytes at offsets`; of remote ones some chunks early.

They may be read before a process forks: no thread and no event loop stays behind.
"""

import io
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

from streamdata.io.remote.network import network
from streamdata.io.remote.once import fetch_once
from streamdata.io.remote.requests import Answer
from streamdata.io.storage import (
    FileStamp,
    LocalShard,
    checked_answer,
    is_remote,
    opened_anew,
    stamp_of,
    version_of_stamp,
)

_ALONE_BYTES = 8 << 20
_MAX_REQUESTS = 16
_AHEAD_BYTES = 4 << 20


class ByteSource(Protocol):
    """Reads bytes at offsets. `read` returns fewer than asked only at the end; `size` is None if it is not known."""

    @property
    def size(self) -> int | None:
        """The number of bytes; None if it is not known."""
        ...

    def read(self, size: int, offset: int) -> bytes:
        """Read `size` bytes from `offset`, fewer only at the end."""
        ...


class SourceFile(io.RawIOBase):
    """Wraps a `ByteSource` as a Python file object, read from its start."""

    def __init__(self, source: ByteSource) -> None:
        self._source, self._at = source, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._source.read(len(buffer), self._at)
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


class Ahead(NamedTuple):
    """The threads that prefetch chunks of a remote file, and the number of chunks."""

    threads: Executor
    num_chunks: int


class _EarlyChunk(NamedTuple):
    begin: int
    end: int
    data: "Future[bytes]"


class RemoteFile:
    """A remote file read mostly forward, in large chunks.

    Args:
        url: The file.
        stamp: Its version; by default it is asked for.
        ahead: What fetches chunks early; by default nothing does, and no thread is left to a process that forks.
    """

    def __init__(self, url: str, stamp: FileStamp | None = None, ahead: Ahead | None = None) -> None:
        self._url, self._ahead = url, ahead
        self._stamp = stamp or stamp_of(url)
        self.size: int = self._stamp.size
        self._begin, self._chunk = 0, b""
        self._early: deque[_EarlyChunk] = deque()

    def read(self, size: int, offset: int) -> bytes:
        """Read `size` bytes from `offset`, fewer only at the end of the file."""
        end = min(offset + size, self.size)
        pieces = []
        while offset < end:
            if not self._begin <= offset < self._begin + len(self._chunk):
                self._go_to(offset, end)
            at = offset - self._begin
            pieces.append(self._chunk[at : at + end - offset])
            offset += len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _go_to(self, begin: int, end: int) -> None:
        if self._ahead is None:
            end = min(self.size, max(end, begin + _ALONE_BYTES))
            self._begin, self._chunk = begin, self._fetched(begin, end)
            return
        # What lies within a large member is not read: where one was passed over nothing is fetched ahead.
        is_next = begin <= self._begin + len(self._chunk) + _AHEAD_BYTES
        while self._early and not self._early[0].begin <= begin < self._early[0].end:
            self._early.popleft().data.cancel()
        at = self._early[-1].end if self._early else begin
        while at < self.size and len(self._early) < 1 + (self._ahead.num_chunks if is_next else 0):
            end = min(self.size, at + _AHEAD_BYTES)
            self._early.append(_EarlyChunk(at, end, self._ahead.threads.submit(self._fetched, at, end)))
            at = end
        self._chunk = b""  # before the next one is waited for: there are many such files at the same time
        chunk = self._early.popleft()
        self._begin, self._chunk = chunk.begin, chunk.data.result()

    def _fetched(self, begin: int, end: int) -> bytes:
        answer = fetch_once(self._url, begin, end, version_of_stamp(self._url, self._stamp))
        return checked_answer(self._url, self._stamp, answer)


def byte_source(url: str, stamp: FileStamp | None = None, ahead: Ahead | None = None) -> ByteSource:
    """Open a file for one forward pass, local or remote; remote answers must be of the version in `stamp`."""
    if is_remote(url):
        return RemoteFile(url, stamp, ahead)
    return LocalShard(url) if stamp is None else opened_anew(url)


def fetch_many(url: str, spans: Sequence[tuple[int, int]], tag: str) -> list[bytes]:
    """Fetch several ranges of one file, of the version `tag`."""
    with network().waiting():
        if network().is_running:  # it may use all connections that this process has
            asked: list[Future[Answer]] = []
            try:
                asked.extend(network().submit(url, begin, end, tag) for begin, end in spans)
                return [one.result().data for one in asked]
            finally:  # with the first error the others are cancelled
                for one in asked:
                    one.cancel()
        if len(spans) == 1:
            return [fetch_once(url, spans[0][0], spans[0][1], tag).data]
        with ThreadPoolExecutor(min(_MAX_REQUESTS, network().connections, len(spans))) as threads:
            return [answer.data for answer in threads.map(lambda span: fetch_once(url, span[0], span[1], tag), spans)]
