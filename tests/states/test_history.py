"""What states say of all that the run has delivered, under whatever sizes."""

from collections import Counter

import pytest

from streamdata import MergedDataset, merge_states, mixed_collate, to_state
from streamdata.states.progress import Progress, history_of, totals_of_nodes
from tests.streams import Numbers, loaded, resumed


def test_each_generation_is_described_once():
    """Also in a dict that keeps the entries of all sizes."""
    states: dict = {}
    for num_workers in (2, 3, 2, 3, 2, 3):
        dataset = MergedDataset([Numbers("a", 10**6)], seed=1)
        dataset.set_dataloader_states(states)
        for batch, _ in zip(loaded(dataset, num_workers), range(20), strict=False):
            states.update(to_state(mixed_collate(batch)))
    history = history_of(Progress(states))
    assert [line["generation"] for line in history] == list(range(6))
    assert [line["samples"] for line in history] == [20] * 6
    assert [line["step"] for line in history] == list(range(0, 120, 20))
    assert [line["num_workers"] for line in history] == [2, 3] * 3
    assert history_of(Progress(merge_states(states))) == history


def test_the_last_generations_are_described_and_all_are_summed_up():
    """However often the size changed: the lines are for people, and the sums are right."""

    def make():
        return MergedDataset([Numbers("a", 1000, 2), Numbers("b", 70, single_process_fn=odd)], seed=1)

    states: dict = {}
    given: Counter = Counter()
    for leg in range(25):
        for batch, _ in zip(loaded(resumed(make, states), 2 + leg % 2), range(3 + leg), strict=False):
            states.update(to_state(mixed_collate(batch)))
            given.update(sample["__datasetname__"] for sample in batch)
    history, totals = history_of(Progress(merge_states(states))), totals_of_nodes(Progress(merge_states(states)))
    assert [line["generation"] for line in history] == list(range(4, 25))  # 20 earlier ones, and the present
    assert [line["samples"] for line in history] == [3 + leg for leg in range(4, 25)]
    assert [line["step"] for line in history] == [sum(3 + leg for leg in range(now)) for now in range(4, 25)]
    assert {name: totals[name]["samples"] for name in "ab"} == given
    assert totals["b"]["records"] - totals["b"]["dropped"] == totals["b"]["samples"]


def odd(record):
    """Drops every other one."""
    return record if record["value"] % 2 else None


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_batch_has_as_many_samples_as_were_delivered(number):
    """With a yield function these are others than were drawn, and others than are drawn ahead."""

    def of_two(samples):
        for first in samples:
            yield first | {"second": next(samples, None)}

    dataset = MergedDataset([Numbers("a", 10**6), Numbers("b", 10**6)], seed=1, customized_yield_fn=of_two)
    states: dict = {}
    for batch, _ in zip(loaded(dataset, 2, number), range(20), strict=False):
        states.update(to_state(mixed_collate(batch)))
    (line,) = history_of(Progress(states))
    assert line["batch_size"] == number
    assert totals_of_nodes(Progress(states))[""]["samples"] == 20 * number
