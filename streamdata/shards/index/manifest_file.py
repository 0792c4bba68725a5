"""Reading manifests: `folder → Manifest`, and `runs of records → chunks of the file → rows of their indexes`.

A local manifest is read in place; of a remote one, pages (see `manifest_pages`). What manifests say of the shards of a
source is a column for each fact (`ListedFacts`).
"""

import errno
import logging
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import NamedTuple, NoReturn

import numpy as np

from streamdata.errors import ShardError, one_line
from streamdata.io.one_pass import fetch_many
from streamdata.io.remote.addresses import beside
from streamdata.io.remote.network import network
from streamdata.io.remote.once import fetch_once
from streamdata.io.remote.requests import Answer, DeniedError, RangesIgnoredError
from streamdata.io.storage import (
    FileStamp,
    Int64s,
    Stamps,
    is_remote,
    note_version,
    opened,
    stamp_of_answer,
    stamps_of,
)
from streamdata.run.per_process import open_files
from streamdata.shards.index.index_file import CHUNK_ROWS
from streamdata.shards.index.indexing import KINDS
from streamdata.shards.index.manifest import (
    HEADER_BYTES,
    NAME,
    NO_FILE,
    Entries,
    Manifest,
    ManifestError,
    decode_directory,
    decode_header,
    rows_bytes,
)
from streamdata.shards.index.manifest_pages import ManifestPages, key_of, open_pages, replaced_manifest

logger = logging.getLogger(__name__)
_HEAD_BYTES = 1 << 20
_CRC_BYTES = 4
_MAX_SEEN = 1 << 16
_CLOSED = (errno.EACCES, errno.EPERM, errno.ELOOP)
_Span = tuple[int, int]
ROW_SIZES = {kind: details.dtype.itemsize for kind, details in KINDS.items()}


class RowRun(NamedTuple):
    """Consecutive records of an index in a manifest: where its rows begin, its number of records, and which to read."""

    offset: int
    num_records: int
    first: int
    num_read: int


