"""What is larger than the limits is an error before it is in memory."""

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamdata import (
    CsvDataset,
    ImageJsonlDataset,
    JsonlIterableDataset,
    MetaDistributedWebDataset,
    PreferenceDataset,
    RLHFDataset,
    SFTChatDataset,
    ShardError,
    SourceError,
    StreamdataError,
)
from streamdata.io.streams import MAX_EMPTY_STREAMS, ForwardStream
from streamdata.recipe.limits import ShardLimits
from streamdata.shards.jsonl.lines import lines_of
from streamdata.shards.jsonl.shards import JsonlShards
from streamdata.shards.parquet.rows import ParquetRows
from streamdata.shards.tar import headers as tar_headers
from streamdata.shards.tar import records as tar_records
from streamdata.shards.tar.headers import MAX_EXTENSIONS, members_of
from streamdata.shards.tar.shards import TarShards
from tests.cpu import cpu_within
from tests.memory import begin_peak, peak
from tests.shards.conftest import read_from_start

zstandard = pytest.importorskip("zstandard")
LINE = b'{"a": "' + b"x" * 91 + b'"}'  # 100 bytes


def header(name: str, size: int = 0, kind: bytes = b"0") -> bytes:
    """A header of a tar, without the member."""
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(format=tarfile.GNU_FORMAT)


def members(content: bytes, **kwargs: int) -> list[bytes]:
    """The names of the members of an archive that is read forward."""
    return [member.name for member in members_of(ForwardStream("a.tar", io.BytesIO(content)), "a.tar", **kwargs)]


def records(dataset: object) -> list[dict]:
    """All records of a source whose shards are read from their start."""
    return list(dataset.source.shards.stream(0))


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
@pytest.mark.parametrize("before", [b"", b'{"b": 1}\n' * 200_000])
def test_a_line_of_just_the_limit_is_read_and_a_longer_one_is_not(before: bytes, end: bytes) -> None:
    """Wherever it stands, with or without its end; the error names the line."""
    content, num = before + LINE + end, len(before) // 9 + 1
    limit = 100 + (end == b"\r\n")
    lines = lines_of(ForwardStream("a.jsonl", io.BytesIO(content)), "a.jsonl", max_bytes=limit)
    assert sum(len(piece.starts) for piece in lines) == num
    with pytest.raises(ShardError, match=rf"a.jsonl:{num}: expected a line of at most {limit - 1} bytes.*\n.*line_byt"):
        list(lines_of(ForwardStream("a.jsonl", io.BytesIO(content)), "a.jsonl", max_bytes=limit - 1))


def test_a_compressed_line_is_refused_before_all_of_it_is_unpacked(tmp_path: Path) -> None:
    """By the source's own limit."""
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n' + LINE))
    assert len(records(JsonlIterableDataset(str(path), limits={"line_bytes": 100}))) == 2
    with pytest.raises(ShardError, match=r"a\.jsonl\.gz:2: expected a line of at most 99 bytes"):
        records(JsonlIterableDataset(str(path), limits={"line_bytes": 99}))


def test_a_row_over_many_lines_counts_as_one(tmp_path: Path) -> None:
    """Else the quotes of 3 GB of short lines would be one row in memory; rows before it are delivered."""
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n1,2\n" + b'"\n",' * 30))
    rows = CsvDataset(str(path), limits={"line_bytes": 100}).source.shards.stream(0)
    assert next(rows)["b"] == "2"
    with pytest.raises(ShardError, match=r"a\.csv\.gz:28: expected a line of at most 100 bytes, got at least 102"):
        next(rows)


def read_to_the_end(path: Path) -> None:
    """Read whatever its name says; of JSON Lines, which are indexed, the record after the first."""
    if path.name == "a.meta.jsonl":
        shards = MetaDistributedWebDataset(str(path.with_name("a.tar")), meta_names=["m"]).source.shards
        list(shards.window(*[np.array([number]) for number in (0, 0, 2)]).take([0, 1]))
    elif path.name == "a.jsonl":
        shards = JsonlIterableDataset(str(path)).source.shards
        assert shards.anomalies() == {"blank lines": 3_000_000}
        list(shards.window(*[np.array([number]) for number in (0, 1, 1)]).take([0]))
    else:
        read_from_start(JsonlIterableDataset(str(path)).source.shards)


