import gzip
import logging
import os
import pickle
import shutil
import signal
import stat
import zlib
from contextlib import suppress
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdata import JsonlIterableDataset, MergedDataset, MetaDistributedWebDataset, to_state
from streamdata.errors import ShardError
from streamdata.io import file_cache, storage
from streamdata.io.file_cache import locked
from streamdata.io.remote.addresses import StorageOptions
from streamdata.io.remote.network import Network
from streamdata.io.storage import stamp_of
from streamdata.run.per_process import open_files
from streamdata.shards.index import index_file, indexing
from streamdata.shards.index import make_manifest as making
from streamdata.shards.index import manifest as manifest_module
from streamdata.shards.index.index_file import IndexFile, IndexHeader, encode
from streamdata.shards.index.make_manifest import make_manifest, take_stock
from streamdata.shards.index.manifest import (
    ENTRY,
    NAME,
    Known,
    ManifestError,
    ShardList,
    decode_list,
    encode_list,
    open_manifest,
)
from streamdata.shards.jsonl.shards import JsonlShards
from streamdata.shards.listing import TAR_SUFFIXES
from streamdata.shards.tar.shards import TarShards
from tests.cpu import cpu_within
from tests.io.servers import http_server, s3_server
from tests.shard_files import write_jsonl as jsonl_files
from tests.shard_files import write_tars
from tests.shards.conftest import read_all
from tests.streams import plain, through_json


@pytest.fixture
def tars(tmp_path):
    """A folder of four tars with sidecars, one empty."""
    return write_tars(tmp_path / "tars", [70, 3, 0, 40])


def forget(cache):
    """As on another node."""
    shutil.rmtree(cache)
    open_files._values.clear()


def index(*paths, target=None):
    """The manifest of some shards, made or brought up to date."""
    return make_manifest(take_stock(list(map(str, paths)), target), num_processes=1)


def stream(path, states=None, kind=MetaDistributedWebDataset, **options):
    """The records of two epochs, of two ranks after one another, and the states after each."""
    source = kind(path, shuffle_buffer=10, **options)
    source.name, source.percent, source.max_epochs = "s", 1, 2
    dataset = MergedDataset([source], cyclic=False, seed=5)
    if states:
        dataset.set_dataloader_states(states)
    samples = list(dataset)
    return list(map(plain, samples)), [through_json(to_state(sample)) for sample in samples]


def unmade(folder, path, **options):
    """The stream without the manifest."""
    hidden = Path(folder, NAME).rename(Path(folder).parent / "away")
    try:
        return stream(path, **options)
    finally:
        hidden.rename(Path(folder, NAME))


@pytest.fixture
def asks_nothing(monkeypatch):
    """Once called: fails where something is listed or asked for its stamp."""

    def refuse(*_, **__):
        raise AssertionError("something was asked")

    def begin():
        for room in ("indexed", "index.manifest"):
            monkeypatch.setattr(f"streamdata.shards.{room}.stamps_of", lambda urls: refuse() if urls else [])
        for name in ("files", "is_folder"):
            monkeypatch.setattr(f"streamdata.shards.listing.Listings.{name}", refuse)
        monkeypatch.setattr("streamdata.shards.index.indexing.build_each", refuse)

    return begin


@pytest.fixture
def builds(monkeypatch):
    """The urls of the shards that were indexed."""
    urls, real = [], indexing.build_each
    monkeypatch.setattr(
        indexing, "build_each", lambda *jobs, **options: (urls.append(jobs[0].url), real(*jobs, **options))[1]
    )
    return urls


@pytest.mark.each_value
@pytest.mark.parametrize("pattern", ["", "/", "/*.tar", "/{00000..00003}.tar", "/0000[013].tar,TARS/00002.tar"])
@pytest.mark.parametrize("meta", [{}, {"meta_names": ["score"]}, {"meta_names": ["score"], "sidecar_key": "key"}])
def test_streams_with_a_manifest_are_those_without(tars, asks_nothing, pattern, meta):
    """By folder, glob, brace and list, with and without sidecars; nothing is listed or asked for."""
    path = tars + pattern.replace("TARS", tars)
    index(tars)
    expected = unmade(tars, path, **meta)
    asks_nothing()
    found = stream(path, **meta)
    assert found == expected
    assert len(found[0]) == 226


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.mknod(path, stat.S_IFSOCK | 0o600)])
def test_a_manifest_that_is_no_regular_file_is_an_error_at_once(tars, make):
    """Nobody waits for the writer of a fifo."""
    make(f"{tars}/{NAME}")
    with pytest.raises(ManifestError, match=rf"'{tars}/{NAME}': expected a regular file that can be read"):
        stream(str(tars))


@pytest.mark.parametrize("pattern", ["TARS", "TARS/*.tar"])
def test_a_manifest_that_cannot_be_read_is_an_error_that_says_what_to_do(tars, pattern):
    """It is not passed over: it was made to be believed, and a listing could differ from it."""
    os.symlink(f"{tars}/{NAME}", f"{tars}/{NAME}")
    with pytest.raises(ManifestError, match=rf"'{tars}/{NAME}': expected a regular .*, got .*Too many levels"):
        stream(pattern.replace("TARS", tars))


