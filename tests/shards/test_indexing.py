import errno
import logging
import os
import stat
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from streamdata.errors import ShardError
from streamdata.io.storage import LocalShard, stamp_of
from streamdata.run.per_process import open_files
from streamdata.shards import indexed
from streamdata.shards.index import indexing
from streamdata.shards.index.index_file import CHUNK_ROWS, HEADER_BYTES
from streamdata.shards.jsonl.shards import JsonlShards
from streamdata.shards.tar import records as tar_records
from streamdata.shards.tar.shards import TarShards
from tests.shards.conftest import read_all, whole


def indexes(folder):
    """The index files in a folder."""
    return sorted(Path(folder).rglob("*.index"))


@pytest.fixture
def builds(monkeypatch):
    """The urls of the indexes that were built."""
    urls = []
    real = indexing.build_each

    def build_and_note(*jobs, **options):
        urls.append(jobs[0].url)
        return real(*jobs, **options)

    monkeypatch.setattr(indexing, "build_each", build_and_note)
    monkeypatch.setattr(indexing, "build_each", build_and_note)
    return urls


def test_an_index_is_built_once_beside_its_shard(write_jsonl, tmp_path, cache, builds):
    """The second reader finds it; globs of shards do not."""
    url = write_jsonl([{"a": 1}])
    read_all(JsonlShards([url]))
    read_all(JsonlShards([url]))
    assert builds == [url]
    assert [path.name for path in indexes(tmp_path)] == [".00000.jsonl.jsonl.index"]
    assert not indexes(cache)
    assert [path.name for path in tmp_path.glob("[!.]*")] == ["00000.jsonl"]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_where_the_place_is_read_only_the_cache_is_used(write_jsonl, tmp_path, cache, monkeypatch, builds, number):
    """Detected by trying; found again there."""
    url = write_jsonl([{"a": 1}])
    real = indexing.publish

    def refuse_beside(path, parts, **_):
        if path.parent == tmp_path:
            raise OSError(number, os.strerror(number))
        real(path, parts, **_)

    monkeypatch.setattr(indexing, "publish", refuse_beside)
    assert len(read_all(JsonlShards([url]))) == 1
    assert len(read_all(JsonlShards([url]))) == 1
    assert (len(indexes(tmp_path)), len(indexes(cache)), len(builds)) == (0, 1, 1)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_an_index_that_is_no_regular_file_is_built_again(write_jsonl, tmp_path, builds, make):
    """Nobody waits for the writer of a fifo; a folder stays, and the index lies in the cache."""
    url = write_jsonl([{"a": 1}])
    make(tmp_path / ".00000.jsonl.jsonl.index")
    for _ in range(2):
        assert len(read_all(JsonlShards([url]))) == 1
    assert builds == [url]


def deny(monkeypatch, path, number=errno.EACCES):
    """Lets opening the file fail that is at the path now; another that is renamed over it may be opened."""
    real, denied = os.open, os.stat(path).st_ino

    def fail(file, *arguments, **options):
        if os.fspath(file) == str(path) and os.stat(path).st_ino == denied:
            raise OSError(number, os.strerror(number), str(path))
        return real(file, *arguments, **options)

    monkeypatch.setattr(os, "open", fail)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize("is_writable", [True, False])
def test_an_index_that_cannot_be_read_is_built_again(
    write_jsonl, tmp_path, cache, builds, refuse, monkeypatch, caplog, number, is_writable
):
    """Somebody's with umask 077: of the folder one is named in a warning, and the cache has them where it must."""
    urls = [write_jsonl([{"a": 1}], f"{name}.jsonl") for name in "ab"]
    read_all(JsonlShards(urls))
    if not is_writable:
        refuse(errno.EACCES, tmp_path)
    for path in indexes(tmp_path):
        deny(monkeypatch, path, number)
    for _ in range(2):
        assert len(read_all(JsonlShards(urls))) == 2
    assert builds == urls + urls
    assert len(indexes(cache)) == (0 if is_writable else 2)
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"index '{tmp_path}/.a.jsonl.jsonl.index' cannot be read: {os.strerror(number)}; it is built again" in told


