import logging
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from torch.utils.data import DataLoader

from streamdata import MergedDataset, StateError, instantiate_from_yaml, to_state
from streamdata.stores.datasets.blendable import BlendableDataset, make_blendable_dataset
from tests.stores.blend.blend_loops import exact_loop, float_loop
from tests.streams import Numbers, NumbersAhead, assert_exact_resume


class Counted(Numbers):
    """Remembers what it was asked for."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.asked = []

    def __getitems__(self, indices):
        self.asked.append(indices)
        return [self[index] for index in indices]


def pair(first=5, second=9, kind=Numbers):
    return [kind("a", first), kind("b", second)]


def test_columns_are_those_of_the_rule():
    """For float weights, for ints and Fractions, and for Megatron-Core's rule."""
    datasets = [range(9)] * 3
    weights = [0.1, 0.6, 0.3]
    fractions = [Fraction(1, 3), 2, "1/7"]
    for blended, wanted in [
        (BlendableDataset(datasets, weights, 500), float_loop(weights, 500)),
        (BlendableDataset(datasets, fractions, 500), exact_loop(fractions, 500)),
        (BlendableDataset(datasets, weights, 500, compat="megatron"), float_loop(weights, 500, megatron=True)),
        (BlendableDataset(datasets, [1, 6, 3], 500, compat="megatron"), float_loop([1, 6, 3], 500, megatron=True)),
    ]:
        assert (list(blended.dataset_index), list(blended.dataset_sample_index)) == wanted


def test_first_samples_by_hand():
    """Weights 3/4 and 1/4: a tie at the second sample goes to the first dataset; Megatron-Core has no tie there."""
    blended = BlendableDataset([range(9)] * 2, [3, 1], 8)
    assert list(blended.dataset_index) == [0, 0, 1, 0, 0, 0, 1, 0]
    assert list(blended.dataset_sample_index) == [0, 1, 0, 2, 3, 4, 1, 5]
    megatron = BlendableDataset([range(9)] * 2, [3, 1], 8, compat="megatron")
    assert list(megatron.dataset_index) == [0, 1, 0, 0, 0, 1, 0, 0]


def test_equal_weights_are_round_robin():
    """Whatever their value and kind."""
    for weights in ([0.1] * 3, [1 / 3] * 3, [7] * 3, ["1/3"] * 3):
        assert list(BlendableDataset([range(9)] * 3, weights, 7).dataset_index) == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize(
    "weights", [[0.333333, 0.333333, 0.333334], [333334, 333333, 333333], ["1/3", 0.33333, 0.33333], [1, 1, 1.0000299]]
)
def test_nearly_equal_weights_take_turns_with_compat(weights):
    """Within 1e-5 of each other as shares, of whatever kind; without compat the rule says how they differ."""
    blended = BlendableDataset([range(9)] * 3, weights, 30_000, compat="megatron")
    assert blended.dataset_index[:].tolist() == [number % 3 for number in range(30_000)]
    assert blended.weights.tolist() == [1 / 3] * 3
    assert BlendableDataset([range(9)] * 3, weights, 30_000).weights.tolist() != [1 / 3] * 3


@pytest.mark.parametrize("weights", [[0.33333, 0.33333, 0.3333402], [1, 1, 1.0000302], [6, 6.0001, 5.9999]])
def test_weights_that_differ_by_more_follow_the_rule_with_compat(weights):
    """From 1e-5 on, as shares."""
    blended = BlendableDataset([range(9)] * 3, weights, 60_000, compat="megatron")
    assert blended.dataset_index[:].tolist() == float_loop(weights, 60_000, megatron=True)[0]
    assert blended.dataset_index[:].tolist() != [number % 3 for number in range(60_000)]


def test_a_blend_has_its_size_and_weights():
    """As Megatron's has; the weights add to 1."""
    blended = BlendableDataset([range(9)] * 2, [3, 1], 8)
    assert (blended.size, blended.weights.tolist()) == (8, [0.75, 0.25])