def test_a_manifest_that_cannot_be_read_is_not_made_anew(tars):
    """It may say more than the new one would: of other shards, which that one does not keep."""
    os.symlink(f"{tars}/{NAME}", f"{tars}/{NAME}")
    with pytest.raises(ManifestError, match="Let this user read it, or delete it"):
        index(tars)
    assert os.path.islink(f"{tars}/{NAME}")


def test_states_pass_between_streams_with_and_without_a_manifest(tars):
    """Either way, what follows is the same."""
    index(tars)
    records, states = unmade(tars, tars)
    assert stream(tars, states[100])[0] == records[101:]
    assert unmade(tars, tars, states=stream(tars)[1][100])[0] == records[101:]


def test_jsonl_and_compressed_shards_have_one_too(tmp_path, asks_nothing):
    """The latter without records, with their sizes."""
    folder = jsonl_files(tmp_path / "rows", [9, 600, 30])
    index(folder)
    expected = unmade(folder, folder, kind=JsonlIterableDataset)
    asks_nothing()
    assert stream(folder, kind=JsonlIterableDataset) == expected
    assert len(expected[0]) == 2 * 639


@pytest.mark.parametrize("change", ["size", "mtime", "removed"])
def test_a_shard_that_is_not_what_the_manifest_says_is_an_error(tars, change):
    """When it is read, with its name and the remedy."""
    index(tars)
    path = Path(tars, "00003.tar")
    if change == "removed":
        path.unlink()
    elif change == "mtime":
        os.utime(path, ns=(1, 1))
    else:
        path.write_bytes(path.read_bytes() + bytes(512))
    with pytest.raises(ShardError, match=r"(?s)00003\.tar.*streamdata index"):
        stream(tars)


def test_a_copy_is_read_by_sizes_and_says_so_once(tars, tmp_path, caplog):
    """Other mtimes are no matter; a shard of another size is."""
    index(tars)
    expected = unmade(tars, tars, meta_names=["score"])[0]
    copy = str(tmp_path / "copy")
    shutil.copytree(tars, copy, copy_function=shutil.copyfile)
    with caplog.at_level(logging.WARNING):
        found = stream(copy, meta_names=["score"])[0]
    assert [{**r, "__url__": r["__url__"].replace(copy, tars)} for r in found] == expected
    assert (caplog.text.count("was copied"), caplog.text.count(f"streamdata index {copy}")) == (1, 1)
    Path(copy, "00001.tar").write_bytes(bytes(512))
    with pytest.raises(ShardError, match=r"00001\.tar"):
        stream(copy)


def test_the_version_of_a_copied_shard_is_that_at_the_start(write_tar, members, tmp_path):
    """One that is replaced by another of its size within a run is an error; the next run takes the new one."""
    (tmp_path / "a").mkdir()
    write_tar(members, "a/0.tar")
    index(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copyfile)
    url = str(tmp_path / "b/0.tar")

    def reader():
        return TarShards([url], known=Known([open_manifest(str(tmp_path / "b" / NAME))]))

    shards = reader()
    assert len(read_all(shards)) == 3
    assert shards.stamps[0] == stamp_of(url)
    os.utime(url, ns=(1, 1))
    with pytest.raises(ShardError, match=r"b/0\.tar.*replaced or modified"):
        read_all(shards)
    assert len(read_all(reader())) == 3


def test_a_second_index_reads_only_what_is_new(tars, builds):
    """What is the same is taken from the manifest; where all is, nothing is written."""
    index(tars)
    assert len(builds) == 4
    before = stamp_of(f"{tars}/{NAME}")
    index(tars)
    assert (len(builds), stamp_of(f"{tars}/{NAME}")) == (4, before)
    os.utime(Path(tars, "00001.tar"), ns=(1, 1))
    shutil.copy(Path(tars, "00000.tar"), Path(tars, "00009.tar"))
    index(tars)
    assert sorted(map(os.path.basename, builds[4:])) == ["00001.tar", "00009.tar"]
    assert len(stream(tars)[0]) == 2 * (113 + 70)


def test_a_few_small_shards_are_indexed_without_processes(tars, monkeypatch):
    """They take longer to start than the work; many small ones are worth them, and so are large ones."""
    monkeypatch.setattr(indexing, "processes", None)
    make_manifest(take_stock([tars]), num_processes=4)
    os.utime(Path(tars, "00001.tar"), ns=(1, 1))
    os.utime(Path(tars, "00003.tar"), ns=(1, 1))
    monkeypatch.setattr(indexing, "_MIN_BYTES", 2 * indexing._SHARD_BYTES)
    with pytest.raises(TypeError, match="NoneType"):
        make_manifest(take_stock([tars]), num_processes=4)