def test_the_index_of_a_sidecar_that_cannot_be_read_is_built_again(write_tar, cache, refuse, monkeypatch, tmp_path):
    """As any other."""
    url = write_tar([("k.txt", b"1")])
    (tmp_path / "00000.meta.jsonl").write_text('{"key": "k", "score": 1}\n')
    before, found = read_all(TarShards([url], ["score"])), indexes(tmp_path)
    assert any(".join" in path.name for path in found)
    for path in found:
        deny(monkeypatch, path)
    refuse(errno.EACCES, tmp_path)
    assert read_all(TarShards([url], ["score"])) == before
    assert len(indexes(cache)) == len(found)


def test_an_index_in_the_cache_that_cannot_be_read_is_built_again(write_jsonl, tmp_path, cache, refuse, monkeypatch):
    """And is an error where the cache cannot be written, either."""
    url = write_jsonl([{"a": 1}])
    monkeypatch.setattr(indexing, "_beside", lambda _: None)
    read_all(JsonlShards([url]))
    deny(monkeypatch, *indexes(cache))
    assert len(read_all(JsonlShards([url]))) == 1
    deny(monkeypatch, *indexes(cache))
    refuse(errno.EACCES)
    with pytest.raises(ShardError, match="STREAMDATA_CACHE"):
        JsonlShards([url])


def test_where_there_are_no_descriptors_no_index_is_built_again(write_jsonl, tmp_path, builds, monkeypatch):
    """It is the system's error: the index is as good as it was."""
    url = write_jsonl([{"a": 1}])
    read_all(JsonlShards([url]))
    deny(monkeypatch, *indexes(tmp_path), errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        JsonlShards([url])
    assert builds == [url]


@pytest.mark.parametrize(
    "make",
    [lambda path: path.symlink_to(path), lambda path: os.mknod(path, stat.S_IFSOCK | 0o600)],
    ids=["link to itself", "socket"],
)
@pytest.mark.parametrize("is_writable", [True, False])
def test_what_cannot_be_opened_at_the_place_of_an_index_is_no_harm(
    write_jsonl, tmp_path, cache, builds, refuse, make, is_writable
):
    """It is replaced; where it cannot be, the index lies in the cache."""
    url = write_jsonl([{"a": 1}])
    make(tmp_path / ".00000.jsonl.jsonl.index")
    if not is_writable:
        refuse(errno.EACCES, tmp_path)
    for _ in range(2):
        assert len(read_all(JsonlShards([url]))) == 1
    assert (builds, len(indexes(cache))) == ([url], 0 if is_writable else 1)


def test_a_shard_that_is_a_fifo_is_an_error_that_names_it(tmp_path, write_jsonl):
    """Also where it was put in place of an indexed one."""
    for name in (f"{tmp_path}/fifo.jsonl", f"{tmp_path}/fifo.jsonl.gz"):
        os.mkfifo(name)
        with pytest.raises(ShardError, match=r"fifo\.jsonl.*expected a regular file"):
            LocalShard(name)
        with pytest.raises(ShardError, match=r"fifo\.jsonl.*expected a regular file"):
            JsonlShards([name])
    shards = JsonlShards([write_jsonl([{"a": 1}])])
    Path(shards.urls[0]).unlink()
    os.mkfifo(shards.urls[0])
    open_files.forget(shards.urls[0])
    with pytest.raises(ShardError, match="expected a regular file"):
        read_all(shards)


def test_shards_with_very_long_names_have_indexes_with_shorter_ones(write_jsonl, tmp_path, builds):
    """There is no room for a longer name beside them."""
    urls = [write_jsonl([{"a": 1}], "x" * 245 + f"{number}.jsonl") for number in range(2)]
    for _ in range(2):
        assert len(read_all(JsonlShards(urls))) == 2
    assert (builds, len(indexes(tmp_path))) == (urls, 2)


@pytest.fixture
def refuse(monkeypatch):
    """Lets writing an index fail below a folder, or everywhere."""

    def refuse_below(number, folder=Path("/")):
        real = Path.open

        def fail(path, mode="r", *arguments, **options):
            if "x" in mode and path.is_relative_to(folder):
                raise OSError(number, os.strerror(number), str(path))
            return real(path, mode, *arguments, **options)

        monkeypatch.setattr(Path, "open", fail)

    return refuse_below


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC, errno.EIO])
def test_where_nothing_can_be_written_the_error_says_so(write_jsonl, refuse, number):
    """It names the file and STREAMDATA_CACHE."""
    refuse(number)
    told = rf"indexes/.*\.jsonl\.index': cannot(.|\n)*{os.strerror(number)}(.|\n)*STREAMDATA_CACHE"
    with pytest.raises(ShardError, match=told):
        JsonlShards([write_jsonl([{"a": 1}])])


