import gc
import io
import itertools
import os
import pickle
import shutil
import tarfile
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import webdataset

from streamdata.errors import ShardError
from streamdata.run.per_process import MAX_OPEN_FILES
from streamdata.shards.sequential import SequentialTar
from streamdata.shards.tar import shards as tar
from streamdata.shards.tar.shards import TarShards
from tests.shards.conftest import read_all, whole

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
FLIPPED = pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])
"""Every seventh bit: one or two of each byte, in other bytes others."""


def fields(record):
    return {name: value for name, value in record.items() if not name.startswith("__")}


def rewrite(path, position, value):
    """Change one byte, and leave the mtime as it was."""
    times = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(bytes([value]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("tar_format", FORMATS.values(), ids=FORMATS)
def test_records_are_the_members_that_share_a_key(write_tar, members, tar_format):
    """Key, url and lower-cased fields come out as they went in, in each format."""
    url = write_tar(members, tar_format=tar_format)
    records = read_all(TarShards([url]))
    assert [record["__key__"] for record in records] == ["a/0", "a/1", "a/2"]
    assert {record["__url__"] for record in records} == {url}
    assert fields(records[1]) == {"jpg": b"y" * 512, "txt": b"", "seg.png": b"z" * 511}


@pytest.mark.parametrize(
    ("tar_format", "length"),
    [(number, length) for number in FORMATS.values() for length in (90, 99, 100, 101, 150, 250)]
    + [(tarfile.GNU_FORMAT, 300), (tarfile.PAX_FORMAT, 300)],
)
def test_long_names_are_read(write_tar, tar_format, length):
    """Names longer than a header's field: a prefix (ustar), a long name (GNU), a pax path."""
    name = "/".join(["d" * 49] * 9)[: length - 4] + ".jpg"
    url = write_tar([(name, b"data"), (name[:-3] + "txt", b"text")], tar_format=tar_format)
    (record,) = read_all(TarShards([url]))
    assert (record["__key__"], fields(record)) == (name[:-4], {"jpg": b"data", "txt": b"text"})


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_large_owner_numbers_and_other_languages_are_read(write_tar, tar_format):
    """A uid in base 256 or a pax record, names beyond ASCII, and bytes that are no text."""
    named = [("ä/日本.jpg", b"1"), ("ä/日本.txt", b"2"), ("b\udcff.jpg", b"3")]
    url = write_tar(named, tar_format=tar_format, uid=2**40, uname="usér")
    assert [(r["__key__"], *fields(r).values()) for r in read_all(TarShards([url]))] == [
        ("ä/日本", b"1", b"2"),
        ("b\udcff", b"3"),
    ]


def test_size_in_base_256_and_in_pax_records_is_read(write_tar):
    """Sizes as GNU tar and pax write those of 8 GiB and more."""
    url = write_tar([("a.jpg", b"x" * 600), ("b.jpg", b"y")])
    data = bytearray(Path(url).read_bytes())
    data[124:136] = b"\x80" + (600).to_bytes(11, "big")
    data[148:156] = b"%06o\0 " % (sum(data[:148]) + 256 + sum(data[156:512]))
    Path(url).write_bytes(data)
    assert [record["jpg"] for record in read_all(TarShards([url]))] == [b"x" * 600, b"y"]
    pax = write_tar([("a.jpg", b"x" * 600)], "pax.tar", tarfile.PAX_FORMAT, pax_headers={"size": "600", "comment": "c"})
    assert read_all(TarShards([pax]))[0]["jpg"] == b"x" * 600


@pytest.mark.filterwarnings("ignore:unclosed file", "ignore::pytest.PytestUnraisableExceptionWarning")  # theirs
def test_what_webdataset_writes_reads_as_webdataset_reads_it(tmp_path):
    """The same records as webdataset's own reader gives, in the same order."""
    url = str(tmp_path / "00000.tar")
    with webdataset.TarWriter(url) as writer:
        for number in range(20):
            writer.write({"__key__": f"k/{number}", "jpg": os.urandom(number * 100), "txt": str(number), "cls": number})
    theirs = [dict(sample) for sample in webdataset.WebDataset(url, shardshuffle=False)]
    gc.collect()
    assert [{**fields(record), "__key__": record["__key__"]} for record in read_all(TarShards([url]))] == [
        {name: value for name, value in sample.items() if name == "__key__" or not name.startswith("__")}
        for sample in theirs
    ]


def test_what_webdataset_writes_takes_the_fast_way(tmp_path, monkeypatch):
    """The short pax header that its writer puts before each member does not slow reading."""
    url = str(tmp_path / "00000.tar")
    with webdataset.TarWriter(url) as writer:
        writer.write({"__key__": "k", "jpg": b"1" * 2000, "txt": "2"})
    monkeypatch.setattr(tar, "records", None)
    assert fields(read_all(TarShards([url]))[0]) == {"jpg": b"1" * 2000, "txt": b"2"}


@pytest.mark.parametrize("seed", range(8))
def test_any_archive_reads_as_tarfile_reads_it(tmp_path, seed):
    """Random names, sizes, formats and directories, in shuffled order, against the standard library."""
    random = np.random.default_rng(seed)
    path = tmp_path / "00000.tar"
    with tarfile.open(path, "w", format=seed % 3) as archive:
        for number in range(40):
            key = "/".join(["d" * int(random.integers(1, 60)) for _ in range(random.integers(0, 4))] + [f"{number}"])
            if random.random() < 0.2:
                archive.addfile(_directory(f"{key}/"))
            for field in random.permutation(["a", "b.c", "d" * 30])[: random.integers(1, 4)]:
                info = tarfile.TarInfo(f"{key}.{field}")
                info.size, info.mtime = int(random.integers(0, 2000)), float(random.random())
                archive.addfile(info, io.BytesIO(random.bytes(info.size)))
    expected: dict = {}
    with tarfile.open(path) as archive:
        for info in filter(tarfile.TarInfo.isfile, archive):
            folder, _, base = info.name.rpartition("/")
            key, field = base.split(".", 1)
            expected.setdefault(f"{folder}/{key}" if folder else key, {})[field] = archive.extractfile(info).read()
    window = whole(TarShards([str(path)]))
    order = random.permutation(len(window))
    assert [(r["__key__"], fields(r)) for r in window.take(order)] == [list(expected.items())[i] for i in order]


def _directory(name):
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE
    return info


@pytest.mark.parametrize("size", [30, 2048])
@pytest.mark.parametrize(
    ("head", "what"), [(b"\x1f\x8b\x08", "gzip data"), (b"<html>", "an HTML or XML page"), (b"PAR1", "a parquet file")]
)
def test_a_file_of_another_format_is_an_error_that_says_which(tmp_path, head, what, size):
    """By its first bytes, where they are no header."""
    path = tmp_path / "0.tar"
    path.write_bytes(head.ljust(size, b"\1"))
    for read in (lambda: TarShards([str(path)]), lambda: list(SequentialTar([str(path)]).stream(0))):
        with pytest.raises(ShardError, match=rf"0\.tar': expected a tar archive, got {what}, which begins with"):
            read()


@pytest.mark.parametrize("name", ["PAR1.x", "BZh91AY&SY.x", "<html>.x", "version https://git-lfs.x"])
def test_members_may_have_any_names(write_tar, name):
    """An archive begins with the name of its first member, which says nothing of the format."""
    assert read_all(TarShards([write_tar([(name, b"1")])]))[0]["x"] == b"1"


def test_any_cut_of_an_archive_is_an_error(write_tar, members, tmp_path):
    """An archive cut at each block, and near each, raises with the file's name, however it is read."""
    data = Path(write_tar(members, tar_format=tarfile.PAX_FORMAT, mtime=0.5)).read_bytes()
    end = data.rstrip(b"\0")
    needed = -(-len(end) // 512) * 512 + 1024
    cut = tmp_path / "cut.tar"
    for length in sorted({block + more for block in range(0, needed, 512) for more in (0, 1, 511)} - {needed + 511}):
        if length >= needed:
            continue
        cut.write_bytes(data[:length])
        for read in (lambda: TarShards([str(cut)]), lambda: list(SequentialTar([str(cut)]).stream(0))):
            with pytest.raises(ShardError, match=r"cut\.tar.*offset \d+"):
                read()
    cut.write_bytes(data[:needed])
    assert len(read_all(TarShards([str(cut)]))) == 3


@FLIPPED
@pytest.mark.parametrize("tar_format", FORMATS.values(), ids=FORMATS)
def test_each_flipped_bit_of_a_header_raises_or_changes_nothing(write_tar, tar_format, step):
    """Flips in any header are found, but for those in the checksum field (148 to 155) that leave its value."""
    url = write_tar([("a.jpg", b"x" * 10)], tar_format=tar_format, mtime=1.0)
    good, data = read_all(TarShards([url])), Path(url).read_bytes()
    harmless = set()
    headers = (*range(512), *(range(1024, 1536) if tar_format == tarfile.PAX_FORMAT else ()))
    for position, bit in islice(itertools.product(headers, range(8)), None, None, step):
        flipped = bytearray(data)
        flipped[position] ^= 1 << bit
        Path(url).write_bytes(flipped)
        try:
            records = list(SequentialTar([url]).stream(0))
        except ShardError:
            continue
        assert records == good
        harmless.add(position % 512)
    assert harmless <= set(range(148, 156))


@FLIPPED
def test_each_flipped_bit_behind_the_index_raises_or_changes_nothing(write_tar, members, step):
    """With the mtime set back, a read still knows the headers: key, fields and sizes, or nothing has changed."""
    url = write_tar(members[:2])
    shards = TarShards([url])
    good = read_all(shards)
    harmless = set()
    data = Path(url).read_bytes()
    for position, bit in islice(itertools.product((*range(512), *range(1536, 2048)), range(8)), None, None, step):
        rewrite(url, position, data[position] ^ (1 << bit))
        try:
            assert read_all(shards) == good
            harmless.add(position)
        except ShardError:
            pass
        rewrite(url, position, data[position])
    name, fields_and_sizes = range(7), {*range(4, 7), *range(124, 135)}
    assert not harmless & {*name, *fields_and_sizes, *(1536 + position for position in fields_and_sizes)}


def test_records_that_are_not_plain_are_checked_in_full_when_read(write_tar):
    """Each flipped bit in the headers of a long name is found behind the index."""
    url = write_tar([("d" * 120 + ".jpg", b"x")], tar_format=tarfile.GNU_FORMAT)
    shards, data = TarShards([url]), Path(url).read_bytes()
    for position in range(0, 1536, 7):
        rewrite(url, position, data[position] ^ 1)
        if position < 512 + 125 or position >= 1024:
            with pytest.raises(ShardError):
                read_all(shards)
        rewrite(url, position, data[position])


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (bytes(512), "second block of zeros"),
        (b"", "a header or an end-of-archive marker"),
        (bytes(512) + b"x" * 512, "second block of zeros"),
        (bytes(1024) + bytes(100) + b"x", "nothing but zeros"),
        (bytes(1024) + b"joined" + bytes(506), "nothing but zeros"),
    ],
)
def test_the_end_of_the_archive_must_be_marked(write_tar, tail, message):
    """A lone block of zeros, none, or data after the marker: never a quiet end."""
    url = Path(write_tar([("a.jpg", b"x")]))
    url.write_bytes(url.read_bytes()[:1024] + tail)
    with pytest.raises(ShardError, match=message):
        TarShards([str(url)])


def test_an_empty_archive_has_no_records(write_tar):
    """Two blocks of zeros are a whole archive."""
    shards = TarShards([write_tar([])])
    assert shards.num_records.tolist() == [0]
    assert list(whole(shards).take([])) == []


@pytest.mark.parametrize(
    ("kind", "name"),
    [(b"1", "hard link"), (b"2", "symbolic link"), (b"3", "character device"), (b"6", "fifo"), (b"S", "sparse")],
)
def test_members_that_are_no_files_are_named(write_tar, kind, name):
    """Links, devices and sparse files are errors that say what they are."""
    url = write_tar([("a.jpg", b"x")])
    data = bytearray(Path(url).read_bytes())
    data[156:157] = kind
    data[148:156] = b"%06o\0 " % (sum(data[:148]) + 256 + sum(data[156:512]))
    Path(url).write_bytes(data)
    with pytest.raises(ShardError, match=rf"'a\.jpg'.*{name}"):
        TarShards([url])


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({}, "sparse file"),
        ({"GNU.sparse.minor": "0", "GNU.sparse.name": "b.jpg"}, "'b.jpg'.*sparse file"),
        ({"GNU.sparse.size": "no number"}, "a member with sound headers, got"),
    ],
)
def test_pax_sparse_files_are_named(write_tar, more, match):
    """A sparse file that pax records describe is an error, not its packed bytes, however little they say."""
    records = {"GNU.sparse.major": "1", **more}
    url = write_tar([("a.jpg", b"x")], tar_format=tarfile.PAX_FORMAT, pax_headers=records)
    with pytest.raises(ShardError, match=match):
        TarShards([url])


