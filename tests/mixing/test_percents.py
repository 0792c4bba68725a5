"""What a weight may be."""

from fractions import Fraction

import numpy as np
import pytest

from streamdata import MergedDataset, to_state
from tests.streams import Numbers, through_json


@pytest.mark.parametrize("percent", [True, False, np.True_, "1", 1j, 1e-101, 1e101])
def test_what_is_no_positive_number_is_no_weight(percent):
    """`percent: yes` in a recipe is a slip, not the weight 1; see `test_bad_input` for other slips."""
    with pytest.raises(ValueError, match="'a': expected a positive number as percent, got"):
        MergedDataset([Numbers("a", 5, percent)])


@pytest.mark.parametrize("percent", [1, 0.5, 1e-100, 1e100, np.float32(2), np.int64(3), Fraction(1, 3)])
def test_any_positive_number_is_a_weight(percent):
    """Of NumPy and of Fraction too; its states are plain JSON."""
    dataset = MergedDataset([Numbers("a", 5, percent), Numbers("b", 5)])
    states = to_state(next(iter(dataset)))
    assert through_json(states) == states


@pytest.mark.parametrize("rare", [1e-20, 1e-100])
def test_states_of_a_mixture_with_a_rare_source_are_loaded(rare):
    """Whose clock is beyond all counts once the others have ended."""

    def make():
        sources = [Numbers("a", 2, 1e100), Numbers("b", 9, rare)]
        return MergedDataset(sources, cyclic=False, stop="all_exhausted")

    samples = iter(make())
    head = [next(samples) for _ in range(7)]
    resumed = make()
    resumed.set_dataloader_states(through_json(to_state(head)))
    assert [sample["value"] for sample in resumed] == [sample["value"] for sample in samples]
