"""What headers say of earlier topologies."""

from streamdata import MergedDataset, to_state
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
