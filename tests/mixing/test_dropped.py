"""An iteration that is dropped lets go at once of what its sources hold, such as files or another loader's workers."""

import gc
import weakref
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset

from streamdata import JsonlIterableDataset, MergedDataset, MetaDistributedWebDataset, ParquetDataset
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
@pytest.mark.parametrize(
    ("kind", "name"),
    [(MetaDistributedWebDataset, "rows.tar"), (JsonlIterableDataset, "rows.jsonl"), (ParquetDataset, "rows.parquet")],
)
def test_its_shards_are_in_no_cycle(shards, kind, name, num_samples):
    """What is read of them may be large: of parquet decoded row groups up to max_open_bytes."""
    source = kind(str(shards / name), name="a", percent=1)
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
