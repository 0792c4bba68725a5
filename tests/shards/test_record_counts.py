"""How many records shards have that are read from their start: counted once, and kept as their indexes."""

import gzip
import os
import shutil
from pathlib import Path

import pytest

from streamdata.errors import ShardError
from streamdata.io.remote.addresses import StorageOptions
from streamdata.recipe.limits import ShardLimits
from streamdata.shards.index.make_manifest import make_manifest, take_stock
from streamdata.shards.index.manifest import Known, open_manifest
from streamdata.shards.listing import JSONL_SUFFIXES
from streamdata.shards.sequential import SequentialCsv, SequentialJsonl, SequentialTar
from streamdata.shards.urls import find_shards
from tests.io.servers import s3_server

LINES = b'{"a": 1}\n\n{"a": 1\n{"a": "1,2"}\n'


def write(path: Path, data: bytes) -> str:
    """A compressed shard."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(data))
    return str(path)


def test_as_many_are_counted_as_are_read(tmp_path, write_tar):
    """Blank lines are none, damaged ones are; of one file each format has its own."""
    path = write(tmp_path / "a.gz", LINES)
    tar = write(
        tmp_path / "a.tar.gz", Path(write_tar([("a.txt", b"1"), ("a.n", b"2"), ("x", b""), ("b.n", b"3")])).read_bytes()
    )
    for kind, url, count in ((SequentialJsonl, path, 3), (SequentialCsv, path, 2), (SequentialTar, tar, 2)):
        shards = kind([url, url])
        assert shards.num_records.tolist() == [count] * 2 == [len(list(shards.stream(shard))) for shard in range(2)]


def test_a_count_that_was_damaged_is_made_again(tmp_path, caplog):
    """And said."""
    path = write(tmp_path / "a.jsonl.gz", LINES)
    assert SequentialJsonl([path]).num_records.tolist() == [3]
    (index,) = tmp_path.glob(".a.jsonl.gz.n-jsonl.index")
    index.write_bytes(index.read_bytes().replace(b"n-jsonl", b"n-jsonk"))
    assert SequentialJsonl([path]).num_records.tolist() == [3]
    assert "it is built again" in caplog.text


def test_a_shard_that_changed_since_it_was_found_is_an_error(tmp_path):
    """It is not counted as another than is read."""
    shards = SequentialJsonl([write(tmp_path / "a.jsonl.gz", LINES)])
    write(tmp_path / "a.jsonl.gz", LINES * 2)
    with pytest.raises(ShardError, match="replaced or modified"):
        shards.num_records.tolist()


def test_limits_hold_where_records_are_counted(tmp_path):
    """A line that would be too long to read is not counted either."""
    path = write(tmp_path / "a.jsonl.gz", LINES)
    with pytest.raises(ShardError, match="line_bytes"):
        SequentialJsonl([path], limits=ShardLimits(line_bytes=9)).num_records.tolist()


def test_a_manifest_without_counts_gets_them_later(tmp_path, monkeypatch):
    """Such as of an earlier version; until then shards are counted, of a copy by the version that is there."""
    folder, copy = tmp_path / "a", tmp_path / "b"
    write(folder / "0.jsonl.gz", LINES)
    stock = take_stock([str(folder)])
    with monkeypatch.context() as earlier:
        earlier.setattr("streamdata.shards.index.make_manifest._jobs", lambda _: [])
        made = make_manifest(stock)
    shutil.copytree(folder, copy)
    os.utime(copy / "0.jsonl.gz", ns=(1, 1))
    known = Known((open_manifest(str(copy / "streamdata.manifest")),))
    assert SequentialJsonl([f"{copy}/0.jsonl.gz"], known).num_records.tolist() == [3]
    make_manifest(take_stock([str(folder)]))
    monkeypatch.setattr("streamdata.shards.index.indexing.count_records", None)
    assert SequentialJsonl([f"{folder}/0.jsonl.gz"], Known((open_manifest(made),))).num_records.tolist() == [3]


def test_remote_shards_are_counted_before_a_fork(monkeypatch, cache):
    """As they are indexed: each byte is asked for once, and no thread is left."""
    data = {f"bucket/d/{n}.jsonl.gz": gzip.compress(LINES * n) for n in range(1, 4)}
    with s3_server(data) as server:
        urls, known = find_shards(
            "s3://bucket/d", JSONL_SUFFIXES, None, StorageOptions(endpoint=server.url, anonymous=True)
        )
        server.log.clear()
        monkeypatch.setattr("streamdata.io.streams.submit_range", None)
        assert SequentialJsonl(urls, known).num_records.tolist() == [3, 6, 9]
        assert [(one.method, one.path in data) for one in server.log] == [("GET", True)] * 3
        assert len(list(cache.rglob("*.n-jsonl.index"))) == 3