def test_directories_are_passed_over_and_odd_names_counted(write_tar, caplog):
    """Members without key and field do not split records; they are counted and logged."""
    url = write_tar([("README", b"?"), ("a.jpg", b"1"), (".hidden", b"?"), ("a.txt", b"2"), ("b.jpg", b"3")])
    shards = TarShards([url])
    assert [fields(record) for record in read_all(shards)] == [{"jpg": b"1", "txt": b"2"}, {"jpg": b"3"}]
    assert shards.anomalies() == {"members without key and field": 2}
    assert "2 members" in caplog.text
    assert "offset 0" in caplog.text
    sequential = SequentialTar([url])
    assert [fields(record) for record in sequential.stream(0)] == [fields(record) for record in read_all(shards)]
    assert sequential.anomalies() == {"members without key and field": 2}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a.jpg", "b.jpg", "a.txt"], "side by side"),
        (["a.jpg", "a.JPG"], "'jpg' twice"),
        (["a.jpg", "a.jpg"], "'jpg' twice"),
        (["a.__key__"], "'__key__'"),
    ],
)
def test_records_that_cannot_be_told_apart_are_errors(write_tar, names, message):
    """Interleaved members, a field twice and reserved names, however the shard is read."""
    url = write_tar([(name, b"x") for name in names])
    with pytest.raises(ShardError, match=message):
        TarShards([url])
    with pytest.raises(ShardError, match=message):
        list(SequentialTar([url]).stream(0))