class ManifestRows:
    """The index rows of a manifest, read on demand.

    Args:
        url: The manifest.
        stamp: Its version.
        rows_at: Where its rows begin.
        tag: What its server calls its version.
    """

    def __init__(self, url: str, stamp: FileStamp, rows_at: int, tag: str = "") -> None:
        self.url, self.stamp, self.rows_at, self._tag = url, stamp, rows_at, tag

    def read(self, runs: Sequence[RowRun], row_bytes: int) -> list[bytes]:
        """The rows of each run, and the row after each.

        Raises:
            ManifestError: The rows are damaged, or the manifest was replaced.
        """
        chunk_bytes = _chunk_bytes(row_bytes)
        spans = self._spans(runs, row_bytes)
        different = dict.fromkeys(spans)  # short runs share their chunks
        pieces = self._remote(different, chunk_bytes) if is_remote(self.url) else self._local(different, chunk_bytes)
        found = []
        for run, span in zip(runs, spans, strict=True):
            piece, begin, size = pieces[span], run.first % CHUNK_ROWS * row_bytes, (run.num_read + 1) * row_bytes
            chunks = [piece[at : at + chunk_bytes][:-_CRC_BYTES] for at in range(0, len(piece), chunk_bytes)]
            found.append(b"".join(chunks)[begin : begin + size])
            if len(found[-1]) != size:
                self._damaged(span, piece, chunk_bytes)
        return found

    def prefetch(self, runs: Sequence[RowRun], row_bytes: int) -> "list[Future[Answer]]":
        """Request the rows of each run from a remote manifest without waiting; `read` waits if it must.

        Returns:
            What was asked for; it may be cancelled.
        """
        if not is_remote(self.url):
            return []
        pages, chunk_bytes = self._pages(), _chunk_bytes(row_bytes)
        if len(pages.seen) > _MAX_SEEN:
            pages.seen.clear()
        spans = set(self._spans(runs, row_bytes)).difference(pages.seen)
        missing = [span for span in spans if not _is_sound(pages.read(*span), chunk_bytes)]
        pages.seen.update(spans.difference(missing))
        return pages.ask_for(missing) if missing else []  # where rows are few, all are asked for with any

    def _spans(self, runs: Sequence[RowRun], row_bytes: int) -> list[tuple[int, int]]:
        """Where the chunks of each run begin and end."""
        spans, chunk_bytes = [], _chunk_bytes(row_bytes)
        for offset, num_records, first, num_read in runs:
            chunk, last = first // CHUNK_ROWS, (first + num_read) // CHUNK_ROWS + 1
            begin, size = self.rows_at + offset, rows_bytes(num_records, row_bytes)
            spans.append((begin + chunk * chunk_bytes, begin + min(last * chunk_bytes, size)))
        return spans

    def damages(self, manifest: Manifest) -> Iterator[str]:
        """List the rows that are damaged, one line per shard."""
        for kind, entries in manifest.directory.indexes.items():
            for file, offset, num_records in entries[["file", "offset", "num_records"]].tolist():
                try:
                    self.read([RowRun(offset, num_records, 0, num_records)], ROW_SIZES[kind])
                except ManifestError:
                    yield f"{manifest.urls[file]}: its index '{kind}' in the manifest is damaged"

    def _damaged(self, span: _Span, piece: bytes, chunk_bytes: int) -> NoReturn:
        raise ManifestError(
            f"manifest '{self.url}': offset {span[0]}: expected {span[1] - span[0]} bytes in chunks of {chunk_bytes} "
            f"that fit their CRC32, got {len(piece)} that do not\n"
            "  Copy it again, or make it again: streamdata index FOLDER."
        )

    def _local(self, spans: Iterable[_Span], chunk_bytes: int) -> dict[_Span, bytes]:
        try:
            file = opened(self.url)
        except FileNotFoundError as error:
            raise replaced_manifest(self.url) from error
        if file.stamp() != self.stamp:
            open_files.forget(self.url)
            raise replaced_manifest(self.url)
        # What lies under the descriptor stays what was opened, though another is renamed over it meanwhile.
        pieces = {(begin, end): file.read(end - begin, begin) for begin, end in spans}
        for span in _unsound(pieces, pieces, chunk_bytes):
            self._damaged(span, pieces[span], chunk_bytes)
        return pieces

    def _remote(self, spans: Iterable[_Span], chunk_bytes: int) -> dict[_Span, bytes]:
        pages = self._pages()
        pieces = {span: pages.read(*span) for span in spans}
        missing = _unsound(pieces, pieces, chunk_bytes)
        for bring in (pages.wait_for, pages.fetch):
            if missing:
                bring(missing)
                pieces |= {span: pages.read(*span) for span in missing}
                missing = _unsound(pieces, missing, chunk_bytes)
        for span in missing:
            self._damaged(span, pieces[span], chunk_bytes)
        return pieces

    def _pages(self) -> ManifestPages:
        return open_pages.get(key_of(self.url, self._tag, self.stamp, self.rows_at), ManifestPages)


def _chunk_bytes(row_bytes: int) -> int:
    return CHUNK_ROWS * row_bytes + _CRC_BYTES


def _unsound(pieces: dict[_Span, bytes], spans: Iterable[_Span], chunk_bytes: int) -> list[_Span]:
    return [span for span in spans if not _is_sound(pieces[span], chunk_bytes)]


def _is_sound(piece: bytes, chunk_bytes: int) -> bool:
    for at in range(0, len(piece), chunk_bytes):
        end = min(at + chunk_bytes, len(piece)) - _CRC_BYTES
        if end < at or zlib.crc32(piece[at:end]) != int.from_bytes(piece[end : end + _CRC_BYTES], "little"):
            return False
    return True


ListedShards = Sequence[tuple[Manifest, ManifestRows]]
"""Manifests that know some shards, each with its rows."""


class Known(NamedTuple):
    """Facts about files known before they are asked for: from manifests, and from listings of hosts."""

    manifests: ListedShards = ()
    stamps: Mapping[str, FileStamp] = MappingProxyType({})