def test_indexes_are_not_waited_for_until_they_are_on_the_disk(tars, monkeypatch):
    """The manifest and its name are: what is damaged of an index is noticed, and built again."""
    synced, real = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd)))
    index(tars)
    assert [os.path.basename(path).partition(".manifest")[0] for path in synced] == [".streamdata", "tars"]


def test_an_index_that_was_killed_goes_on(tars, builds, monkeypatch, cache):
    """The indexes that were built are found beside their shards, by each thing that the keys of a sidecar may be."""

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(making, "_publish", die)
        with pytest.raises(KeyboardInterrupt):
            index(tars)
    assert len(list(Path(tars).glob(".*.index"))) == 4 * 4
    index(tars)
    assert [os.path.basename(url) for url in builds[4:]] == []
    assert not list(cache.rglob("*.index"))


def test_a_manifest_of_some_shards_is_no_list_of_their_folder(tars, caplog):
    """It is used for those that it names; the others are found and indexed as ever."""
    index(f"{tars}/0000[03].tar")
    assert len(stream(tars)[0]) == 226
    assert len(stream(f"{tars}/{{00000,00001}}.tar")[0]) == 146
    index(tars)
    with pytest.raises(ShardError, match=rf"lists all shards of its folder.*(.|\n)*streamdata index {tars}/"):
        index(f"{tars}/00001.tar")


def test_a_manifest_elsewhere_is_named_itself(tars, tmp_path, asks_nothing):
    """Its names are those of the place that it was made for, and the indexes are with it."""
    made = index(tars, target=str(tmp_path / "other.manifest"))
    assert len(list((tmp_path / "other.indexes").iterdir())) == 4 * 4
    assert not list(Path(tars).glob(".*"))
    expected = stream(tars)
    for path in Path(tars).glob(".*"):
        path.unlink()
    asks_nothing()
    assert stream(made) == expected


def resigned(data, change):
    """A manifest whose list was changed by one who knows how its checksum is made."""
    body = change(data.partition(b"\n")[2])
    return b"streamdata manifest 2, CRC32 %08x\n" % zlib.crc32(body) + body


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The bytes of a small manifest of two tars with sidecars, and its folder."""
    folder = write_tars(tmp_path_factory.mktemp("small") / "tars", [5, 2])
    return Path(index(folder)).read_bytes(), Path(folder)


@pytest.mark.parametrize(
    "name", ["../x.tar", "/etc/x", "a//b", "./a", "pipe:id", "s3://b/x", "a::b", "xxxxxxxxxxxxx/..", "a\\b"]
)
def test_a_name_that_leads_elsewhere_is_refused(small, name):
    """A manifest may come from a stranger."""
    wrong = resigned(
        small[0],
        lambda body: body.replace(b"00000.meta.jsonl", name.encode().replace(b"\\", b"\\\\").ljust(16, b"_"), 1),
    )
    Path(small[1], "wrong.manifest").write_bytes(wrong)
    with pytest.raises(ManifestError, match=r"in a name|not sorted"):
        open_manifest(str(small[1] / "wrong.manifest"))


def test_an_index_with_sidecars_of_some_shards_alone_is_refused(small):
    """Of the kind that joins them each shard has one, of others none has."""
    content, folder = small
    said = decode_list("m", content)
    said.indexes["join"] = said.indexes["join"].copy()
    said.indexes["join"]["sidecar"][0] = -1
    (folder / "alone.manifest").write_bytes(encode_list(said))
    with pytest.raises(ManifestError, match="an index of what is not there"):
        open_manifest(str(folder / "alone.manifest"))


def test_a_manifest_of_an_earlier_format_is_an_error_that_says_what_to_do(small):
    """It is not passed over."""
    path = small[1] / "early.manifest"
    path.write_bytes(b"sdmanif\n" + bytes(100))
    with pytest.raises(ManifestError, match=r"early\.manifest.*sdmanif(.|\n)*streamdata index FOLDER"):
        open_manifest(str(path))


@given(st.data())
def test_any_damage_of_a_manifest_is_an_error_or_does_not_matter(small, data):
    """A byte changed anywhere, or the end cut off: never another record, never another error."""
    content, folder = small
    at = data.draw(st.integers(0, len(content) - 1))
    damaged = content[:at] + bytes([content[at] ^ data.draw(st.integers(1, 255))]) + content[at + 1 :]
    path = folder / "damaged.manifest"
    path.write_bytes(data.draw(st.sampled_from([damaged, content[:at]])))
    scores = []
    with suppress(ManifestError):
        found = read_all(TarShards([f"{folder}/00000.tar"], ["score"], known=Known([open_manifest(str(path))])))
        scores = [record["score"] for record in found]
    assert scores in ([], [0, 0.5, 1, 1.5, 2])


@given(st.data())
def test_what_a_stranger_writes_into_a_directory_is_refused_or_harmless(small, data):
    """With checksums that fit: rows stay within the manifest, names within the folder, records within the shard."""
    content, folder = small

    def change(body):
        at = data.draw(st.integers(0, len(body) - 1))
        piece = data.draw(
            st.sampled_from([b"\xff", b"9" * 20, b"-1", b"1.5", b"9", b"/", b"\\n", b"null", b"[]", b'"'])
        )
        return body[:at] + piece + body[at + len(piece) :]

    path = folder / "strange.manifest"
    path.write_bytes(resigned(content, change))
    try:
        found = open_manifest(str(path))
        urls = [url for url in found.urls if url.endswith(".tar")]
        read_all(TarShards([url for url in urls if url == f"{folder}/00000.tar"], known=Known([found])))
        assert all(os.path.dirname(os.path.normpath(url)).startswith(str(folder)) for url in urls)
    except (ShardError, FileNotFoundError):
        pass


@given(st.integers(0, 20), st.sampled_from([8, 12]), st.data())
def test_any_run_of_rows_is_read_from_its_chunks(tmp_path_factory, size, row_bytes, data):
    """From one or several chunks, with the row after it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_file, "CHUNK_ROWS", 4)  # so that small examples have several chunks
        table = np.random.default_rng(size).bytes((size + 1) * row_bytes)
        header = IndexHeader("tar", row_bytes, ((1, 2), (0, 0)), size, 0, 0, 0)
        path = tmp_path_factory.mktemp("rows") / "x.index"
        path.write_bytes(b"".join(encode(header, np.frombuffer(table, f"V{row_bytes}"))))
        first = data.draw(st.integers(0, size))
        num = data.draw(st.integers(0, size - first))
        (found,) = IndexFile(str(path), row_bytes, size, header.check).runs([(first, num)])
        assert found == table[first * row_bytes : (first + num + 1) * row_bytes]


