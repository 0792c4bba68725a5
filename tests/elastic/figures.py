"""What the figures of large jobs share: a topology, a rank that goes on in it, a line of the table."""

from collections.abc import Callable
from typing import Any, NamedTuple

from streamdata import MergedDataset

States = Any


class Topology(NamedTuple):
    """Ranks, and workers of each."""

    dp_size: int
    num_workers: int

    @property
    def lanes(self) -> int:
        """Of the job."""
        return self.dp_size * self.num_workers


class Figure(NamedTuple):
    """One line of the table."""

    what: str
    target: str
    got: str
    is_met: bool


def resumed(make: Callable[[], MergedDataset], topology: Topology, dp_rank: int, states: States) -> MergedDataset:
    """The dataset of a rank, going on where the states say."""
    dataset = make()
    dataset.set_data_parallel(topology.dp_size, dp_rank)
    if states:
        dataset.set_dataloader_states(states)
    return dataset
