import os
import resource
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

from streamdata import (
    DatasetFactory,
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    ParquetDataset,
    StoreWriter,
    named,
)
from streamdata.run.recent import MAX_OPEN_FILES, most_open_files
from tests.shard_files import write_jsonl, write_tars


@pytest.fixture
def limit():
    """Sets how many files the process may have open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda number: resource.setrlimit(resource.RLIMIT_NOFILE, (number, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def a_hundred_shards(folder: Path) -> str:
    """A store of five tokens in each of its shards."""
    with StoreWriter("bin", folder / "tokens", {"sequence": "int32"}, max_tokens_per_shard=5) as writer:
        for _ in range(100):
            writer.append({"sequence": np.arange(5)})
    return str(folder / "tokens")


def test_hundreds_of_shards_are_read_where_few_files_may_be_open(tmp_path, limit):
    """Of tars and JSONL, their sidecars and indexes together, all of which stay open where there is room."""
    sources = [
        MetaDistributedWebDataset(write_tars(tmp_path / "tars", [1] * 130), meta_names=["score"], name="t", percent=1),
        JsonlIterableDataset(write_jsonl(tmp_path / "lines", [1] * 130), name="j", percent=1),
    ]
    limit(len(os.listdir("/proc/self/fd")) + 44)
    stream = MergedDataset(sources, cyclic=False, stop="all_exhausted")
    assert sum(1 for _ in stream) == 260
    limit(1 << 10)
    assert sum(1 for _ in stream) == 260


def test_files_of_every_kind_share_the_number(tmp_path, limit):
    """Also those of parquet, which other threads decode ahead."""
    for number in range(100):
        (tmp_path / "p").mkdir(exist_ok=True)
        pq.write_table(pa.table({"x": [number]}), tmp_path / "p" / f"{number}.parquet")
    sources = [
        MetaDistributedWebDataset(write_tars(tmp_path / "t", [1] * 100), meta_names=["score"], name="t", percent=1),
        ParquetDataset(str(tmp_path / "p"), name="p", percent=1),
        ParquetDataset(str(tmp_path / "p" / "*1.parquet"), name="q", percent=1),
        named(DatasetFactory.load("seq", a_hundred_shards(tmp_path), window_size=4, stride=5), name="s", percent=1),
    ]
    stream = MergedDataset(sources, cyclic=False, stop="all_exhausted")
    limit(len(os.listdir("/proc/self/fd")) + 44)
    assert Counter(sample["__datasetname__"] for sample in stream) == {"t": 100, "p": 100, "q": 10, "s": 100}


def test_the_number_follows_the_limit(limit):
    """As it is when a file is opened."""
    limit(64)
    assert most_open_files() == 16
    limit(8192)
    assert most_open_files() == MAX_OPEN_FILES


def few_files(_: int) -> None:
    """A worker that may open as many files as it has, and 44."""
    most = len(os.listdir("/proc/self/fd")) + 44
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def test_a_worker_reads_hundreds_of_shards_where_few_files_may_be_open(tmp_path):
    """Shards of a store, too."""
    sources = [
        MetaDistributedWebDataset(write_tars(tmp_path / "t", [1] * 100), meta_names=["score"], name="t", percent=1),
        JsonlIterableDataset(write_jsonl(tmp_path / "j", [1] * 100), name="j", percent=1),
        named(DatasetFactory.load("seq", a_hundred_shards(tmp_path), window_size=4, stride=5), name="s", percent=1),
    ]
    stream = MergedDataset(sources, cyclic=False, stop="all_exhausted")
    loader = DataLoader(stream, None, num_workers=1, worker_init_fn=few_files)
    assert Counter(sample["__datasetname__"] for sample in loader) == {"t": 100, "j": 100, "s": 100}
