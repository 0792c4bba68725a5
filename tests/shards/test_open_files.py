import multiprocessing
import os
import resource
from collections import Counter
from collections.abc import Callable
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
from streamdata.run.per_process import MAX_OPEN_FILES, most_open_files
from tests.shard_files import write_jsonl, write_tars


@pytest.fixture
def limit():
    """Sets how many files the process may have open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda number: resource.setrlimit(resource.RLIMIT_NOFILE, (number, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def sixty_shards(folder: Path) -> str:
    """A store of five tokens in each of its shards."""
    with StoreWriter("bin", folder / "tokens", {"sequence": "int32"}, max_tokens_per_shard=5) as writer:
        for _ in range(60):
            writer.append({"sequence": np.arange(5)})
    return str(folder / "tokens")


def three_hundred_shards(folder: Path) -> MergedDataset:
    """Of every kind, tars with sidecars; each has one record. Parquet is decoded ahead, in other threads."""
    (folder / "p").mkdir()
    for number in range(60):
        pq.write_table(pa.table({"x": [number]}), folder / "p" / f"{number}.parquet")
    sources = [
        MetaDistributedWebDataset(write_tars(folder / "t", [1] * 90), meta_names=["score"], name="t", percent=1),
        JsonlIterableDataset(write_jsonl(folder / "j", [1] * 90), name="j", percent=1),
        ParquetDataset(str(folder / "p"), name="p", percent=1),
        named(DatasetFactory.load("seq", sixty_shards(folder), window_size=4, stride=5), name="s", percent=1),
    ]
    return MergedDataset(sources, cyclic=False, stop="all_exhausted")


OF_EACH = {"t": 90, "j": 90, "p": 60, "s": 60}


def in_a_process_that_has_just_begun(function: Callable[[Path], None], folder: Path) -> None:
    """This one may have hundreds of files open, of earlier tests, and a quarter of its limit is too much then."""
    process = multiprocessing.get_context("forkserver").Process(target=function, args=(folder,))
    process.start()
    process.join()
    assert process.exitcode == 0


def read_with_few_and_with_many(folder: Path) -> None:
    """The same stream twice."""
    stream = three_hundred_shards(folder)
    few_files(0)
    assert Counter(sample["__datasetname__"] for sample in stream) == OF_EACH
    resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 11, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    assert Counter(sample["__datasetname__"] for sample in stream) == OF_EACH


def test_hundreds_of_shards_are_read_where_few_files_may_be_open(tmp_path):
    """With their sidecars and indexes; all of them stay open where there is room."""
    in_a_process_that_has_just_begun(read_with_few_and_with_many, tmp_path)


def test_the_number_follows_the_limit(limit):
    """As it is when a file is opened."""
    limit(64)
    assert most_open_files() == 16
    limit(8192)
    assert most_open_files() == MAX_OPEN_FILES


def few_files(_: int) -> None:
    """The process may open as many files as it has, and 44."""
    most = len(os.listdir("/proc/self/fd")) + 44  # of 64, a process that has just begun has more
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def read_in_a_worker(folder: Path) -> None:
    """The limit is the worker's."""
    loader = DataLoader(three_hundred_shards(folder), None, num_workers=1, worker_init_fn=few_files)
    assert Counter(sample["__datasetname__"] for sample in loader) == OF_EACH


def test_a_worker_reads_hundreds_of_shards_where_few_files_may_be_open(tmp_path):
    """The limit is its own."""
    in_a_process_that_has_just_begun(read_in_a_worker, tmp_path)
