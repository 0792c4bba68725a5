"""Windows that are to be read: `files and spans of their records → requests, of one window or of several`."""

import sys
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from streamdata.io.remote.addresses import options_of, signed_url
from streamdata.io.remote.retries import StoreHealth
from streamdata.io.remote.stores import health_of
from streamdata.io.storage import FileStamp, Int64s, is_remote
from streamdata.shards.ahead.coalesced import coalesced

_DISK = StoreHealth()  # it is no store, and does not fail for a while


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

    @property
    def num_bytes(self) -> int:
        """How many are wanted of it."""
        return sum(int((file.spans[self.order, 2] - file.spans[self.order, 1]).sum()) for file in self.files)

    @property
    def may_share(self) -> bool:
        """Whether it may share its requests with the next one."""
        return bool(self.files) and not self.is_advice and self.max_portion_bytes == sys.maxsize


class Request:
    """Some bytes of a file."""

    __slots__ = (
        "answer", "asked_of", "begin", "end", "first_use", "future", "is_dropped", "is_over", "is_sent", "stamp",
        "store", "url",
    )  # fmt: skip

    def __init__(self, url: str, stamp: FileStamp, begin: int, end: int, first_use: int) -> None:
        self.url, self.stamp, self.begin, self.end, self.first_use = url, stamp, begin, end, first_use
        self.answer: Future[bytes] = Future()
        self.future: Future[bytes] | None = None
        self.asked_of: object = None
        """Who counts its bytes, until it is dropped and nothing of it is under way."""
        self.store = health_of(signed_url(url), options_of(url)) if is_remote(url) else _DISK
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
