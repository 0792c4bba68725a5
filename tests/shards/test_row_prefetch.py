"""Rows of indexes in a store: asked for before the windows are opened that need them."""

import os
import shutil
import signal
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamdata import JsonlIterableDataset, MergedDataset, MetaDistributedWebDataset
from streamdata.errors import ShardError
from streamdata.io.remote.addresses import Address, StorageOptions
from streamdata.io.remote.once import fetch_once
from streamdata.io.storage import LocalShard
from streamdata.run.per_process import open_files
from streamdata.shards.index import index_file
from streamdata.shards.index.index_file import IndexFile
from streamdata.shards.index.make_manifest import make_manifest, take_stock
from streamdata.shards.index.manifest import NAME, open_manifest
from tests.io.servers import s3_server
from tests.shard_files import write_jsonl, write_tars


class HeldBack:
    """Takes requests for rows; they are answered when the test says so."""

    def __init__(self):
        self.requests, self.asked, self.num_waits = [], [], 0
        self.wait = lambda: None  # what happens while somebody waits

    def submit(self, url, begin, end):
        self.requests.append((begin, end))
        self.asked.append((Future(), (url, begin, end)))
        return self.asked[-1][0]

    @contextmanager
    def waiting(self):
        self.num_waits += 1
        self.wait()
        yield

    def answer_next(self):
        future, request = self.asked.pop(0)
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(fetch_once(*request))
            except ShardError as error:
                future.set_exception(error)

    def answer_all(self):
        while self.asked:
            self.answer_next()


@pytest.fixture
def held(monkeypatch, tmp_path):
    """What rows are asked of; they lie in chunks of four, and pages of 64 bytes are fetched."""
    monkeypatch.setattr(index_file, "CHUNK_ROWS", 4)
    monkeypatch.setattr(index_file, "_PAGE_BYTES", 64)
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "cache"))
    open_files._values.clear()  # of other tests, whose indexes are the same
    found = HeldBack()
    monkeypatch.setattr(index_file, "network", lambda: found)
    yield found
    index_file._under_way.forked()


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
        shutil.rmtree(tmp_path / "cache")  # as on another node
        yield server


def source_of(store, name):
    """Windows of ten records in blocks of two."""
    options = {"shuffle_buffer": 10, "block_size": 2, "storage_options": store.options, "name": "s", "percent": 1}
    if name == "rows":
        return JsonlIterableDataset("s3://bucket/rows", **options)
    return MetaDistributedWebDataset("s3://bucket/tars", meta_names=["score"], **options)


@pytest.mark.parametrize("name", ["tars", "rows"])
def test_a_lane_waits_for_no_rows_after_its_first_window(store, held, name):
    """Though read-ahead opens more windows at once each time."""
    store.log.clear()
    records, waited = [], []
    held.wait = lambda: (waited.append(len(records)), held.answer_all())
    source = source_of(store, name)
    source.max_epochs = 1
    for record in MergedDataset([source], cyclic=False, seed=3):
        records.append(record)
        held.answer_all()
    assert len(records) == {"tars": 420, "rows": 290}[name]
    assert set(waited) == {0}


@pytest.fixture
def index(store, tmp_path):
    """The index of the first shard of JSON lines, in a copy that has nothing yet."""
    place = Address("s3://bucket/rows/.00000.jsonl.jsonl.index", StorageOptions(**store.options))
    check = int(open_manifest(Address(f"s3://bucket/rows/{NAME}", place.options)).said.indexes["jsonl"]["check"][0])
    store.log.clear()
    return lambda: IndexFile(str(tmp_path / "copy.index"), 12, 200, check, place)


RUN = (6, 9)


def test_rows_that_are_under_way_or_there_are_not_asked_for_again(store, held, index):
    """Side by side, pages are one request; what reads them waits for it, and asks for nothing."""
    one = index()
    one.ask_for([RUN, (10, 9), RUN])
    index().ask_for([RUN])
    assert len(held.requests) == 1
    held.answer_all()
    store.log.clear()
    assert one.ask_for([RUN]) == index().ask_for([RUN]) == []
    (found,) = one.runs([RUN])
    assert (len(found), len(held.requests), store.log) == (10 * 12, 1, [])


def test_what_does_not_come_is_an_error_where_it_is_read(store, held, index):
    """Not before; and it may come when it is asked for again."""
    one = index()
    store.fault = lambda _: "403"
    one.ask_for([RUN])
    held.answer_all()
    store.log.clear()
    with pytest.raises(ShardError, match=r"00000\.jsonl\.jsonl\.index.*403"):
        one.runs([RUN])
    assert held.num_waits == 1  # it is time that the reader waits
    assert store.log == []  # a dead store would be asked for two minutes more
    store.fault = lambda _: None
    held.wait = held.answer_all
    assert len(one.runs([RUN])[0]) == 10 * 12


def test_rows_that_nobody_will_read_are_cancelled(store, held, monkeypatch):
    """With the iterator that asked for them."""

    def bring_whole_index(one, runs):
        Path(one._path).write_bytes(fetch_once(one._origin, 0, 1 << 20).data)
        one._file = LocalShard(one._path)
        return one._unsound(runs)

    monkeypatch.setattr(IndexFile, "_brought", bring_whole_index)  # so that nobody waits for what was asked for
    stream = iter(MergedDataset([source_of(store, "rows")], seed=3))
    next(stream)
    asked = [future for future, _ in held.asked]
    assert asked
    del stream
    assert all(future.cancelled() for future in asked)


def test_what_somebody_else_cancelled_is_asked_for_again(store, held, index):
    """By whoever waits for it."""
    (asked,) = index().ask_for([RUN])
    assert asked.cancel()
    held.wait = held.answer_all
    assert len(index().runs([RUN])[0]) == 10 * 12
    assert len(held.requests) == 2


def test_a_copy_that_was_deleted_is_read_anew(store, held, index, tmp_path):
    """Also what was read before of the old one: the new one has holes there."""
    held.wait = held.answer_all
    one = index()
    before = one.runs([RUN])
    (tmp_path / "copy.index").unlink()
    index().runs([(150, 9)])  # another process makes a new copy
    one.runs([(100, 9)])
    assert one.runs([RUN]) == before


def test_a_late_answer_of_another_index_changes_no_copy(store, held, index, tmp_path):
    """Others have compared the rows that are there, and do not look at them again."""
    index().ask_for([RUN])
    late = held.asked.pop()
    index_file._under_way.get().clear()  # as in another process
    held.wait = held.answer_all
    one = index()
    before = one.runs([RUN])
    name = "bucket/rows/.00000.jsonl.jsonl.index"
    store.objects[name] = bytes(len(store.objects[name]))
    held.asked.append(late)
    held.answer_all()
    assert one.runs([RUN]) == before


def test_a_forked_child_asks_for_what_its_parent_waits_for(store, held, index):
    """The parent's answer would not come there."""
    index().ask_for([RUN])
    child = os.fork()
    if not child:
        signal.alarm(30)
        try:
            held.asked.clear()
            held.wait = held.answer_all
            os._exit(len(index().runs([RUN])[0]) != 10 * 12)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_rows_of_an_index_on_a_disk_are_not_asked_for(held, tmp_path):
    """They are there."""
    (tmp_path / "x.index").write_bytes(bytes(112))
    assert IndexFile(str(tmp_path / "x.index"), 8, 1, 0).ask_for([(0, 1)]) == []
    assert held.requests == []