def test_where_the_disk_of_the_shards_is_full_the_cache_is_used(write_jsonl, tmp_path, cache, refuse):
    """And nothing is left of what was tried."""
    url = write_jsonl([{"a": 1}])
    refuse(errno.ENOSPC, tmp_path)
    assert len(read_all(JsonlShards([url]))) == 1
    assert len(indexes(cache)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["00000.jsonl"]


@pytest.mark.parametrize("change", ["size", "mtime"])
def test_an_index_of_another_version_is_built_again(write_jsonl, builds, change):
    """A shard of another size or another mtime is another shard."""
    url = Path(write_jsonl([{"a": 1}]))
    JsonlShards([str(url)])
    if change == "size":
        times = url.stat()
        url.write_bytes(url.read_bytes() * 2)
        os.utime(url, ns=(times.st_atime_ns, times.st_mtime_ns))
    else:
        os.utime(url, ns=(1, 1))
    assert len(read_all(JsonlShards([str(url)]))) == (2 if change == "size" else 1)
    assert builds == [str(url)] * 2


@pytest.mark.parametrize("kind", ["tar", "jsonl"])
def test_any_damage_of_an_index_is_found_and_repaired(write_tar, write_jsonl, tmp_path, kind):
    """Each byte of the file, cut anywhere, or empty: the records are the same, and never others."""
    if kind == "tar":
        url, reader = write_tar([(f"{n}.x", b"%d" % n) for n in range(4)]), TarShards
    else:
        url, reader = write_jsonl([{"n": n} for n in range(4)]), JsonlShards
    good = read_all(reader([url]))
    (path,) = indexes(tmp_path)
    data = path.read_bytes()
    damages = [data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :] for at in range(len(data))]
    for damage in [*damages, b"", data[:50], data[:-1], data + b"x", data[: HEADER_BYTES + 3]]:
        path.write_bytes(damage)
        indexed.open_files._values.clear()
        assert read_all(reader([url])) == good
        assert path.read_bytes() == data or damage == data


def test_damage_that_appears_later_is_repaired_too(write_jsonl, tmp_path, caplog):
    """Rows are checked when they are first used, in whatever process: a damaged index is built again with a warning."""
    shards = JsonlShards([write_jsonl([{"n": n} for n in range(2000)])])
    (path,) = indexes(tmp_path)
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + 12 * (CHUNK_ROWS + 5)] ^= 1
    path.write_bytes(data)
    indexed.open_files._values.clear()
    zeros = np.zeros(1, np.int64)
    assert next(shards.window(zeros, zeros, zeros + 10).take([3]))["n"] == 3
    assert not caplog.records
    assert next(whole(shards).take([600]))["n"] == 600
    assert "do not match their CRC32" in caplog.text


READ_A_CUT_INDEX = """
import os, sys
import numpy as np
from streamdata.shards.jsonl.shards import JsonlShards
from streamdata.io.storage import stamp_of
from streamdata.shards.tar.shards import TarShards

url, size, *indexes = sys.argv[1:]
shards = TarShards([url], ["n"]) if url.endswith(".tar") else JsonlShards([url])
zeros = np.zeros(1, np.int64)
read = lambda record: list(shards.window(zeros, zeros + record, zeros + 1).take([0]))
first = read(0)
for index in indexes:
    os.truncate(index, int(float(size) * os.path.getsize(index)))
assert read(0) == first
print(read(1999)[0]["__key__"])
"""


@pytest.mark.parametrize("size", [0, 0.5])
@pytest.mark.parametrize("kind", ["jsonl", "tar"])
def test_an_index_cut_short_under_a_reader_is_built_again(kind, size, write_tar, write_jsonl, tmp_path, python):
    """In place, while it is open: a warning, and the records come all the same; no signal ends the process."""
    url = write_jsonl([{"key": n, "n": n} for n in range(2000)])
    if kind == "tar":
        url = write_tar([(f"{n}.x", b"") for n in range(2000)])
    read_all(TarShards([url], ["n"]) if kind == "tar" else JsonlShards([url]))
    done = python("-c", READ_A_CUT_INDEX, url, size, *indexes(tmp_path))
    assert (done.returncode, done.stdout) == (0, "1999\n"), done.stderr
    assert done.stderr.count("; it is built again") == len(indexes(tmp_path))


