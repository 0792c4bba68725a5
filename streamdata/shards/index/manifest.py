"""Manifests: `folder → its shards with their sizes, versions and numbers of records, in one file; nothing is listed`.

A manifest is a list and nothing else: where records lie is in the indexes, each beside its shard (see `index_file`), or
below a folder beside the manifest where that is elsewhere. The file is a line with the format and the CRC32 of what
follows; then, in JSON, the place for which it was made, suffixes, and columns: names of files, sizes, versions, tags
(what their server calls versions), and for each kind of index what `ENTRY` has.

A manifest comes with the data, from anywhere: nothing in it is believed that could lead out of its folder.
"""

import errno
import logging
import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from operator import lt
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from streamdata.errors import ShardError, one_line, shown
from streamdata.io.remote.addresses import NO_OPTIONS, Address, StorageOptions, beside, signed_url
from streamdata.io.remote.hosts import canonical_url, kind_of
from streamdata.io.remote.network import network
from streamdata.io.remote.once import fetch_once
from streamdata.io.remote.requests import DeniedError, RangesIgnoredError
from streamdata.io.storage import (
    FileStamp,
    Int64s,
    Stamps,
    is_pipe,
    is_remote,
    local_path,
    note_version,
    opened,
    stamps_of,
    stamps_there,
)
from streamdata.run.per_process import open_files
from streamdata.shards.index.indexing import folder_of
from streamdata.shards.listing import Listings

logger = logging.getLogger(__name__)
NAME = "streamdata.manifest"
SUFFIX = ".manifest"
_MAGIC = b"streamdata manifest 2, CRC32 "
_CRC_DIGITS = 8
_HEAD_BYTES = 1 << 20  # of a remote one, fetched before its size is known
MAX_BYTES = 4 << 30
_MAX_RECORDS = 1 << 34  # of a shard
_CLOSED = (errno.EACCES, errno.EPERM, errno.ELOOP)
_LISTING_VERSIONS = ("s3", "objects")
"""Kinds of hosts whose lists tell versions, which no others' do."""
_JOIN = "join"  # begins the kinds of indexes of shards with their sidecars
_OUTSIDE = (
    *("\n/", "/\n", "//", "/./", "/../", "/.\n", "/..\n", "\n./", "\n../", "\n.\n", "\n..\n", "\n\n"),
    *("\npipe:", "::", "\0", "\r", "\\"),
)
"""Texts that no list of relative names has, a line each between two others. `::` would chain file systems."""
ENTRY = np.dtype(
    [(name, "<i8") for name in ("file", "sidecar", "num_records", "skipped", "first_skipped", "noted", "check")]
)
"""An index as a manifest lists it: the number of its shard, of its shard's sidecar (-1 without one), counts as in its
header, and the CRC32 of that."""
_ENTRY_COLUMNS = ENTRY.itemsize // 8
Entries = npt.NDArray[np.void]


class ManifestError(ShardError):
    """A manifest is damaged, or of another format."""


class ShardList(NamedTuple):
    """The content of a manifest."""

    place: str  # the folder for which it was made
    is_beside: bool  # whether the names are those of files beside the manifest, wherever that is; else below `place`
    suffixes: tuple[str, ...]  # of the shards of which it lists all below its folder
    names: list[str]  # sorted
    tags: list[str]  # what the files' server calls their versions; empty for local files
    sizes: Int64s
    versions: Int64s
    indexes: dict[str, Entries]  # by kind, sorted by file


def encode_list(said: ShardList) -> bytes:
    """Encode a manifest.

    Raises:
        ShardError: A name cannot be kept.
    """
    try:
        if wrong := _outside(said.names):
            raise ValueError(f"a name with {shown(wrong)}")
        tables = {kind: table.view("<i8").reshape(-1, _ENTRY_COLUMNS) for kind, table in said.indexes.items()}
        indexes = {kind: table.T.tolist() for kind, table in tables.items()}
        columns = {"sizes": said.sizes.tolist(), "versions": said.versions.tolist(), "indexes": indexes}
        body = orjson.dumps({**said._asdict(), **columns})
    except (ValueError, TypeError) as error:  # such as of a name that is no UTF-8
        raise ShardError(
            f"manifest of {shown(said.place)}: expected plain names of files, in UTF-8, got {error}\n  Rename the file."
        ) from error
    return _head(body) + body


