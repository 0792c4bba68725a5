import bz2
import gzip
import io
import lzma
import os
import sys
from pathlib import Path

import fsspec
import pytest
import zstandard

from streamdata.errors import ShardError
from streamdata.shards.jsonl.shards import JsonlShards
from streamdata.shards.sequential import SequentialJsonl, SequentialTar
from streamdata.shards.tar.shards import TarShards
from tests.cpu import cpu_within
from tests.shards.conftest import read_all

COMPRESS = {
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".zstd": zstandard.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


@pytest.fixture(params=COMPRESS)
def compressed(request):
    """Compresses a file, and gives the path of what came of it."""

    def compress(url, times=1):
        data = Path(url).read_bytes()
        path = Path(url + request.param)
        step = -(-len(data) // times)
        path.write_bytes(b"".join(COMPRESS[request.param](data[at : at + step]) for at in range(0, len(data), step)))
        return str(path)

    return compress


def without_url(records):
    return [{name: value for name, value in record.items() if name != "__url__"} for record in records]


@pytest.mark.parametrize("times", [1, 3])
def test_compressed_shards_hold_the_same_records(write_tar, write_jsonl, members, compressed, times):
    """Tar and JSONL, in one or several frames, give what the uncompressed shards give."""
    tar, jsonl = write_tar(members), write_jsonl([{"n": n, "pad": "x" * n} for n in range(500)])
    packed_tar, packed_jsonl = compressed(tar, times), compressed(jsonl, times)
    assert without_url(SequentialTar([packed_tar]).stream(0)) == without_url(read_all(TarShards([tar])))
    assert without_url(SequentialJsonl([packed_jsonl]).stream(0)) == without_url(read_all(JsonlShards([jsonl])))
    assert {record["__url__"] for record in SequentialTar([packed_tar]).stream(0)} == {packed_tar}


def test_tgz_is_gzip(write_tar, members):
    """.tgz is another name for .tar.gz, also for the sidecar's."""
    path = write_tar(members)
    packed = Path(path).with_suffix(".tgz")
    packed.write_bytes(gzip.compress(Path(path).read_bytes()))
    Path(path).with_suffix(".jsonl").write_bytes(b'{"key": "a/0", "n": 5}\n')
    assert next(SequentialTar([str(packed)], ["n"]).stream(0))["n"] == 5


def test_compressed_data_cut_anywhere_is_an_error(write_jsonl, compressed):
    """Every cut raises with file and place; none is taken for the end."""
    url = compressed(write_jsonl([{"n": n, "noise": os.urandom(20).hex()} for n in range(100)]))
    data = Path(url).read_bytes()
    for length in [*range(1, 30), *range(30, len(data), 97), len(data) - 1]:
        Path(url).write_bytes(data[:length])
        with pytest.raises(
            ShardError, match=r"00000\.jsonl\.(gz|zst|zstd|bz2|xz)': offset \d+ of the uncompressed data"
        ):
            list(SequentialJsonl([url]).stream(0))


def test_damaged_compressed_data_is_an_error(write_tar, members, compressed):
    """Changed bytes in the compressed data raise ShardError, whatever they turn into."""
    url = compressed(write_tar([(name, os.urandom(300)) for name, _ in members]))
    data = Path(url).read_bytes()
    for position in range(20, len(data) - 8, 101):
        Path(url).write_bytes(data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :])
        try:
            assert len(list(SequentialTar([url]).stream(0))) == 3
            assert url.endswith((".zst", ".zstd"))  # whose frames of the package's simple interface carry no checksum
        except ShardError:
            pass


@pytest.mark.parametrize("between", [b"", b"\0" * 8])
def test_xz_may_be_padded(tmp_path, between):
    """By zeros in fours behind each stream, as its format says; another number is damage."""
    path = tmp_path / "a.jsonl.xz"
    streams = [lzma.compress(b'{"n": %d}\n' % number) for number in range(2)]
    path.write_bytes(between.join(streams) + b"\0" * 4)
    assert [record["n"] for record in SequentialJsonl([str(path)]).stream(0)] == [0, 1]
    path.write_bytes(b"\0".join(streams))
    with pytest.raises(ShardError, match="1 zero bytes behind compressed data"):
        list(SequentialJsonl([str(path)]).stream(0))


def test_garbage_behind_compressed_data_is_an_error(write_jsonl, compressed):
    """What follows the last frame is damage, not to be left out."""
    url = compressed(write_jsonl([{"n": 1}]))
    with Path(url).open("ab") as file:
        file.write(b"garbage!")
    with pytest.raises(ShardError, match="uncompressed data"):
        list(SequentialJsonl([url]).stream(0))


def test_a_compressed_bomb_does_not_fill_the_memory(tmp_path):
    """A gigabyte of zeros in a line is an error after a bounded part of it, for a tar."""
    path = tmp_path / "bomb.tar.zst"
    with path.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as writer:
        for _ in range(64):
            writer.write(bytes(1 << 20) + b"x")
    with pytest.raises(ShardError, match="nothing but zeros"):
        list(SequentialTar([str(path)]).stream(0))


def test_zstd_without_its_package_says_what_to_install(write_jsonl, monkeypatch):
    """The package is optional; the error names the extra."""
    path = write_jsonl([zstandard.compress(b"{}")], "00000.jsonl.zst", end=b"")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ImportError, match=r"pip install torch-streamdata\[zstd\]"):
        list(SequentialJsonl([path]).stream(0))