def test_an_index_that_lies_is_an_error(write_jsonl, tmp_path):
    """Rows that point outside the shard, with all checks right, are refused before anything is read."""
    shards = JsonlShards([write_jsonl([{"n": 1}])])
    rows = np.array([(1 << 60, 0), (1 << 61, 0)], np.dtype([("offset", "<u8"), ("blanks", "<u4")]))
    (path,) = indexes(tmp_path)
    header = indexing.read_header(path)
    path.write_bytes(b"".join(indexing.encode(header, rows)))
    with pytest.raises(ShardError, match="expected within the shard"):
        read_all(shards)


def test_an_index_that_joins_two_lines_is_an_error(write_jsonl, tmp_path):
    """Each of the two is a row, so that it is not the lines that are damaged."""
    shards = JsonlShards([write_jsonl([{"n": 1}, {"n": 2}])])
    rows = np.array([(0, 0), (18, 0)], np.dtype([("offset", "<u8"), ("blanks", "<u4")]))
    (path,) = indexes(tmp_path)
    path.write_bytes(b"".join(indexing.encode(indexing.read_header(path)._replace(num_records=1), rows)))
    with pytest.raises(ShardError, match=r"jsonl:1:9: expected the end of the line, .*\n  Delete the index"):
        read_all(JsonlShards(shards.urls))


@pytest.mark.parametrize(("offset", "length"), [(2**63, 9), (2**64 - 1, 1), (30, 9), (0, 99)])
def test_an_index_that_leads_out_of_the_sidecar_is_an_error(write_tar, write_jsonl, tmp_path, offset, length):
    """No read is tried beyond its end, or below 0."""
    write_jsonl([{"key": "a", "n": 1}], "00000.meta.jsonl")
    shards = TarShards([write_tar([("a.x", b"")])], ["n"])
    rows = np.array([(offset, length), (0, 0)], np.dtype([("offset", "<u8"), ("length", "<u4")]))
    (path,) = tmp_path.glob(".*.join.index")
    path.write_bytes(b"".join(indexing.encode(indexing.read_header(path), rows)))
    with pytest.raises(ShardError, match="record 0 expected within the sidecar, got bytes"):
        read_all(TarShards(shards.urls, ["n"]))


def test_a_reserved_field_is_refused_though_an_index_has_its_record(write_tar, monkeypatch):
    """It would stand in the place of the record's key."""
    url = write_tar([("a.__key__", b"x")])
    with monkeypatch.context() as stranger:
        stranger.setattr(tar_records, "is_reserved", lambda _: False)
        shards = TarShards([url])
    with pytest.raises(ShardError, match="expected another field name, got '__key__'"):
        read_all(shards)


@pytest.mark.parametrize("field", ["skipped", "first_skipped", "noted"])
def test_an_index_that_counts_beyond_63_bits_is_built_again(write_jsonl, tmp_path, builds, field):
    """Its checksum is right."""
    url = write_jsonl([{"n": 1}])
    read_all(JsonlShards([url]))
    (path,) = indexes(tmp_path)
    rows = np.frombuffer(path.read_bytes()[HEADER_BYTES:-4], np.dtype([("offset", "<u8"), ("blanks", "<u4")]))
    path.write_bytes(b"".join(indexing.encode(indexing.read_header(path)._replace(**{field: 2**63}), rows)))
    assert [record["n"] for record in read_all(JsonlShards([url]))] == [1]
    assert builds == [url, url]


def test_the_index_counts_the_rows_with_integers_that_64_bits_cannot_hold(write_jsonl, tmp_path):
    """Digits in texts and fractions do not count; a shard without such a row is not searched when it is read."""
    write_jsonl([{"id": "1" * 30}, {"n": 2**64 - 1}, {"x": 0.1}, {"m": [-(2**63)]}], "safe.jsonl")
    write_jsonl([{"n": 2**64}, {"n": 1}, {"m": -(2**63) - 1}], "unsafe.jsonl")
    shards = JsonlShards([str(tmp_path / "safe.jsonl"), str(tmp_path / "unsafe.jsonl")])
    headers = {path.name: indexing.read_header(path).noted for path in indexes(tmp_path)}
    assert headers == {".safe.jsonl.jsonl.index": 0, ".unsafe.jsonl.jsonl.index": 2}
    assert (shards.noted > 0).tolist() == [False, True]


