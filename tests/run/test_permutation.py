"""Permutations are bijections, well mixed, the same everywhere, and cost the same at any size."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdata.run import Permutation, shuffled


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**63 - 1))
def test_every_number_occurs_exactly_once(size, seed):
    """The images of [0, size) are [0, size), and each leads back."""
    permutation, numbers = Permutation(size, seed), np.arange(size)
    images = permutation(numbers)
    assert np.array_equal(np.sort(images), numbers)
    assert np.array_equal(permutation.inverse(images), numbers)


@given(size=st.integers(1, 10**12), seed=st.integers(0, 2**63 - 1), data=st.data())
def test_images_do_not_depend_on_the_chunk(size, seed, data):
    """A position has one image, asked for alone or among others."""
    positions = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)))
    permutation = Permutation(size, seed)
    singly = [int(permutation(positions[i : i + 1])[0]) for i in range(len(positions))]
    assert permutation(positions).tolist() == singly == [permutation.at(place) for place in positions.tolist()]
    assert all(0 <= image < size for image in singly)


def computed(size, seed):
    """All of a permutation that is computed number by number."""
    return Permutation(size, seed)(np.arange(size))


@given(size=st.integers(0, 3000), seed=st.integers(0, 2**64 - 1))
def test_every_number_is_listed_exactly_once(size, seed):
    """Also where all are listed at once, and where there are none."""
    assert np.array_equal(np.sort(shuffled(size, seed)), np.arange(size))


@pytest.mark.each_value
@pytest.mark.parametrize("permute", [computed, shuffled])
@pytest.mark.parametrize("size", [20, 101])
def test_no_place_prefers_a_value(size, permute):
    """Over seeds, each position takes each value about equally often (chi-square per degree of freedom near 1)."""
    counts, seeds = np.zeros((size, size)), 4000
    for seed in range(seeds):
        counts[np.arange(size), permute(size, seed)] += 1
    expected = seeds / size
    assert ((counts - expected) ** 2 / expected).sum() / (size - 1) ** 2 < 1.15


@pytest.mark.parametrize("permute", [computed, shuffled])
def test_small_permutations_are_all_reached(permute):
    """Four numbers take all of their 24 orders."""
    assert len(Counter(tuple(permute(4, seed)) for seed in range(2000))) == 24


def test_the_order_is_pinned():
    """A checkpoint outlives this version: the numbers may never change."""
    assert Permutation(10, 7)(np.arange(10)).tolist() == PINNED
    assert Permutation(10**9, 7)(np.arange(3)).tolist() == PINNED_LARGE
    assert [Permutation(10, 7).at(place) for place in range(10)] == PINNED
    assert [Permutation(10**9, 7).at(place) for place in range(3)] == PINNED_LARGE
    assert shuffled(10, 7).tolist() == PINNED_LISTED


PINNED = [2, 8, 3, 9, 0, 5, 1, 4, 7, 6]
PINNED_LARGE = [11047032, 385939166, 846322041]
PINNED_LISTED = [1, 8, 5, 7, 0, 9, 4, 6, 3, 2]


@given(size=st.integers(1, 10**12), seed=st.integers(0, 2**63 - 1), data=st.data())
def test_the_inverse_leads_back(size, seed, data):
    """From each image to its position: where in an epoch a block is read."""
    positions = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)))
    permutation = Permutation(size, seed)
    assert permutation.inverse(permutation(positions)).tolist() == positions.tolist()
