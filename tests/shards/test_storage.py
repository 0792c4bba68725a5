import errno
import os
from pathlib import Path

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from streamdata.errors import ShardError
from streamdata.io.storage import LocalShard, opened, stamp_of
from streamdata.run.per_process import Recent
from streamdata.shards.ahead.spans import read_spans
from streamdata.shards.jsonl.shards import JsonlShards
from streamdata.shards.sequential import SequentialJsonl
from streamdata.shards.tar.shards import TarShards
from streamdata.shards.urls import expand
from tests.shards.conftest import read_all, whole


def upload(path, url):
    """Copy a file into the memory file system."""
    fsspec.filesystem("memory").pipe(url.removeprefix("memory:/"), Path(path).read_bytes())
    return url


@pytest.mark.parametrize("cap", [0, 1 << 20])
def test_remote_tar_shards_are_read_by_ranges(write_tar, write_jsonl, members, cache, cap):
    """With a sidecar, whether the window is kept or fetched take by take; the indexes are in the cache."""
    local = write_tar(members)
    upload(write_jsonl([{"key": "a/1", "n": 7}], "00000.meta.jsonl"), "memory://storage/00000.meta.jsonl")
    url = upload(local, "memory://storage/00000.tar")
    shards = TarShards([url, local, url], [], max_kept_bytes=cap)
    window = whole(shards)
    order = [7, 0, 3, 5, 2, 1, 8, 4, 6]
    expected = [*read_all(TarShards([local]))] * 3
    assert [record["__url__"] for record in window.take(order)] == [shards.urls[place // 3] for place in order]
    assert [{**record, "__url__": local} for record in window.take(order)] == [expected[place] for place in order]
    assert [record["n"] for record in read_all(TarShards([url], ["n"]))] == [None, 7, None]
    assert len(list(cache.rglob("*.index"))) == 2


def test_remote_jsonl_shards_are_read_by_ranges(write_jsonl):
    """The same rows as of the local file."""
    local = write_jsonl([{"n": n} for n in range(10)])
    url = upload(local, "memory://storage/00000.jsonl")
    assert [r["n"] for r in whole(JsonlShards([url])).take([9, 2, 0])] == [9, 2, 0]


def test_a_remote_shard_that_changes_is_an_error(write_jsonl):
    """Size or tag differ from when the reader was made."""
    url = upload(write_jsonl([{"n": 1}]), "memory://storage/changing.jsonl")
    shards = JsonlShards([url])
    upload(write_jsonl([{"n": 2}]), url)
    with pytest.raises(ShardError, match="replaced or modified"):
        read_all(shards)


@pytest.fixture
def remembered(monkeypatch):
    """The memory file system answers from earlier listings, as those of object stores do: folder → file → info."""
    listings, memory = {}, MemoryFileSystem
    find, info = memory.find, memory.info

    def remember(self, path, **options):
        path = self._strip_protocol(path)
        listed = listings.setdefault(path, {file: info(self, file) for file in find(self, path)})
        return {file: listed[file] for file in sorted(listed)} if options else sorted(listed)

    def recall(self, path, **options):
        path = self._strip_protocol(path)
        return listings.get(path.rpartition("/")[0], {}).get(path) or info(self, path, **options)

    def forget(self, path=None):
        listings.clear() if path is None else listings.pop(path, None)

    for name, function in {"find": remember, "info": recall, "invalidate_cache": forget}.items():
        monkeypatch.setattr(memory, name, function)
    return listings


@pytest.mark.parametrize("reader", [JsonlShards, SequentialJsonl])
@pytest.mark.parametrize("path", ["memory://listed/*.jsonl", "memory://listed"])
def test_a_remote_shard_that_is_replaced_behind_a_listing_is_an_error(write_jsonl, remembered, reader, path):
    """Of the same size, after the glob or the folder was listed, before the first record of it was read."""
    for number in range(2):
        upload(write_jsonl([{"n": number}] * 9), f"memory://listed/{number}.jsonl")
    shards = reader(expand(path, (".jsonl",)))
    expand(path, (".jsonl",))  # which another source lists meanwhile
    assert remembered["/listed"].keys() == {"/listed/0.jsonl", "/listed/1.jsonl"}
    upload(write_jsonl([{"n": 7}] * 9), "memory://listed/1.jsonl")
    with pytest.raises(ShardError, match=r"listed/1\.jsonl': it was replaced or modified"):
        read_all(shards) if reader is JsonlShards else next(shards.stream(1))


def test_shards_that_are_new_behind_a_listing_are_found(write_jsonl, remembered):
    """A glob lists afresh, whatever the file system remembers."""
    for number in range(2):
        upload(write_jsonl([{"n": number}]), f"memory://fresh/{number}.jsonl")
        assert len(expand("memory://fresh", (".jsonl",))) == number + 1


def test_spans_come_back_in_the_order_asked_for(write_jsonl):
    """Unsorted, touching and repeated spans of several shards; each begins where it is said to."""
    urls = [write_jsonl([bytes(range(48, 91))], f"{n}.jsonl") for n in range(2)]
    spans = np.array([[1, 5, 9], [1, 9, 10], [0, 9, 12], [0, 0, 3], [1, 5, 9], [1, 7, 8]])
    buffer, offsets = read_spans(urls, [stamp_of(url) for url in urls], spans)
    data = Path(urls[0]).read_bytes()
    for (_, begin, end), offset in zip(spans.tolist(), offsets.tolist(), strict=True):
        assert buffer[offset : offset + end - begin] == data[begin:end]
    assert len(buffer) == 5 + 3 + 3  # what touches and what comes again is there once


def test_a_span_beyond_the_end_is_an_error(write_jsonl):
    """What is missing is not made up."""
    url = write_jsonl([{"n": 1}])
    with pytest.raises(ShardError, match=r"cut short at offset 5, expected 95 bytes, got 4"):
        read_spans([url], [stamp_of(url)], np.array([[0, 5, 100]]))


def test_an_open_shard_survives_being_pushed_out(write_jsonl):
    """Whoever still reads a shard keeps its descriptor; it closes with the last reference."""
    recent = Recent(1)
    first = recent.get(write_jsonl([{"n": 1}], "1.jsonl"), LocalShard)
    recent.get(write_jsonl([{"n": 2}], "2.jsonl"), LocalShard)
    assert len(list(recent)) == 1
    assert first.read(8, 0) == b'{"n": 1}'
    fd = first.fd
    del first
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_the_least_recently_used_is_pushed_out():
    """Asking again for a value keeps it."""
    recent = Recent(2)
    made = []
    for key in "ababcab":
        recent.get(key, lambda key: made.append(key) or key)
    assert made == ["a", "b", "c", "a", "b"]


def test_a_forked_process_reads_what_its_parent_opened(write_jsonl):
    """Positioned reads share no position between processes."""
    url = write_jsonl([{"n": n} for n in range(1000)])
    shard = opened(url)
    child = os.fork()
    if child == 0:
        os._exit(0 if all(opened(url).read(8, 0) == b'{"n": 0}' for _ in range(200)) else 1)
    assert all(shard.read(9, 9) == b'{"n": 1}\n' for _ in range(200))
    assert os.waitpid(child, 0)[1] == 0


def test_a_hard_link_to_a_shard_is_no_change(write_jsonl):
    """Backups that link files do not disturb a run."""
    url = write_jsonl([{"n": 1}])
    window = whole(JsonlShards([url]))
    list(window.take([0]))
    os.link(url, url + ".link")
    assert next(window.take([0]))["n"] == 1


@pytest.mark.parametrize("what", ["index", "rows", "shard", "stream"])
def test_an_error_of_the_disk_keeps_its_type_and_says_where(write_jsonl, monkeypatch, what):
    """Whatever is read: a shard to be indexed, rows of its index, its records, all of it from its start."""
    url = write_jsonl([{"n": 1}])
    if what != "index":
        read_all(JsonlShards([url]))
    window, real = whole(JsonlShards([url])) if what == "shard" else None, os.pread

    def fail(*arguments):
        if what == "rows" and arguments[2] == 0:  # of an index whose header cannot be read none is taken
            return real(*arguments)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv" if what == "shard" else "pread", fail)
    with pytest.raises(OSError, match="Input/output error") as caught:
        list(SequentialJsonl([url]).stream(0) if what == "stream" else (window or whole(JsonlShards([url]))).take([0]))
    file = f"{os.path.dirname(url)}/.{os.path.basename(url)}.jsonl.index" if what == "rows" else url
    assert (type(caught.value), caught.value.errno) == (OSError, errno.EIO)
    assert [note.partition(" of ")[2] for note in caught.value.__notes__] == [f"'{file}'"]


def test_a_disk_that_fails_within_a_record_is_told_once(write_jsonl, monkeypatch):
    """The system gives what comes before the bad page, and then the error."""
    window, real = whole(JsonlShards([write_jsonl([{"n": 1}])])), os.preadv

    def fail(fd, parts, offset):
        if offset:
            raise OSError(errno.EIO, "Input/output error")
        return real(fd, [parts[0][:3]], offset)

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(OSError, match="Input/output error") as caught:
        list(window.take([0]))
    assert len(caught.value.__notes__) == 1


def test_a_shard_that_its_server_lost_is_named(write_jsonl, monkeypatch):
    """Though the error of a descriptor has no name."""

    def fail(fd):
        raise OSError(errno.ESTALE, "Stale file handle")

    url = write_jsonl([{"n": 1}])
    window = whole(JsonlShards([url]))
    for begin in (lambda: LocalShard(url), lambda: next(window.take([0]))):
        with monkeypatch.context() as broken:
            broken.setattr(os, "fstat", fail)
            with pytest.raises(OSError, match="Stale") as caught:
                begin()
        assert caught.value.__notes__ == [f"  reading '{url}'"]