@pytest.fixture
def asked(monkeypatch):
    """What was fetched of manifests and indexes: (url, begin, end)."""
    found, one = [], Network.submit
    fetch = manifest_module.fetch_once
    monkeypatch.setattr(
        manifest_module, "fetch_once", lambda url, *span: (found.append((url, *span)), fetch(url, *span))[1]
    )

    def submit(network, url, begin, end, version=""):
        if url.endswith(".index"):
            found.append((url, begin, end))
        return one(network, url, begin, end, version)

    monkeypatch.setattr(Network, "submit", submit)
    return found


@pytest.fixture
def remote(tars):
    """The same shards elsewhere, with a manifest that was made there."""
    memory, root = fsspec.filesystem("memory"), "memory:///manifests"
    if memory.exists("/manifests"):
        memory.rm("/manifests", recursive=True)
    for path in Path(tars).iterdir():
        memory.pipe(f"/manifests/{path.name}", path.read_bytes())
    index(root)
    return root


@pytest.mark.parametrize("pattern", ["", "/*.tar", "/{00000..00003}.tar"])
def test_a_remote_manifest_takes_one_request_at_each_start(tars, remote, asks_nothing, asked, cache, pattern):
    """And each index one, on a node that has not got it."""
    forget(cache)
    expected = stream(tars, meta_names=["score"], block_size=64)[0]
    asks_nothing()
    found = stream(remote + pattern, meta_names=["score"], block_size=64)[0]
    assert [{**r, "__url__": r["__url__"].replace(remote, tars)} for r in found] == expected
    assert [url for url, *_ in asked if url.endswith(NAME)] == [f"{remote}/{NAME}"]
    indexes = [url.removeprefix(f"{remote}/.") for url, *_ in asked[1:]]
    assert sorted(indexes) == [f"0000{n}.tar.{kind}.index" for n in (0, 1, 3) for kind in ("join", "tar")]
    asked.clear()
    assert len(stream(remote + pattern, block_size=64)[0]) == 226
    assert len(asked) == 1


def test_of_a_large_remote_index_the_pages_that_are_wanted_are_fetched(write_tar, asked, monkeypatch, cache):
    """Once on a node; nothing is asked of an index before."""
    monkeypatch.setattr(index_file, "_PAGE_BYTES", 64)
    url = write_tar([(f"{n}.x", b"%d" % n) for n in range(1200)])
    memory = fsspec.filesystem("memory")
    memory.pipe("/large/0.tar", Path(url).read_bytes())
    made = index("memory:///large", target="memory:///large.manifest")
    forget(cache)
    asked.clear()
    shards = TarShards(["memory:///large/0.tar"], known=Known([open_manifest(made)]))
    one = np.ones(1, np.int64)
    assert next(shards.window(0 * one, 700 * one, one).take([0]))["x"] == b"700"
    chunk = 512 * 8 + 4
    assert asked[1:] == [("memory:///large.indexes/.0.tar.tar.index", 92 + chunk, 92 + 2 * chunk)]
    again = TarShards(["memory:///large/0.tar"], known=Known([open_manifest(made)]))
    assert next(again.window(0 * one, 701 * one, one).take([0]))["x"] == b"701"
    assert len(asked) == 3