NOTHING_KNOWN = Known()


def open_manifest(url: str) -> tuple[Manifest, ManifestRows] | None:
    """Open the manifest at a url; None if there is none.

    Raises:
        ManifestError: The manifest is damaged, or cannot be opened.
    """
    if is_remote(url):
        return _open_remote(url)
    open_files.forget(url)  # another may lie there now than when an earlier reader opened it
    try:
        file = opened(url)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ShardError as error:
        raise ManifestError(
            f"manifest '{url}': expected a regular file, got none\n"
            "  Remove it, or make it again: streamdata index FOLDER."
        ) from error
    except OSError as error:
        if error.errno not in _CLOSED:  # the disk's error, or the system's
            raise
        # It was made to be believed: the folder is not listed in its place.
        raise ManifestError(
            f"manifest '{url}': expected a file that can be read, got {error.strerror}\n"
            "  Let this user read it, or delete it: without it, the folder is listed."
        ) from error
    frame = decode_header(url, file.read(HEADER_BYTES, 0), file.size)
    directory = decode_directory(url, frame, file.read(frame.directory, HEADER_BYTES), ROW_SIZES)
    return Manifest(url, directory), ManifestRows(url, file.stamp(), frame.rows_at)


def _open_remote(url: str) -> tuple[Manifest, ManifestRows] | None:
    try:
        with network().waiting():
            head = fetch_once(url, 0, _HEAD_BYTES)
    except (FileNotFoundError, DeniedError, RangesIgnoredError):  # some servers say so of what is not there
        return None
    stamp, tag = stamp_of_answer(head), head.version
    frame = decode_header(url, head.data, stamp.size)
    pages = ManifestPages(key_of(url, tag, stamp, frame.rows_at))
    pages.write(head.data, 0)
    if frame.rows_at > len(head.data):
        body = pages.read(HEADER_BYTES, frame.rows_at)
        if zlib.crc32(body) != frame.crc:
            (rest,) = fetch_many(url, [(len(head.data), frame.rows_at)], tag)
            pages.write(rest, len(head.data))
    directory = decode_directory(url, frame, pages.read(HEADER_BYTES, frame.rows_at), ROW_SIZES)
    return Manifest(url, directory), ManifestRows(url, stamp, frame.rows_at, tag)


class Manifests:
    """Opens manifests of folders, each once.

    Args:
        is_used: Whether they are; else there are none.
    """

    def __init__(self, *, is_used: bool = True) -> None:
        self._is_used = is_used
        self._found: dict[str, tuple[Manifest, ManifestRows] | None] = {}
        self.used: dict[str, tuple[Manifest, ManifestRows]] = {}
        """The manifests whose shards are among what was found, by url."""

    def at(self, url: str) -> Manifest | None:
        """The manifest at a url."""
        if not self._is_used:
            return None
        if url not in self._found:
            self._found[url] = open_manifest(url)
        found = self._found[url]
        return found[0] if found else None

    def use(self, manifest: Manifest) -> None:
        """Record that shards of this manifest are read."""
        found = self._found[manifest.url]
        if manifest.url in self.used or found is None:
            return
        self.used[manifest.url] = found
        directory = manifest.directory
        if not manifest.is_copy and directory.tags:  # requests for the files say which version is meant
            for (url, stamp), tag in zip(manifest.stamps.items(), directory.tags, strict=True):
                note_version(url, stamp, tag)
        if manifest.is_copy:
            logger.warning(
                "manifest '%s' was made for '%s', and was copied: sizes and checksums are compared, and the versions "
                "of shards are those that are met first; `streamdata index %s` notes them",
                *map(one_line, (manifest.url, directory.place, manifest.root)),
            )  # fmt: skip

    def whole(self, folder: str, suffixes: Sequence[str]) -> Manifest | None:
        """The manifest that lists all shards with these suffixes below a folder (with its slash); None without one."""
        manifest = self.at(beside(folder, folder + NAME))
        return manifest if manifest and set(suffixes) <= set(manifest.directory.suffixes) else None

    def naming(self, url: str, top: str) -> Manifest | None:
        """The manifest that lists a file: in the folder `top`, in the file's own folder, or between the two."""
        folder = own = url[: url.rfind("/") + 1]
        folders = [top] if own.startswith(top) and top else []
        while len(folder) > len(top):
            folders.append(folder)
            folder = folder[: folder.rfind("/", 0, -1) + 1]
        for folder in folders or [own]:
            if (manifest := self.at(beside(url, folder + NAME))) and url in manifest.numbers:
                return manifest
        return None


