"""Pages of remote manifests: `spans → pages, fetched or asked for ahead → a file of holes in the cache → bytes`.

The file is shared by all processes of a node: each chunk of rows has its CRC32, so that what is there is known by
looking at it, and nothing has to be locked or repaired.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import NamedTuple

from streamdata.io.file_cache import cache_directory
from streamdata.io.one_pass import fetch_many
from streamdata.io.remote.addresses import StorageOptions, options_of, signed_url
from streamdata.io.remote.network import network
from streamdata.io.remote.requests import Answer
from streamdata.io.storage import FileStamp
from streamdata.run.per_process import OpenFiles, PerProcess
from streamdata.shards.ahead.windows import MAX_REQUEST_BYTES
from streamdata.shards.index.manifest import ManifestError

_PAGE_BYTES = 1 << 16
_WHOLE_BYTES = 4 << 20
"""Rows of a remote manifest that has no more are fetched at once."""
_MAX_OPEN = 16
"""Remote manifests whose pages stay open."""
_Span = tuple[int, int]


def replaced_manifest(url: str) -> ManifestError:
    """Make the error for a manifest that was replaced after it was opened."""
    return ManifestError(
        f"manifest '{url}': it was replaced or modified after the run began\n"
        "  Start the run again to use the new one; shards that it names as before are read as before."
    )


_under_way: PerProcess[dict[tuple[str, int], "Future[None]"]] = PerProcess(dict)
"""Requests that this process has made ahead, by file and page, until they are answered; what failed is said later."""


class PagesKey(NamedTuple):
    """Identifies the cached pages of one version of a file, and how to reach the file."""

    cache: Path
    url: str
    signed: str
    options: StorageOptions
    tag: str  # what its server calls its version
    stamp: FileStamp
    rows_at: int  # where these are few, all are fetched at once


def key_of(url: str, tag: str, stamp: FileStamp, rows_at: int) -> PagesKey:
    """Make the key of a file's pages under the present cache directory."""
    return PagesKey(cache_directory(), url, signed_url(url), options_of(url), tag, stamp, rows_at)


class ManifestPages:
    """Cached pages of a remote manifest, in a sparse file that several processes write."""

    def __init__(self, key: PagesKey) -> None:
        cache, url, _, _, tag, stamp, self._rows_at = key
        self._url, self._tag, self._size = url, tag, stamp.size
        name = hashlib.blake2b(repr((url, tag, stamp)).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        folder = cache / "manifests" / name[:2]
        folder.mkdir(parents=True, exist_ok=True)
        self._name = name
        self._fd = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o666)
        self.seen: set[_Span] = set()
        """Chunks that were there, and need not be asked for ahead; whoever reads them looks again."""

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # at the end of the process there is no `os`
        close(self._fd)

    def read(self, begin: int, end: int) -> bytes:
        """Read these bytes from the cached pages; missing pages read as zeros."""
        return os.pread(self._fd, end - begin, begin).ljust(end - begin, b"\0")

    def write(self, data: bytes, offset: int) -> None:
        """Write bytes into the cached pages."""
        os.pwrite(self._fd, data, offset)

    def fetch(self, spans: Sequence[tuple[int, int]]) -> None:
        """Fetch the pages that contain these spans, or all rows if there are few."""
        wanted = self._joined(self._holding(spans))
        for (begin, end), data in zip(wanted, fetch_many(self._url, wanted, self._tag), strict=True):
            self._take(data, begin, end)

    def ask_for(self, spans: Sequence[tuple[int, int]]) -> "list[Future[Answer]]":
        """Request pages without waiting, except those requested already."""
        found = []
        pages = {page for page in self._holding(spans) if (self._name, page) not in _under_way.get()}
        for begin, end in self._joined(pages):
            there: Future[None] = Future()
            keys = [(self._name, page) for page in _pages_of(begin, end)]
            _under_way.get().update(dict.fromkeys(keys, there))
            asked = network().submit(self._url, begin, end, self._tag)
            asked.add_done_callback(partial(self._came, begin, end, keys, there))
            found.append(asked)
        return found

    def _came(
        self, begin: int, end: int, keys: list[tuple[str, int]], there: "Future[None]", asked: "Future[Answer]"
    ) -> None:
        try:
            if not asked.cancelled():  # else who waits for it finds nothing, and fetches it
                self._take(asked.result().data, begin, end)
        except BaseException as error:
            there.set_exception(error)
            return
        for key in keys:
            _under_way.get().pop(key, None)
        there.set_result(None)

    def wait_for(self, spans: Sequence[tuple[int, int]]) -> None:
        """Wait for the requested pages of these spans.

        Raises:
            ShardError: A page did not arrive. It can be requested again.
        """
        for page in sorted(self._holding(spans)):
            if (there := _under_way.get().get((self._name, page))) is not None:
                try:
                    with network().waiting():
                        there.result()
                except BaseException:
                    _under_way.get().pop((self._name, page), None)
                    raise

    def _holding(self, spans: Sequence[tuple[int, int]]) -> set[int]:
        if spans and self._size - self._rows_at <= _WHOLE_BYTES:
            spans = [(self._rows_at, self._size)]
        return {page for span in spans for page in _pages_of(*span)}

    def _joined(self, pages: Iterable[int]) -> list[tuple[int, int]]:
        """The bytes of pages as spans, those side by side as one."""
        joined: list[tuple[int, int]] = []
        for page in sorted(pages):
            begin, end = page * _PAGE_BYTES, min((page + 1) * _PAGE_BYTES, self._size)
            if joined and joined[-1][1] == begin and end - joined[-1][0] <= MAX_REQUEST_BYTES:
                begin, _ = joined.pop()
            joined.append((begin, end))
        return joined

    def _take(self, data: bytes, begin: int, end: int) -> None:
        if len(data) != end - begin:
            raise replaced_manifest(self._url)
        self.write(data, begin)


def _pages_of(begin: int, end: int) -> range:
    return range(begin // _PAGE_BYTES, -(-end // _PAGE_BYTES))


open_pages: OpenFiles[PagesKey, ManifestPages] = OpenFiles(_MAX_OPEN)
"""The pages of manifests, which stay open."""
