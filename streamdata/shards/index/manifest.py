"""The manifest of shards: which there are, of which size and version, and the rows of all their indexes, in one file.

`folder → its manifest → urls, sizes, versions, numbers of records; runs of records → chunks of rows, when needed`

Layout, little-endian: a header (`_HEADER`: magic, format version, bytes of the text, of the directory and of the whole
file, CRC32 of the directory; then the CRC32 of the header), the directory, the rows. The directory is a text (JSON: the
place for which it was made, suffixes, how many of what follow), the names and the tags of the files (UTF-8, a line
each), their sizes and versions (int64), and for each kind of index what it says of the shards (`ENTRY`). The rows of an
index lie in chunks of 512 with a CRC32 after each, so that any run of records is one read.

A manifest comes with the data, from anywhere: nothing in it is believed that could lead out of its folder or beyond its
own end, and where the rows point is checked where they are used.
"""

import os
import struct
import zlib
from collections.abc import Sequence
from functools import cached_property
from operator import lt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from streamdata.errors import ShardError, shown
from streamdata.io.remote.addresses import Address, beside
from streamdata.io.remote.hosts import canonical_url
from streamdata.io.storage import ANY_VERSION, FileStamp, Int64s, is_pipe, is_remote, local_path
from streamdata.shards.index.index_file import CHUNK_ROWS

NAME = "streamdata.manifest"
SUFFIX = ".manifest"
NO_FILE = 2**32 - 1
ENTRY = np.dtype(
    [("file", "<u4"), ("sidecar", "<u4")]
    + [(name, "<i8") for name in ("num_records", "skipped", "first_skipped", "noted", "offset")]
)  # fmt: skip
"""The entry of a manifest for the index of one shard; its rows begin at `offset` from the end of the directory."""
_MAGIC = b"sdmanif\n"
_FORMAT = 1
_HEADER = struct.Struct("<8sIIQQI")
_CRC = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CRC.size
MAX_DIRECTORY_BYTES = 4 << 30
_MAX_RECORDS = 1 << 48
_JOIN = "join"  # begins the kinds of indexes of shards with their sidecars
_OUTSIDE = {
    b"/": (b"\n/", b"/\n", b"//", b"/./", b"/../", b"/.\n", b"/..\n"),
    b"\n.": (b"\n./", b"\n../", b"\n.\n", b"\n..\n"),
    **{wrong: (wrong,) for wrong in (b"\n\n", b"\npipe:", b"::", b"\0", b"\r", b"\\")},
}
"""Texts that no list of relative names, a line each, has in it, by what they have in common: where a list has none of
that, it is not looked through for each. `::` would chain file systems."""

Entries = npt.NDArray[np.void]


class ManifestError(ShardError):
    """A manifest is damaged, or is not the version that was opened."""


class Directory(NamedTuple):
    """The directory of a manifest: everything except the index rows."""

    place: str  # the folder for which it was made
    is_beside: bool  # whether the names are those of files beside the manifest, wherever that is; else below `place`
    suffixes: tuple[str, ...]  # of the shards of which it lists all below its folder
    names: list[str]  # sorted
    tags: list[str]  # what the files' server calls their versions; empty for local files
    sizes: Int64s
    versions: Int64s
    indexes: dict[str, Entries]  # by kind, sorted by file