def test_a_page_that_comes_while_its_rows_are_looked_at_is_not_asked_for_again(write_tar, asked, monkeypatch, cache):
    """Requests of a window's beginning are under way when its first record is taken."""
    url = write_tar([(f"{n}.x", b"%d" % n) for n in range(1200)])
    fsspec.filesystem("memory").pipe("/late/0.tar", Path(url).read_bytes())
    made = index("memory:///late", target="memory:///late.manifest")
    forget(cache)
    asked.clear()
    look = index_file.IndexFile._unsound

    def slowly(self, runs):
        found = look(self, runs)
        for one in list(index_file._under_way.get().values()):
            one.result()
        return found

    monkeypatch.setattr(index_file.IndexFile, "_unsound", slowly)
    shards = TarShards(["memory:///late/0.tar"], known=Known([open_manifest(made)]))
    one = np.ones(1, np.int64)
    shards.prefetch_rows(0 * one, 700 * one, one)
    assert next(shards.window(0 * one, 700 * one, one).take([0]))["x"] == b"700"
    assert len(asked[1:]) == 1


@pytest.mark.parametrize("damage", ["missing", "cut", "changed", "of another version"])
def test_an_index_in_a_store_that_is_not_the_one_listed_is_an_error_that_says_what_to_do(remote, cache, damage):
    """It is never believed, nor built again by each node; `streamdata index` makes it again."""
    memory, path = fsspec.filesystem("memory"), "/manifests/.00000.tar.tar.index"
    forget(cache)
    data, other = memory.cat(path), memory.cat("/manifests/00000.tar")
    if damage == "of another version":
        memory.pipe("/manifests/00000.tar", other)
        index(remote)
        later, newer = memory.cat(path), memory.cat(f"/manifests/{NAME}")
        assert (len(later), later != data) == (len(data), True)
        forget(cache)
    memory.pipe(path, {"cut": data[:300], "changed": data[:300] + b"x" + data[301:]}.get(damage, data))
    if damage == "missing":
        memory.rm(path)
    with pytest.raises(ShardError, match=r"00000\.tar\.tar\.index'(.|\n)*streamdata index FOLDER"):
        stream(remote)
    if damage == "of another version":
        assert memory.cat(f"/manifests/{NAME}") == newer
        memory.rm(path)
    elif damage == "changed":
        memory.rm(path)
    index(remote)
    assert len(stream(remote)[0]) == 226


def test_an_index_in_a_store_that_was_not_whole_may_come_later(remote, cache):
    """What did not fit is not kept."""
    memory, path = fsspec.filesystem("memory"), "/manifests/.00000.tar.tar.index"
    forget(cache)
    data = memory.cat(path)
    memory.pipe(path, bytes(len(data)))
    with pytest.raises(ShardError, match="streamdata index"):
        stream(remote)
    memory.pipe(path, data)
    assert len(stream(remote)[0]) == 226


@pytest.mark.parametrize("damage", ["missing", "cut", "changed", "unreadable"])
def test_an_index_on_a_disk_that_is_not_the_one_listed_is_built_again(tars, builds, damage):
    """Where a shard has its own; of a copied folder it cannot be, since the manifest says nothing of its version."""
    index(tars)
    copy = shutil.copytree(tars, Path(tars).parent / "copy", copy_function=shutil.copyfile)
    expected, builds[:] = stream(tars), []
    for folder in (Path(tars), copy):
        path = folder / ".00000.tar.tar.index"
        data = path.read_bytes()
        path.write_bytes({"cut": data[:100], "changed": data[:100] + b"xy" + data[102:]}.get(damage, data))
        if damage in ("missing", "unreadable"):
            path.unlink()
        if damage == "unreadable":  # a link to itself: permissions do not stop root
            path.symlink_to(path)
    open_files._values.clear()
    assert stream(tars) == expected
    assert builds == [f"{tars}/00000.tar"]
    with pytest.raises(ShardError, match=r"copy/\.00000\.tar\.tar\.index'(.|\n)*streamdata index FOLDER"):
        stream(str(copy))


def test_a_remote_shard_that_is_not_what_the_manifest_says_is_an_error(remote):
    """Of the same size, too; of what was copied those versions count that are there."""
    memory = fsspec.filesystem("memory")
    memory.pipe("/manifests/00003.tar", memory.cat("/manifests/00003.tar"))
    with pytest.raises(ShardError, match=r"00003\.tar.*replaced or modified"):
        stream(remote)
    memory.copy("/manifests", "/copied", recursive=True)
    assert len(stream("memory:///copied")[0]) == 226


def index_in_a_child(urls, go, said):
    """Fork a process that reads the shards when it is told to; what it waits for, builds and finds, a line each."""
    child = os.fork()
    if child:
        return child
    try:
        signal.alarm(30)
        real = indexing.build_each
        indexing.build_each = lambda *jobs, **options: (os.write(said, b"built\n"), real(*jobs, **options))[1]
        file_cache.logger.info = lambda *_: os.write(said, b"waits\n")
        os.read(go, 1)
        os.write(said, b"found %d\n" % JsonlShards(urls).num_records.sum())
    finally:
        os._exit(0)


