"""How many samples a blend may have."""

import pytest

from streamdata import BlendableDataset


def test_a_blend_has_up_to_two_to_the_53_samples():
    """So many numbers float64 tells apart; a periodic blend of them holds next to nothing."""
    blended = BlendableDataset([[1], [2]], [1, 1], 2**53)
    assert (len(blended), blended[2**53 - 1]) == (2**53, 2)
    with pytest.raises(ValueError, match="expected an int from 0 to 2\\*\\*53 as size"):
        BlendableDataset([[1], [2]], [1, 1], 2**53 + 1)
