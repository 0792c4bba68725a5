"""Shards, their sidecars, indexes and manifests."""

import bz2
import gzip
import io
import json
import lzma
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson
import zstandard

from streamdata import CsvDataset, JsonlIterableDataset, MetaDistributedWebDataset, StreamdataError
from streamdata.shards.index import index_file
from streamdata.shards.index.indexing import KINDS as INDEXES
from streamdata.shards.index.make_manifest import make_manifest, take_stock
from streamdata.shards.jsonl.shards import JsonlShards
from streamdata.shards.sequential import SequentialJsonl, SequentialTar
from streamdata.shards.tar.shards import TarShards
from tests.fuzz.case import Files, Kind, Packing, write_files

PACKINGS = {
    "gz": Packing(gzip.compress, gzip.decompress),
    "bz2": Packing(bz2.compress, bz2.decompress),
    "xz": Packing(lzma.compress, lzma.decompress),
    "zst": Packing(
        zstandard.ZstdCompressor(write_checksum=True).compress,
        lambda packed: zstandard.ZstdDecompressor().decompressobj().decompress(packed),
    ),
}
_PAX = tarfile.PAX_FORMAT
_TAR_WORDS = (
    b"ustar\00000", b"ustar  \0", b"././@LongLink", b"30 mtime=1700000000.123456789\n", b"12 path=a.b\n",
    b"9 path=\n", b"17 size=123456789\n", b"6 a=b\n", b"999999 a=b\n", b"22 GNU.sparse.major=1\n", bytes(512),
    bytes(1024), b"\x80" + b"\xff" * 11, b"\x80" + bytes(10) + b"\x05", b"\xff" * 12, b"0000001\0", b"__key__", b".id",
)  # fmt: skip
LINES = (
    b'{"value": 1, "text": "one"}', b'{"value": -9223372036854775808, "text": "\\u00e9\\n", "nested": {"a": [1, 2.5]}}',
    b"", b'  {"value": 18446744073709551615, "flag": true, "none": null}\r', b'{"a": "\xf0\x9f\x98\x80"}',
)  # fmt: skip
JSON_WORDS = (
    b"\n", b"\r\n", b"\n\n", b"{}", b"[]", b"null", b"NaN", b'"\\ud800"', b"[" * 5000, b'{"a":' * 2000, b"1" * 5000,
    b"18446744073709551616", b"-9223372036854775809", b"1e999", b"\xef\xbb\xbf", b"\xff\xfe", b'{"__key__": 1}\n',
    b'{"__url__": 1}', b'"key": 1', b'"key": "r0"', b"\0", b'{"key": "r0", "score": 1}\n', b'{"a": 1, "a": 2}\n',
)  # fmt: skip


