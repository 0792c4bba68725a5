"""What a step was made of is what was delivered: random recipes, topologies and changes."""

import logging
import random
from itertools import islice

import pytest
from torch.utils.data import DataLoader

from streamdata import MergedDataset, StateError, mixed_collate, named, to_state
from streamdata.tools.trace import Trace
from streamdata.tools.trace.era import record_of
from tests.elastic.worlds import Config, Leaf, Mix
from tests.seeds import seeds
from tests.streams import Numbers
from tests.tools.trace.jobs import SteppedJob, random_job


@pytest.fixture(autouse=True)
def _quiet():
    """Each change has a line in the log."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


class Unread(Numbers):
    """A map-style dataset that nobody may read."""

    def __getitem__(self, index):
        raise AssertionError(f"record {index} was read")


@pytest.mark.parametrize("seed", seeds(3, 8))
def test_every_step_of_a_random_job_is_found_by_seek(seed):
    """Over resizes, reweightings, schedules, passes, workers and ties."""
    random_job(random.Random(seed)).check("seek")


@pytest.mark.parametrize(
    ("seed", "function"), [(0, "split"), (1, "wanted"), (2, "failing"), (3, "packer"), (4, "joined")]
)
def test_what_functions_leave_out_or_split_is_read(seed, function):
    """It says so, and is what was delivered, too."""
    random_job(random.Random(seed), function=function).check()


@pytest.mark.parametrize("seed", [8, 11])
def test_records_are_found_at_their_steps(seed):
    """All that came, and the next one."""
    rng = random.Random(seed)
    random_job(rng).check_found(rng, 3)


def test_states_may_be_those_of_any_time():
    """Reading begins at the nearest of those that are given."""
    job = SteppedJob(Mix((Leaf("a", 120, function="split"), Leaf("b", 30))), Config(2, 2, 2))
    for _ in range(3):
        job.go(10)
    traced = job.trace(with_all=True).at(25)
    assert (traced.records, traced.how, traced.origin) == (job.steps[24], "read", 20)


def test_a_function_that_gave_one_sample_of_each_record_is_sought():
    """By what the states have counted; of what is to come nobody knows."""
    sources = [Numbers("a", 50, 2, single_process_fn=dict), Numbers("b", 9, max_bad=3)]
    dataset, states, steps = MergedDataset(sources), {}, []
    for batch in islice(DataLoader(dataset, 2, collate_fn=mixed_collate), 30):
        states.update(to_state(batch))
        steps.append([record_of(sample) for sample in batch])
    trace = Trace(dataset, [states], batch=2)
    assert [trace.at(step).records for step in range(1, 31)] == steps
    assert (trace.at(14).how, trace.at(31).how) == ("seek", "read")


def test_nothing_is_read_on_the_way_to_any_step():
    """A billion steps further on it is as quick; map-style records are not read at all."""
    sources = [Unread("a", 1000, 2), Unread("b", 7), MergedDataset([Unread("c", 10**8)], name="inner", percent=1 / 3)]
    trace = Trace(MergedDataset(sources), [], batch=4, dp_size=3, num_workers=2)
    far = trace.at(10**9)
    assert (far.how, len(far.records), far.origin) == ("seek", 12, 0)
    assert 10**9 in trace.find("inner.c", index=far.records[-1]["index"]) or far.records[-1]["source"] != "inner.c"


def test_batches_go_on_from_any_step():
    """Samples as they were delivered, over resumes, and on into what is to come."""
    job = SteppedJob(Mix((Leaf("a", 60, "jsonl"), Leaf("b", 30))), Config(2, 2, 2, {"a": 2}))
    job.go(9)
    job.go(8, weights={"a": 0.5}, dp_size=3)
    trace = job.trace(with_all=True)
    for rank in range(2):
        for step, batch in islice(trace.batches(5, rank), 20):
            want = job.steps[step - 1] if step <= 17 else trace.at(step).records
            assert [record_of(sample) for sample in batch] == want[2 * rank : 2 * rank + 2]
    with pytest.raises(ValueError, match="expected a rank from 0 to 1, got 2"):
        trace.batches(5, 2)


def test_a_step_beyond_what_clocks_can_count_is_refused():
    """At 2**53 samples a clock stands still; up to half of that each step is found at once."""
    dataset = MergedDataset([Numbers("a", 9, 2), Numbers("b", 7)])
    assert len(Trace(dataset, [], batch=2).at(2**51).records) == 2
    for batch, step in ((1, 2**52 + 1), (2, 2**51 + 1), (2, 10**30)):
        with pytest.raises(StateError, match=rf"step {step}: expected fewer than 2\*\*52 samples of a rank"):
            Trace(dataset, [], batch=batch).at(step)


def test_states_that_are_no_longer_there_are_asked_for():
    """Those of one time hold what that needs; a finite stream has a last step only where nothing is ever given."""
    job = SteppedJob(Mix((Leaf("a", 60), Leaf("b", 30))), Config(2, 1, 2))
    for size in (2, 3, 1, 2):
        job.go(4, dp_size=size)
    with pytest.raises(StateError, match="of step 5 or a later one, saved before the number of ranks or workers"):
        job.trace().at(5)
    assert Trace(job.mix.build(job.config), [job.saved[1], job.states]).at(5).records == job.steps[4]


def test_a_url_and_a_key_of_a_map_style_sample_do_not_name_its_record():
    """Nobody knows them without reading: a step that is sought and one that is read give the same names."""

    def dataset(**attributes):
        items = [{"n": n, "__url__": "lines.jsonl", "__key__": str(n)} for n in range(30)]
        return MergedDataset([named(items, name="lines", percent=1, **attributes)])

    sought, read = Trace(dataset(), [], batch=2).at(3), Trace(dataset(process_fn=iter_of_one), [], batch=2).at(3)
    assert (sought.how, read.how) == ("seek", "read")
    assert sought.records == read.records
    assert [record.keys() for record in read.records] == [{"source", "index"}] * 2


def iter_of_one(samples):
    """A stream function that changes nothing."""
    yield from samples


def test_a_search_through_many_passes_says_how_far_it_is():
    """So that a bar is shown, and whoever looks no more can end it."""
    trace = Trace(MergedDataset([Numbers("a", 10)], cyclic=False), [])

    def stop(done, total):
        raise InterruptedError(f"{done} of {total}")

    trace.on_progress = stop
    with pytest.raises(InterruptedError, match=f"of {10**15}"):
        trace.at(10**15 + 1)
    trace = Trace(MergedDataset([Numbers("a", 10)]), [])
    trace.on_progress = stop
    with pytest.raises(InterruptedError, match="0 of 1"):
        trace.find("a", index=3)
