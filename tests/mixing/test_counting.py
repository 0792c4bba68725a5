"""How many samples lanes get of a finite pass: what is counted is what is read, from wherever they stand."""

import math
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamdata import JsonlIterableDataset, MergedDataset, StateError, merge_states, named, to_state
from tests.mixing.test_resume import Packer
from tests.shard_files import write_jsonl
from tests.streams import Numbers, NumbersAhead, in_lane, through_json


def in_world(make, dp_size, rank, states=None):
    dataset = make()
    dataset.set_data_parallel(dp_size, rank)
    if states:
        dataset.set_dataloader_states(through_json(states))
    return dataset


def read_all(make, dp_size, num_workers, states):
    """How many samples each process reads: that of worker p the lane whose turn it is."""
    return np.array(
        [
            [
                sum(1 for _ in in_lane(in_world(make, dp_size, rank, states), worker, num_workers))
                for worker in range(num_workers)
            ]
            for rank in range(dp_size)
        ]
    )


def assert_counted(make, dp_size, num_workers, states):
    """Of each rank the lanes, whichever processes read them."""
    counted = in_world(make, dp_size, 0, states).samples_left(num_workers)
    read = read_all(make, dp_size, num_workers, states)
    assert np.sort(counted, axis=1).tolist() == np.sort(read, axis=1).tolist()


def stop_at(make, dp_size, num_workers, steps, states):
    """The joined states after some steps of each rank, whose workers deliver in turn."""
    parts = []
    for rank in range(dp_size):
        datasets = [in_world(make, dp_size, rank, states) for _ in range(num_workers)]
        lanes = [iter(in_lane(dataset, worker, num_workers)) for worker, dataset in enumerate(datasets)]
        own = dict(through_json(states))
        for number in range(steps + rank):
            for sample in islice(lanes[number % num_workers], 1):
                own.update(to_state([sample]))
        parts.append(own)
    return merge_states(*parts) if any(parts) else {}


SIZES = st.tuples(st.integers(1, 9), st.integers(5, 40), st.integers(5, 30))
WORLDS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 12)), min_size=1, max_size=3)


@settings(max_examples=10)
@given(SIZES, WORLDS, st.sampled_from(["first_exhausted", "all_exhausted"]), st.booleans(), st.booleans())
def test_what_is_counted_is_what_is_read(sizes, worlds, stop, nests, holds_out):
    """Under all topologies and after resumes, of mixtures within mixtures, and of parts of sources."""
    part = {"holdout": 0.4, "part": "train"} if holds_out else {}

    def make():
        sources = [Numbers("a", sizes[0], 0.3), NumbersAhead("b", sizes[1], 0.7, **part)]
        last = Numbers("c", 2 * sizes[2], 0.7, records_per_block=2)
        if nests:
            last = MergedDataset([last, Numbers("d", 7)], cyclic=False, stop=stop, name="in", percent=1.1)
        return MergedDataset([*sources, last], cyclic=False, stop=stop, seed=sizes[0])

    states = {}
    for dp_size, num_workers, steps in worlds:
        assert_counted(make, dp_size, num_workers, states)
        states = stop_at(make, dp_size, num_workers, steps, states)
        assert_counted(make, dp_size, num_workers, states)


@pytest.mark.parametrize(("world", "part"), [((1, 1), None), ((1, 1), "valid"), ((3, 2), "train"), ((2, 5), "valid")])
def test_shards_are_counted(tmp_path, world, part):
    """With last blocks that have fewer records, and windows that a lane has not finished."""
    path = write_jsonl(tmp_path, [9, 1, 30, 17])
    holdout = {} if part is None else {"holdout": 0.3, "part": part}

    def make():
        source = JsonlIterableDataset(path, block_size=4, shuffle_buffer=8, name="s", percent=1, **holdout)
        return MergedDataset([source, Numbers("n", 20)], cyclic=False, stop="all_exhausted")

    states = {}
    for steps in (2, 12):
        states = stop_at(make, 2, 2, steps, states)
        assert_counted(make, 2, 2, states)
        assert_counted(make, *world, states)


@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted"])
def test_lanes_without_a_share_get_nothing(stop):
    """Of two blocks and six lanes four have none."""
    make = lambda: MergedDataset([Numbers("a", 2)], cyclic=False, stop=stop)  # noqa: E731
    assert sorted(in_world(make, 3, 0).samples_left(2).ravel().tolist()) == [0, 0, 0, 0, 1, 1]
    assert_counted(make, 3, 2, {})


