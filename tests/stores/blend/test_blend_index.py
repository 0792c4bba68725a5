import pickle
from io import BytesIO
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdata.stores.datasets import blendable
from streamdata.stores.datasets.blend_rule import blend_weights
from streamdata.stores.datasets.blendable import BlendIndex
from tests.stores.blend.blend_loops import exact_loop, exact_weights, float_loop, nasty_floats


def index_of(weights, size, *, megatron=False):
    """Of which many counts are stored even for few samples."""
    distance = max(32, len(weights))
    return BlendIndex(
        blend_weights(weights, len(weights), exact=not megatron), size, megatron=megatron, distance=distance
    )


def all_of(index):
    positions = np.arange(index.size)
    return index.datasets(positions).tolist(), index.ranks(positions).tolist()


@given(st.lists(nasty_floats, min_size=1, max_size=6), st.integers(0, 300), st.booleans())
def test_floats_follow_the_plain_loop(weights, size, megatron):
    """Both columns; equal weights too, of which no sample is stored."""
    try:
        index = index_of(weights, size, megatron=megatron)
    except ValueError:  # one vanishes
        return
    assert all_of(index) == float_loop(weights, size, megatron=megatron)


@given(st.lists(exact_weights, min_size=1, max_size=6), st.integers(0, 300))
def test_integers_and_fractions_follow_the_exact_loop(weights, size):
    """Periodic or not, beyond int64 too."""
    assert all_of(index_of(weights, size)) == exact_loop(weights, size)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.lists(st.integers(0, 499), max_size=80))
def test_any_position_is_found_alone(weights, positions):
    """By itself or among others, in any order and repeated, it is what it is in the whole."""
    index = index_of(weights, 500)
    datasets, ranks = exact_loop(weights, 500)
    wanted = [(datasets[position], ranks[position]) for position in positions]
    assert [index.locate(position) for position in positions] == wanted
    asked = np.array(positions, np.int64)
    assert list(zip(index.datasets(asked).tolist(), index.ranks(asked).tolist(), strict=True)) == wanted


@given(st.lists(st.integers(1, 50) | st.floats(0.1, 1), min_size=1, max_size=6), st.integers(0, 400))
def test_totals_are_counted(weights, size):
    """What each dataset gives in all."""
    index = index_of(weights, size)
    assert index.totals().tolist() == np.bincount(all_of(index)[0], minlength=len(weights)).tolist()


@pytest.mark.parametrize(("num_datasets", "dtype"), [(1, "u1"), (256, "u1"), (257, "u2"), (65_537, "u4")])
def test_ids_are_as_wide_as_need_be(num_datasets, dtype):
    """No id wraps; each dataset comes once in a round of equal weights."""
    index = index_of([7] * num_datasets, 3 * num_datasets)
    assert index.dtype == np.dtype(dtype)
    assert index.datasets(np.arange(num_datasets)).tolist() == list(range(num_datasets))
    assert index.locate(3 * num_datasets - 1) == (num_datasets - 1, 2)


def test_more_ids_than_a_byte_in_an_unequal_blend():
    """The last of 300 datasets is given by its own number."""
    weights = [0.001] * 299 + [0.5]
    assert all_of(index_of(weights, 600)) == float_loop(weights, 600)


@pytest.mark.parametrize("weights", [[3, 5, 8], ["1/3", "1/7"], [0.3] * 20])
def test_periodic_blends_store_a_period_at_most(weights):
    """Whatever their size: any position of 10**15 is computed."""
    index = index_of(weights, 10**15)
    assert index.size_bytes < 1000
    dataset, rank = index.locate(10**15 - 1)
    assert rank == index.totals()[dataset] - 1


def test_a_period_longer_than_the_blend_is_not_stored():
    """As many ids as samples are enough."""
    assert index_of([10**20 + 1, 10**20], 100).size_bytes < 400


@pytest.mark.parametrize("num_datasets", [2, 32, 255])
def test_stored_bytes_per_sample(monkeypatch, num_datasets):
    """One for the id, and a sixteenth at most for the counts."""
    weights = np.arange(1, num_datasets + 1) / 7
    monkeypatch.setattr(blendable, "blend", lambda weights, ids, counts, distance, **_: (ids.fill(0), counts.fill(0)))
    index = BlendIndex(blend_weights(weights, num_datasets, exact=True), 2**20, megatron=False)
    assert index.size_bytes <= 2**20 * (1 + 1 / 16) + 16 * num_datasets


def test_workers_get_handles_not_copies():
    """What is sent to a spawned worker is small, and refers to memory that all share."""
    index = index_of([0.3, 0.7], 50_000)
    sent = BytesIO()
    ForkingPickler(sent).dump(index)
    assert len(sent.getvalue()) < 2000
    assert index._ids.is_shared()
    again = pickle.loads(sent.getvalue())
    index._ids[0] = 1 - index._ids[0]
    assert again.locate(0) == index.locate(0)