class ListedFacts:
    """Facts that manifests give on shards and their indexes of one kind, as columns; `manifest_of` is -1 for none.

    Args:
        urls: The shards.
        kind: Of their indexes.
        manifests: What they are looked up in; the first that has the index counts.
    """

    def __init__(self, urls: Sequence[str], kind: str, manifests: ListedShards) -> None:
        count = len(urls)
        self.manifest_of: Int64s = np.full(count, -1, np.int64)
        columns = np.zeros((9, count), np.int64)
        self.num_records, self.skipped, self.first_skipped, self.noted, self.offsets = columns[:5]
        self.stamps, self.sidecar_stamps = Stamps(*columns[5:7]), Stamps(*columns[7:])
        self.sidecar_urls, self.is_remote = [""] * count, [False] * count
        for number, (manifest, _) in enumerate(manifests):
            if kind in manifest.directory.indexes:
                self._take(number, manifest, manifest.directory.indexes[kind], manifest.files_of(urls))

    def _take(self, number: int, manifest: Manifest, entries: Entries, files: Int64s) -> None:
        """Take in what a manifest says of the shards, which are these of its files; -1 stands for none of them."""
        by_file = np.full(len(manifest.directory.names) + 1, -1, np.int64)
        by_file[entries["file"]] = np.arange(len(entries))
        of_shard = by_file[files]  # -1 is the last, which is no file's
        (shards,) = np.nonzero((of_shard >= 0) & (self.manifest_of < 0))
        if not len(shards):
            return
        own = entries[of_shard[shards]]
        self.manifest_of[shards] = number
        for name in ("num_records", "skipped", "first_skipped", "noted", "offset"):
            column = self.offsets if name == "offset" else getattr(self, name)
            column[shards] = own[name]
        files = own["file"].astype(np.int64)
        self.stamps.sizes[shards] = manifest.directory.sizes[files]
        self.stamps.versions[shards] = manifest.versions[files]
        for shard in shards.tolist() if is_remote(manifest.root) else ():
            self.is_remote[shard] = True
        if (own["sidecar"] != NO_FILE).any():
            files = own["sidecar"].astype(np.int64)
            self.sidecar_stamps.sizes[shards] = manifest.directory.sizes[files]
            self.sidecar_stamps.versions[shards] = manifest.versions[files]
            urls = manifest.urls
            for shard, file in zip(shards.tolist(), files.tolist(), strict=True):
                self.sidecar_urls[shard] = urls[file]


def stamps_known(urls: Sequence[str], known: Known) -> dict[str, FileStamp]:
    """The known stamps of files, in the order of `urls`."""
    stamps = {url: known.stamps[url] for url in urls if url in known.stamps}
    for manifest, _ in known.manifests:
        files = manifest.files_of(urls)
        own = [url for url, file in zip(urls, files.tolist(), strict=True) if file >= 0]
        said = Stamps(manifest.directory.sizes, manifest.versions)
        stamps = dict(zip(own, map(said.__getitem__, files[files >= 0].tolist()), strict=True)) | stamps
    return stamps


def stamps_for(urls: Sequence[str], known: Known) -> dict[str, FileStamp]:
    """The stamps of files; hosts are asked for those that are not known."""
    stamps = stamps_known(urls, known)
    unknown = [url for url in urls if url not in stamps]
    return {**stamps, **dict(zip(unknown, stamps_of(unknown), strict=True))}