@pytest.mark.parametrize("blank", [b"\n", b"\r\n"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.meta.jsonl"])
def test_many_blank_lines_take_no_time(name: str, blank: bytes, write_tar: Callable[..., str], tmp_path: Path) -> None:
    """The line after them keeps its number, which errors tell; a Python loop took four seconds for ten megabytes."""
    content = b'{"key": "0"}\n' + blank * 3_000_000 + b"{\n"
    (tmp_path / name).write_bytes(gzip.compress(content, 1) if name.endswith("gz") else content)
    write_tar([("0.a", b""), ("1.a", b"")], "a.tar")
    with cpu_within(0.7), pytest.raises(ShardError, match=rf"{name}:3000002:"):
        read_to_the_end(tmp_path / name)


@pytest.mark.parametrize("before", [b"", b'{"a": 1}\n' * 200_000])
def test_blank_lines_in_a_row_are_bounded_like_a_line(before: bytes) -> None:
    """A file of nothing else has no end; the error names the first. With something between them they may be more."""
    number = len(before) // 9 + 1
    of = lambda content: lines_of(ForwardStream("a.jsonl", io.BytesIO(before + content)), "a.jsonl", max_bytes=100)  # noqa: E731
    assert sum(piece.num_blank for piece in of((b" \n" * 50 + b"{}\n") * 3)) == 150
    for content in (b"\n" * 101, b" \n" * 51 + b"{}", b"\n" * 3_000_000):
        with pytest.raises(ShardError, match=rf"a\.jsonl:{number}: expected blank lines in a row of at most 100 bytes"):
            list(of(content))


def test_limits_are_checked_again_where_an_index_is_there(tmp_path: Path) -> None:
    """It may have been built under others; blank lines behind a line do not count."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n" + LINE + b"\n" + b"\n" * 9 + LINE[1:])
    shards = JsonlShards([str(path)])
    runs = [np.array([number]) for number in (0, 0, 2)]
    assert len(JsonlShards([str(path)], limits=ShardLimits(line_bytes=100)).window(*runs)) == 2
    with pytest.raises(ShardError, match=r"a\.jsonl:2: expected a line of at most 99 bytes"):
        JsonlShards([str(path)], limits=ShardLimits(line_bytes=99)).window(*runs)
    assert len(shards.window(*runs)) == 2


def test_blank_lines_are_checked_again_where_an_index_is_there(tmp_path: Path) -> None:
    """It may have been built when they had no bound."""
    (tmp_path / "a.jsonl").write_bytes(b"{}\n" + b"\n" * 101 + b"{}")
    path, runs = str(tmp_path / "a.jsonl"), [np.array([number]) for number in (0, 0, 2)]
    JsonlShards([path])
    with pytest.raises(ShardError, match=r"a\.jsonl:1, behind it: expected blank lines in a row of at most 100 bytes"):
        JsonlShards([path], limits=ShardLimits(line_bytes=100)).window(*runs)
    assert len(JsonlShards([path], limits=ShardLimits(line_bytes=101)).window(*runs)) == 2


def test_a_member_is_refused_by_its_header(write_tar) -> None:
    """When it is indexed, streamed, and read by an index of other limits; a record may have more in all."""
    url = write_tar([("0.a", b"x" * 600), ("0.b", b"x" * 600)])
    runs = [np.array([number]) for number in (0, 0, 1)]
    small = ShardLimits(member_bytes=599)
    with pytest.raises(ShardError, match=r"offset 0, member '0.a': .* at most 599 bytes, got 600\n.*member_bytes: 600"):
        TarShards([url], limits=small)
    assert len(TarShards([url], limits=ShardLimits(member_bytes=600)).window(*runs)) == 1
    with pytest.raises(ShardError, match="at most 599 bytes"):
        TarShards([url], limits=small).window(*runs)
    with pytest.raises(ShardError, match="at most 599 bytes"):
        members(Path(url).read_bytes(), max_bytes=599)


def read_tar(path: Path) -> int:
    """How many records there are, of an archive by its index or read from its start."""
    dataset = MetaDistributedWebDataset(str(path))
    return dataset.num_records if path.suffix == ".tar" else len(records(dataset))


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
@pytest.mark.parametrize(
    ("first", "more", "where"),
    [("0.a", "0.{}", "of record '0'"), ("0.a", "no field {}", "of record '0'"), ("no", "no {}", "before the first")],
)
def test_the_members_of_a_record_have_a_bound(
    name: str, first: str, more: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those between it and the next one, too; 400,000 took 4 s and 300 MB. Each record begins anew."""
    monkeypatch.setattr(tar_records, "MAX_MEMBERS", 100)
    path, pack = tmp_path / name, gzip.compress if name.endswith(".gz") else bytes
    others = b"".join(header(more.format(number)) for number in range(99))
    path.write_bytes(pack(header(first) + others + header("1.a") + header("1.b") + bytes(1024)))
    assert read_tar(path) == 2 - (first == "no")
    path.write_bytes(pack(header(first) + others + header(more.format("x")) + bytes(1024)))
    with pytest.raises(ShardError, match=rf"offset 51200, .*: expected at most 100 members {where}"):
        read_tar(path)


def test_a_sidecar_has_lines_too(write_tar, tmp_path: Path) -> None:
    """A member may be large where they are small."""
    url = write_tar([("0.a", b"x" * 600)])
    Path(url).with_suffix(".meta.jsonl").write_bytes(b'{"key": "0", "m": "' + b"x" * 80 + b'"}\n')
    assert MetaDistributedWebDataset(url, meta_names=["m"], limits={"line_bytes": 101}).num_records == 1
    shards = MetaDistributedWebDataset(url, meta_names=["m"], limits={"line_bytes": 100}).source.shards
    with pytest.raises(ShardError, match="expected a line of at most 100 bytes"):
        shards.window(*[np.array([number]) for number in (0, 0, 1)])


def test_a_row_of_csv_has_a_limit(tmp_path: Path) -> None:
    """Of a line, as of JSON Lines."""
    (tmp_path / "a.csv").write_text("a,b\n1,2\n" + "x" * 50 + ",3\n")
    with pytest.raises(ShardError, match=r"a\.csv:3: expected a line of at most 40 bytes"):
        records(CsvDataset(str(tmp_path / "a.csv"), limits={"line_bytes": 40}))


ROWS = [
    ImageJsonlDataset,
    partial(PreferenceDataset, tokenizer=None),
    partial(RLHFDataset, tokenizer=None, config={}),
    partial(SFTChatDataset, tokenizer=None),
]


@pytest.mark.parametrize("kind", ROWS)
def test_sources_of_rows_have_limits_too(kind: Callable[..., Any], tmp_path: Path) -> None:
    """Before anything else is made of a line."""
    (tmp_path / "a.jsonl").write_bytes(LINE)
    with pytest.raises(StreamdataError, match=r"a\.jsonl:1: expected a line of at most 99 bytes.*\n.*line_bytes: 198"):
        kind(str(tmp_path / "a.jsonl"), limits={"line_bytes": 99})


def test_rows_in_the_cache_are_looked_at_again_under_another_limit(tmp_path: Path) -> None:
    """They were read under the limits of whoever came first."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINE)
    for line_bytes in (1 << 26, 100):
        assert len(ParquetRows(str(path), str(tmp_path), limits=ShardLimits(line_bytes))) == 1
    with pytest.raises(SourceError, match="expected a line of at most 99 bytes"):
        ParquetRows(str(path), str(tmp_path), limits=ShardLimits(99))


def test_headers_before_a_member_are_few() -> None:
    """As many as anybody needs are read, and no more."""
    end = header("0.a") + bytes(1024)
    assert members(header("x", kind=b"x") * MAX_EXTENSIONS + end) == [b"0.a"]
    with pytest.raises(ShardError, match="at most 100 extension headers before a member"):
        members(header("x", kind=b"x") * (MAX_EXTENSIONS + 1) + end)
    large = header("x", 1 << 19, b"L") + b"n" * (1 << 19)
    with pytest.raises(ShardError, match="before a member, of at most 1048576 bytes, got more"):
        members(large * 3 + end)


def test_zeros_after_the_end_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of zeros alone is no empty archive."""
    monkeypatch.setattr(tar_headers, "MAX_END_BYTES", 1 << 20)
    assert members(bytes(1024 + (1 << 20))) == []
    with pytest.raises(ShardError, match="at most 1048576 bytes after the end-of-archive marker"):
        members(bytes(1025 + (1 << 20)))


@pytest.mark.parametrize("size", [0, 10, 300_000])
@pytest.mark.parametrize("options", [{}, {"write_checksum": True, "write_content_size": False}])
def test_frames_of_zstd_are_read_one_after_another(size: int, options: dict, tmp_path: Path) -> None:
    """With and without sums and sizes, and with parts that are to be skipped."""
    content = b'{"n": "%s"}\n' % (b"0123456789" * (size // 10))
    packed = zstandard.ZstdCompressor(**options).compress(content)
    skipped = b"\x50\x2a\x4d\x18" + struct.pack("<I", 5) + b"\x28\xb5\x2f\xfd\x00"
    (tmp_path / "a.jsonl.zst").write_bytes(packed + skipped + packed)
    assert [len(record["n"]) for record in records(JsonlIterableDataset(str(tmp_path)))] == [size // 10 * 10] * 2


FRAME = zstandard.ZstdCompressor(write_checksum=True).compress(b'{"n": 1}\n')


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (FRAME[:-1], "the end of the file within compressed data"),
        (FRAME + b"other", "a damaged zstd frame, or other data"),
        (FRAME[:-1] + b"x", "a damaged zstd frame"),
        (b"\x28\xb5\x2f\xfd\x00" + bytes([18 << 3]) + FRAME[6:], "too much memory"),
    ],
    ids=["cut", "other", "sum", "window"],
)
def test_damaged_and_greedy_frames_are_errors(content: bytes, got: str, tmp_path: Path) -> None:
    """A window is refused before it is made."""
    (tmp_path / "a.jsonl.zst").write_bytes(content)
    with pytest.raises(ShardError, match=got):
        records(JsonlIterableDataset(str(tmp_path)))


ROW = b'{"n": 1}\n'
EMPTY = [
    pytest.param(".gz", gzip.compress, gzip.compress(b""), id="gz"),
    pytest.param(".bz2", bz2.compress, bz2.compress(b""), id="bz2"),
    pytest.param(".xz", lzma.compress, lzma.compress(b""), id="xz"),
    pytest.param(".zst", zstandard.compress, zstandard.compress(b""), id="zst"),
    pytest.param(".zst", zstandard.compress, b"\x50\x2a\x4d\x18\0\0\0\0", id="zst, to be skipped"),
]


@pytest.mark.parametrize(("suffix", "compress", "empty"), EMPTY)
def test_compressed_streams_without_bytes_are_few_in_a_row(
    suffix: str, compress: Callable[[bytes], bytes], empty: bytes, tmp_path: Path
) -> None:
    """With something between them they may be more; half a million of them took 7 s."""
    path, row = tmp_path / f"a.jsonl{suffix}", compress(ROW)
    path.write_bytes((row + empty * MAX_EMPTY_STREAMS) * 2 + row)
    assert len(records(JsonlIterableDataset(str(path)))) == 3
    path.write_bytes(row + empty * 50_000 + row)
    with cpu_within(0.2), pytest.raises(ShardError, match="more than 1000 empty streams in a row"):
        records(JsonlIterableDataset(str(path)))


def test_a_member_that_is_cut_short_is_held_once(tmp_path: Path) -> None:
    """Its pieces and what they are joined to were there at the same time."""
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(header("0.a", 1 << 29) + bytes(100 << 20), 1))
    shards = MetaDistributedWebDataset(str(path)).source.shards
    begun = begin_peak()
    with pytest.raises(ShardError, match=r"expected 536870912 bytes of the member, .*got 104857600, where the file"):
        next(shards.stream(0))
    assert peak() - begun < 140 << 20


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"line_byte": 1}, r"limits: unknown limit 'line_byte', did you mean 'line_bytes'\?\n  It takes: line_bytes, "),
        ({"line_bytes": 0}, "line_bytes: expected a whole number, at least 1, got 0"),
        ({"line_bytes": 1.5}, "got 1.5"),
        ({"line_bytes": True}, "got True"),
        ({"line_bytes": "1"}, "got '1'"),
        (7, "limits: expected a mapping, got int"),
    ],
)
def test_limits_that_are_none_are_refused(limits: object, problem: str) -> None:
    """With the name that may be meant."""
    with pytest.raises(ValueError, match=problem):
        JsonlIterableDataset("nowhere.jsonl", limits=limits)


def test_xz_has_a_bound_on_memory(tmp_path: Path) -> None:
    """A file may ask for a dictionary of 4 GiB."""
    path = tmp_path / "a.jsonl.xz"
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 16}]
    packed = bytearray(lzma.compress(b'{"n": 1}\n', filters=filters))
    packed[16] = 36  # a dictionary of 1 GiB, in the filter's properties of the block header
    packed[20:24] = struct.pack("<I", zlib.crc32(packed[12:20]))
    path.write_bytes(packed)
    with pytest.raises(ShardError, match=r"[Mm]emory"):
        records(JsonlIterableDataset(str(path)))
