"""Shards on a server, through a cache: the same stream, and what is asked of the server."""

import gzip
import re
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from streamdata import JsonlIterableDataset, MergedDataset, MetaDistributedWebDataset, mixed_collate
from streamdata.io.cache.cached import page_cache
from streamdata.io.remote.addresses import _MIN_BYTES
from streamdata.shards.index.make_manifest import make_manifest, take_stock
from tests.io.cache_soak import soak
from tests.io.servers import http_server, s3_server
from tests.shard_files import write_jsonl, write_tars
from tests.streams import assert_exact_resume, delivered, plain


@pytest.fixture(autouse=True)
def indexes(tmp_path, monkeypatch):
    """Built once per test, far from the home directory."""
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "indexes"))


@contextmanager
def served(folder):
    """The files of a folder on a server."""
    with http_server({path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}) as server:
        yield server


def cache_of(dataset):
    """The cache of a dataset's source."""
    return page_cache(dataset.datasets[0].cache)


def bytes_asked(requests):
    """How many bytes some requests asked for, by their ranges."""
    ranges = [re.fullmatch(r"bytes=(\d+)-(\d+)", one.headers.get("range", "")) for one in requests]
    return sum(int(found[2]) + 1 - int(found[1]) for found in ranges if found)


def tars(server, **settings):
    urls = [f"{server.url}/{name}" for name in server.objects if name.endswith(".tar")]
    source = MetaDistributedWebDataset(urls, meta_names=["score"], shuffle_buffer=8, name="tars", percent=1.0)
    return MergedDataset([source], cyclic=False, **settings)


def test_the_stream_is_the_one_without_a_cache(tmp_path):
    """Sidecars included; exactly, at every resume, and each record once for any lanes."""
    folder = write_tars(tmp_path / "data", [9, 7])
    cache = {"path": str(tmp_path / "cache"), "max_bytes": 10**8}
    with served(folder) as server:
        want = [plain(sample) for sample in tars(server)]
        assert [plain(sample) for sample in tars(server, cache=cache)] == want
        assert_exact_resume(lambda: tars(server, cache=cache), steps=4, beyond=4)
        assert sum(delivered(lambda: tars(server, cache=cache), 2, 2).values()) == 16


def test_a_second_pass_asks_nothing(tmp_path):
    """Of tars with sidecars."""
    folder = write_tars(tmp_path / "data", [9, 7])
    with served(folder) as server:
        dataset = tars(server, cache={"path": str(tmp_path / "cache"), "max_bytes": 10**8})
        size = sum(len(data) for data in server.objects.values())
        before = len(server.log)
        assert len(list(dataset)) == 16
        assert bytes_asked(server.log[before:]) <= size
        cache = cache_of(dataset)
        before, hits, reads = len(server.log), cache.hits, cache.reads
        assert len(list(dataset)) == 16
        assert server.log[before:] == []
        assert hits < cache.hits <= hits + size
        assert cache.reads > reads


@pytest.mark.parametrize(
    ("kind", "write"), [(JsonlIterableDataset, write_jsonl), (MetaDistributedWebDataset, write_tars)]
)
def test_all_lanes_of_a_node_find_its_pages(tmp_path, kind, write):
    """Two ranks of two workers, of a store, in a pass that the cache has all bytes of."""
    folder, cache = write(tmp_path / "data", [90, 70, 1]), {"path": str(tmp_path / "cache"), "max_bytes": 10**8}
    with s3_server({f"data/{path.name}": path.read_bytes() for path in Path(folder).iterdir()}) as server:
        options = {"endpoint": server.url, "anonymous": True}

        def make():
            source = kind("s3://data/", storage_options=options, cache=cache, name="s", percent=1, shuffle_buffer=8)
            return MergedDataset([source], cyclic=False)

        first = delivered(make, 2, 2)
        server.log.clear()
        assert delivered(make, 2, 2) == first
        assert [one for one in server.log if "range" in one.headers and not one.path.endswith(".manifest")] == []


def test_a_run_reads_the_version_that_it_began_with(tmp_path):
    """Where all of it is in the cache; the next run reads the new one."""
    folder = write_jsonl(tmp_path / "data", [6])
    cache = {"path": str(tmp_path / "cache"), "max_bytes": 10**8}
    with served(folder) as server:
        source = JsonlIterableDataset(f"{server.url}/00000.jsonl", name="s", percent=1.0, cache=cache)
        dataset = MergedDataset([source], cyclic=False)
        first = list(dataset)
        server.objects["00000.jsonl"] = server.objects["00000.jsonl"].replace(b"line", b"LINE")
        assert sorted(sample["text"] for sample in dataset) == sorted(sample["text"] for sample in first)
        source = JsonlIterableDataset(f"{server.url}/00000.jsonl", name="s", percent=1.0, cache=cache)
        again = list(MergedDataset([source], cyclic=False))
        assert len(again) == len(first)
        assert all("LINE" in sample["text"] for sample in again)