def test_shards_are_indexed_by_one_of_the_processes_of_a_node(tmp_path):
    """The others wait, and read what it built."""
    folder = jsonl_files(tmp_path / "rows", [20] * 4)
    urls = [f"{folder}/{number:05d}.jsonl" for number in range(4)]
    (go, begin), (hear, said) = os.pipe(), os.pipe()
    children = [index_in_a_child(urls, go, said) for _ in range(2)]  # before the lock, which a fork would hold too
    os.close(said)
    with open(hear) as lines:
        with locked("indexes", *urls):
            os.write(begin, b"..")
            assert [lines.readline() for _ in children] == ["waits\n"] * 2
        assert sorted(lines) == ["built\n"] * 4 + ["found 80\n"] * 2
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    os.close(go)
    os.close(begin)


def test_100_000_shards_cost_no_file_system_call_and_little_time(tmp_path, asks_nothing):
    """What grows with them is a few passes over columns and names: measured with 20,000, in CPU time."""
    names = [f"{number:06d}.tar" for number in range(20_000)]
    table = np.zeros(len(names), ENTRY)
    table["file"], table["sidecar"], table["num_records"] = np.arange(len(names)), -1, 2
    sizes = np.full(len(names), 10240)
    said = ShardList(str(tmp_path), True, TAR_SUFFIXES, names, [], sizes, sizes, {"tar": table})
    (tmp_path / NAME).write_bytes(encode_list(said))
    asks_nothing()
    with cpu_within(0.3 / 5 * 2):  # twice what is promised: it is all over in a moment
        source = MetaDistributedWebDataset(str(tmp_path), name="s", percent=1)
    assert source.source.num_records == 40_000


@pytest.fixture
def store(tars):
    """An S3 API that has the same shards, and a source of them."""
    objects = {f"bucket/d/{path.name}": path.read_bytes() for path in Path(tars).iterdir()}
    with s3_server(objects) as server:
        yield server


def options_for(server):
    """How the store is reached."""
    return {"endpoint": server.url, "anonymous": True}


def requests(server):
    """What was asked since the last time: method and name, with the range."""
    sent = [(one.method, one.path.rpartition("/")[2], one.headers.get("range")) for one in server.log]
    server.log.clear()
    return sent


def test_a_cold_start_of_a_store_reads_each_byte_once_and_the_next_one_lists_alone(tars, store):
    """Tar and sidecar in one pass, nothing asked of a file that the list says; no request for a file again."""
    options = {"storage_options": options_for(store), "meta_names": ["score"], "name": "s", "percent": 1}
    MetaDistributedWebDataset("s3://bucket/d", **options)
    sent = requests(store)
    ranges = sorted((name, span) for method, name, span in sent if name and name != NAME)
    sizes = {path.name: path.stat().st_size for path in Path(tars).iterdir()}
    assert ranges == [(name, f"bytes=0-{size - 1}") for name, size in sorted(sizes.items())]
    MetaDistributedWebDataset("s3://bucket/d", **options)
    again = requests(store)
    assert {name for _, name, _ in again} == {"", NAME}
    assert len(again) <= 3


def test_with_its_manifest_a_store_is_asked_once_and_then_by_version(tars, store, tmp_path, monkeypatch):
    """The manifest's own words for versions go with each range, and the answer to another one is an error."""
    expected = stream(tars, meta_names=["score"], block_size=64)[0]
    stock = take_stock(["s3://bucket/d"], str(tmp_path / "x.manifest"), StorageOptions(**options_for(store)))
    made = make_manifest(stock)
    assert [one for one in requests(store) if one[0] == "HEAD"] == []
    store.objects[f"bucket/d/{NAME}"] = Path(made).read_bytes()
    for path in (tmp_path / "x.indexes").iterdir():
        store.objects[f"bucket/d/streamdata.indexes/{path.name}"] = path.read_bytes()
    monkeypatch.setattr(storage, "_versions", {})  # as in another process: what the list said is not known
    options = {"storage_options": options_for(store), "meta_names": ["score"], "block_size": 64}
    found = stream("s3://bucket/d", **options)[0]
    assert all(one.headers.get("if-match") for one in store.log[1:] if not one.path.endswith(".index"))
    assert [one for one in requests(store) if one[1] == NAME] == [("GET", NAME, "bytes=0-1048575")]
    assert [{**r, "__url__": r["__url__"].replace("s3://bucket/d", tars)} for r in found] == expected
    store.objects["bucket/d/00003.tar"] = store.objects["bucket/d/00003.tar"][:-1] + b"\1"
    with pytest.raises(ShardError, match=r"(?s)00003\.tar.*412"):
        stream("s3://bucket/d", **options)


