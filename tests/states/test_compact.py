"""What `compact` leaves out is not missed: neither by what goes on, nor by what joins or describes it."""

from itertools import islice

import pytest

from streamdata import MergedDataset, merge_states, mixed_collate, to_state
from streamdata.states.progress import Progress, history_of, totals_of_nodes
from tests.streams import Numbers, loaded, plain, resumed, through_json


def endless():
    """Two sources, of which the second comes seldom and leaves blocks half read."""
    return MergedDataset([Numbers("a", 400, 9), Numbers("b", 60, records_per_block=20)], seed=5)


def without_b():
    """The first of them."""
    return MergedDataset([Numbers("a", 400, 9)], seed=5)


def finite():
    """One pass is 60 records."""
    return MergedDataset([Numbers("a", 60)], cyclic=False, seed=5)


def saved(make, states, dp_size, *batches):
    """The states of each rank that delivered something, after that many batches of two."""
    parts = []
    for dp_rank, count in enumerate(batches):
        dataset, own = resumed(make, states), through_json(states)
        dataset.set_data_parallel(dp_size, dp_rank)
        own |= delivered(dataset, count)[1]
        parts += [own] if count else []
    return parts


def delivered(dataset, count):
    """That many batches of two, as plain samples; and what they say of their states."""
    states, samples = {}, []
    batches = iter(loaded(dataset, 1, 2))
    for _ in range(count):
        batch = next(batches, None)
        if batch is None:  # the pass ended: the next one begins
            batches = iter(loaded(dataset, 1, 2))
            batch = next(batches)
        states |= to_state(mixed_collate(batch))
        samples += map(plain, batch)
    return samples, states


def of_all_ranks(make, states, dp_size, count=20):
    """What each rank would deliver next."""
    samples = []
    for dp_rank in range(dp_size):
        dataset = resumed(make, states)
        dataset.set_data_parallel(dp_size, dp_rank)
        samples.append(delivered(dataset, count)[0])
    return samples


def history(states):
    """The lines of all generations."""
    return history_of(Progress(states))


def test_a_pass_that_a_rank_has_not_begun_is_not_over():
    """The other ranks are in the next one; under another topology what is left of the first is read first."""
    states = merge_states(*saved(finite, {}, 3, 15, 15, 0))
    states |= {"idle/0/2": True}
    for dp_size in (2, 3):
        assert of_all_ranks(finite, merge_states(states), dp_size, 4) == of_all_ranks(finite, states, dp_size, 4)


@pytest.mark.parametrize("dp_size", [2, 3])
def test_a_pass_that_was_ended_stays_ended(dp_size):
    """Who sets its number gets nothing of it again."""
    states = merge_states(*saved(finite, {}, 2, 20, 20))

    def first_pass():
        dataset = finite()
        dataset.set_epoch(0)
        return dataset

    for some in (states, merge_states(states)):
        for dp_rank in range(dp_size):
            dataset = resumed(first_pass, some)
            dataset.set_data_parallel(dp_size, dp_rank)
            assert not list(islice(dataset, 1))


def test_an_older_checkpoint_does_not_bring_back_what_was_left_out():
    """Neither of a source that was absent since, nor of one that was not."""
    older = merge_states(*saved(endless, {}, 2, 9, 3))
    states = merge_states(*saved(endless, {}, 2, 21, 3))
    for dp_size in (3, 2):
        states = merge_states(*saved(without_b, states, dp_size, *[9, 9, 9][:dp_size]))
    compacted = merge_states(states)
    assert {"cursor/0/0/0/0/a", "cursor/0/0/0/0/b"} <= older.keys() - compacted.keys()
    for parts in ([older, compacted], [compacted, older], [states, compacted, older], [compacted, states]):
        assert of_all_ranks(endless, merge_states(*parts), 2) == of_all_ranks(endless, states, 2)


def test_what_an_older_topology_gave_is_described_in_full():
    """Although when nothing refers to it any more, most of what it gave was left out before."""
    states, compacted = {}, {}
    for dp_size in (2, 3, 2, 1, 2):
        states = merge_states(*saved(endless, states, dp_size, *[7, 4, 9][:dp_size]))
        compacted = merge_states(merge_states(*saved(endless, compacted, dp_size, *[7, 4, 9][:dp_size])))
    assert history(compacted) == history(states)
    assert totals_of_nodes(Progress(compacted)) == totals_of_nodes(Progress(states))
    assert [line["generation"] for line in history(states)] == [0, 1, 2, 3, 4]
    assert [line["samples"] for line in history(states)] == [22, 40, 22, 14, 22]
    assert [line["step"] for line in history(states)] == [0, 7, 16, 23, 30]
    assert [(line["dp_size"], line["batch_size"]) for line in history(states)] == [(n, 2) for n in (2, 3, 2, 1, 2)]


def twice_each(samples):
    """Two of each."""
    for sample in samples:
        yield sample
        yield sample


@pytest.mark.parametrize("function", [None, twice_each])
def test_what_mixtures_had_come_to_is_left_out_too(function):
    """All that counts of them is in the header of the newest deal."""

    def make():
        inner = MergedDataset([Numbers("b", 30), Numbers("c", 20)], seed=3, name="inner", percent=1)
        return MergedDataset([Numbers("a", 40), inner], seed=1, customized_yield_fn=function)

    states: dict = {}
    for dp_size in (2, 3, 2, 3, 2):
        states = merge_states(*saved(make, states, dp_size, *[60] * dp_size))
    short = merge_states(states)
    assert {key.split("/")[1] for key in short} == {"4"}
    assert "deal/4" in short
    assert short.items() <= states.items()
    for dp_size in (2, 3):
        assert of_all_ranks(make, short, dp_size) == of_all_ranks(make, states, dp_size)
