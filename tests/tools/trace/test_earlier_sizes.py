"""Steps of sizes before the last one: by states saved under them."""

import logging

import pytest

from streamdata import StateError
from streamdata.tools.trace.era import document_name
from streamdata.tools.trace.trace import Trace
from tests.elastic.worlds import Config, Leaf, Mix
from tests.tools.trace.jobs import SteppedJob

TREE = Mix((Leaf("a", 60, "tar", shuffle_buffer=6), Mix((Leaf("b", 30), Leaf("c", 50, "jsonl")), "inner")))
NOTHING_SAID = "not say where rank 0 stood at step {step}\n  Give states, too, of step {step} or a later one"


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
    """Steps 1 to 8, 9 to 19 and 20 to 23, each size but the last saved once in between: at 5, and at 13."""
    return job_of((5, FIRST), (3, FIRST), (5, MIDDLE), (6, MIDDLE), (4, LAST))


def traced(job, states, steps):
    """The records of some steps by some states, those of the newest ones too."""
    trace = Trace(job.mix.build(job.config), [*states, job.states])
    return [trace.at(step).records for step in steps]


@pytest.mark.parametrize(
    ("saved", "first", "last"), [([3], 9, 19), ([2], 9, 13), ([2, 3], 9, 19), ([1], 1, 8), ([0], 1, 5), ([1, 3], 1, 19)]
)
def test_a_size_is_traced_by_states_saved_under_it(job, saved, first, last):
    """Each of its steps up to the last one that was saved."""
    states = [job.saved[number] for number in saved]
    assert traced(job, states, range(first, last + 1)) == job.steps[first - 1 : last]


def test_the_newest_size_needs_no_other_states(job):
    """What it began with is in its own."""
    assert traced(job, [], range(20, 24)) == job.steps[19:]


@pytest.mark.parametrize(("saved", "step"), [([], 1), ([], 9), ([], 19), ([0], 6), ([1], 9), ([2], 14), ([3], 8)])
def test_a_step_of_which_no_states_tell_is_refused(job, saved, step):
    """It names what is needed; the size of batches, or where lanes stood, is not guessed."""
    with pytest.raises(StateError, match=NOTHING_SAID.format(step=step)):
        traced(job, [job.saved[number] for number in saved], [step])


def test_states_of_one_rank_alone_are_refused(job):
    """Others had delivered something, too."""
    others = ("worker/0/0/1", "cursor/0/0/1")
    of_rank = {key: value for key, value in job.saved[1].items() if not key.startswith(others)}
    with pytest.raises(StateError, match="hold nothing of rank 1 of 2"):
        traced(job, [of_rank], [3])


@pytest.mark.parametrize("change", [MIDDLE, {"weights": {"a": 5}}, {"batch_size": 4}])
def test_states_that_were_given_up_are_refused(job, change):
    """Those of steps after the one that the run went on from in another way: which of both it was, they do not say."""
    job = job_of((4, FIRST), (3, FIRST))
    job.give_up(1)
    job.go(3, **change)
    with pytest.raises(StateError, match=r"Leave out states of steps that the run went back from|not of one run"):
        Trace(job.mix.build(job.config), job.saved)
    assert traced(job, [job.saved[0]], range(1, 8)) == job.steps


def test_records_are_found_in_an_earlier_size(job):
    """At the steps at which they came."""
    trace = Trace(job.mix.build(job.config), [job.saved[3], job.states])
    for step in (9, 19):
        for record in job.steps[step - 1][::3]:
            assert step in trace.find(document_name(record))


@pytest.mark.parametrize("change", [{"weights": {"a": 0.1}}, {"batch_size": 5}, {"batch_size": 1}])
def test_a_size_may_have_changed_its_weights_or_batches(change):
    """Its own states say when, and of which size its batches were."""
    job = job_of((4, FIRST), (5, MIDDLE), (5, change), (3, LAST))
    assert traced(job, [job.saved[1], job.saved[2]], range(5, 15)) == job.steps[4:14]
    assert traced(job, [job.saved[2]], range(5, 15)) == job.steps[4:14]


def test_passes_that_ended_have_short_batches():
    """Of an earlier size, too."""
    mix = Mix((Leaf("a", 20), Leaf("b", 11)), cyclic=False)
    job = job_of((2, FIRST), (9, MIDDLE), (3, LAST), mix=mix)
    assert traced(job, [job.saved[1]], range(3, 12)) == job.steps[2:11]


def test_a_yield_function_over_all_is_told_too():
    """Its batches are of what it gave, not of what was drawn."""
    mix = Mix((Leaf("a", 20), Leaf("b", 11)), function="pairs")
    job = job_of((3, FIRST), (4, MIDDLE), (3, LAST), mix=mix)
    assert traced(job, job.saved, range(1, 11)) == job.steps


def test_what_lanes_count_on_from_is_not_theirs():
    """Of lanes that begin with a part of what a size before had counted: a function's records are read, not sought."""
    mix = Mix((Leaf("a", 120, function="split"), Leaf("b", 30), Leaf("c", 1), Leaf("d", 60)))
    weights = {"a": 3, "b": 3, "c": 3}
    job = job_of((4, {"dp_size": 3, "num_workers": 3, "weights": weights}), (11, {"num_workers": 1}), mix=mix)
    assert traced(job, [job.saved[0]], range(1, 16)) == job.steps