def test_workers_share_what_one_of_them_fetched(tmp_path):
    """Forked ones: two workers, and then others, ask for each byte once, beside the versions."""
    folder = write_jsonl(tmp_path / "data", [40, 40])
    with served(folder) as server:
        urls = [f"{server.url}/{name}" for name in server.objects]
        cache = {"path": str(tmp_path / "cache"), "max_bytes": 10**8}
        source = JsonlIterableDataset(urls, name="s", percent=1.0, cache=cache)
        dataset, before = MergedDataset([source], cyclic=False), len(server.log)
        for _ in range(2):
            assert len(list(DataLoader(dataset, batch_size=8, num_workers=2, collate_fn=mixed_collate))) == 10
        size = sum(len(data) for data in server.objects.values())
        assert bytes_asked(server.log[before:]) <= 1.02 * size


def test_under_a_copied_manifest_pages_are_of_the_version_that_is_there(tmp_path):
    """A manifest that was copied to a store: the next run does not read pages of what was replaced since."""
    folder = write_tars(tmp_path / "data", [9, 7])
    make_manifest(take_stock([str(folder)]), num_processes=1)
    cache = {"path": str(tmp_path / "cache"), "max_bytes": 10**8}
    with s3_server({f"data/{path.name}": path.read_bytes() for path in Path(folder).iterdir()}) as server:

        def read():
            options = {"endpoint": server.url, "anonymous": True}
            source = MetaDistributedWebDataset("s3://data/", storage_options=options, cache=cache, name="s", percent=1)
            dataset = MergedDataset([source], cyclic=False)
            return [plain(sample) for sample in dataset]

        first = read()
        data = next(value for value in first[0].values() if isinstance(value, bytes) and value)
        assert read() == first
        for name in [name for name in server.objects if name.endswith(".tar")]:
            server.objects[name] = server.objects[name].replace(data, b"?" * len(data))
        assert read() != first


@pytest.mark.parametrize("kind", ["jsonl", "gz", "tar"])
def test_under_a_copied_manifest_workers_know_the_versions_of_the_start(tmp_path, kind):
    """Two workers, and in the next pass two new ones: these find all pages."""
    folder = Path((write_tars if kind == "tar" else write_jsonl)(tmp_path / "data", [40, 40, 40]))
    for path in list(folder.iterdir()) if kind == "gz" else ():
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    make_manifest(take_stock([str(folder)]), num_processes=1)
    cache = {"path": str(tmp_path / "cache"), "max_bytes": 10**8}
    with s3_server({f"data/{path.name}": path.read_bytes() for path in folder.iterdir()}) as server:
        options = {"endpoint": server.url, "anonymous": True}
        make = MetaDistributedWebDataset if kind == "tar" else JsonlIterableDataset
        source = make("s3://data/", storage_options=options, cache=cache, name="s", percent=1, shuffle_buffer=8)
        dataset, asked = MergedDataset([source], cyclic=False), []
        for _ in range(2):
            server.log.clear()
            assert sum(map(len, DataLoader(dataset, batch_size=8, num_workers=2, collate_fn=mixed_collate))) == 120
            asked = [one for one in server.log if "range" in one.headers and not one.path.endswith(".manifest")]
        assert asked == []


@pytest.mark.long
def test_ranks_and_workers_share_a_cache_that_is_too_small_while_one_is_killed(tmp_path):
    """Four ranks of two workers: each pass has each record once, and no more bytes lie there than may."""
    found = soak(tmp_path, records=120)
    assert found.passes == [Counter(range(360))] * 2
    assert _MIN_BYTES < found.most_bytes <= 2 * _MIN_BYTES


def test_hundreds_of_tiny_shards_are_read_once_each_and_from_the_cache_again(tmp_path):
    """A request for the index of each and one for its page, and then none."""
    shards = {f"b/{n:05d}.jsonl": b'{"v": %d}\n{"v": %d}\n' % (2 * n, 2 * n + 1) for n in range(300)}
    with s3_server(shards) as server:
        source = JsonlIterableDataset(
            "s3://b", storage_options={"endpoint": server.url, "anonymous": True}, name="s", percent=1.0,
            cache={"path": str(tmp_path / "cache"), "max_bytes": 3 * _MIN_BYTES},
        )  # fmt: skip
        dataset = MergedDataset([source], cyclic=False)
        assert 300 <= len(server.log) <= 303
        for most_requests, most_bytes in ((600, 12_000), (0, 0)):
            server.log.clear()
            assert sorted(sample["v"] for sample in dataset) == list(range(600))
            assert len(server.log) <= most_requests
            assert bytes_asked(server.log) <= most_bytes
