"""What is logged of a blend's shares."""

import logging

import pytest

from streamdata import BlendableDataset


def logged(caplog, weights, length=8):
    """What a blend of so many datasets says."""
    with caplog.at_level(logging.INFO, "streamdata"):
        BlendableDataset([[0] * length for _ in weights], weights)
    return caplog.text


def test_integer_weights_are_logged_as_shares(caplog):
    """Beside what was reached, as a part of all."""
    assert "0: 0.25 of 0.25, 1: 0.75 of 0.75" in logged(caplog, [1, 3])


@pytest.mark.parametrize(("count", "is_short"), [(16, False), (17, True)])
def test_a_list_that_is_whole_does_not_say_that_it_is_short(caplog, count, is_short):
    """Up to 16 datasets are all listed."""
    assert (f"the 16 furthest from it of {count}, " in logged(caplog, [*range(1, count + 1)])) is is_short