def _head(body: bytes) -> bytes:
    return _MAGIC + f"{zlib.crc32(body):0{_CRC_DIGITS}x}\n".encode()


def _outside(names: Sequence[str]) -> str | None:
    """Find what in the names could lead out of their folder, or is no name of a file."""
    framed = "\n".join(["", *names, ""]) if names else ""
    if framed.count("\n") > len(names) + 1:
        return "\n"
    return next((wrong for wrong in _OUTSIDE if wrong in framed), None)


def decode_list(url: str, data: bytes) -> ShardList:
    """Decode a manifest.

    Args:
        url: The manifest, for messages.
        data: All of it.

    Raises:
        ManifestError: It is of another format, damaged, or says what cannot be.
    """
    head, _, body = data.partition(b"\n")
    if not data.startswith(_MAGIC):
        raise _damaged(url, f"a file that begins with {_MAGIC!r}", shown(data[: len(_MAGIC)]))
    if head + b"\n" != _head(body):
        raise _damaged(url, "a list that fits its CRC32", f"{len(body)} other bytes")
    try:
        said = orjson.loads(body)
        place, is_beside, suffixes, names, tags = (said[name] for name in ShardList._fields[:5])
        if not (isinstance(place, str) and isinstance(is_beside, bool)):
            raise ValueError("a place of another type")
        if wrong := _outside(names):
            raise ValueError(f"{shown(wrong)} in a name")
        if not all(map(lt, names, names[1:])):
            raise ValueError("names that are not sorted, or not different")
        sizes, versions = (_whole_numbers(said[name], (len(names),)) for name in ("sizes", "versions"))
        if len(tags) not in (0, len(names)) or not all(isinstance(text, str) for text in (*tags, *suffixes)):
            raise ValueError("tags or suffixes that are none")
        if (sizes < 0).any():
            raise ValueError("a file of less than 0 bytes")
        indexes = {kind: _checked_entries(kind, said["indexes"][kind], sizes) for kind in sorted(said["indexes"])}
        return ShardList(place, is_beside, tuple(suffixes), names, tags, sizes, versions, indexes)
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # whatever a stranger wrote there
        raise _damaged(url, "a list as this version writes it", f"{type(error).__name__}: {error}") from error


def _damaged(url: str, expected: str, got: str) -> ManifestError:
    return ManifestError(
        f"manifest '{url}': expected {expected}, got {got}\n"
        "  Copy it again, or make it again: streamdata index FOLDER. Without it, the folder is listed."
    )


def _checked_entries(kind: str, said: Any, sizes: Int64s) -> Entries:
    """Check what is said of a kind of index: each is of files that are there."""
    columns = _whole_numbers(said, (_ENTRY_COLUMNS, len(said[0])))
    found = np.ascontiguousarray(columns.T).view(ENTRY).reshape(-1)
    files, sidecars, counts, checks = (found[name] for name in ("file", "sidecar", "num_records", "check"))
    num_files = len(sizes)
    is_joined = (sidecars >= 0) & (sidecars < num_files) if kind.startswith(_JOIN) else sidecars == -1
    is_sound = (files >= 0) & (files < num_files) & is_joined & (counts >= 0) & (counts < _MAX_RECORDS)
    is_sound &= (found["skipped"] >= 0) & (found["noted"] >= 0) & (checks >= 0) & (checks < 1 << 32)
    if not is_sound.all() or not (files[1:] > files[:-1]).all() or (counts > sizes[files]).any():
        raise ValueError("an index of what is not there")
    return found