def test_a_bounded_source_ends_an_endless_one():
    """By max_epochs, beside one without end, which is not counted to its end."""
    make = lambda: MergedDataset([Numbers("a", 10, 0.2, max_epochs=3), Numbers("b", 7, 0.8)])  # noqa: E731
    assert make().samples_left(0).tolist() == [[sum(1 for _ in make())]]
    assert_counted(make, 2, 3, stop_at(make, 2, 3, 7, {}))


def test_what_has_ended_is_followed_by_the_next_pass():
    """An iteration that came to its end in this process, or states that say so."""
    make = lambda: MergedDataset([Numbers("a", 10)], cyclic=False)  # noqa: E731
    dataset = make()
    assert len(list(dataset)) == dataset.samples_left(0).sum() == 10
    dataset.set_dataloader_states(to_state(list(make())))
    assert dataset.samples_left(0).tolist() == [[10]]


@pytest.mark.each_value
@pytest.mark.parametrize("weight", [1, 3, 7, 10, 49])
@pytest.mark.parametrize("joins_first", [True, False])
def test_ties_and_roundings_are_those_of_the_draws(weight, joins_first):
    """A source that joins begins at the clock of another: which is first, and how additions round, then decides."""

    def make(*joining):
        sources = [*joining, Numbers("a", 200)] if joins_first else [Numbers("a", 200), *joining]
        return MergedDataset(sources, cyclic=False)

    states = to_state(list(islice(make(), 20)))
    for size in range(178 * weight, 182 * weight + 1, max(1, weight // 2)):
        dataset = make(Numbers("b", size, weight))
        dataset.set_dataloader_states(through_json(states))
        assert dataset.samples_left(1).tolist() == [[sum(1 for _ in dataset)]]


def drop(record):
    """A process function."""
    return record


def first_of(*sources, **options):
    return MergedDataset([*sources, Numbers("n", 5)], cyclic=False, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MergedDataset([Numbers("a", 5)]), "source 'a': .* it goes on without end"),
        (lambda: first_of(Numbers("a", 5, single_process_fn=drop)), "source 'a': .* its single_process_fn may give"),
        (lambda: first_of(Numbers("a", 5, process_fn=Packer())), "source 'a': .* its process_fn may give"),
        (lambda: first_of(Numbers("a", 5, max_bad=1)), "source 'a': .* up to max_bad=1 records may fail"),
        (lambda: first_of(Numbers("a", 5), skip=[{"source": "a", "index": 1}]), "source 'a': .*`skip` leaves"),
        (lambda: first_of(Numbers("a", 5), customized_yield_fn=iter), "source 'the top': .*customized_yield_fn"),
        (lambda: first_of(Numbers("a", 5), cost="value"), "source 'the top': .*depends on the costs"),
        (lambda: first_of(Numbers("a", 5, [[0, 1], [9, 2]])), "source 'the top': .*depends on schedules"),
    ],
)
def test_what_cannot_be_counted_is_named(make, message):
    """With the remedy."""
    with pytest.raises(ValueError, match=f"{message}(.|\n)*Give steps_per_epoch"):
        make().samples_left(2)


def test_costs_do_not_matter_where_all_is_read():
    """All sources are read to their end, in whatever order."""
    make = lambda: first_of(Numbers("a", 50, [[0, 1], [9, 0]]), stop="all_exhausted", cost=lambda _: 2)  # noqa: E731
    assert make().samples_left(0).tolist() == [[55]] == [[sum(1 for _ in make())]]


def test_states_must_hold_all_ranks():
    """Of one rank alone nobody knows where the others stand."""
    make = lambda: MergedDataset([Numbers("a", 50)], cyclic=False)  # noqa: E731
    states = to_state(list(islice(in_world(make, 2, 0), 3)))
    with pytest.raises(
        StateError, match=r"they hold nothing of rank 1(.|\n)*join them by merge_states or gather_states"
    ):
        in_world(make, 2, 0, states).samples_left(0)


def test_an_index_is_enough_to_count_a_part():
    """Of 10**6 records none is read."""
    source = named(range(10**6), name="a", percent=1, holdout=0.01, part="valid")
    count = int(MergedDataset([source], cyclic=False).samples_left(4).sum())
    assert abs(count - 10**4) < 5 * math.sqrt(10**4)
