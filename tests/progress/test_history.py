"""What headers say of earlier topologies."""

import pytest

from streamdata import MergedDataset, mixed_collate, to_state
from streamdata.progress import Progress, history_of
from tests.streams import Numbers, loaded


def test_each_generation_is_described_once():
    """Also in a dict that keeps the entries of all topologies."""
    states: dict = {}
    for num_workers in (2, 3, 2, 3, 2, 3):
        dataset = MergedDataset([Numbers("a", 10**6)], seed=1)
        dataset.set_dataloader_states(states)
        for batch, _ in zip(loaded(dataset, num_workers), range(20), strict=False):
            states.update(to_state(batch))
    history = states["generation/5"]["history"]
    described = [line["generation"] for line in history]
    assert described == sorted(set(described))
    assert sum(line["sources"]["a"]["samples"] for line in history) == 20 * len(described) > 0


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
    assert line["sources"][""]["samples"] == 20 * number
