"""What the figures of large jobs share: a topology, a rank that goes on in it, a line of the table."""

from collections.abc import Callable
from typing import Any, NamedTuple

from streamdata import MergedDataset
from streamdata.states.headers import Topology

States = Any


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