def _whole_numbers(said: Any, shape: tuple[int, ...]) -> Int64s:
    table = np.array(said)
    if table.shape != shape or (table.size and table.dtype != np.int64):
        raise ValueError(f"a table of {table.dtype}, {table.shape}, where whole numbers, {shape}, should be")
    return table.astype(np.int64).reshape(shape)


def place_of(folder: str) -> str:
    """The canonical spelling of a folder; for a local one, its path with links resolved."""
    if is_remote(folder):
        return canonical_url(folder).rstrip("/")
    return os.path.realpath(local_path(folder))


def _is_same_place(one: str, other: str) -> bool:
    """Whether two places are the same; that of a bucket is, too, where a web server gives the bucket."""
    web, store = sorted((one, other), key=lambda place: not place.startswith(("http://", "https://")))
    is_bucket = web.startswith("http") and not store.startswith("http") and "://" in store
    return one == other or (is_bucket and web.endswith("/" + store.partition("://")[2]))


class Manifest:
    """An open manifest of the files below one folder.

    Args:
        url: The manifest.
        said: What it says.
        options: Of the host of its shards, where it is on a disk and they are not.

    Attributes:
        root: What its names are added to.
        indexes_root: What they are added to for the names of their indexes.
        is_copy: Whether it was made for another place: the files have other versions than it says.

    Raises:
        ManifestError: The manifest names a forbidden path, such as one outside of its folder.
    """

    def __init__(self, url: str, said: ShardList, options: StorageOptions = NO_OPTIONS) -> None:
        self.url, self.said = url, said
        self._last: tuple[Sequence[str], Int64s] | None = None
        root = folder_of(url) if said.is_beside else said.place.rstrip("/") + "/"
        where = url if said.is_beside or is_remote(url) or not is_remote(root) else Address(root, options)
        self.root = beside(where, root)
        self.indexes_root = indexes_root(url, self.root, is_beside=said.is_beside)
        self.is_copy = said.is_beside and not _is_same_place(place_of(self.root), said.place)
        is_foreign = is_pipe(self.root) or "::" in self.root or (is_remote(url) and not is_remote(self.root))
        if not said.is_beside and is_foreign:
            raise _damaged(url, "a place as remote as it is itself", repr(said.place))

    @cached_property
    def urls(self) -> list[str]:
        """The urls of all files, sidecars included."""
        root = self.root
        if isinstance(root, Address):
            return [beside(root, root + name) for name in self.said.names]
        return [root + name for name in self.said.names]

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each file, by url."""
        return dict(zip(self.urls, range(len(self.urls)), strict=True))

    @cached_property
    def stamps(self) -> dict[str, FileStamp]:
        """The stamps of all files by url, as the manifest gives them."""
        columns = self.said.sizes.tolist(), self.said.versions.tolist()
        return dict(zip(self.urls, map(FileStamp, *columns), strict=True))

    @cached_property
    def versions(self) -> Int64s:
        """The versions of the files that readers must expect; of a copy those that are there now.

        A file of another size, or that is not there, is still expected as the manifest says: it is an error when read.
        """
        if not self.is_copy:
            return self.said.versions
        listings = Listings()
        if is_remote(self.root) and kind_of(signed_url(self.root)) in _LISTING_VERSIONS:
            with suppress(DeniedError):  # who may read a file need not be allowed to list
                listings.files(self.root)
        there = {**listings.stamps, **stamps_there(url for url in self.urls if url not in listings.stamps)}
        pairs = ((there.get(url, own), own) for url, own in self.stamps.items())
        return np.array([now.version if now.size == own.size else own.version for now, own in pairs], np.int64)

    def shards(self, suffixes: tuple[str, ...], but: str) -> list[str]:
        """The urls of all files that end in one of `suffixes`, except those that end in `but`."""
        names, urls = self.said.names, self.urls
        files = [file for file, name in enumerate(names) if name.endswith(suffixes) and not name.endswith(but)]
        found = list(map(urls.__getitem__, files))
        self._last = found, np.array(files, np.int64)
        return found

    def files_of(self, urls: Sequence[str]) -> Int64s:
        """The number of each url's file in the manifest; -1 for a url that it does not list."""
        if self._last is None or self._last[0] is not urls:  # tars and their sidecars are looked up by the same list
            numbers = self.numbers
            self._last = urls, np.array([numbers.get(url, -1) for url in urls], np.int64)
        return self._last[1]


