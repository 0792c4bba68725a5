"""An iteration that is dropped lets go at once of what its sources hold, such as files or another loader's workers."""

import gc
import weakref
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset

from streamdata import JsonlIterableDataset, MergedDataset, MetaDistributedWebDataset, ParquetDataset
from streamdata.shards.ahead.windows import Load
from tests.io.servers import s3_server
from tests.mixing.test_resume import Packer
from tests.streams import Numbers


def in_pairs(samples):
    """A yield function of two samples each."""
    for sample in samples:
        yield {**sample, **next(samples, {})}


def doubled(record):
    return {"value": 2 * record["value"]}


@pytest.mark.parametrize("num_samples", [5, 99])
@pytest.mark.parametrize("functions", [{}, {"single_process_fn": doubled}, {"process_fn": Packer()}], ids=list)
@pytest.mark.parametrize("yield_fn", [None, in_pairs])
def test_it_is_in_no_cycle(yield_fn, functions, num_samples):
    """It would else hold them until a collection of garbage, which may come late and then take long."""
    source = Numbers("a", 20, **functions)
    held = weakref.ref(source)
    inner = MergedDataset([source], cyclic=False)
    inner.name, inner.percent = "inner", 1
    dataset = MergedDataset([inner], cyclic=False, customized_yield_fn=yield_fn)
    del source, inner
    gc.collect()
    gc.disable()
    try:
        samples = iter(dataset)
        assert list(islice(samples, num_samples))
        assert held() is not None
        del dataset, samples
        assert held() is None
    finally:
        gc.enable()


@pytest.fixture
def shards(tmp_path):
    """A folder with one shard of each kind, of 20 records."""
    with webdataset.TarWriter(str(tmp_path / "rows.tar"), encoder=False) as writer:
        for number in range(20):
            writer.write({"__key__": str(number), "txt": b"a"})
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n' * 20)
    pq.write_table(pa.table({"a": range(20)}), tmp_path / "rows.parquet", row_group_size=5)
    return tmp_path


@pytest.mark.parametrize("num_samples", [5, 20])
@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize(
    ("kind", "name"),
    [(MetaDistributedWebDataset, "rows.tar"), (JsonlIterableDataset, "rows.jsonl"), (ParquetDataset, "rows.parquet")],
)
def test_its_shards_are_in_no_cycle(shards, kind, name, is_remote, num_samples):
    """What is read of them may be large: of parquet decoded row groups up to max_open_bytes."""
    with s3_server({f"data/{name}": (shards / name).read_bytes()}) as server:
        options = {"storage_options": {"endpoint": server.url, "anonymous": True}} if is_remote else {}
        source = kind(f"s3://data/{name}" if is_remote else str(shards / name), name="a", percent=1, **options)
        held = weakref.ref(source.source.shards)
        dataset = MergedDataset([source], cyclic=False)
        del source
        gc.collect()
        gc.disable()
        try:
            samples = iter(dataset)
            assert len(list(islice(samples, num_samples))) == num_samples
            del dataset, samples
            assert held() is None
        finally:
            gc.enable()


@pytest.mark.parametrize("read_ahead_bytes", [None, 3000])
def test_what_was_read_is_let_go_of_without_a_collection(shards, monkeypatch, read_ahead_bytes):
    """Else the bytes of all that was read would stay beside those ahead. With few bytes a window is many loads."""
    loads, init = weakref.WeakSet(), Load.__init__
    monkeypatch.setattr(Load, "__init__", lambda load, *arguments: loads.add(load) or init(load, *arguments))
    with s3_server({"data/rows.tar": (shards / "rows.tar").read_bytes()}) as server:
        options = {"endpoint": server.url, "anonymous": True}
        source = MetaDistributedWebDataset("s3://data/rows.tar", name="a", percent=1, storage_options=options)
        samples = iter(MergedDataset([source], read_ahead_bytes=read_ahead_bytes))
        gc.collect()
        gc.disable()
        try:
            most = max(len(loads) for _ in islice(samples, 20 * 20))
        finally:
            gc.enable()
    assert 1 <= most <= 8