def rows_bytes(num_records: int, row_bytes: int) -> int:
    """The size of an index's rows: one more row than records, and a CRC32 per chunk."""
    return (num_records + 1) * row_bytes + _CRC.size * (num_records // CHUNK_ROWS + 1)


def encode_rows(rows: bytes, row_bytes: int) -> bytes:
    """Encode the rows of an index in chunks, each with its CRC32."""
    step = CHUNK_ROWS * row_bytes
    chunks = (rows[at : at + step] for at in range(0, len(rows), step))
    return b"".join(part for chunk in chunks for part in (chunk, _CRC.pack(zlib.crc32(chunk))))


def encode_directory(directory: Directory, row_sizes: dict[str, int], num_bytes: int) -> bytes:
    """Encode the header and directory of a manifest.

    Args:
        directory: What it says.
        row_sizes: Bytes of a row, by kind of index.
        num_bytes: Of all rows.

    Raises:
        ShardError: A name cannot be kept.
    """
    names = _lines(directory.names)
    wrong = _outside(names) or (b"\n" if names.count(b"\n") >= max(1, len(directory.names)) else None)
    if wrong:
        framed = ((name, name.encode("utf-8", "surrogateescape")) for name in directory.names)
        name = next((name for name, own in framed if wrong in (own if wrong == b"\n" else b"\n%b\n" % own)), "")
        raise ShardError(
            f"manifest of '{directory.place}': expected plain names of files, got {shown(name)}\n  Rename the file."
        )
    tags = _lines(directory.tags)
    text = orjson.dumps({
        "place": directory.place, "beside": directory.is_beside, "suffixes": directory.suffixes,
        "files": len(directory.names), "name_bytes": len(names), "tag_bytes": len(tags),
        "indexes": {kind: [len(entries), row_sizes[kind]] for kind, entries in sorted(directory.indexes.items())},
    })  # fmt: skip
    columns = [directory.sizes.astype("<i8"), directory.versions.astype("<i8")]
    tables = [entries for _, entries in sorted(directory.indexes.items())]
    body = b"".join([text, names, tags, *(column.tobytes() for column in (*columns, *tables))])
    size = HEADER_BYTES + len(body) + num_bytes
    header = _HEADER.pack(_MAGIC, _FORMAT, len(text), len(body), size, zlib.crc32(body))
    return header + _CRC.pack(zlib.crc32(header)) + body


def _lines(names: Sequence[str]) -> bytes:
    return "\n".join(names).encode("utf-8", "surrogateescape")


def _outside(names: bytes) -> bytes | None:
    """Find what in the names could lead out of their folder, or is no name of a file."""
    if not names:
        return None
    framed = b"\n" + names + b"\n"
    possible = (wrong for common, several in _OUTSIDE.items() if common in framed for wrong in several)
    return next((wrong for wrong in possible if wrong in framed), None)


class ManifestFrame(NamedTuple):
    """The lengths of the parts of a manifest."""

    text: int
    directory: int
    size: int
    crc: int

    @property
    def rows_at(self) -> int:
        """The offset of the rows in the file."""
        return HEADER_BYTES + self.directory


def decode_header(url: str, head: bytes, size: int) -> ManifestFrame:
    """Read the lengths of a manifest's parts from its header.

    Args:
        url: The manifest, for messages.
        head: Its beginning.
        size: Bytes of the file.

    Raises:
        ManifestError: The bytes are not a manifest's header, or damaged; or the file has another size.
    """
    if len(head) < HEADER_BYTES:
        raise _damaged(url, f"at least {HEADER_BYTES} bytes", f"{len(head)}")
    magic, version, text, directory, own_size, crc = _HEADER.unpack_from(head)
    if (magic, version) != (_MAGIC, _FORMAT):
        raise _damaged(url, f"the format {_MAGIC!r} {_FORMAT}", f"{shown(magic)} {version}")
    if zlib.crc32(head[: _HEADER.size]) != _CRC.unpack_from(head, _HEADER.size)[0]:
        raise _damaged(url, "a header that fits its CRC32", "another")
    frame = ManifestFrame(text, directory, own_size, crc)
    if not text <= directory <= MAX_DIRECTORY_BYTES or frame.rows_at > own_size:
        raise _damaged(url, f"a text and a directory within {own_size} bytes", f"{text} and {directory} bytes")
    if own_size != size:
        raise ManifestError(
            f"manifest '{url}': expected {own_size} bytes, got {size}\n"
            "  It was cut short: copy it again, or make it again: streamdata index FOLDER."
        )
    return frame


def decode_directory(url: str, frame: ManifestFrame, body: bytes, row_sizes: dict[str, int]) -> Directory:
    """Decode the directory of a manifest.

    Args:
        url: The manifest, for messages.
        frame: Of its header.
        body: Its directory.
        row_sizes: Bytes of a row, by kind of index; other kinds are passed over.

    Raises:
        ManifestError: It is damaged, or says what cannot be.
    """
    if len(body) != frame.directory or zlib.crc32(body) != frame.crc:
        raise _damaged(url, f"a directory of {frame.directory} bytes that fits its CRC32", f"{len(body)} other bytes")
    try:
        return _Decoder(body, frame, row_sizes).directory()
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # whatever a stranger wrote there
        raise _damaged(url, "a directory as this version writes it", f"{type(error).__name__}: {error}") from error


def _damaged(url: str, expected: str, got: str) -> ManifestError:
    return ManifestError(
        f"manifest '{url}': expected {expected}, got {got}\n"
        "  Copy it again, or make it again: streamdata index FOLDER. Without it, the folder is listed."
    )


class _Decoder:
    """Takes a directory apart. Raises ValueError, KeyError or TypeError where it is not one."""

    def __init__(self, body: bytes, frame: ManifestFrame, row_sizes: dict[str, int]) -> None:
        self._body, self._at = body, frame.text
        self._row_sizes, self._num_bytes = row_sizes, frame.size - frame.rows_at
        self._text = orjson.loads(body[: frame.text])

    def directory(self) -> Directory:
        text = self._text
        num_files = _whole(text["files"])
        place, is_beside, suffixes = text["place"], text["beside"], text["suffixes"]
        if not (isinstance(place, str) and isinstance(is_beside, bool) and all(isinstance(s, str) for s in suffixes)):
            raise ValueError("a place, or suffixes, of another type")
        names = self._names(_whole(text["name_bytes"]), num_files)
        tags = self._take(_whole(text["tag_bytes"])).decode("utf-8", "surrogateescape")
        sizes, versions = (np.frombuffer(self._take(8 * num_files), "<i8") for _ in range(2))
        if num_files and int(sizes.min()) < 0:
            raise ValueError("a file of less than 0 bytes")
        indexes = {}
        for kind, (count, row_bytes) in sorted(text["indexes"].items()):
            entries = np.frombuffer(self._take(ENTRY.itemsize * _whole(count)), ENTRY)
            if self._row_sizes.get(kind) == row_bytes:
                self._check(entries, row_bytes, num_files, has_sidecars=kind.startswith(_JOIN))
                indexes[kind] = entries
        if self._at != len(self._body):
            raise ValueError(f"{len(self._body) - self._at} bytes more")
        tag_list = tags.split("\n") if tags else []
        if len(tag_list) not in (0, num_files):
            raise ValueError(f"{len(tag_list)} tags")
        return Directory(place, is_beside, tuple(suffixes), names, tag_list, sizes, versions, indexes)

    def _take(self, size: int) -> bytes:
        part = self._body[self._at : self._at + size]
        if len(part) != size:
            raise ValueError(f"{len(part)} bytes where {size} should be")
        self._at += size
        return part

    def _names(self, size: int, count: int) -> list[str]:
        joined = self._take(size)
        names = joined.decode("utf-8", "surrogateescape").split("\n") if joined else []
        if len(names) != count or (wrong := _outside(joined)):
            raise ValueError(
                f"{len(names)} names of {count} files" if len(names) != count else f"{shown(wrong)} in a name"
            )
        if not all(map(lt, names, names[1:])):
            raise ValueError("names that are not sorted, or not different")
        return names

    def _check(self, entries: Entries, row_bytes: int, num_files: int, *, has_sidecars: bool) -> None:
        """Raise unless all entries are of files that are there, and of rows within the manifest."""
        files, sidecars = entries["file"].astype(np.int64), entries["sidecar"].astype(np.int64)
        counts, offsets = entries["num_records"], entries["offset"]
        ends = offsets + (counts + 1) * row_bytes + _CRC.size * (counts // CHUNK_ROWS + 1)
        is_sound = (
            (files < num_files) & (sidecars < num_files if has_sidecars else sidecars == NO_FILE)
            & (counts >= 0) & (counts < _MAX_RECORDS) & (offsets >= 0) & (offsets <= self._num_bytes)
            & (ends <= self._num_bytes) & (entries["skipped"] >= 0) & (entries["noted"] >= 0)
        )  # fmt: skip
        if not is_sound.all() or not (files[1:] > files[:-1]).all():
            raise ValueError("an index of what is not there")


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{shown(value)} where a number should be")
    return value


def place_of(folder: str) -> str:
    """The canonical spelling of a folder; for a local one, its path with links resolved."""
    if is_remote(folder):
        return canonical_url(folder).rstrip("/")
    return os.path.realpath(local_path(folder))


def folder_of(url: str) -> str:
    """The folder of a file, with a final slash; "" for a file without a folder."""
    return url[: url.rfind("/") + 1]


class Manifest:
    """An open manifest of the files below one folder.

    Args:
        url: The manifest.
        directory: What it says.

    Attributes:
        root: What its names are added to.
        is_copy: Whether it was made for another place: the files' versions are not those that it says.

    Raises:
        ManifestError: The manifest names a forbidden path, such as one outside of its folder.
    """

    def __init__(self, url: str, directory: Directory) -> None:
        self.url, self.directory = url, directory
        self._last: tuple[Sequence[str], Int64s] | None = None
        root = folder_of(url) if directory.is_beside else directory.place.rstrip("/") + "/"
        self.root = beside(url, root) if directory.is_beside or is_remote(root) else root
        self.is_copy = directory.is_beside and place_of(self.root) != directory.place
        is_foreign = is_pipe(self.root) or "::" in self.root or (is_remote(url) and not is_remote(self.root))
        if not directory.is_beside and is_foreign:
            raise _damaged(url, "a place as remote as it is itself", repr(directory.place))

    @cached_property
    def urls(self) -> list[str]:
        """The urls of all files, sidecars included."""
        root = self.root
        if isinstance(root, Address):
            return [beside(root, root + name) for name in self.directory.names]
        return [root + name for name in self.directory.names]

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each file, by url."""
        return dict(zip(self.urls, range(len(self.urls)), strict=True))

    @cached_property
    def stamps(self) -> dict[str, FileStamp]:
        """The stamps of all files by url, as the manifest gives them."""
        columns = self.directory.sizes.tolist(), self.directory.versions.tolist()
        return dict(zip(self.urls, map(FileStamp, *columns), strict=True))

    @cached_property
    def versions(self) -> Int64s:
        """The versions of the files that readers must expect."""
        own = self.directory.versions
        return np.full_like(own, ANY_VERSION) if self.is_copy else own

    def shards(self, suffixes: tuple[str, ...], but: str) -> list[str]:
        """The urls of all files that end in one of `suffixes`, except those that end in `but`."""
        names, urls = self.directory.names, self.urls
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
