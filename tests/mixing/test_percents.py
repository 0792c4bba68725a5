"""What a weight may be."""

from fractions import Fraction

import numpy as np
import pytest

from streamdata import MergedDataset, to_state
from tests.streams import Numbers, through_json


@pytest.mark.parametrize("percent", [True, False, np.True_, "1", 1j])
def test_what_is_no_positive_number_is_no_weight(percent):
    """`percent: yes` in a recipe is a slip, not the weight 1; see `test_bad_input` for other slips."""
    with pytest.raises(ValueError, match="'a': expected a positive number as percent, got"):
        MergedDataset([Numbers("a", 5, percent)])


@pytest.mark.parametrize("percent", [1, 0.5, 1e-9, np.float32(2), np.int64(3), Fraction(1, 3)])
def test_any_positive_number_is_a_weight(percent):
    """Of NumPy and of Fraction too; its states are plain JSON."""
    dataset = MergedDataset([Numbers("a", 5, percent), Numbers("b", 5)])
    states = to_state(next(iter(dataset)))
    assert through_json(states) == states
