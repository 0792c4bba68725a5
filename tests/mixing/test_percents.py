"""What a weight may be."""

import numpy as np
import pytest

from streamdata import MergedDataset
from tests.streams import Numbers


@pytest.mark.parametrize("percent", [True, False, np.True_, "1", 1j])
def test_what_is_no_positive_number_is_no_weight(percent):
    """`percent: yes` in a recipe is a slip, not the weight 1; see `test_bad_input` for other slips."""
    with pytest.raises(ValueError, match="'a': expected a positive number as percent, got"):
        MergedDataset([Numbers("a", 5, percent)])


@pytest.mark.parametrize("percent", [1, 0.5, 1e-9, np.float32(2), np.int64(3)])
def test_any_positive_number_is_a_weight(percent):
    """NumPy's too."""
    assert MergedDataset([Numbers("a", 5, percent)])
