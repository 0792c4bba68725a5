"""The mixture is even: within a lane by a proved bound, and across the lanes of a global batch."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdata import MergedDataset
from streamdata.mixing.clock import History, begin_clocks, start_clocks
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


STARTS, STEPS = [0.0, 1.2], [2.0, 2.0]


def begun(*histories, starts=STARTS, steps=STEPS, reweighed=0):
    """The clocks of sources with these histories."""
    return begin_clocks(starts, steps, histories, reweighed)


def test_without_states_clocks_begin_at_their_starts():
    """Each at its own."""
    assert begun(History(0, {}), History(0, {})) == STARTS


def test_a_clock_goes_on_where_the_newest_generation_left_it():
    """And the source beside it, which was not drawn yet, at its start."""
    assert begun(History(0, {}), History(0, {0: 5.2, 1: 9.2})) == [0.0, 9.2]


def test_a_source_that_joins_begins_at_the_lowest_clock_of_that_moment():
    """Not where the others stand by now, so that each resume agrees."""
    there = [History(0, {0: 40.0, 1: 90.0}), History(0, {0: 41.2, 1: 91.2})]
    assert begun(*there, History(1, {}), starts=[*STARTS, 0.5], steps=[3.0] * 3) == [90.0, 91.2, 40.0]


def test_a_source_that_was_not_drawn_yet_counts_by_its_start_when_another_joins():
    """It was there, and next."""
    assert (
        begun(History(0, {}), History(0, {0: 41.2}), History(1, {}), starts=[0.3, 1.2, 0.5], steps=[3.0] * 3)[2] == 0.3
    )


def test_a_source_that_returns_does_not_fall_behind_where_it_was():
    """What it had before it left, it had."""
    assert begun(History(0, {0: 40.0}), History(2, {0: 60.0})) == [40.0, 60.0]
    assert begun(History(0, {0: 40.0, 1: 80.0}), History(2, {0: 60.0})) == [80.0, 80.0]


def test_a_source_that_joined_goes_on_once_it_was_drawn():
    """Its own entry says where it stands."""
    assert begun(History(0, {0: 40.0, 1: 90.0}), History(1, {1: 91.0})) == [90.0, 91.0]


def test_sources_begin_together_where_none_was_drawn_before_one_joined():
    """All of them are new, or the lane has only begun: there is nothing to catch up with."""
    fresh = begun(History(0, {}), History(0, {}))
    assert begun(History(1, {}), History(1, {})) == fresh
    assert begun(History(0, {}), History(1, {})) == fresh


def test_after_a_change_of_weights_no_clock_is_more_than_a_step_ahead():
    """The old, long step of a source that was rare is not waited for."""
    rare = History(0, {0: 2000.0})
    assert begun(History(0, {0: 40.0}), rare, reweighed=1) == [40.0, 42.0]
    assert begun(History(0, {0: 40.0}), rare) == [40.0, 2000.0]


def test_after_a_change_of_weights_a_source_that_was_not_drawn_yet_begins_from_the_lowest():
    """At its start it would be drawn many times in a row."""
    assert begun(History(0, {0: 40.0}), History(0, {}), reweighed=1) == [40.0, 41.2]


def test_a_clock_is_moved_once_by_a_change_of_weights():
    """Drawn since, it stands where its entry says, and the others stay where the first resume put them."""
    assert begun(History(0, {0: 40.0, 1: 90.0}), History(0, {0: 2000.0}), reweighed=1) == [90.0, 42.0]


def test_a_change_of_weights_before_the_first_draw_moves_no_clock():
    """There is no moment to reckon from."""
    assert begun(History(0, {}), History(0, {}), reweighed=1) == STARTS


def test_a_change_of_weights_leaves_a_source_that_joins_with_it_where_it_joined():
    """It has no step of before."""
    assert begun(History(0, {0: 40.0}), History(1, {}), reweighed=1) == [40.0, 40.0]


def test_a_source_that_returns_with_another_weight_does_not_wait_on_its_old_step():
    """Its clock of before counts as one that was there."""
    assert begun(History(0, {0: 40.0, 1: 80.0}), History(2, {0: 2000.0}), reweighed=2) == [80.0, 82.0]