def test_pipes_are_read_and_must_succeed(write_jsonl, monkeypatch):
    """The output of a command; its failure is an error after its last row."""
    monkeypatch.setenv("STREAMDATA_ALLOW_PIPES", "1")
    path = write_jsonl([{"n": 1}, {"n": 2}])
    assert [record["n"] for record in SequentialJsonl([f"pipe:cat {path}"]).stream(0)] == [1, 2]
    stream = SequentialJsonl([f"pipe:cat {path}; exit 3"]).stream(0)
    with pytest.raises(ShardError, match="exit status 3"):
        list(stream)


def test_a_command_needs_leave_where_it_would_start(tmp_path, monkeypatch):
    """Whoever names the shard: not only the expansion of what a recipe says."""
    monkeypatch.delenv("STREAMDATA_ALLOW_PIPES", raising=False)
    for kind in (SequentialJsonl, SequentialTar):
        stream = kind([f"pipe:touch {tmp_path}/run"]).stream(0)
        with pytest.raises(ValueError, match=r"a command that would be run\n .*STREAMDATA_ALLOW_PIPES=1"):
            next(stream)
    assert not (tmp_path / "run").exists()


def test_a_pipe_left_early_leaves_no_process(write_jsonl, monkeypatch):
    """Closing the stream ends the command, though it would go on for ever."""
    monkeypatch.setenv("STREAMDATA_ALLOW_PIPES", "1")
    stream = SequentialJsonl(["pipe:echo '{\"pid\": '$$'}'; exec yes '{}'"]).stream(0)
    pid = next(stream)["pid"]
    os.kill(pid, 0)
    stream.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_identity_is_of_name_and_size(write_jsonl):
    """For the fingerprint of states: no directories, no mtimes."""
    path = write_jsonl([{"n": 1}])
    shards = SequentialJsonl([path, "pipe:true"])
    assert shards.identity() == [("00000.jsonl", os.path.getsize(path)), ("pipe:true", 0)]


@pytest.mark.parametrize("between", [True, False])
def test_a_shard_that_changes_is_an_error(write_jsonl, between):
    """Before it is opened, or while it is read."""
    path = Path(write_jsonl([{"n": n, "pad": "x" * 1000} for n in range(10_000)]))
    shards = SequentialJsonl([str(path)])
    stream = shards.stream(0)
    if not between:
        next(stream)
    path.write_bytes(path.read_bytes().replace(b"x", b"y"))
    os.utime(path, ns=(1, 1))
    with pytest.raises(ShardError, match="replaced or modified"):
        list(stream)


def test_remote_compressed_shards_are_read():
    """Through fsspec, decompressed on the way."""
    fsspec.filesystem("memory").pipe("/sequential/0.jsonl.gz", gzip.compress(b'{"n": 1}\n{"n": 2}'))
    assert [record["n"] for record in SequentialJsonl(["memory://sequential/0.jsonl.gz"]).stream(0)] == [1, 2]


