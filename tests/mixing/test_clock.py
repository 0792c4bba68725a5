"""The mixture is even: within a lane by a proved bound, and across the lanes of a global batch."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamdata import MergedDataset
from streamdata.mixing.clock import start_clocks
from streamdata.run import Lane
from tests.streams import Numbers

TABLE = {"three": [0.7, 0.2, 0.1], "near": [0.5, 0.3, 0.2], "many": [0.5, *[0.02] * 25]}


def merged(weights, **options):
    """A mixture of endless sources with these weights."""
    return MergedDataset([Numbers(f"s{k:02}", 1000, weight) for k, weight in enumerate(weights)], **options)


def sources_drawn(dataset, count):
    """The number of the source of each of the first `count` samples."""
    return np.array([int(sample["__datasetname__"][1:]) for sample in islice(iter(dataset), count)])


def worst_deviation(weights, count=2000):
    """The largest |drawn - j * share| over all sources and steps, in units of the proved bound 2 (1 + n w)."""
    share = np.array(weights) / sum(weights)
    drawn = np.cumsum(sources_drawn(merged(weights), count)[:, None] == np.arange(len(weights)), axis=0)
    deviation = np.abs(drawn - np.arange(1, count + 1)[:, None] * share)
    return (deviation / (2 * (1 + len(weights) * share))).max(), deviation.max()


@settings(max_examples=30, deadline=None)
@given(weights=st.lists(st.floats(0.001, 100), min_size=1, max_size=12))
def test_a_lane_never_strays_beyond_the_bound(weights):
    """After j samples, a source of share w among n has given j * w, within 2 (1 + n * w)."""
    assert worst_deviation(weights, 400)[0] <= 1


@pytest.mark.parametrize("name", TABLE)
def test_a_lane_is_even(name):
    """The worst deviation of the weightings of the table is about one sample."""
    assert worst_deviation(TABLE[name])[1] < 1.1


@pytest.mark.parametrize("name", TABLE)
def test_a_global_batch_is_even(name):
    """64 ranks with 2 samples each: the worst source's share in the batch varies by less than the batch's grain."""
    weights, ranks, steps = TABLE[name], 64, 30
    drawn = []
    for rank in range(ranks):
        dataset = merged(weights)
        dataset.set_data_parallel(ranks, rank)
        drawn.append(sources_drawn(dataset, 2 * steps).reshape(steps, 2))
    batches = np.stack(drawn, axis=1).reshape(steps, -1)
    shares = (batches[:, :, None] == np.arange(len(weights))).mean(axis=1)
    assert shares.std(axis=0).max() < 1 / 128


def test_clocks_start_at_golden_fractions_of_their_steps():
    """In the order of the sorted names, wherever they stand in the recipe."""
    names, steps = ["b", "a"], [2.0, 2.0]
    clocks = start_clocks(names, steps, Lane(dp_size=1, dp_rank=0, num_workers=1, worker=0), (0,))
    assert clocks == [0.6180339887498949 * 2, 0.0]


def test_percents_need_not_add_to_one():
    """Only their ratio counts."""
    small, large = merged([0.7, 0.2, 0.1]), merged([70, 20, 10])
    assert sources_drawn(small, 200).tolist() == sources_drawn(large, 200).tolist()


def test_the_cost_of_a_sample_can_be_its_tokens():
    """With cost = tokens, equal weights give equal tokens, not equal samples."""
    dataset = MergedDataset(
        [
            Numbers("long", 100, single_process_fn=lambda r: {**r, "n": 30}),
            Numbers("short", 100, single_process_fn=lambda r: {**r, "n": 10}),
        ],
        cost=lambda sample: sample["n"],
    )
    tokens = {"long": 0, "short": 0}
    for sample in islice(iter(dataset), 400):
        tokens[sample["__datasetname__"]] += sample["n"]
    assert abs(tokens["long"] - tokens["short"]) <= 60
