"""States that lack what was delivered are refused, and the message says which rank, worker and sources."""

import logging
from itertools import islice

import pytest
from torch.utils.data import DataLoader

from streamdata import MergedDataset, StateError, mixed_collate, to_state
from streamdata.states.progress import Progress
from tests.mixing.test_resume import pairs
from tests.streams import Numbers, loaded, resumed, through_json


def make(*, cyclic=True, function=None):
    """Three sources, one of them in a mixture of its own."""
    inner = MergedDataset([Numbers("c", 300), Numbers("d", 300, 0.2)], customized_yield_fn=function, cyclic=cyclic)
    inner.name, inner.percent = "inner", 1
    return MergedDataset([Numbers("a", 300, 2), Numbers("b", 300, 0.3), inner], cyclic=cyclic, seed=1)


def states_after(dataset, batches, num_workers=0, batch_size=4):
    """What a trainer holds."""
    states = {}
    for batch in islice(loaded(dataset, num_workers, batch_size), batches):
        states.update(to_state(mixed_collate(batch)))
    return through_json(states)


@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("function", [None, pairs])
@pytest.mark.parametrize("source", ["a", "b", "inner", "inner.c", "inner.d"])
def test_a_missing_cursor_is_refused(source, function, num_workers):
    """Whichever it is, at any moment once it was drawn: the resume would repeat what it gave."""
    for batches in (1, 2, 5, 13):
        states = states_after(make(function=function), batches, num_workers)
        for key in [key for key in states if key.startswith("cursor/") and key.endswith(f"/{source}")]:
            rank, worker = key.split("/")[3:5]
            less = {name: value for name, value in states.items() if name != key}
            with pytest.raises(
                StateError, match=rf"rank {rank}, worker {worker}, pass 0: \d+ draws are missing: .*\n  Call"
            ):
                make(function=function).set_dataloader_states(less)


def test_the_message_names_what_is_there():
    """The mixture, its draws, the sources that are present with theirs."""
    states = states_after(make(), 5)
    del states["cursor/0/0/0/0/b"]
    want = "the top mixture had drawn 20 samples, of its sources there are the draws {'a': 12, 'inner': 6}"
    with pytest.raises(StateError, match=f"2 draws are missing: {want}"):
        make().set_dataloader_states(states)


@pytest.mark.parametrize("cyclic", [True, False])
@pytest.mark.parametrize("worker", [0, 1, 2])
@pytest.mark.parametrize("batches", [7, 8, 9, 20])
def test_a_missing_lane_is_refused(worker, batches, cyclic):
    """By the turns of the workers, whose newest batches are numbered."""
    states = states_after(make(cyclic=cyclic), batches, 3)
    less = {key: value for key, value in states.items() if not is_of(key, worker)}
    with pytest.raises(StateError, match=f"rank 0, worker {worker}, pass 0: its entries are missing"):
        make(cyclic=cyclic).set_dataloader_states(less)


def is_of(key, worker):
    """Whether a key is of that lane."""
    return key.split("/")[0] == "cursor" and key.split("/")[4] == str(worker)


def evens_and_one(record):
    """Keeps what an even worker is given, and one record of the odd one."""
    return None if record["value"] % 2 and record["value"] > 1 else record


def test_a_lane_that_drop_last_leaves_out_is_not_refused(caplog):
    """It has less than a batch, however long the others are; that it is not there is said."""

    def unequal():
        source = Numbers("a", 60, single_process_fn=evens_and_one)
        return MergedDataset([source], cyclic=False, shuffle_unstreaming_subsets=False)

    states = {}
    batches = DataLoader(unequal(), 4, num_workers=2, drop_last=True, collate_fn=mixed_collate)
    for batch in islice(batches, 5):
        states.update(to_state(batch))
    with caplog.at_level(logging.WARNING, "streamdata"):
        dataset = resumed(unequal, states)
    assert "rank 0, worker 1: its entries are missing, of 4 batches delivered" in caplog.text
    assert [len(batch) for batch in loaded(dataset, 2, 4)] == [1, 4, 4, 2]


def test_lanes_that_have_delivered_nothing_yet_are_not_missed():
    """The first batches, and lanes without records."""
    for batches in (1, 2, 3):
        resumed(make, states_after(make(), batches, 3))

    def tiny():
        return MergedDataset([Numbers("a", 2), Numbers("b", 1)], cyclic=False, stop="all_exhausted")

    for batches in (1, 2, 3):
        resumed(tiny, states_after(tiny(), batches, 5, 1))


@pytest.mark.parametrize("entry", ["cursor/0/0/0/0/", "worker/0/0/0", "generation/0"])
def test_other_entries_that_are_missing(entry):
    """What says how much there must be is missed too."""
    states = states_after(make(), 5)
    del states[entry]
    with pytest.raises(StateError, match="is missing"):
        make().set_dataloader_states(states)


