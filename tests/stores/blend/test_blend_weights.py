import math
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from operator import add

import numpy as np
import pytest
import torch

from streamdata.stores.datasets.blend_rule import blend_weights


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ([2, 4, 6], (1, 2, 3)),
        ([Fraction(1, 3), Fraction(1, 6)], (2, 1)),
        ([1, Fraction(1, 2)], (2, 1)),
        (["1/3", "0.5", 1], (2, 3, 6)),
        (np.array([10, 30], np.int32), (1, 3)),
        ([np.int64(2**62), np.uint8(1)], (2**62, 1)),
        ([0.1, 0.1, 0.1], (1, 1, 1)),
        ([0.5, "1/2"], (1, 1)),
    ],
)
def test_exact_weights_become_integers(weights, shares):
    """Ints, Fractions and text are reduced exactly, equal ones too; W is their sum."""
    found = blend_weights(weights, len(weights), exact=True)
    assert (found.shares, found.unit, found.exact) == (shares, sum(shares), True)


@pytest.mark.parametrize("weights", [[0.1, 0.3], [1, 0.5], np.array([0.2, 0.7], np.float32), torch.tensor([0.2, 0.7])])
def test_a_float_makes_all_float64(weights):
    """Normalised by the sum of a NumPy array."""
    found = blend_weights(weights, 2, exact=True)
    array = np.array([float(weight) for weight in weights])
    assert not found.exact
    assert found.shares == tuple((array / array.sum()).tolist())


def test_sum_is_that_of_an_array():
    """Pairwise, which differs from one number after another in the last places."""
    weights = np.random.default_rng(1).random(1000)
    assert blend_weights(weights, 1000, exact=True).shares == tuple((weights / weights.sum()).tolist())
    assert weights.sum() != reduce(add, weights.tolist())


def test_nearly_equal_is_not_equal():
    """0.1 + 0.2 is not 0.3."""
    assert not blend_weights([0.1 + 0.2, 0.3], 2, exact=True).exact


@pytest.mark.parametrize(
    "weight", [0, 0.0, -1, -0.5, math.nan, math.inf, -math.inf, True, None, "x", "1/0", 1j, Decimal(1), [1]]
)
def test_weight_that_is_no_positive_number_is_an_error(weight):
    """The message says which one, and what it is."""
    with pytest.raises(ValueError, match=r"weight 1: expected a positive, finite number, got ") as caught:
        blend_weights([1, weight], 2, exact=True)
    assert repr(weight) in str(caught.value)


@pytest.mark.parametrize("weights", [[], [1], [1, 2, 3]])
def test_another_number_of_weights_is_an_error(weights):
    """One for each dataset."""
    with pytest.raises(ValueError, match=f"each of 2 datasets, got {len(weights)} weights"):
        blend_weights(weights, 2, exact=True)


@pytest.mark.parametrize("weights", [[5e-324, 1e300], [1e-320, 1e308, 1e308], [10**400, 0.5], [1e308, 1.5e308]])
def test_weight_that_vanishes_is_an_error(weights):
    """One that would never be drawn, or a sum that float64 does not hold."""
    with pytest.raises(ValueError, match="vanishes beside the sum"):
        blend_weights(weights, len(weights), exact=True)
