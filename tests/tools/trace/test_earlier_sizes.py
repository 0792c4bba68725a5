"""Steps of sizes before the last one: by states saved under them, or by those that they were resumed from."""

import logging

import pytest

from streamdata import StateError
from streamdata.tools.trace import Trace
from tests.elastic.worlds import Config, Leaf, Mix
from tests.tools.trace.jobs import SteppedJob

TREE = Mix((Leaf("a", 60, "tar", shuffle_buffer=6), Mix((Leaf("b", 30), Leaf("c", 50, "jsonl")), "inner")))
NOTHING_SAID = (
    "not say where the ranks stood around step {}\n  Give states .* saved under .*, or those that it began from"
)


@pytest.fixture(autouse=True)
def _quiet():
    """Each change has a line in the log."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def job_of(*sizes, mix=TREE):
    """A job of so many steps under each of some configurations."""
    job = SteppedJob(mix, Config())
    for steps, changes in sizes:
        job.go(steps, **changes)
    return job


FIRST, MIDDLE, LAST = (
    {"dp_size": 2, "num_workers": 1, "batch_size": 3, "weights": {"a": 2}},
    {"dp_size": 3, "num_workers": 2, "batch_size": 2},
    {"dp_size": 1, "num_workers": 1, "batch_size": 5},
)


@pytest.fixture(scope="module")
def job():
    """Steps 0 to 7, 8 to 18 and 19 to 22, each size but the last saved once in between: at 5, and at 13."""
    return job_of((5, FIRST), (3, FIRST), (5, MIDDLE), (6, MIDDLE), (4, LAST))


def traced(job, states, steps):
    """The records of some steps by some states, those of the newest ones too."""
    trace = Trace(job.mix.build(job.config), [*states, job.states])
    return [trace.at(step).records for step in steps]


@pytest.mark.parametrize("saved", [[1], [2], [3], [1, 2], [0, 1, 3]])
def test_a_size_is_traced_by_its_own_states_or_those_before_it(job, saved):
    """Saved within it, at its end, or what it began from: each of its steps, also after the last one that was saved."""
    assert traced(job, [job.saved[number] for number in saved], range(8, 19)) == job.steps[8:19]


def test_the_first_size_needs_no_states_but_the_newest(job):
    """It began with the run."""
    assert traced(job, [], [*range(8), *range(19, 23)]) == job.steps[:8] + job.steps[19:]


def test_other_states_than_a_size_began_from_are_refused(job):
    """Of a step before, of one rank alone, or of a run that drew otherwise."""
    of_rank = {key: value for key, value in job.saved[1].items() if not key.startswith(("worker/0/0/1", "lane/0/0/1"))}
    of_rank = {key: value for key, value in of_rank.items() if not key.startswith(("cursor/0/0/1", "drawn/0/0/1"))}
    other = job_of((8, FIRST | {"weights": {"a": 3}}))
    for states in ([], [job.saved[0]], [of_rank], [other.states]):
        with pytest.raises(StateError, match=NOTHING_SAID.format(8)):
            traced(job, states, [8])


def test_records_are_found_in_a_size_that_was_computed(job):
    """At the steps at which they came."""
    trace = Trace(job.mix.build(job.config), [job.saved[1], job.states])
    for step in (9, 18):
        for record in job.steps[step][::3]:
            assert step in trace.find(**record)


def test_a_size_that_changed_its_weights_is_told_up_to_that(job):
    """Its lanes' places at that time are in its own states alone."""
    job = job_of((4, FIRST), (5, MIDDLE), (5, {"weights": {"a": 0.1}}), (3, LAST))
    assert traced(job, [job.saved[0]], range(4, 9)) == job.steps[4:9]
    with pytest.raises(StateError, match=NOTHING_SAID.format(9)):
        traced(job, [job.saved[0]], [9])
    assert traced(job, [job.saved[1], job.saved[2]], range(4, 14)) == job.steps[4:14]


@pytest.mark.parametrize("change", [{"batch_size": 5}, {"batch_size": 1}])
def test_a_size_of_several_batch_sizes_is_not_guessed_at(change):
    """A line has their mean."""
    job = job_of((4, FIRST), (5, MIDDLE), (4, change), (3, LAST))
    with pytest.raises(StateError, match=NOTHING_SAID.format(5)):
        traced(job, [job.saved[0]], [5])


def test_a_size_in_which_a_pass_ended_is_not_guessed_at():
    """Where its short batches came, a line does not say."""
    mix = Mix((Leaf("a", 20), Leaf("b", 11)), cyclic=False)
    job = job_of((2, FIRST), (9, MIDDLE), (3, LAST), mix=mix)
    with pytest.raises(StateError, match=NOTHING_SAID.format(3)):
        traced(job, [job.saved[0]], [3])
    assert traced(job, [job.saved[1]], range(2, 11)) == job.steps[2:11]


def test_a_yield_function_over_all_is_told_too():
    """Its batches are of what it gave, not of what was drawn."""
    mix = Mix((Leaf("a", 20), Leaf("b", 11)), function="pairs")
    job = job_of((3, FIRST), (4, MIDDLE), (3, LAST), mix=mix)
    assert traced(job, [job.saved[0]], range(10)) == job.steps


def test_what_lanes_count_on_from_is_not_theirs():
    """Of lanes that begin with a part of what a size before had counted: a function's records are read, not sought."""
    mix = Mix((Leaf("a", 120, function="split"), Leaf("b", 30), Leaf("c", 1), Leaf("d", 60)))
    weights = {"a": 3, "b": 3, "c": 3}
    job = job_of((4, {"dp_size": 3, "num_workers": 3, "weights": weights}), (11, {"num_workers": 1}), mix=mix)
    assert traced(job, [job.saved[0]], range(15)) == job.steps
