from collections import Counter
from itertools import islice

import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from streamdata import MergedDataset, SourceError, StateError, to_state
from tests.streams import Numbers, NumbersAhead, assert_exact_resume, delivered, identity, loaded, resumed


class Squares(Dataset):
    """As torch's documentation writes them."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return {"square": index**2}


def test_datasets_of_torch_are_sources():
    """Its own class, and a subset of tensors, which reads many at once; what is no dict comes under `data`."""
    squares, subset = Squares(), Subset(TensorDataset(torch.arange(9) * 10), [4, 2, 0])
    for name, dataset in (("squares", squares), ("subset", subset)):
        dataset.name, dataset.percent = name, 1
    samples = list(MergedDataset([squares, subset], cyclic=False, stop="all_exhausted"))
    assert sorted(sample["square"] for sample in samples if "square" in sample) == [0, 1, 4, 9, 16, 25]
    assert sorted(int(sample["data"][0]) for sample in samples if "data" in sample) == [0, 20, 40]


def test_reading_ahead_keeps_the_order_of_the_lane():
    """The same records, one by one or many at once."""
    singly, ahead = (list(islice(MergedDataset([kind("a", 90)], seed=5), 200)) for kind in (Numbers, NumbersAhead))
    assert [sample["value"] for sample in ahead] == [sample["value"] for sample in singly]


@pytest.mark.parametrize(
    "answer", [lambda items: None, iter, lambda items: dict(enumerate(items)), lambda items: items[1:]]
)
def test_what_is_no_list_of_an_item_for_each_index_is_an_error(answer):
    """Nothing, an iterator, a mapping, too few: the error names the source, what came and for which indices."""

    class Odd(NumbersAhead):
        def __getitems__(self, indices):
            return answer(super().__getitems__(indices))

    with pytest.raises(SourceError, match=r"source 'a': __getitems__ gave (a|0) \w+ for the 1 indices \[\d\]"):
        next(iter(MergedDataset([Odd("a", 9)])))


def test_a_huge_dataset_starts_at_once():
    """Also in its midst: nothing is listed, nothing is counted up to there."""

    def make():
        return MergedDataset([NumbersAhead("a", 2**40)])

    states = to_state(next(iter(make())))
    states["cursor/0/0/0/0/a"]["window"] = 2**39
    assert 0 <= next(iter(resumed(make, states)))["value"] < 2**40


def blocks(kind=Numbers, size=24, *, cyclic=False, **settings):
    """A mixture whose one source has blocks of four, beside one that has not."""
    grouped = kind("groups", size, records_per_block=4)
    return MergedDataset([grouped, Numbers("single", 12)], cyclic=cyclic, stop="all_exhausted", seed=3, **settings)


@pytest.mark.parametrize("kind", [Numbers, NumbersAhead])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_records_of_a_block_stay_side_by_side(kind, num_workers):
    """In one lane and in their order, though blocks are shuffled and other sources come between."""
    batches = list(loaded(blocks(kind), num_workers))
    for worker in range(num_workers):
        lane = [sample for (sample,) in batches if sample["__workerid__"] == worker]
        values = [sample["value"] for sample in lane if sample["__datasetname__"] == "groups"]
        groups = [values[start : start + 4] for start in range(0, len(values), 4)]
        assert all(group == list(range(group[0], group[0] + 4)) and group[0] % 4 == 0 for group in groups)


@pytest.mark.parametrize("kind", [Numbers, NumbersAhead])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_resume_in_the_middle_of_a_block_is_exact(kind, num_workers):
    """After every record, also of an endless stream."""
    assert_exact_resume(lambda: blocks(kind, cyclic=True), num_workers=num_workers)


@pytest.mark.parametrize("lanes", [(1, 2), (2, 1), (3, 2)])
def test_each_record_of_each_block_comes_once(lanes):
    """Over ranks and workers."""
    expected = Counter({("groups", number, None): 1 for number in range(24)})
    found = delivered(blocks, *lanes)
    assert {place: count for place, count in found.items() if place[0] == "groups"} == expected


def test_a_failing_record_of_a_block_is_passed_over():
    """The rest of its block comes, before and after a resume."""

    class Bad(Numbers):
        def __getitem__(self, index):
            if index == 5:
                raise OSError("bad")
            return super().__getitem__(index)

    def make():
        return MergedDataset([Bad("groups", 12, records_per_block=4, max_bad=1)], shuffle_unstreaming_subsets=False)

    values = [sample["value"] for sample in islice(make(), 11)]
    assert values == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]


def test_going_back_to_the_window_begins_with_the_block():
    """A block is the window of its source."""
    dataset = blocks(cyclic=True)
    states = {}
    for sample in islice(dataset, 9):
        states.update(to_state(sample))
    again = resumed(lambda: blocks(cyclic=True), states)
    again.set_dataloader_states(states, reload_from_url_level=True)
    first = next(sample for sample in again if sample["__datasetname__"] == "groups")
    assert identity(first)[1] % 4 == 0


def test_several_samples_of_a_record_resume_in_blocks():
    """Also within the last record of a block, which the position after it does not show."""

    def parts(record):
        return [{"value": record["value"], "part": part} for part in range(3)]

    def make():
        return MergedDataset([Numbers("groups", 12, records_per_block=4, single_process_fn=parts)])

    assert_exact_resume(make, steps=40, beyond=10)


def test_a_context_length_is_no_block():
    """Many datasets call theirs block_size, which says nothing about records."""
    plain, named = (MergedDataset([Numbers("a", 23, **own)], cyclic=False) for own in ({}, {"block_size": 4}))
    assert [sample["value"] for sample in named] == [sample["value"] for sample in plain]


def test_a_dataset_that_says_that_it_changed_is_not_resumed():
    """By its source_identity, where it has one; without one only its length counts."""
    made = [MergedDataset([Numbers("a", 20, source_identity=name)], seed=3) for name in ("first", "first", "second")]
    states = to_state(next(iter(made[0])))
    made[1].set_dataloader_states(states)
    with pytest.raises(StateError, match=r"another order(.|\n)*20 records of first(.|\n)*20 records of second"):
        made[2].set_dataloader_states(states)


def test_a_length_that_is_no_multiple_is_refused():
    """A block is whole."""
    with pytest.raises(ValueError, match="records_per_block 4 divides, got 23"):
        list(blocks(size=23))


class Holes(Numbers):
    """None at every third index, as datasets have it that cannot read a record."""

    def __getitem__(self, index):
        return None if index % 3 == 0 else super().__getitem__(index)


class HolesAhead(Holes):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


@pytest.mark.parametrize("kind", [Holes, HolesAhead])
def test_none_is_an_error_with_dataset_and_index(kind):
    """It would be trained on as a record."""
    dataset = MergedDataset([kind("a", 9)], shuffle_unstreaming_subsets=False)
    with pytest.raises(SourceError, match=rf"source 'a' \({kind.__name__}\): expected a record, got None") as caught:
        list(islice(dataset, 3))
    assert "failed at index 0" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("kind", [Holes, HolesAhead])
def test_none_is_forgiven_by_max_bad_or_taken_by_a_single_process_fn(kind):
    """As other failures; a function sees it under `data`."""
    forgiving = MergedDataset([kind("a", 9, max_bad=3)], cyclic=False)
    taking = MergedDataset([kind("a", 9, single_process_fn=lambda record: {"is": "value" in record})], cyclic=False)
    assert sorted(sample["value"] for sample in forgiving) == [1, 2, 4, 5, 7, 8]
    assert sorted(sample["is"] for sample in taking) == [False] * 3 + [True] * 6


def filtered(kind=Holes, **attributes):
    """A dataset of Grain, whose filters put None in place of an element."""
    grain = type("MapDataset", (kind,), {"__module__": "grain._src.python.dataset.dataset"})
    return MergedDataset([grain("a", 9, **attributes), Numbers("b", 9)], seed=3)


@pytest.mark.parametrize("kind", [Holes, HolesAhead])
@pytest.mark.parametrize("function", [None, lambda record: record | {"value": record["value"]}])
def test_what_grain_has_filtered_is_left_out_and_counted(kind, function):
    """Also before the dataset's own function, and a resume is exact."""
    attributes = {} if function is None else {"single_process_fn": function}
    dataset = filtered(kind, **attributes)
    states = {}
    for sample in islice(dataset, 24):
        states.update(to_state(sample))
        assert "value" in sample
    assert states["cursor/0/0/0/0/a"]["dropped"] == states["cursor/0/0/0/0/a"]["records"] - 12 >= 5
    assert_exact_resume(lambda: filtered(kind, **attributes))