def _archive(members: Iterable[tuple[str, bytes]], form: int = tarfile.USTAR_FORMAT, mtime: float = 0) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), mtime
            if name.endswith("/"):
                info.type = tarfile.DIRTYPE
            archive.addfile(info, io.BytesIO(content))
    content = buffer.getvalue()
    return content[: len(content.rstrip(b"\0")) // 512 * 512 + 512 * 3]


def tars() -> list[bytes]:
    """Archives of three records: plain, with pax headers, with long names, with what is no record."""
    plain = [(f"r{number}.{name}", f"{name} of {number}".encode()) for number in range(3) for name in ("txt", "json")]
    long = [("x" * 120 + f"/{number}.bin", bytes([number]) * 700) for number in range(3)]
    odd = [("d/", b""), ("README", b"no key"), ("d/r0.txt", b"a"), ("d/r0.id", b"7"), ("r1.TXT.gz", b""), ("é.b", b"c")]
    return [
        _archive(plain),
        _archive(plain, _PAX, mtime=1.5),
        _archive(long, tarfile.GNU_FORMAT),
        _archive(long, _PAX),
        _archive(odd, _PAX),
    ]


def with_sums_of_headers(content: bytes) -> bytes:
    """An archive whose headers' checksums fit."""
    data = bytearray(content)
    for at in range(0, len(data) - 511, 512):
        header = data[at : at + 512]
        if header[257:262] == b"ustar":
            header[148:156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % sum(header)
    return bytes(data)


def _all_of(shards: Any, shard: int = 0) -> list[Any]:
    """All records of an indexed shard, in two sequences that must say the same."""
    count = int(shards.num_records[shard])
    window = shards.window(*(np.array([number]) for number in (shard, 0, count)))
    assert len(window) == count, f"a window of {len(window)} records, the index has {count}"
    forward = list(window.take(range(count)))
    backward = list(window.take(range(count - 1, -1, -1)))
    assert repr(forward) == repr(backward[::-1]), "records differ by the sequence in which they are taken"
    assert len(forward) == count, f"{len(forward)} records, the index has {count}"
    return forward


def _sound(records: Any) -> Any:
    """The records; the first that is damaged is raised, as a source without `max_bad` does."""
    for record in records:
        if isinstance(record, StreamdataError):
            raise record
        yield record


def _both(read_indexed: Callable[[], Any], read_through: Callable[[], Any]) -> Any:
    """What two ways of reading give, which must be the same; an error of one is an error of the other."""
    found: list[Any] = []
    errors: list[StreamdataError] = []
    for read in (read_indexed, read_through):
        try:
            found.append(sorted(map(_without_order, _sound(read()))))
        except StreamdataError as error:
            errors.append(error)
    assert len(errors) != 1, f"one way of reading gives {errors[0]!r}, the other {found}"
    if errors:
        raise errors[0]
    assert found[0] == found[1], f"read by its index it gives {found[0]}\n  and read through {found[1]}"
    return found[0]


def _without_order(record: dict[str, Any]) -> str:
    return repr(sorted(record.items(), key=lambda item: item[0].encode("utf-8", "surrogatepass")))


def _read_tar(folder: Path) -> Any:
    url = str(folder / "a.tar")
    return _both(lambda: _all_of(TarShards([url])), lambda: list(SequentialTar([url]).stream(0)))


def _read_joined(folder: Path) -> Any:
    url = str(folder / "a.tar")
    return _both(lambda: _all_of(TarShards([url], ["score"])), lambda: list(SequentialTar([url], ["score"]).stream(0)))


def _read_jsonl(folder: Path) -> Any:
    url = str(folder / "a.jsonl")
    return _both(lambda: _all_of(JsonlShards([url])), lambda: list(SequentialJsonl([url]).stream(0)))


def _read_indexed(shards: Callable[[str], Any], name: str, folder: Path) -> Any:
    return _all_of(shards(str(folder / name)))


def _read_through(dataset: Callable[..., Any], name: str, folder: Path) -> Any:
    return list(dataset(str(folder / name)).source.shards.stream(0))


_read_csv = partial(_read_through, CsvDataset, "a.csv")


def _read_listed(dataset: Callable[..., Any], folder: Path) -> Any:
    shards = dataset(str(folder)).source.shards
    assert all(Path(url).resolve().parent == folder.resolve() for url in shards.urls), f"got {shards.urls}"
    return [_all_of(shards, shard) for shard in range(len(shards.urls))]


def _with_written(files: Files, write: Callable[[Path], object]) -> Files:
    """The files, and those that are written beside them."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder, files)
        write(folder)
        return {path.name: path.read_bytes() for path in folder.iterdir()}


def with_sums_of_index(content: bytes) -> bytes:
    """An index whose checksums fit."""
    head = content[: index_file.HEADER_BYTES - 4]
    if len(head) < index_file.HEADER_BYTES - 4:
        return content
    row_bytes, count = struct.unpack_from("<I", head, 20)[0], struct.unpack_from("<Q", head, 56)[0]
    body, check = content[index_file.HEADER_BYTES :], zlib.crc32(head)
    step = max(1, index_file.CHUNK_ROWS * row_bytes)
    rows = b"".join(body[at : at + step] for at in range(0, len(body), step + 4))
    rows = rows[: (count + 1) * row_bytes] if count < len(body) else rows
    chunks = (rows[at : at + step] for at in range(0, len(rows), step))
    return head + struct.pack("<I", check) + b"".join(c + struct.pack("<I", zlib.crc32(c, check)) for c in chunks)


def with_sum_of_manifest(content: bytes) -> bytes:
    """A manifest whose checksum fits."""
    head, newline, body = content.partition(b"\n")
    return head[:-8] + b"%08x" % zlib.crc32(body) + newline + body


def _manifest_parsed(content: bytes) -> Any:
    """What a sound manifest says."""
    return orjson.loads(content.partition(b"\n")[2])


def _manifest_dumped(tree: Any) -> bytes:
    """A manifest that says this, with a checksum that fits."""
    return with_sum_of_manifest(b"streamdata manifest 2, CRC32 ........\n" + json.dumps(tree).encode())


MANIFEST = (_manifest_parsed, _manifest_dumped)


def _joined() -> list[Files]:
    by_key = b'{"key": "r0", "score": 1}\n\n{"key": "r2", "score": [1, 2]}\n{"key": "r1"}\n{"key": "x"}\n'
    by_id = b'{"key": 7, "score": 0.5}\n'
    tar = tars()
    return [{"a.tar": tar[0], "a.meta.jsonl": by_key}, {"a.tar": tar[4], "a.meta.jsonl": by_id}]


def _lines() -> list[bytes]:
    return [b"\n".join(LINES) + b"\n", b"\xef\xbb\xbf" + b"\n".join(LINES[:2]), b'{"n": 1}\n' * 600]


def _tables() -> list[bytes]:
    return [b'a,b,c\r\n1,"x, ""y""",\r\n\r\n\xc3\xa9,"line\nline",3\r\n', b"\xef\xbb\xbfname\nx\ny"]


def _indexed(files: Iterable[Files], read: Callable[[Path], object]) -> list[Files]:
    return [_with_written(one, read) for one in files]


def _listed(files: Files) -> Files:
    return _with_written(files, lambda folder: make_manifest(take_stock([str(folder)]), num_processes=1))


def _named(name: str, contents: Callable[[], Iterable[bytes]]) -> list[Files]:
    return [{name: content} for content in contents()]


def _index_kind(kind: str, name: str, sound: Callable[[], Iterable[Files]], shards: Callable[[str], Any]) -> Kind:
    read = partial(_read_indexed, shards, name)
    target = f".{name}.{kind}.index"
    assert kind in INDEXES, f"no index is called {kind}"
    return Kind(f"index-{kind}", target, lambda: _indexed(sound(), read), read, with_sums_of_index)


_CSV_WORDS = (b'"', b'""', b",", b"\n", b"\r", b"\r\n", b'"\n",', b"\0", b"\xff", b"__url__,", b"a,a,a\n")
_MANIFEST_LEAVES = (
    "a.tar", "a.jsonl", "b.jsonl", "a.meta.jsonl", "../a.jsonl", "/etc/passwd", "pipe:true", "tar", "join", -1, 8, 12,
    512, 10**18,
)  # fmt: skip


def _packed(name: str, contents: Callable[[], Iterable[bytes]], packing: Packing) -> list[Files]:
    return [{name: packing.pack(content)} for content in contents()]


def _compressed(suffix: str, packing: Packing) -> list[Kind]:
    """Kinds of shards that are compressed so."""
    found = []
    for name, contents, dataset, words, repair in (
        ("tar", tars, MetaDistributedWebDataset, _TAR_WORDS, with_sums_of_headers),
        ("jsonl", _lines, JsonlIterableDataset, JSON_WORDS, None),
        ("csv", _tables, CsvDataset, _CSV_WORDS, None),
    ):
        file = f"a.{name}.{suffix}"
        sound, read = partial(_packed, file, contents, packing), partial(_read_through, dataset, file)
        found.append(Kind(f"{name}.{suffix}", file, sound, read, repair, packing, words=words))
    return found


KINDS = [
    Kind("tar", "a.tar", partial(_named, "a.tar", tars), _read_tar, with_sums_of_headers, words=_TAR_WORDS),
    Kind("sidecar", "a.meta.jsonl", _joined, _read_joined, words=JSON_WORDS),
    Kind("jsonl", "a.jsonl", partial(_named, "a.jsonl", _lines), _read_jsonl, words=JSON_WORDS),
    Kind("csv", "a.csv", partial(_named, "a.csv", _tables), _read_csv, words=_CSV_WORDS),
    *(kind for suffix, packing in PACKINGS.items() for kind in _compressed(suffix, packing)),
    _index_kind("tar", "a.tar", partial(_named, "a.tar", tars), lambda url: TarShards([url])),
    _index_kind("join", "a.tar", _joined, lambda url: TarShards([url], ["score"])),
    _index_kind("jsonl", "a.jsonl", partial(_named, "a.jsonl", _lines), lambda url: JsonlShards([url])),
    Kind(
        "manifest-tar", "streamdata.manifest", lambda: [_listed(files) for files in _joined()],
        partial(_read_listed, partial(MetaDistributedWebDataset, meta_names=["score"])), with_sum_of_manifest,
        tree=MANIFEST, leaves=_MANIFEST_LEAVES, allowed=(StreamdataError, FileNotFoundError),
    ),
    Kind(
        "manifest-jsonl", "streamdata.manifest", lambda: [_listed({"a.jsonl": b"{}\n" * 700, "b.jsonl": _lines()[0]})],
        partial(_read_listed, JsonlIterableDataset), with_sum_of_manifest,
        tree=MANIFEST, leaves=_MANIFEST_LEAVES, allowed=(StreamdataError, FileNotFoundError),
    ),
]  # fmt: skip
