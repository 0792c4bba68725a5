"""What is streamed: a mixture, or a source alone."""

import pytest
from torch.utils.data import Dataset, IterableDataset

from streamdata import JsonlIterableDataset, MergedDataset, StreamLoader
from streamdata.mixing.merged import top_of
from tests.shard_files import write_jsonl


class Squares(Dataset):
    """A map-style dataset that nobody named."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return {"square": index**2}


class Endless(IterableDataset):
    """An iterable that nobody named."""

    def __iter__(self):
        yield from ({"data": number} for number in range(5))


def test_a_source_alone_is_loaded_as_the_mixture_of_it(tmp_path):
    """The one that it is when it is iterated: states and passes are the same."""
    source = JsonlIterableDataset(write_jsonl(tmp_path, [20, 9]), shuffle_buffer=8)
    loader = StreamLoader(source, 4, collate=list)
    states = [loader.state_after(loader.num_batches) for _ in loader][2]
    wanted = [sample["__key__"] for sample in JsonlIterableDataset(str(tmp_path), shuffle_buffer=8)]
    loader.load_state_dict(states)
    assert [sample["__key__"] for batch in loader for sample in batch] == wanted[12:]


@pytest.mark.parametrize("make", [Squares, Endless])
def test_any_source_may_stand_alone(make):
    """It has the name of its class, and is read once."""
    samples = list(top_of(make(), "test"))
    assert len(samples) == len(list(MergedDataset([samples_of(make)], cyclic=False)))
    assert {sample["__datasetname__"] for sample in samples} == {make.__name__}


def samples_of(make):
    """As a mixture takes it."""
    source = make()
    source.name, source.percent = "a", 1
    return source


@pytest.mark.parametrize("dataset", [[1, 2], "shards", {"train": Squares()}, 3, None])
def test_what_is_no_source_is_refused(dataset):
    """A path, several sources, splits."""
    with pytest.raises(ValueError, match="test: expected a MergedDataset or a source, got"):
        top_of(dataset, "test")