def test_an_index_of_an_earlier_format_is_built_again(write_jsonl, tmp_path, builds, caplog):
    """And the warning says which format it is of."""
    url = write_jsonl([{"n": 1}])
    JsonlShards([url])
    (path,) = indexes(tmp_path)
    data = bytearray(path.read_bytes())
    data[16] = 1
    path.write_bytes(data)
    assert len(read_all(JsonlShards([url]))) == 1
    assert builds == [url] * 2
    assert "it is of format b'sdindex\\n' 1" in caplog.text


def test_indexes_cost_at_most_24_bytes_per_record(write_tar, write_jsonl, tmp_path):
    """Of tar, sidecar and JSONL, the headers of the files left out."""
    count = 5000
    write_jsonl([{"key": str(n)} for n in range(count)], "00000.meta.jsonl")
    TarShards([write_tar([(f"{n}.x", b"") for n in range(count)])], ["key"])
    JsonlShards([write_jsonl([{}] * count, "rows.jsonl")])
    sizes = {path.name: (path.stat().st_size - HEADER_BYTES) / count for path in indexes(tmp_path)}
    assert sizes[".00000.tar.tar.index"] + sizes[".00000.tar.join.index"] < 21
    assert sizes[".rows.jsonl.jsonl.index"] < 13


def test_a_shard_that_changes_while_it_is_indexed_is_an_error(write_jsonl, monkeypatch, tmp_path):
    """No index of a mixture of two versions is published."""
    url = write_jsonl([{"n": 1}])
    real = indexing.jsonl_rows

    def change_after_reading(url, *others):
        rows = real(url, *others)
        Path(url).write_bytes(b"{}\n" * 5)
        return rows

    monkeypatch.setattr(indexing, "jsonl_rows", change_after_reading)
    with pytest.raises(ShardError, match="replaced or modified"):
        JsonlShards([url])
    assert not indexes(tmp_path)


def test_builders_at_the_same_time_do_not_harm_each_other(write_jsonl, tmp_path):
    """Many readers of one new shard at once all read all of it, and leave one index and nothing else."""
    url = write_jsonl([{"n": n} for n in range(3000)])
    results = []
    threads = [threading.Thread(target=lambda: results.append(len(read_all(JsonlShards([url]))))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [3000] * 8
    assert sorted(path.name for path in tmp_path.iterdir()) == [".00000.jsonl.jsonl.index", "00000.jsonl"]


@pytest.fixture
def counts(monkeypatch):
    """Indexes shards by two processes, however small they are; returns how many records each has."""
    monkeypatch.setattr(indexing.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(indexing, "_MIN_BYTES", 0)

    def count(kind, urls):
        jobs = [indexing.IndexJob(kind, url, stamp_of(url)) for url in urls]
        return [header.num_records for header in indexing.headers_of(jobs)]

    return count


def test_many_shards_are_indexed_by_processes(write_jsonl, counts, builds, monkeypatch):
    """All indexes come from the processes; none is left to be built here. A relative sys.path entry does no harm."""
    monkeypatch.syspath_prepend("")
    urls = [write_jsonl([{"n": n}] * (n + 1), f"{n}.jsonl") for n in range(5)]
    assert counts("jsonl", urls) == [1, 2, 3, 4, 5]
    assert builds == []


def test_a_damaged_shard_among_many_is_an_error_of_its_own(write_tar, counts):
    """What a process could not index raises here, with its place, and the others are indexed."""
    urls = [write_tar([("a.x", b"1")], f"{n}.tar") for n in range(4)]
    os.truncate(urls[2], 700)
    with pytest.raises(ShardError, match=r"2\.tar.*offset 512.*'a\.x'"):
        counts("tar", urls)


def test_processes_that_fail_are_made_up_for(write_jsonl, counts, builds, monkeypatch, caplog):
    """If the processes cannot start, the shards are indexed here, with a warning."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    urls = [write_jsonl([{"n": n}], f"{n}.jsonl") for n in range(3)]
    with caplog.at_level(logging.WARNING):
        assert counts("jsonl", urls) == [1, 1, 1]
    assert sorted(builds) == urls  # as their processes die
    assert caplog.text.count("it died with exit code 1; its shard is indexed here") == 3
