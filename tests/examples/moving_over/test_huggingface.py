"""Datasets of Hugging Face's as sources."""

from collections import Counter

import pytest

from streamdata import MergedDataset, named
from tests.streams import assert_exact_resume, loaded

datasets = pytest.importorskip("datasets", reason="the datasets library is not installed")


def streaming(num_shards=4, **attributes):
    """Forty rows."""
    rows = datasets.Dataset.from_dict({"value": list(range(40))}).to_iterable_dataset(num_shards=num_shards)
    return named(rows, name="hf", percent=1, **attributes)


def test_the_example_resumes_exactly(demo_data):
    """Beside one that is read by index."""
    from examples.moving_over.huggingface import mixture_of

    assert_exact_resume(lambda: mixture_of(str(demo_data)), steps=5, beyond=5)


@pytest.mark.parametrize("num_workers", [0, 3])
def test_a_streaming_dataset_resumes_exactly(num_workers):
    """By its own state."""
    assert_exact_resume(lambda: MergedDataset([streaming()]), steps=7, beyond=40, num_workers=num_workers)


def test_lanes_read_each_row_once():
    """Each some of its shards, which it shuffles."""
    dataset = streaming()
    shuffled = named(dataset.shuffle(seed=3, buffer_size=5), name="hf", percent=1)
    batches = loaded(MergedDataset([shuffled], cyclic=False), 3)
    assert Counter(sample["value"] for batch in batches for sample in batch) == Counter(range(40))


def test_fewer_shards_than_lanes_are_refused():
    """Some would have none."""
    with pytest.raises(ValueError, match=r"expected a shard for each of 3 lanes, got num_shards=2"):
        list(loaded(MergedDataset([streaming(2)]), 3))


def test_a_forgotten_split_is_named():
    """When the mixture is built, and by `named`."""
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_dict({"a": [1]}), "test": None})
    with pytest.raises(ValueError, match=r"got a DatasetDict of several: train, test\n.*split='train'"):
        named(splits, name="x", percent=1)
    splits.name, splits.percent = "x", 1
    with pytest.raises(ValueError, match=r"source 0.*got a DatasetDict of several"):
        MergedDataset([splits])
