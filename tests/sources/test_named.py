import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import streamdata
from streamdata import MergedDataset, named


def test_a_dataset_of_another_library_becomes_a_source():
    """It is the same object, with what a recipe would set."""
    numbers = TensorDataset(torch.arange(6))
    source = named(numbers, name="numbers", percent=0.5, single_process_fn=lambda record: {"n": int(record["data"][0])})
    assert source is numbers
    assert sorted(sample["n"] for sample in MergedDataset([source], cyclic=False)) == list(range(6))


@pytest.mark.parametrize("dataset", [list("abc"), range(3), "abc"])
def test_what_takes_no_attributes_is_wrapped(dataset):
    """A list, a range, a text."""
    samples = MergedDataset([named(dataset, name="plain", percent=1)], cyclic=False)
    assert sorted(sample["data"] for sample in samples) == sorted(dataset)


def test_a_dict_of_splits_is_named_early():
    """By its own name and those of its splits; a mixture refuses it too."""
    splits = type("DatasetDict", (dict,), {})(train=[1], test=[2])
    with pytest.raises(ValueError, match=r"named: .*got a DatasetDict of several: train, test\n.*split='train'"):
        named(splits, name="a", percent=1)
    with pytest.raises(ValueError, match=r"source 0.*got a DatasetDict of several"):
        MergedDataset([splits])


@pytest.mark.parametrize("make", [lambda: DataLoader([1]), lambda: (n for n in range(3)), lambda: iter([1])])
def test_what_is_no_dataset_says_what_is(make):
    """A loader has one; an iterator can be read only once."""
    with pytest.raises(ValueError, match=r"source 0 \(\w+\): expected a dataset, got a \w+.*\n  (Give|Write)"):
        MergedDataset([make()])
    with pytest.raises(ValueError, match="named: expected a dataset, got a"):
        named(make(), name="a", percent=1)


def test_a_misspelt_attribute_is_an_error():
    """It would be set, and passed over."""
    with pytest.raises(ValueError, match=r"expected attributes out of holdout, .*, got max_badd"):
        named([1], name="a", percent=1, max_badd=3)


def test_the_version_is_that_of_the_distribution():
    """Without importing anything."""
    assert streamdata.__version__.split(".")[0].isdigit()


def test_the_collate_of_prompts_goes_by_both_names():
    """The old one stays."""
    assert streamdata.collate_fn is streamdata.prompt_collate