def test_huge_extension_headers_are_refused(write_tar):
    """A long name of gigabytes is an error before it is read."""
    url = write_tar([("d" * 120 + ".jpg", b"x")], tar_format=tarfile.GNU_FORMAT)
    data = bytearray(Path(url).read_bytes())
    data[124:136] = b"%011o\0" % (1 << 30)
    data[148:156] = b"%06o\0 " % (sum(data[:148]) + 256 + sum(data[156:512]))
    Path(url).write_bytes(data)
    with pytest.raises(ShardError, match="at most 1048576 bytes"):
        TarShards([url])


def test_reading_in_any_order_gives_what_was_asked_for(write_tar):
    """Runs over several shards, positions in any order and more than once, fresh dicts each time."""
    urls = [write_tar([(f"{s}-{n}.x", b"%d %d" % (s, n)) for n in range(9)], f"{s}.tar") for s in range(3)]
    shards = TarShards(urls)
    window = shards.window(np.array([2, 0, 2]), np.array([4, 0, 0]), np.array([3, 2, 1]))
    assert len(window) == 6
    keys = ["2-4", "2-5", "2-6", "0-0", "0-1", "2-0"]
    first, again = list(window.take([5, 0, 3, 3, 1])), list(window.take([5]))
    assert [record["__key__"] for record in first] == [keys[place] for place in (5, 0, 3, 3, 1)]
    assert first[2] is not first[3]
    assert first[0] == again[0]
    assert first[0] is not again[0]