def indexes_root(url: str, root: str, *, is_beside: bool) -> str:
    """The folder to which names of shards are added for their indexes, by a manifest and the folder of its shards."""
    return root if is_beside else beside(url, url.removesuffix(SUFFIX) + ".indexes/")


def open_manifest(url: str, options: StorageOptions = NO_OPTIONS) -> Manifest | None:
    """Open a manifest; None if there is none, or if its server refuses or ignores ranges.

    Raises:
        ManifestError: It is damaged, is no regular file, or may not be read: without it the list might be another.
        OSError: A local disk fails.
    """
    try:
        if is_remote(url):
            data = _fetched(url)
        else:
            open_files.forget(url)  # another may lie there now than when an earlier reader opened it
            file = opened(url)
            data = file.read(min(file.size, MAX_BYTES), 0)
    except (FileNotFoundError, NotADirectoryError, DeniedError, RangesIgnoredError):
        return None  # some servers say so of what is not there
    except (OSError, ShardError) as error:
        if is_remote(url) or (not isinstance(error, ShardError) and error.errno not in _CLOSED):
            raise  # the disk's error, or the system's
        # It was made to be believed: the folder is not listed in its place.
        raise ManifestError(
            f"manifest '{url}': expected a regular file that can be read, got {error}\n"
            "  Let this user read it, or delete it: without it, the folder is listed."
        ) from error
    return Manifest(url, decode_list(url, data), options)


def _fetched(url: str) -> bytes:
    with network().waiting():
        answer = fetch_once(url, 0, _HEAD_BYTES)
        size = min(answer.size, MAX_BYTES)
        if not answer.data.startswith(_MAGIC) or size <= len(answer.data):
            return answer.data
        return answer.data + fetch_once(url, len(answer.data), size, answer.version).data


class Known(NamedTuple):
    """Facts about files known before they are asked for: from manifests, and from listings of hosts."""

    manifests: Sequence[Manifest] = ()
    stamps: Mapping[str, FileStamp] = MappingProxyType({})


NOTHING_KNOWN = Known()


