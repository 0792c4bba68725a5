import os
import resource

import pytest

from streamdata import JsonlIterableDataset, MergedDataset, MetaDistributedWebDataset
from streamdata.run.recent import MAX_OPEN_FILES, most_open_files
from tests.shard_files import write_jsonl, write_tars


@pytest.fixture
def limit():
    """Sets how many files the process may have open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda number: resource.setrlimit(resource.RLIMIT_NOFILE, (number, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


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


def test_the_number_follows_the_limit(limit):
    """As it is when a file is opened."""
    limit(64)
    assert most_open_files() == 16
    limit(8192)
    assert most_open_files() == MAX_OPEN_FILES