def test_a_bucket_is_the_same_shards_through_another_endpoint(tars, store, monkeypatch, caplog):
    """Of another store's API or of a web server: the versions are those that the manifest says, and no copy's."""
    make_manifest(take_stock(["s3://bucket/d"], options=StorageOptions(**options_for(store))))
    expected = stream(tars, meta_names=["score"])[0]
    with s3_server(store.objects) as other:
        for path, options in (
            ("s3://bucket/d", {"storage_options": options_for(other)}),
            (f"{other.url}/bucket/d", {}),
        ):
            monkeypatch.setattr(storage, "_versions", {})
            other.log.clear()
            found = stream(path, meta_names=["score"], **options)[0]
            assert [{**r, "__url__": r["__url__"].replace(path, tars)} for r in found] == expected
            assert all("if-match" in one.headers for one in other.log if one.path.endswith((".tar", ".jsonl")))
            assert "was copied" not in caplog.text
        other.objects["bucket/d/00003.tar"] = other.objects["bucket/d/00003.tar"][:-1] + b"\1"
        with pytest.raises(ShardError, match=r"(?s)00003\.tar.*412"):
            stream(f"{other.url}/bucket/d")


@pytest.mark.parametrize("kind", ["s3", "web"])
def test_versions_of_a_copied_folder_are_asked_for_at_the_start(tars, store, kind):
    """By a list where it tells them, else of each file; then each range names its version."""
    index(tars)
    store.objects |= {f"bucket/copy/{path.name}": path.read_bytes() for path in Path(tars).iterdir()}
    path, options = f"{store.url}/bucket/copy", {}
    if kind == "s3":
        path, options = "s3://bucket/copy", {"storage_options": options_for(store)}
    source = MetaDistributedWebDataset(path, meta_names=["score"], name="s", percent=1, block_size=64, **options)
    files = sorted(path.name for path in Path(tars).glob("0*"))
    asked = sorted(name for _, name, _ in requests(store) if name != NAME)
    assert asked == ([""] if kind == "s3" else files)
    assert len(list(MergedDataset([source], cyclic=False))) == 113
    assert all("if-match" in one.headers for one in store.log if not one.path.endswith(".index"))


def test_a_start_over_many_shards_of_a_bucket_takes_two_requests(store, monkeypatch):
    """Nothing is listed, and no index is asked for; the manifest is larger than the first request for it."""
    names = [f"{number:06d}.tar" for number in range(20_000)]
    table = np.zeros(len(names), ENTRY)
    table["file"], table["sidecar"], table["num_records"] = np.arange(len(names)), -1, 2
    sizes, tags = np.full(len(names), 10240), [f'"{number:032x}"' for number in range(len(names))]
    said = ShardList("s3://bucket/many", True, TAR_SUFFIXES, names, tags, sizes, sizes, {"tar": table})
    store.objects[f"bucket/many/{NAME}"] = encode_list(said)
    source = MetaDistributedWebDataset("s3://bucket/many", storage_options=options_for(store), name="s", percent=1)
    assert source.num_records == 40_000
    assert [one[:2] for one in requests(store)] == [("GET", NAME)] * 2


def test_a_bucket_that_cannot_be_written_has_its_indexes_beside_a_manifest_elsewhere(tars, store, tmp_path, cache):
    """Though they were in the cache before; on other nodes nothing is built, and no index is asked for."""
    options, store.fault = options_for(store), lambda one: "403" if one.method == "PUT" else None
    expected = stream("s3://bucket/d", storage_options=options, meta_names=["score"])[0]
    stock = take_stock(["s3://bucket/d"], str(tmp_path / "x.manifest"), StorageOptions(**options))
    made = make_manifest(stock)
    assert sum(path.name.endswith((".tar.index", ".join.index")) for path in (tmp_path / "x.indexes").iterdir()) == 8
    forget(cache)
    store.log.clear()
    assert stream(made, storage_options=options, meta_names=["score"])[0] == expected
    assert {Path(one.path).suffix for one in store.log} <= {".tar", ".jsonl"}


@pytest.fixture
def web(tars):
    """A web server that lists nothing and has the same shards, with a manifest that was made on the disk."""
    made = index(tars)
    with http_server({f"d/{path.name}": path.read_bytes() for path in Path(tars).iterdir()}) as server:
        yield server
    Path(made).unlink()


def test_an_index_reads_each_file_of_a_store_once(tars, web, tmp_path):
    """A sidecar too, whatever its keys may be."""
    del web.objects[f"d/{NAME}"]
    index(f"{web.url}/d/{{00000..00003}}.tar", target=str(tmp_path / "x.manifest"))
    bodies = [one[1] for one in requests(web) if one[2] not in ("bytes=0-0", "bytes=0-1048575")]
    assert sorted(bodies) == sorted(set(bodies))


def test_a_cold_start_without_lists_asks_each_file_once_what_it_is(tars, web):
    """By a byte, and then for its bytes by that version; a tar and its sidecar alike."""
    del web.objects[f"d/{NAME}"]
    MetaDistributedWebDataset(f"{web.url}/d/{{00000..00003}}.tar", meta_names=["score"], name="s", percent=1)
    sizes = {path.name: path.stat().st_size for path in Path(tars).glob("[!.]*") if path.name != NAME}
    spans = [(name, span) for name, size in sizes.items() for span in ("bytes=0-0", f"bytes=0-{size - 1}")]
    found = requests(web)
    assert [one for one in found if one[1] == NAME] == [("GET", NAME, "bytes=0-1048575")]
    assert sorted(one for one in found if one[1] != NAME) == sorted(
        ("GET", *span) for span in spans if span[1] != "bytes=0--1"
    )


