"""`max_epochs`: where the epochs of a source are over, it is at its end, and `stop` says what that means."""

import json
from collections import Counter
from itertools import islice

import pytest

from streamdata import MergedDataset, describe, merge_states, named, to_state
from tests.streams import Numbers, through_json


def make(cyclic, stop, of_b=3, size=1, rank=0):
    """Ten records in two epochs at most, thirty in `of_b`."""
    sources = [Numbers("a", 10, max_epochs=2), Numbers("b", 30, **({"max_epochs": of_b} if of_b else {}))]
    dataset = MergedDataset(sources, cyclic=cyclic, stop=stop, seed=3)
    dataset.set_data_parallel(size, rank)
    return dataset


def read(samples, states=None):
    """The records of samples, with the states updated with them."""
    records = []
    for sample in samples:
        records.append((sample["__datasetname__"], sample["value"]))
        if states is not None:
            states.update(to_state([sample]))
    return records


@pytest.mark.parametrize("cyclic", [True, False])
def test_all_exhausted_goes_on_until_all_epochs_are_over(cyclic):
    """Each record as often as its source has epochs."""
    records = Counter(read(make(cyclic, "all_exhausted")))
    assert records == {("a", n): 2 for n in range(10)} | {("b", n): 3 for n in range(30)}


@pytest.mark.parametrize("cyclic", [True, False])
def test_first_exhausted_ends_with_the_source_that_has_come_to_its_end(cyclic):
    """With equal shares that is the one with 20 records in two epochs, not the one with 90 in three."""
    records = read(make(cyclic, "first_exhausted"))
    assert [records.count(("a", n)) for n in range(10)] == [2] * 10
    assert sum(name == "b" for name, _ in records) == 20


def test_beside_a_bounded_source_an_unbounded_one_is_endless_if_cyclic():
    """It goes on alone; in a finite mixture it has one epoch."""
    endless = Counter(name for name, _ in read(islice(make(True, "all_exhausted", of_b=None), 500)))
    assert endless == {"a": 20, "b": 480}
    assert Counter(name for name, _ in read(make(False, "all_exhausted", of_b=None))) == {"a": 20, "b": 30}


@pytest.mark.parametrize("cyclic", [True, False])
@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted"])
def test_a_resume_is_the_suffix(cyclic, stop):
    """Also where it is in the last epoch, or one source has ended."""
    whole = read(make(cyclic, stop))
    for count in range(1, len(whole), 7):
        states: dict = {}
        before = read(islice(make(cyclic, stop), count), states)
        resumed = make(cyclic, stop)
        resumed.set_dataloader_states(through_json(states))
        assert before + read(resumed) == whole


@pytest.mark.parametrize("cyclic", [True, False])
def test_another_number_of_ranks_has_the_same_epochs(cyclic):
    """What three ranks left of them, two ranks read."""
    states: list[dict] = [{}, {}, {}]
    records = [
        record
        for rank in range(3)
        for record in read(islice(make(cyclic, "all_exhausted", size=3, rank=rank), 9 + rank), states[rank])
    ]
    merged = json.loads(json.dumps(merge_states(*states)))
    for rank in range(2):
        dataset = make(cyclic, "all_exhausted", size=2, rank=rank)
        dataset.set_dataloader_states(merged)
        records += read(dataset)
    assert Counter(records) == {("a", n): 2 for n in range(10)} | {("b", n): 3 for n in range(30)}


def test_it_is_shown_and_given_like_other_attributes():
    """By `named`, and in the tree; None is no bound."""
    assert "max_epochs 2" in describe(make(True, "all_exhausted"))
    assert named(range(3), name="n", percent=1, max_epochs=2).max_epochs == 2
    assert len(list(islice(MergedDataset([Numbers("a", 3, max_epochs=None)]), 20))) == 20