def test_records_side_by_side_are_read_at_once(write_tar, members, monkeypatch):
    """One call reads them all, in whatever order they are asked for."""
    window = whole(TarShards([write_tar(members)]))
    reads, real = [], os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, parts, at: reads.append(len(parts[0])) or real(fd, parts, at))
    in_order = list(window.take([0, 1, 2]))
    assert reads == [7 * 512 + 7 * 512]  # headers, and blocks of data
    assert list(window.take([2, 0, 1])) == [in_order[2], *in_order[:2]]
    assert reads == 2 * [7 * 512 + 7 * 512]


def test_records_carry_the_fields_that_all_have_in_common(write_tar, members):
    """A lane's own fields join each record, which is a dict of its own."""
    first, second = whole(TarShards([write_tar(members)])).take([0, 1], {"__seed__": 5})
    assert (first["__seed__"], first["__key__"], second["__seed__"]) == (5, "a/0", 5)


def test_look_ahead_shrinks_with_the_size_of_records(write_tar):
    """Small records are read many at a time, large ones one by one."""
    small, large = write_tar([("a.x", b"")], "s.tar"), write_tar([("a.x", bytes(20 << 20))], "l.tar")
    assert whole(TarShards([small])).look_ahead > 16
    assert whole(TarShards([large])).look_ahead == 1


