"""Files that are read once, mostly forward: `url + FileStamp → bytes at offsets`; of remote ones some chunks early.

They may be read before a process forks.
"""

import io
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from streamdata.io.remote.network import network
from streamdata.io.remote.requests import Asked, then
from streamdata.io.storage import (
    FileStamp,
    LocalShard,
    checked_answer,
    is_remote,
    opened_anew,
    stamp_of,
    version_of_stamp,
)

_CHUNK_BYTES = 4 << 20


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

    def close(self) -> None:
        """Cancel the source's pending requests, if it is a `RemoteFile`."""
        if isinstance(self._source, RemoteFile):
            self._source.close()
        super().close()


Submit = Callable[[str, int, int, FileStamp], "Future[bytes]"]


def submit_once(url: str, begin: int, end: int, stamp: FileStamp) -> "Future[bytes]":
    """Request bytes of the version that was indexed, past the page cache, in a process that may fork later."""
    asked = Asked("fetch", url, begin, end, version_of_stamp(url, stamp))
    return then(network().ask(asked), lambda found: checked_answer(url, stamp, found))


class RemoteFile:
    """A remote file read mostly forward, in large chunks.

    Args:
        url: The file.
        stamp: Its version; by default it is asked for.
        ahead: How many chunks are fetched early while the file is read forward.
        submit: Requests bytes of the file.
    """

    def __init__(self, url: str, stamp: FileStamp | None = None, ahead: int = 0, submit: Submit = submit_once) -> None:
        self._url, self._ahead, self._submit = url, ahead, submit
        self._stamp = stamp or stamp_of(url)
        self.size: int = self._stamp.size
        self._begin, self._chunk = 0, b""
        self._asked: deque[tuple[int, int, Future[bytes]]] = deque()
        """Begin, end and bytes of the chunks that were asked for."""

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

    def close(self) -> None:
        """Cancel the pending requests."""
        while self._asked:
            self._asked.pop()[2].cancel()

    def __del__(self) -> None:
        self.close()

    def _go_to(self, begin: int, end: int) -> None:
        # What lies within a large member is not read: where one was passed over nothing is fetched ahead.
        is_next = begin <= self._begin + len(self._chunk) + _CHUNK_BYTES
        while self._asked and not self._asked[0][0] <= begin < self._asked[0][1]:
            self._asked.popleft()[2].cancel()
        at = self._asked[-1][1] if self._asked else begin
        until = min(self.size, end + (self._ahead * _CHUNK_BYTES if is_next else 0))
        while at < until:
            stop = min(self.size, at + _CHUNK_BYTES)
            self._asked.append((at, stop, self._submit(self._url, at, stop, self._stamp)))
            at = stop
        self._chunk = b""  # before the next one is waited for: there are many such files at the same time
        self._begin, _, chunk = self._asked.popleft()
        with network().waiting():
            self._chunk = chunk.result()


def byte_source(url: str, stamp: FileStamp | None = None, ahead: int = 0) -> ByteSource:
    """Open a file for one forward pass, local or remote; remote answers must be of the version in `stamp`."""
    if is_remote(url):
        return RemoteFile(url, stamp, ahead)
    return LocalShard(url) if stamp is None else opened_anew(url)