class Manifests:
    """Opens manifests of folders, each once.

    Args:
        is_used: Whether they are; else there are none.
        options: Of hosts of shards.
    """

    def __init__(self, options: StorageOptions = NO_OPTIONS, *, is_used: bool = True) -> None:
        self._is_used, self._options = is_used, options
        self._found: dict[str, Manifest | None] = {}
        self.used: dict[str, Manifest] = {}
        """The manifests whose shards are among what was found, by url."""

    def at(self, url: str) -> Manifest | None:
        """The manifest at a url."""
        if not self._is_used:
            return None
        if url not in self._found:
            self._found[url] = open_manifest(url, self._options)
        return self._found[url]

    def use(self, manifest: Manifest) -> None:
        """Record that shards of this manifest are read."""
        if manifest.url in self.used:
            return
        self.used[manifest.url] = manifest
        said = manifest.said
        if not manifest.is_copy and said.tags:  # requests for the files say which version is meant
            for (url, stamp), tag in zip(manifest.stamps.items(), said.tags, strict=True):
                note_version(url, stamp, tag)
        if manifest.is_copy:
            logger.warning(
                "manifest '%s' was made for '%s', and was copied: the versions of its files are asked for at each "
                "start; where files can be written, `streamdata index %s` notes them",
                *map(one_line, (manifest.url, said.place, manifest.root)),
            )  # fmt: skip

    def whole(self, folder: str, suffixes: Sequence[str]) -> Manifest | None:
        """The manifest that lists all shards with these suffixes below a folder (with its slash); None without one."""
        manifest = self.at(beside(folder, folder + NAME))
        return manifest if manifest and set(suffixes) <= set(manifest.said.suffixes) else None

    def naming(self, url: str, top: str) -> Manifest | None:
        """The manifest that lists a file: in the folder `top`, in the file's own folder, or between the two."""
        folder = own = folder_of(url)
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

    def __init__(self, urls: Sequence[str], kind: str, manifests: Sequence[Manifest]) -> None:
        count = len(urls)
        self.manifest_of: Int64s = np.full(count, -1, np.int64)
        columns = np.zeros((9, count), np.int64)
        self.num_records, self.skipped, self.first_skipped, self.noted, self.checks = columns[:5]
        self.stamps, self.sidecar_stamps = Stamps(*columns[5:7]), Stamps(*columns[7:])
        self.sidecar_urls, self.is_remote = [""] * count, [False] * count
        self.are_copies = list[bool]()
        self.roots: list[tuple[str, str]] = []
        """The folders to which each manifest's names are added, for files and for their indexes."""
        self.has_rows_in_stores = False
        for number, manifest in enumerate(manifests):
            self.roots.append((manifest.root, manifest.indexes_root))
            self.are_copies.append(manifest.is_copy)
            self.has_rows_in_stores |= is_remote(manifest.indexes_root)
            if kind in manifest.said.indexes:
                self._take(number, manifest, manifest.said.indexes[kind], manifest.files_of(urls))

    def _take(self, number: int, manifest: Manifest, entries: Entries, files: Int64s) -> None:
        """Take in what a manifest says of the shards, which are these of its files; -1 stands for none of them."""
        said = manifest.said
        by_file = np.full(len(said.names) + 1, -1, np.int64)
        by_file[entries["file"]] = np.arange(len(entries))
        of_shard = by_file[files]  # -1 is the last, which is no file's
        (shards,) = np.nonzero((of_shard >= 0) & (self.manifest_of < 0))
        own = entries[of_shard[shards]]
        self.manifest_of[shards] = number
        for name in ("num_records", "skipped", "first_skipped", "noted", "check"):
            column = self.checks if name == "check" else getattr(self, name)
            column[shards] = own[name]
        self.stamps.sizes[shards] = said.sizes[own["file"]]
        self.stamps.versions[shards] = manifest.versions[own["file"]]
        for shard in shards.tolist() if is_remote(manifest.root) else ():
            self.is_remote[shard] = True
        if (own["sidecar"] >= 0).any():
            self.sidecar_stamps.sizes[shards] = said.sizes[own["sidecar"]]
            self.sidecar_stamps.versions[shards] = manifest.versions[own["sidecar"]]
            urls = manifest.urls
            for shard, file in zip(shards.tolist(), own["sidecar"].tolist(), strict=True):
                self.sidecar_urls[shard] = urls[file]


def stamps_known(urls: Sequence[str], known: Known) -> dict[str, FileStamp]:
    """The known stamps of files, in the order of `urls`."""
    stamps = {url: known.stamps[url] for url in urls if url in known.stamps}
    for manifest in known.manifests:
        files = manifest.files_of(urls)
        own = [url for url, file in zip(urls, files.tolist(), strict=True) if file >= 0]
        said = Stamps(manifest.said.sizes, manifest.versions)
        stamps = dict(zip(own, map(said.__getitem__, files[files >= 0].tolist()), strict=True)) | stamps
    return stamps


def stamps_for(urls: Sequence[str], known: Known) -> dict[str, FileStamp]:
    """The stamps of files; hosts are asked for those that are not known."""
    stamps = stamps_known(urls, known)
    unknown = [url for url in urls if url not in stamps]
    return {**stamps, **dict(zip(unknown, stamps_of(unknown), strict=True))}