@pytest.mark.parametrize("name", ["0.jsonl.gz", "0.jsonl.zst", "0.tar.gz", "0.tgz", "0.tar.zst"])
@pytest.mark.parametrize("where", ["{}/", "memory:/{}/"])
def test_a_compressed_file_of_no_bytes_is_an_error(tmp_path, name, where):
    """It has not even a header; one of no content has, and holds no rows."""
    url, reader = where.format(tmp_path) + name, SequentialTar if "t" in name.removesuffix(".zst") else SequentialJsonl
    fsspec.core.open(url, "wb").open().close()
    with pytest.raises(ShardError, match=rf"{name}': expected .* data, by its name, got a file of 0 bytes"):
        list(reader([url]).stream(0))
    if reader is SequentialJsonl:
        with fsspec.open(url, "wb") as file:
            file.write(COMPRESS[Path(name).suffix](b""))
        assert list(reader([url]).stream(0)) == []


@pytest.mark.parametrize(
    ("name", "head", "message"),
    [
        ("0.jsonl.gz", zstandard.compress(b"{}"), "expected gzip data, by its name, got Zstandard data"),
        ("0.jsonl.zst", gzip.compress(b"{}", mtime=0), "expected Zstandard data, by its name, got gzip data"),
        ("0.jsonl.gz", b'{"n": 1}\n', r"expected gzip data, by its name, got other data, which begins with b'\{\"n"),
        ("0.tar.gz", b"<!DOCTYPE html>", "expected gzip data, by its name, got an HTML or XML page"),
        ("0.jsonl.gz", gzip.compress(b"PAR1", mtime=0), "expected JSON Lines, got a parquet file"),
        ("0.tar.zst", zstandard.compress(b"BZh91AY&SY"), "expected a tar archive, got bzip2 data"),
        ("pipe:printf '\\037\\213'", None, r"expected JSON Lines, got gzip data"),
    ],
)
def test_a_suffix_that_does_not_fit_the_first_bytes_is_an_error(tmp_path, monkeypatch, name, head, message):
    """It says what the file is, before decompression and after it."""
    monkeypatch.setenv("STREAMDATA_ALLOW_PIPES", "1")
    url = name if head is None else str(tmp_path / name)
    if head is not None:
        Path(url).write_bytes(head)
    reader = SequentialTar if "tar" in name else SequentialJsonl
    with pytest.raises(ShardError, match=message):
        list(reader([url]).stream(0))


def test_a_text_that_reads_as_the_magic_of_a_tar_is_none(tmp_path):
    """Where a first line begins with white space; the magic has bytes after it that no JSON has."""
    line = b' {"n": "%s"}\n' % b"ustar".rjust(254, b"x")
    assert line.index(b"ustar") == 257
    tmp_path.joinpath("0.jsonl.gz").write_bytes(gzip.compress(line))
    assert len(list(SequentialJsonl([str(tmp_path / "0.jsonl.gz")]).stream(0))) == 1


def test_members_of_gzip_have_names_and_zeros_behind_them(tmp_path):
    """As the library reads them, at once: a megabyte of either took it a second."""
    members = [b'{"n": %d}\n' % number * 9000 for number in range(4)]
    packed = b""
    for content in members:
        buffer = io.BytesIO()
        with gzip.GzipFile("x" * 1_000_000, "wb", fileobj=buffer) as file:
            file.write(content)
        packed += buffer.getvalue() + bytes(1_000_001)
    (tmp_path / "0.jsonl.gz").write_bytes(packed)
    with cpu_within(0.5):
        read = [record["n"] for record in SequentialJsonl([str(tmp_path / "0.jsonl.gz")]).stream(0)]
    assert read == [number for number in range(4) for _ in range(9000)]


@pytest.mark.parametrize("behind", [b"\0\0other", b"\x1f", b"\x1f\x8b"])
def test_what_is_no_member_of_gzip_is_an_error(tmp_path, behind):
    """Behind the last one."""
    (tmp_path / "0.jsonl.gz").write_bytes(gzip.compress(b"{}\n") + behind)
    with pytest.raises(ShardError, match=r"more of it, got (.*incorrect header check|the end of the file within)"):
        list(SequentialJsonl([str(tmp_path / "0.jsonl.gz")]).stream(0))


def test_skippable_frames_may_come_first(tmp_path):
    """As tools for parallel decompression write them."""
    path = tmp_path / "0.jsonl.zst"
    path.write_bytes(b"\x50\x2a\x4d\x18\x04\0\0\0same" + zstandard.compress(b'{"n": 1}'))
    assert [record["n"] for record in SequentialJsonl([str(path)]).stream(0)] == [1]