def test_a_folder_of_a_web_server_that_lists_nothing_is_read_by_its_manifest(tars, web):
    """With a signature that is good for all of it; a new one resumes, and neither gets into what is read or kept."""
    expected = stream(tars, meta_names=["score"], block_size=64)[0]
    for path in ("/d?sig=SECRET", "/d/{00000..00003}.tar?sig=SECRET"):
        web.log.clear()
        web.fault = lambda request: None if request.query == "sig=SECRET" else "403"
        found, states = stream(web.url + path, meta_names=["score"], block_size=64)
        assert [one[:2] for one in requests(web) if one[1] == NAME] == [("GET", NAME)]
        assert [{**r, "__url__": r["__url__"].replace(f"{web.url}/d", tars)} for r in found] == expected
        assert "SECRET" not in repr([found, states])
        web.fault = lambda request: None if request.query == "sig=LATER" else "403"
        again = stream(web.url + path.replace("SECRET", "LATER"), states[100], meta_names=["score"], block_size=64)[0]
        assert again == found[101:]


def test_a_manifest_that_signatures_of_shards_do_not_admit_is_none(tars, web):
    """Each url is signed for one object: the shards are read as without it."""
    web.fault = lambda request: None if request.query == f"sig={request.path.rpartition('/')[2]}" else "403"
    paths = [f"{web.url}/d/{number:05d}.tar?sig={number:05d}.tar" for number in range(4)]
    found = stream(paths, block_size=64)[0]
    assert [{**r, "__url__": r["__url__"].replace(f"{web.url}/d", tars)} for r in found] == unmade(
        tars, tars, block_size=64
    )[0]
    web.fault = lambda request: "403" if request.path.endswith(".tar") else None
    with pytest.raises(ShardError, match=r"00000\.tar.*403"):
        stream(paths)


@pytest.fixture
def compressed(tmp_path):
    """A folder of tars, and one of JSON lines, of which some are compressed."""
    tars, rows = write_tars(tmp_path / "tars", [20, 5]), jsonl_files(tmp_path / "rows", [30, 7])
    for plain_file in (Path(tars, "00001.tar"), Path(rows, "00000.jsonl")):
        Path(f"{plain_file}.gz").write_bytes(gzip.compress(plain_file.read_bytes(), mtime=0))
        plain_file.unlink()
    return {MetaDistributedWebDataset: tars, JsonlIterableDataset: rows}


@pytest.mark.parametrize("kind", [MetaDistributedWebDataset, JsonlIterableDataset])
def test_compressed_shards_are_read_by_a_manifest(compressed, asks_nothing, kind):
    """Nothing is asked of them before they are read; what is another one than it says is an error that names it."""
    folder = compressed[kind]
    meta = {"meta_names": ["score"]} if kind is MetaDistributedWebDataset else {}
    index(folder)
    expected = unmade(folder, folder, kind=kind, **meta)
    asks_nothing()
    assert stream(folder, kind=kind, **meta) == expected
    assert len(expected[0]) == 2 * (25 if meta else 37)
    (shard,) = Path(folder).glob("*.gz")
    os.utime(shard, ns=(1, 1))
    with pytest.raises(ShardError, match=rf"{shard.name}.*replaced or modified"):
        stream(folder, kind=kind, **meta)


@pytest.mark.parametrize("kind", [MetaDistributedWebDataset, JsonlIterableDataset])
def test_compressed_shards_of_a_store_are_asked_for_by_the_version_that_the_manifest_says(
    compressed, kind, monkeypatch
):
    """From the first request on."""
    folder = compressed[kind]
    expected = stream(folder, kind=kind)[0]
    with s3_server({f"bucket/d/{path.name}": path.read_bytes() for path in Path(folder).iterdir()}) as server:
        options = StorageOptions(**options_for(server))
        make_manifest(take_stock(["s3://bucket/d"], options=options))
        server.log.clear()
        monkeypatch.setattr(storage, "_versions", {})
        found = stream("s3://bucket/d", kind=kind, storage_options=options_for(server))[0]
        assert [one.path.rpartition("/")[2] for one in server.log if "if-match" not in one.headers] == [NAME]
        assert {one.method for one in server.log} == {"GET"}
        assert [{**r, "__url__": r["__url__"].replace("s3://bucket/d", folder)} for r in found] == expected


def test_a_source_with_a_manifest_is_pickled_small(tars):
    """For workers that are spawned: what it needs of the manifest is where the rows are."""
    index(tars)
    shards = TarShards([f"{tars}/00000.tar"], ["score"], known=Known([open_manifest(f"{tars}/{NAME}")]))
    data = pickle.dumps(shards)
    assert len(data) < 4000
    assert read_all(pickle.loads(data)) == read_all(shards)
