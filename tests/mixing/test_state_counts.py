"""Every number of a state is checked before anything is read by it."""

import math
from itertools import islice

import pytest

from streamdata import MergedDataset, StateError, to_state
from tests.streams import Numbers, through_json

COUNTS = ("draws", "epoch", "window", "taken", "output", "given", "dropped", "bad")


def mixture():
    """One source."""
    return MergedDataset([Numbers("a", 20)], seed=5)


@pytest.fixture
def states():
    """After some samples, as they come back from a file."""
    states = {}
    for sample in islice(iter(mixture()), 7):
        states.update(to_state(sample))
    return through_json(states)


@pytest.mark.parametrize("value", [-1, 1.0, True, "1", None, [1]])
@pytest.mark.parametrize("name", COUNTS)
def test_what_is_no_count_is_refused(states, name, value):
    """Negative numbers, floats that happen to be whole, and what JSON has beside."""
    states["cursor/0/0/0/0/a"][name] = value
    with pytest.raises(StateError, match=r"'cursor/0/0/0/0/a': .* does not come from to_state"):
        mixture().set_dataloader_states(states)


@pytest.mark.parametrize("value", [-1, 0.0, False, None])
@pytest.mark.parametrize("key", ["worker/0/0/0", "dp_size", "num_workers"])
def test_what_is_no_number_of_a_lane_is_refused(states, key, value):
    """Neither the worker that was last nor the topology."""
    (states if key in states else states["generation/0"])[key] = value
    with pytest.raises(StateError, match="does not come from to_state"):
        mixture().set_dataloader_states(states)


@pytest.mark.parametrize("value", [-0.5, math.inf, math.nan, "1", None])
def test_what_is_no_clock_is_refused(states, value):
    """JSON as Python reads it has infinity, at which a source would never be drawn again."""
    states["cursor/0/0/0/0/a"]["clock"] = value
    with pytest.raises(StateError, match="does not come from to_state"):
        mixture().set_dataloader_states(states)
