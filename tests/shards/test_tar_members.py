"""What else lies in archives beside files: directories, pax records; and what makes reading fast."""

import gzip
import os
import tarfile
from pathlib import Path

import pytest

from streamdata.errors import ShardError
from streamdata.shards.sequential import SequentialTar
from streamdata.shards.tar import records as tar_records
from streamdata.shards.tar import shards as tar
from streamdata.shards.tar.headers import BLOCK
from streamdata.shards.tar.records import TarRecord, TarRows
from streamdata.shards.tar.shards import TarShards
from tests.shards.conftest import read_all

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def read(url):
    """Keys and fields of all records."""
    return {
        record["__key__"]: {name: value for name, value in record.items() if not name.startswith("__")}
        for record in read_all(TarShards([url]))
    }


@pytest.mark.parametrize("tar_format", FORMATS.values(), ids=FORMATS)
def test_short_names_take_the_fast_way(write_tar, monkeypatch, tar_format):
    """Records of several members with plain headers are read without the reader of all formats."""
    longest = "f" * 24
    members = [("a.jpg", b"1" * 700), ("a.txt", b"2"), ("b.jpg", b""), (f"b.{longest}", b"4" * 512)]
    url = write_tar(members, tar_format=tar_format)
    monkeypatch.setattr(tar, "records", None)
    assert read(url) == {"a": {"jpg": b"1" * 700, "txt": b"2"}, "b": {"jpg": b"", longest: b"4" * 512}}


def test_directories_are_no_skipped_members(tmp_path):
    """They belong to no record and are nothing to tell of, whatever their headers say of a size."""
    path = tmp_path / "00000.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("folder", "fol.der", "folder/in.side"):
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE
            archive.addfile(info)
        archive.addfile(tarfile.TarInfo("folder/a.jpg"))
    shards = TarShards([str(path)])
    assert [record["__key__"] for record in read_all(shards)] == ["folder/a"]
    assert shards.anomalies() == {"members without key and field": 0}


def test_a_pax_size_replaces_that_of_the_header(write_tar):
    """One that is no number leaves the next header where none is."""
    members = [("a.jpg", b"x" * 600)]
    url = write_tar(members, tar_format=tarfile.PAX_FORMAT, pax_headers={"size": "600"})
    assert read(url) == {"a": {"jpg": b"x" * 600}}
    with pytest.raises(ShardError, match="a header whose checksum field"):
        TarShards([write_tar(members, "b.tar", tar_format=tarfile.PAX_FORMAT, pax_headers={"size": "six"})])


def test_checksums_of_six_digits_are_compared_whole(write_tar):
    """A header full of bytes beyond ASCII adds up to more than five octal digits can say."""
    name = "/".join(["日" * 13] * 5)
    url = write_tar([(f"{name}.jpg", b"x")])
    assert read(url) == {name: {"jpg": b"x"}}
    data = bytearray(Path(url).read_bytes())
    assert data[148] == ord("1")
    data[148] = ord("0")
    Path(url).write_bytes(data)
    with pytest.raises(ShardError, match="expected a header whose checksum field"):
        TarShards([url])


def test_a_compressed_archive_that_ends_within_a_member_names_it(write_tar, members):
    """Not the header that would follow it."""
    cut = Path(write_tar(members)).read_bytes()[: 512 + 300]
    path = Path(write_tar(members, "cut.tar")).with_suffix(".tar.gz")
    path.write_bytes(gzip.compress(cut))
    with pytest.raises(
        ShardError, match=r"offset 512, member 'a/0.jpg': expected 700 bytes .* got 300, where the file"
    ):
        list(SequentialTar([str(path)]).stream(0))


def test_a_read_that_gives_less_is_an_error(write_tar, members, monkeypatch):
    """Though the shard looks as it did: what lay in memory before is never taken for the record's bytes."""
    shards = TarShards([write_tar(members)])
    read_all(shards)
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, parts, at: preadv(fd, [parts[0][: max(0, 600 - at)]], at))
    with pytest.raises(ShardError, match="bytes"):
        read_all(shards)


def test_all_bytes_of_a_size_in_base_256_count(write_tar):
    """One that no file can have is damage; its lower half alone would be a size."""
    url = write_tar([("a.jpg", b"x" * 600)])
    data = bytearray(Path(url).read_bytes())
    data[124:136] = b"\x80\x01" + (600).to_bytes(10, "big")
    data[148:156] = b"%06o\0 " % (sum(data[:148]) + 256 + sum(data[156:512]))
    Path(url).write_bytes(data)
    with pytest.raises(ShardError, match=f"expected {2**80 + 600} bytes of the member"):
        TarShards([url])


def test_archives_of_2_tib_are_too_large():
    """Their last block's number no longer fits into 32 bits."""

    def rows(size):
        found = TarRows("vast.tar")
        found.add(TarRecord("a", 0, size))
        return found.contents().rows

    assert rows((BLOCK << 32) - BLOCK)["block"].tolist() == [0, 2**32 - 1]
    with pytest.raises(ShardError, match="expected at most 2 TiB"):
        rows(BLOCK << 32)


@pytest.mark.parametrize("blank", [b"\0", b" "])
def test_a_size_that_is_left_blank_is_none(write_tar, blank):
    """As some writers leave it for empty files."""
    url = write_tar([("a.jpg", b""), ("b.jpg", b"x")])
    data = bytearray(Path(url).read_bytes())
    data[124:136] = blank * 12
    data[148:156] = b"%06o\0 " % (sum(data[:148]) + 256 + sum(data[156:512]))
    Path(url).write_bytes(data)
    assert read(url) == {"a": {"jpg": b""}, "b": {"jpg": b"x"}}


def test_an_index_is_made_of_headers_alone(write_tar, members, monkeypatch):
    """The members' bytes are not read for it."""
    monkeypatch.setattr(tar_records, "data_of", None)
    assert TarShards([write_tar(members)]).num_records.tolist() == [3]