def test_all_lanes_that_are_missing():
    """Of those there is nothing left but which worker was last."""
    less = {key: value for key, value in states_after(make(), 5, 2).items() if not key.startswith("cursor/")}
    with pytest.raises(StateError, match=r"rank 0, worker 0, pass 0: its entries are missing; there are workers \[\]"):
        make().set_dataloader_states(less)


def test_the_entry_of_a_yield_function_over_all_is_missed():
    """It is where the function begins again."""

    def joined():
        return MergedDataset([Numbers("a", 300, 2), Numbers("b", 300)], customized_yield_fn=pairs)

    states = states_after(joined(), 5)
    less = {key: value for key, value in states.items() if key != "cursor/0/0/0/0/"}
    with pytest.raises(StateError, match="the entry of the top mixture is missing"):
        joined().set_dataloader_states(less)


def test_a_trainer_that_leaves_out_batches_is_found():
    """Where the left out batch drew from a source that the newest ones did not."""
    states, refused = {}, 0
    for number, batch in enumerate(islice(loaded(make(), 0, 2), 40)):
        if number % 3:
            states.update(to_state(batch))
            try:
                make().set_dataloader_states(states)
            except StateError as error:
                refused += "draws are missing" in str(error)
    assert refused > 10


def test_a_worker_whose_batches_were_left_out_is_said(caplog):
    """It may be a DataLoader that does not keep the workers' turns, so it is no error."""
    states = {}
    for number, batch in enumerate(islice(loaded(make(), 3, 4), 30)):
        if number % 3 != 1 or number < 6:
            states.update(to_state(mixed_collate(batch)))
    with caplog.at_level(logging.WARNING, "streamdata"):
        make().set_dataloader_states(states)
    assert "rank 0, worker 1: its newest batch is number 2, in turn it had delivered 10" in caplog.text


@pytest.mark.parametrize("function", [None, pairs])
def test_sources_that_left_count(function):
    """Their draws are part of the sum, over several changes and resumes; a lane's batches count on."""
    states, removed = {}, [Numbers("x", 50)]

    def with_x():
        return MergedDataset([Numbers("a", 300, 2), *removed, Numbers("b", 300)], customized_yield_fn=function)

    for leg in range(4):
        removed[:] = [Numbers("x", 50)] if leg % 2 == 0 else []
        for batch in islice(loaded(resumed(with_x, states), 2, 3), 5):
            states.update(to_state(mixed_collate(batch)))
        resumed(with_x, states)
    assert states["cursor/3/0/0/1/"]["batches"] == 10


@pytest.mark.parametrize("function", [None, pairs])
@pytest.mark.parametrize("lost", ["inner.c", "inner."])
def test_what_is_missing_of_a_mixture_that_left_is_refused(function, lost):
    """It may return, and then what it gave would come again."""
    states = states_after(make(function=function), 9)

    def without():
        return MergedDataset([Numbers("a", 300, 2), Numbers("b", 300, 0.3)], seed=1)

    for batch in islice(loaded(resumed(without, states), 0, 4), 3):
        states.update(to_state(mixed_collate(batch)))
    resumed(without, states)
    less = {key: value for key, value in states.items() if f"/{lost}" not in key}
    with pytest.raises(StateError, match=r"mixture 'inner' had drawn \d+ samples"):
        resumed(without, less)


def test_batches_that_nobody_counted_are_not_numbered_by_older_ones():
    """As after a change of weights and of the collate function."""
    states = {}

    def weighed(weight):
        return lambda: MergedDataset([Numbers("a", 300, weight), Numbers("b", 300)])

    for batch in islice(loaded(weighed(1)(), 0, 4), 3):
        states.update(to_state(mixed_collate(batch)))
    for batch in islice(loaded(resumed(weighed(2), states), 0, 4), 4):
        states.update(to_state(batch))
    assert 0 in Progress(states).batches_of_workers(0, 0).values()


def test_states_of_two_iterations_over_one_pass_are_refused():
    """A trainer that went on with its dict after an iteration that it had left: some entries are ahead of others."""
    states = states_after(make(), 9)
    states.update(to_state(next(iter(make()))))
    with pytest.raises(StateError, match=r"draws are of another iteration(.|\n)*Begin each iteration"):
        make().set_dataloader_states(states)


def test_what_a_mixture_passed_over_at_its_end_is_accounted_for():
    """A function that pulls more than it gives at the end of a finite mixture within another one."""

    def make():
        inner = MergedDataset([Numbers("c", 4), Numbers("d", 3)], cyclic=False, customized_yield_fn=threes)
        inner.name, inner.percent, inner.stop = "inner", 1, "all_exhausted"
        return MergedDataset([inner, Numbers("e", 9)], cyclic=False, stop="all_exhausted")

    states = {}
    for batch in loaded(make(), 0, 1):
        states.update(to_state(batch))
        resumed(make, states)


def threes(samples):
    """Joins three to one, and drops the rest."""
    for first in samples:
        second, third = next(samples, None), next(samples, None)
        if third is not None:
            yield {"of": [sample["value"] for sample in (first, second, third)]}
