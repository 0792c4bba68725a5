"""Index rows of a manifest in a store: asked for before the windows are opened that need them."""

import os
import signal
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamdata import JsonlIterableDataset, MergedDataset, MetaDistributedWebDataset
from streamdata.errors import ShardError
from streamdata.io.remote.addresses import Address, StorageOptions
from streamdata.io.remote.once import fetch_once
from streamdata.shards.index import manifest, manifest_file, manifest_pages
from streamdata.shards.index.make_manifest import make_manifest, take_stock
from streamdata.shards.index.manifest import NAME
from streamdata.shards.index.manifest_file import ManifestRows, RowRun, open_manifest
from tests.io.servers import s3_server
from tests.shard_files import write_jsonl, write_tars


class HeldBack:
    """Takes requests for rows; they are answered when the test says so."""

    def __init__(self):
        self.requests, self.asked, self.num_waits = [], [], 0

    def submit(self, url, begin, end, version):
        self.requests.append((begin, end))
        self.asked.append((Future(), (url, begin, end, version)))
        return self.asked[-1][0]

    @contextmanager
    def waiting(self):
        self.num_waits += 1
        yield

    def answer_all(self):
        for future, request in self.asked:
            try:
                future.set_result(fetch_once(*request))
            except ShardError as error:
                future.set_exception(error)
        self.asked.clear()


@pytest.fixture
def held(monkeypatch, tmp_path):
    """What rows are asked of; they lie in chunks of four, and pages of 64 bytes are fetched."""
    for module in (manifest, manifest_file):
        monkeypatch.setattr(module, "CHUNK_ROWS", 4)
    for name, size in {"_HEAD_BYTES": 64, "_PAGE_BYTES": 64, "_WHOLE_BYTES": 0}.items():
        monkeypatch.setattr(manifest_file if name == "_HEAD_BYTES" else manifest_pages, name, size)
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "cache"))
    found = HeldBack()
    monkeypatch.setattr(manifest_pages, "network", lambda: found)
    yield found
    manifest_pages._under_way.forked()


@pytest.fixture
def store(held, tmp_path):
    """A store with shards of both kinds, and with their manifests."""
    folders = write_tars(tmp_path / "tars", [300, 0, 120]), write_jsonl(tmp_path / "rows", [200, 90])
    paths = [path for folder in folders for path in Path(folder).iterdir()]
    objects = {f"bucket/{path.parent.name}/{path.name}": path.read_bytes() for path in paths}
    with s3_server(objects) as server:
        server.options = {"endpoint": server.url, "anonymous": True}
        for name in ("tars", "rows"):
            make_manifest(take_stock([f"s3://bucket/{name}"], options=StorageOptions(**server.options)))
        yield server


def source_of(store, name):
    """Windows of ten records in blocks of two."""
    options = {"shuffle_buffer": 10, "block_size": 2, "storage_options": store.options, "name": "s", "percent": 1}
    if name == "rows":
        return JsonlIterableDataset("s3://bucket/rows", **options)
    return MetaDistributedWebDataset("s3://bucket/tars", meta_names=["score"], **options)


@pytest.mark.parametrize("name", ["tars", "rows"])
def test_a_lane_waits_for_no_rows_after_its_first_window(store, held, monkeypatch, name):
    """Though read-ahead opens more windows at once each time."""
    store.log.clear()
    waited, real, records = [], manifest_pages.ManifestPages.wait_for, []

    def wait_for(pages, spans):
        waited.append(len(records))
        held.answer_all()
        real(pages, spans)

    monkeypatch.setattr(manifest_pages.ManifestPages, "wait_for", wait_for)
    source = source_of(store, name)
    source.max_epochs = 1
    for record in MergedDataset([source], cyclic=False, seed=3):
        records.append(record)
        held.answer_all()
    assert len(records) == {"tars": 420, "rows": 290}[name]
    assert set(waited) == {0}


def rows_of(store):
    """The rows of the first shard of JSON lines, and one run of them."""
    found, rows = open_manifest(Address(f"s3://bucket/rows/{NAME}", StorageOptions(**store.options)))
    entry = found.directory.indexes["jsonl"][0]
    return rows, RowRun(int(entry["offset"]), int(entry["num_records"]), 6, 9)


def test_rows_that_are_under_way_or_there_are_not_asked_for_again(store, held):
    """Side by side, pages are one request; what reads them waits for it, and asks for nothing."""
    rows, run = rows_of(store)
    rows.prefetch([run, run._replace(first=10), run], 12)
    rows.prefetch([run], 12)
    assert len(held.requests) == 1
    held.answer_all()
    store.log.clear()
    rows.prefetch([run], 12)
    (found,) = rows.read([run], 12)
    assert (len(found), len(held.requests), store.log) == (10 * 12, 1, [])


def test_what_does_not_come_is_an_error_where_it_is_read(store, held):
    """Not before; and it may come when it is asked for again."""
    rows, run = rows_of(store)
    store.fault = lambda _: "403"
    rows.prefetch([run], 12)
    held.answer_all()
    store.log.clear()
    with pytest.raises(ShardError, match=rf"{NAME}.*403"):
        rows.read([run], 12)
    assert held.num_waits == 1  # it is time that the reader waits
    assert store.log == []  # a dead store would be asked for two minutes more
    store.fault = lambda _: None
    manifest_pages._under_way.forked()
    assert len(rows.read([run], 12)[0]) == 10 * 12


def test_rows_that_nobody_will_read_are_cancelled(store, held, monkeypatch):
    """With the iterator that asked for them."""
    monkeypatch.setattr(manifest_pages.ManifestPages, "wait_for", lambda pages, spans: None)  # they are fetched instead
    stream = iter(MergedDataset([source_of(store, "rows")], seed=3))
    next(stream)
    asked = [future for future, _ in held.asked]
    assert asked
    del stream
    assert all(future.cancelled() for future in asked)
    assert not manifest_pages._under_way.made


def test_a_forked_child_asks_for_what_its_parent_waits_for(store, held):
    """The parent's answer would not come there."""
    rows, run = rows_of(store)
    rows.prefetch([run], 12)
    child = os.fork()
    if not child:
        signal.alarm(30)
        try:
            os._exit(len(rows.read([run], 12)[0]) != 10 * 12)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_rows_of_a_local_manifest_are_not_asked_for(held, tmp_path):
    """They are there."""
    (tmp_path / "x.manifest").write_bytes(bytes(10))
    ManifestRows(str(tmp_path / "x.manifest"), None, 0).prefetch([RowRun(0, 1, 0, 1)], 8)
    assert held.requests == []
