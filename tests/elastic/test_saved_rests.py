"""Where sources stood is in all states alike: joined, saved, gathered, compacted, and collected in a fresh dict."""

import logging
from collections import Counter
from itertools import islice

import pytest

from streamdata import (
    JsonlIterableDataset,
    MergedDataset,
    gather_states,
    load_states,
    merge_states,
    mixed_collate,
    save_states,
    to_state,
)
from tests.elastic.lives import run_job
from tests.elastic.rests import assert_even, left_in_lanes, saved
from tests.seeds import seeds
from tests.shard_files import write_jsonl
from tests.streams import Numbers, identity, loaded, resumed, through_json


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """Each change has a line in the log."""
    caplog.set_level(logging.CRITICAL, "streamdata")


SIX = [(1, 3, [8]), (2, 2, [8, 8]), (4, 3, [2, 1, 2, 1]), (1, 2, [2]), (2, 1, [8, 8]), (4, 2, [2, 2, 1, 1])]
"""Ranks, batch size, and the batches that each rank delivers."""


def rare(percent=0.1):
    """Two sources, one of them drawn seldom."""
    sources = [Numbers("a", 90), Numbers("b", 90, percent)]
    return MergedDataset(sources, cyclic=False, stop="all_exhausted", seed=3)


def deliver(make, size, rank, states, batch_size, count, *, is_fresh=False):
    """What a rank that begins with these states holds after some batches, and the records of these."""
    dataset = resumed(make, states)
    dataset.set_data_parallel(size, rank)
    own, records = {} if is_fresh else through_json(states), Counter()
    for batch in map(mixed_collate, islice(loaded(dataset, 0, batch_size), count)):
        own.update(to_state(batch))
        records.update(identity(sample)[:2] for sample in batch)
    return own, records


def live(make, lives, *, is_fresh=False):
    """The dict of each rank after the last life, and all that was delivered; each begins with the joined states."""
    parts, records = [{}], Counter()
    for ranks, batch_size, batches in lives:
        states = merge_states(*parts)
        settings = {"is_fresh": is_fresh}
        came = [deliver(make, ranks, at, states, batch_size, count, **settings) for at, count in enumerate(batches)]
        parts = [own for own, _ in came]
        records += sum((some for _, some in came), Counter())
    return parts, records


def rest(make, states, size):
    """What all ranks deliver that begin with these states."""
    return sum((deliver(make, size, rank, dict(states), 1, None)[1] for rank in range(size)), Counter())


def assert_once(records, size=90):
    """Each record of both sources, once."""
    again = sorted((records - Counter((name, at) for name in "ab" for at in range(size))).elements())
    assert not again, f"again {again}"
    assert records.total() == 2 * size


@pytest.mark.parametrize(
    ("way", "size"),
    [
        *(("joined", 1), ("joined", 5), ("saved", 2), ("compacted", 3), ("saved and compacted", 2)),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (("joined", 2), ("joined", 3), ("saved", 5), ("compacted", 1))
        ),
    ],
)
def test_a_rare_source_stands_where_it_stood_after_six_sizes(way, size):
    """Though it was not drawn under some of them."""
    parts, records = live(rare, SIX)
    states = saved(parts) if way.startswith("saved") else merge_states(*parts)
    assert_once(records + rest(rare, merge_states(states) if way.endswith("compacted") else states, size))


def gathered(rank):
    """What this rank's process has of all four."""
    parts, _ = live(rare, SIX)
    return dict(gather_states(parts[rank]))


def test_gathered_states_know_where_a_rare_source_stood(on_ranks):
    """On every rank."""
    _, records = live(rare, SIX)
    of_all = on_ranks(gathered, 4)
    assert all(states == of_all[0] for states in of_all)
    assert_once(records + rest(rare, of_all[0], 2))


@pytest.mark.each_value
@pytest.mark.parametrize("percent", [1, 0.1])
@pytest.mark.parametrize("first", [(1, 4, [9]), (2, 3, [7, 4]), (4, 2, [3, 0, 5, 2])])
def test_states_of_a_fresh_dict_tell_what_was_delivered_before_the_size_changed(first, percent):
    """A trainer need not carry on what it has loaded."""
    parts, records = live(lambda: rare(percent), [first, (3, 2, [4, 5, 3])], is_fresh=True)
    assert_once(records + rest(lambda: rare(percent), merge_states(*parts), 2))


def test_a_fresh_dict_of_a_single_rank_is_enough():
    """The others delivered nothing under the present size."""
    parts, records = live(rare, [*SIX[:2], (3, 2, [0, 4, 0])], is_fresh=True)
    assert not parts[0]
    assert_once(records + rest(rare, merge_states(*parts), 2))


@pytest.mark.parametrize("batches", [[0, 0, 0], [3, 0, 0], [0, 2, 1]])
def test_a_rank_that_delivered_nothing_saves_a_plain_dict_after_the_size_changed(tmp_path, batches):
    """It comes from a checkpoint of the trainer's own, and is of another number of ranks."""
    parts, records = live(rare, SIX[:2])
    for rank, count in enumerate(batches):
        own, came = deliver(rare, 3, rank, merge_states(*parts), 2, count)
        records += came
        save_states(tmp_path, own, step=2, rank=rank, size=3)
    assert_once(records + rest(rare, load_states(tmp_path), 2))


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("shards", "settings", "block"),
    [
        ([600], {}, 8),
        ([600], {"block_size": 8}, 8),
        ([300, 300], {"block_size": 1, "shuffle_buffer": 50}, 1),
        ([100] * 6, {"block_size": 8}, 8),
        ([600], {"shuffle_buffer": 0, "block_size": 1}, 1),
    ],
)
@pytest.mark.parametrize("sizes", [[2, 4], [4, 3], [1, 5], [2, 5, 3], [3, 1, 4]])
def test_what_is_left_of_shards_is_dealt_out_evenly(tmp_path, shards, settings, block, sizes):
    """However few and large the windows were that lanes had begun."""
    folder = write_jsonl(tmp_path, shards)

    def make():
        return MergedDataset([JsonlIterableDataset(folder, name="a", percent=1, **settings)], cyclic=False, seed=1)

    *old, new = sizes
    parts, records = live(make, [(ranks, 8, [20 // ranks // len(old)] * ranks) for ranks in old])
    lanes = left_in_lanes(make, merge_states(*parts), new)
    assert sum(lanes["a"]) == 600 - records.total()
    assert_even(lanes["a"], block)


@pytest.mark.parametrize("seed", seeds(4, 8))
def test_random_jobs_of_several_sizes(seed):
    """`python -m tests.elastic.lives` runs thousands of them."""
    run_job(seed)
