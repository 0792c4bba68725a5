"""What a change of weights does where there is more to a mixture than weights: a pass, a cost, a mixture within."""

from itertools import islice

import pytest

from streamdata import MergedDataset, to_state
from tests.streams import Numbers, plain, resumed


def drawn(dataset, count, states):
    """So many samples; the states are brought up to date."""
    samples = []
    for sample in islice(iter(dataset), count):
        states.update(to_state(sample))
        samples.append(plain(sample))
    return samples


def names(samples):
    """Of their sources."""
    return [sample["__datasetname__"] for sample in samples]


def test_another_pass_with_other_weights_begins_as_without_states():
    """Nothing of it was drawn, so there is no clock to go on from."""

    def mixture(weight, epoch=1):
        dataset = MergedDataset([Numbers("a", 40, weight), Numbers("b", 30)], seed=5)
        dataset.set_epoch(epoch)
        return dataset

    states = {}
    drawn(mixture(1, 0), 9, states)
    assert drawn(resumed(lambda: mixture(4), states), 40, {}) == drawn(mixture(4), 40, {})


def test_a_source_that_was_expensive_still_waits_after_a_change_of_weights():
    """What its last sample cost is paid for, whatever the weights are now."""

    def mixture(weight):
        sources = [Numbers("dear", 40, weight), Numbers("cheap", 300)]
        return MergedDataset(sources, cost=lambda sample: 100 if sample["__datasetname__"] == "dear" else 1)

    states = {}
    while names(drawn(resumed(lambda: mixture(1), states), 1, states)) != ["dear"]:
        pass
    assert names(drawn(resumed(lambda: mixture(1.01), states), 80, {})) == ["cheap"] * 80


@pytest.mark.parametrize("is_inner", [False, True])
def test_a_source_that_becomes_common_is_drawn_at_once_within_a_mixture_too(is_inner):
    """Its clock was far ahead while it was rare."""

    def mixture(weight):
        mixed = MergedDataset([Numbers("a", 20), Numbers("b", 10, weight)])
        if not is_inner:
            return mixed
        mixed.name, mixed.percent = "inner", 1
        return MergedDataset([mixed])

    states = {}
    drawn(mixture(0.001), 700, states)
    after = names(drawn(resumed(lambda: mixture(1), states), 100, {}))
    assert 46 <= sum(name.endswith("b") for name in after) <= 54


def test_a_source_that_returns_as_a_common_one_is_drawn_at_once():
    """It left while it was rare, with a clock that was far ahead; each resume agrees."""

    def mixture(**weights):
        return MergedDataset([Numbers(name, 40, weight) for name, weight in weights.items()])

    states = {}
    drawn(resumed(lambda: mixture(a=1, b=1, c=0.001), states), 2000, states)
    drawn(resumed(lambda: mixture(a=1, b=1), states), 30, states)

    def again():
        return mixture(a=1, b=1, c=1)

    whole = drawn(resumed(again, states), 300, {})
    assert 96 <= names(whole).count("c") <= 104
    got = []
    while len(got) < 300:
        got += drawn(resumed(again, states), 7, states)
    assert got[:300] == whole