def test_samples_are_of_the_dataset_that_the_columns_say():
    """One by one and many at once; beyond the end it begins again; a dict gains dataset_idx."""
    for kind in (Numbers, NumbersAhead):
        blended = BlendableDataset(pair(3, 4, kind), [0.3, 0.7], 40)
        lengths = [3, 4]
        wanted = [
            {"value": rank % lengths[number], "dataset_idx": number}
            for number, rank in zip(blended.dataset_index, blended.dataset_sample_index, strict=True)
        ]
        assert [blended[index] for index in range(40)] == wanted
        assert blended.__getitems__(range(40)) == wanted
        assert blended.__getitems__([39, 0, -40, 39]) == [wanted[39], wanted[0], wanted[0], wanted[39]]
        assert blended.__getitems__([]) == []


def test_the_datasets_own_dict_is_left_alone():
    """It is copied; what is no dict is delivered as it is."""
    own = {"text": "x"}
    blended = BlendableDataset([[own], ["plain"]], [1, 1])
    assert list(blended) == [{"text": "x", "dataset_idx": 0}, "plain"]
    assert own == {"text": "x"}


def test_dataset_idx_is_that_of_the_outer_blend():
    """In a blend of blends; what the inner one chose is not told."""
    inner = BlendableDataset(pair(4, 4), [1, 1])
    outer = BlendableDataset([*pair(), inner], [1, 1, 2], 12)
    assert [sample["dataset_idx"] for sample in outer] == list(outer.dataset_index)
    assert list(outer.dataset_index).count(2) == 6


def test_each_dataset_is_asked_once_for_a_batch():
    """By its own __getitems__, in the order of the batch."""
    datasets = pair(kind=Counted)
    BlendableDataset(datasets, [1, 1]).__getitems__([5, 0, 2, 3])
    assert [dataset.asked for dataset in datasets] == [[[0, 1]], [[2, 1]]]


def test_getitems_of_another_length_is_an_error():
    """No sample is given to another's index."""
    datasets = pair(kind=NumbersAhead)
    datasets[1].__getitems__ = lambda indices: []
    with pytest.raises(ValueError, match=r"dataset 1 \(NumbersAhead\): __getitems__ gave 0 samples for the 1 indices"):
        BlendableDataset(datasets, [1, 1]).__getitems__([0, 1])


def test_seed_shuffles_each_pass_anew():
    """Every pass over a dataset has all its samples, in an order of its own; the choice of datasets stays."""
    plain, shuffled = (BlendableDataset(pair(10, 20), [1, 1], 80, seed=seed) for seed in (None, 3))
    assert list(plain.dataset_index) == list(shuffled.dataset_index)
    given = [sample["value"] for sample in shuffled if sample["dataset_idx"] == 0]
    passes = [given[start : start + 10] for start in range(0, 40, 10)]
    assert all(sorted(one) == list(range(10)) for one in passes)
    assert len({tuple(one) for one in passes}) == 4
    assert shuffled.__getitems__(range(80)) == list(shuffled)
    assert list(BlendableDataset(pair(10, 20), [1, 1], 80, seed=4)) != list(shuffled)


def test_size_is_the_sum_of_lengths_by_default():
    """It may also be none, or more than there is."""
    assert len(BlendableDataset(pair(), [1, 2])) == 14
    assert list(BlendableDataset(pair(), [0.1, 0.2], 0)) == []
    assert Counter(sample["value"] for sample in BlendableDataset(pair(2, 2), [1, 1], 400)) == {0: 200, 1: 200}


def test_indices_are_those_of_a_list():
    """Negative ones too; the columns also take slices and arrays, and become arrays."""
    blended = BlendableDataset(pair(), [0.4, 0.6])
    column, listed = blended.dataset_sample_index, list(blended.dataset_sample_index)
    assert blended[-1] == blended[13]
    assert (column[-1], column[np.int64(3)], len(column), column.shape) == (listed[-1], listed[3], 14, (14,))
    assert column[2:11:3].tolist() == listed[2:11:3]
    assert column[::-1].tolist() == listed[::-1]
    assert column[np.array([3, -1])].tolist() == [listed[3], listed[-1]]
    assert np.array_equal(column, np.array(listed))
    assert (blended.dataset_index[:].dtype, column[:].dtype, np.asarray(column, np.int32).dtype) == ("u1", "i8", "i4")


@pytest.mark.parametrize("index", [14, -15, 10**30])
def test_index_beyond_the_end_is_an_index_error(index):
    """In the dataset, its batches and its columns."""
    blended = BlendableDataset(pair(), [1, 1])
    for get in (blended.__getitem__, blended.dataset_index.__getitem__, lambda at: blended.__getitems__([0, at])):
        with pytest.raises(IndexError):
            get(index)


def test_index_that_is_no_integer_is_an_error():
    """It is never rounded."""
    blended = BlendableDataset(pair(), [1, 1])
    with pytest.raises(TypeError):
        blended[1.0]
    with pytest.raises(IndexError, match="expected integers, got an array of float64"):
        blended.__getitems__([1.5])


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"datasets": [], "weights": []}, "at least one dataset"),
        ({"datasets": [[1], []]}, r"dataset 1 \(list\): expected at least one sample, got an empty dataset"),
        ({"datasets": [[1], iter([1])]}, "dataset 1: expected a map-style dataset .*got list_iterator"),
        ({"weights": [1, 0]}, "weight 1: expected a positive, finite number, got 0"),
        ({"size": -1}, "from 0 to .* got -1"),
        ({"size": 2.0}, r"as size, or None, got 2\.0"),
        ({"size": 2**53 + 1}, "as size, or None, got"),
        ({"compat": "nemo", "size": 1}, "got 'nemo'"),
        ({"compat": "megatron"}, "needs size, got None"),
    ],
)
def test_useless_arguments_are_errors(options, found):
    """The message says which, and what was expected."""
    with pytest.raises(ValueError, match=found):
        BlendableDataset(**{"datasets": [[1], [2]], "weights": [1, 2], **options})


def test_achieved_shares_are_there_and_logged(caplog):
    """Near what was asked for, and exactly what the samples say."""
    with caplog.at_level(logging.INFO, "streamdata"):
        blended = BlendableDataset(pair(), [0.25, 0.75], 10)
    assert blended.shares.tolist() == [0.2, 0.8] or blended.shares.tolist() == [0.3, 0.7]
    assert blended.shares.tolist() == (np.bincount(blended.dataset_index) / 10).tolist()
    assert f"0: {blended.shares[0]} of 0.25, 1: {blended.shares[1]} of 0.75" in caplog.text


def test_log_of_many_shares_is_short(caplog):
    """Those furthest from what was asked for."""
    with caplog.at_level(logging.INFO, "streamdata"):
        BlendableDataset([range(2)] * 100, range(1, 101))
    assert "the 16 furthest from it of 100, " in caplog.text
    assert caplog.text.count(" of ") < 22


def test_make_blendable_dataset_blends_lists():
    """A list as long as all; with a seed shuffled copies, the lists themselves as they were."""
    lists = [[1, 2, 3], list(range(10, 20))]
    blended = make_blendable_dataset(lists, [3, 10])
    assert type(blended) is list
    assert sorted(blended) == sorted(lists[0] + lists[1])
    assert [value for value in blended if value >= 10] == lists[1]
    shuffled = make_blendable_dataset(lists, [3, 10], seed=1)
    assert sorted(shuffled) == sorted(blended)
    assert shuffled != blended
    assert shuffled == make_blendable_dataset(lists, [3, 10], seed=1)
    assert lists == [[1, 2, 3], list(range(10, 20))]


@pytest.mark.parametrize(("start_method", "num_workers"), [("fork", 2), ("forkserver", 2)])
def test_workers_read_the_same(start_method, num_workers):
    """Whether they inherit the dataset or receive it by pickle."""
    blended = BlendableDataset(pair(kind=NumbersAhead), [0.3, 0.7], 12, seed=1)
    loader = DataLoader(blended, 3, num_workers=num_workers, collate_fn=list, multiprocessing_context=start_method)
    assert [sample for batch in loader for sample in batch] == list(blended)


CHANGES = [
    {"weights": [0.3, 0.8]},
    {"weights": [3, 7]},
    {"seed": 6},
    {"seed": None},
    {"compat": "megatron"},
    {"datasets": pair(9, 5)},
    {"datasets": [Numbers("a", 5, source_identity="other"), Numbers("b", 9)]},
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_resume_with_another_blend_is_refused(change):
    """Though it has as many samples."""

    def make(**change):
        options = {"datasets": pair(), "weights": [0.3, 0.7], "size": 20, "seed": 5, **change}
        blended = BlendableDataset(**options)
        blended.name, blended.percent = "blend", 1
        return MergedDataset([blended])

    states = to_state(next(iter(make())))
    make(weights=[0.15, 0.35]).set_dataloader_states(states)
    with pytest.raises(StateError, match="source 'blend' has another order"):
        make(**change).set_dataloader_states(states)


@pytest.mark.each_value
@pytest.mark.parametrize("num_workers", [0, 2, 3])
@pytest.mark.parametrize("shuffle", [True, False])
def test_resume_of_a_mixture_with_a_blend_is_exact(num_workers, shuffle):
    """As a source beside another, at every step."""

    def make():
        blended = BlendableDataset(pair(kind=NumbersAhead), [0.3, 0.7], 20, seed=5)
        blended.name, blended.percent = "blend", 2
        return MergedDataset([blended, Numbers("other", 7)], shuffle_unstreaming_subsets=shuffle, cyclic=True)

    whole = assert_exact_resume(make, steps=12, beyond=30, num_workers=num_workers)
    assert {"dataset_idx", "value", "__index__"} <= set(whole[0][0]) | set(whole[1][0])


RECIPE = """
target: streamdata.MergedDataset
params:
  cyclic: true
  datasets:
    - target: streamdata.BlendableDataset
      params:
        datasets:
          - {target: tests.streams.NumbersAhead, params: {name: a, size: 3}}
          - {target: tests.streams.Numbers, params: {name: b, size: 4}}
        weights: [1/3, 1]
        seed: 2
      name: blend
      percent: 1
    - {target: tests.streams.Numbers, params: {name: other, size: 5}}
"""


def test_recipe_names_a_blend_as_a_source(tmp_path):
    """With fractions as text; built twice it is the same, and its resume is exact."""
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    assert instantiate_from_yaml(path).datasets[0].dataset_index[:4].tolist() == [1, 0, 1, 1]
    assert_exact_resume(lambda: instantiate_from_yaml(path), steps=8)


def test_a_blend_has_up_to_two_to_the_53_samples():
    """So many numbers float64 tells apart; a periodic blend of them holds next to nothing."""
    blended = BlendableDataset([[1], [2]], [1, 1], 2**53)
    assert (len(blended), blended[2**53 - 1]) == (2**53, 2)
    with pytest.raises(ValueError, match="expected an int from 0 to 2\\*\\*53 as size"):
        BlendableDataset([[1], [2]], [1, 1], 2**53 + 1)


def logged(caplog, weights, length=8):
    """What a blend of so many datasets says."""
    with caplog.at_level(logging.INFO, "streamdata"):
        BlendableDataset([[0] * length for _ in weights], weights)
    return caplog.text


def test_integer_weights_are_logged_as_shares(caplog):
    """Beside what was reached, as a part of all."""
    assert "0: 0.25 of 0.25, 1: 0.75 of 0.75" in logged(caplog, [1, 3])


@pytest.mark.parametrize(("count", "is_short"), [(16, False), (17, True)])
def test_a_list_that_is_whole_does_not_say_that_it_is_short(caplog, count, is_short):
    """Up to 16 datasets are all listed."""
    assert (f"the 16 furthest from it of {count}, " in logged(caplog, [*range(1, count + 1)])) is is_short