def test_readers_are_picklable_and_open_nothing_before_they_read(write_tar, members):
    """A reader that went through pickle reads the same; a fresh one holds no descriptor."""
    url = write_tar(members)
    before = len(os.listdir("/proc/self/fd"))
    shards = TarShards([url])
    assert len(os.listdir("/proc/self/fd")) <= before  # less, where garbage of earlier tests was collected
    copy = pickle.loads(pickle.dumps(shards))
    assert read_all(copy) == read_all(shards)
    assert copy.identity() == [("00000.tar", 3)]


def test_open_files_are_bounded(write_tar):
    """Windows over 300 shards hold no more than the bounded numbers of shards and indexes open."""
    url = write_tar([("a.x", b"1")])
    urls = [shutil.copy2(url, url.replace("00000", f"{number:05d}")) for number in range(1, 301)]
    shards = TarShards([str(path) for path in urls])
    window = whole(shards)
    gc.collect()  # what other tests have left open goes now, or not at all
    before = len(os.listdir("/proc/self/fd"))
    assert len(list(window.take(np.random.default_rng(0).permutation(300)))) == 300
    assert len(os.listdir("/proc/self/fd")) - before <= MAX_OPEN_FILES + 2


def test_a_copy_asked_for_twice_is_two_shards(write_tar, members):
    """A url that is listed twice counts as two shards, with one index."""
    shards = TarShards([write_tar(members)] * 2)
    assert shards.num_records.tolist() == [3, 3]
    assert len(read_all(shards)) == 6


def replace_by_rename(path):
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.rename(path)


def shrink(path):
    os.truncate(path, 2048)


def modify(path):
    data = path.read_bytes()
    path.write_bytes(data.replace(b"x", b"v"))
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("change", [replace_by_rename, shrink, modify, Path.unlink])
def test_a_shard_that_changes_while_it_is_read_is_an_error(write_tar, members, change, mapped):
    """After a first read, a shard renamed over, shrunk, written over or removed gives an error, not other bytes."""
    url = write_tar(members)
    shards = TarShards([url], mapped=mapped)
    window = whole(shards)
    list(window.take([0]))
    change(Path(url))
    with pytest.raises(ShardError, match=r"00000\.tar"):
        list(window.take([0, 1, 2]))


@pytest.mark.parametrize("change", [replace_by_rename, shrink, modify, Path.unlink])
def test_a_shard_that_changes_during_a_take_is_an_error(write_tar, members, change, monkeypatch):
    """What was read before the change is not handed out after it."""
    url = write_tar(members)
    window = whole(TarShards([url]))
    list(window.take([0]))

    def read_then_change(*arguments):
        monkeypatch.undo()
        got = os.preadv(*arguments)
        change(Path(url))
        return got

    monkeypatch.setattr(os, "preadv", read_then_change)
    with pytest.raises(ShardError, match=r"00000\.tar"):
        next(window.take([2, 0]))


def test_a_shard_that_changes_between_construction_and_reading_is_an_error(write_tar, members):
    """A reader made for one version of a shard does not read another one, even if that has been indexed."""
    url = write_tar(members)
    shards = TarShards([url])
    write_tar(members[:2])
    TarShards([url])
    with pytest.raises(ShardError, match="replaced or modified"):
        read_all(shards)


def test_missing_shards_are_errors(tmp_path):
    """There is no shard: FileNotFoundError; it is a directory: ShardError."""
    with pytest.raises(FileNotFoundError, match="none"):
        TarShards([str(tmp_path / "none.tar")])
    with pytest.raises(ShardError, match="regular file"):
        TarShards([str(tmp_path)])


def test_local_tars_are_read_without_the_libraries_of_other_places(write_tar, members, python):
    """All of these together take longer to import than what is needed; and with few modules of the package's own."""
    path = write_tar(members)
    code = (
        "import sys; from streamdata import MergedDataset, MetaDistributedWebDataset, StreamLoader\n"
        "source = MetaDistributedWebDataset(sys.argv[1], name='a', percent=1)\n"
        "next(iter(StreamLoader(MergedDataset([source]), 1)))\n"
        "print({'fsspec', 'pyexpat', 'aiohttp', 'pyarrow', 'h5py', 'omegaconf', 'yaml'} & set(sys.modules))"
    )
    done = python("-c", code, path)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr
