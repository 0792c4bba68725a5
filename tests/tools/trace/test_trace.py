"""What a step was made of is what was delivered: random recipes, topologies and changes."""

import gzip
import logging
import random
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from streamdata import (
    JsonlIterableDataset,
    MergedDataset,
    PackTokens,
    StateError,
    StreamLoader,
    merge_states,
    mixed_collate,
    named,
    to_state,
)
from streamdata.tools.trace.era import record_of
from streamdata.tools.trace.trace import Trace, count_steps
from tests.elastic.worlds import Config, Leaf, Mix
from tests.seeds import seeds
from tests.shard_files import write_jsonl
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
    trace = Trace(MergedDataset(sources), [], batch=4, dp_size=3)
    far = trace.at(10**9)
    assert (far.how, len(far.records), far.origin) == ("seek", 12, 0)
    assert 10**9 in trace.find(f"inner.c#{far.records[-1]['index']}") or far.records[-1]["source"] != "inner.c"


def test_a_step_after_many_epochs_is_sought_in_each_lane():
    """Whole epochs are passed over in one leap only where the lane reads all of them."""
    for dp_size in (1, 2):
        job = SteppedJob(Mix((Leaf("a", 12, "jsonl", shuffle_buffer=5), Leaf("b", 9))), Config(dp_size, 1, 6))
        job.go(20)
        job.check("seek")


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
        next(trace.batches(5, 2))


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
        trace.find("a#3")


def test_the_newest_batches_say_the_size_of_those_to_come():
    """Not the most of a generation: it may have changed, and of a short pass most batches are a lane's last ones."""
    job = SteppedJob(Mix((Leaf("a", 60), Leaf("b", 30))), Config(1, 1, 2))
    job.go(6)
    job.go(3, batch_size=4)
    told = job.trace().at(10).records
    job.go(1)
    assert told == job.steps[9]
    job = SteppedJob(Mix((Leaf("a", 13),), cyclic=False), Config(1, 4, 4))
    job.go(5)
    told = [job.trace().at(step).records for step in range(6, 10)]
    job.go(4)
    assert told == job.steps[5:9]


def test_what_drop_last_left_out_is_in_no_past_step(caplog):
    """A lane with less than a batch gives none in the newest pass either."""
    dataset = MergedDataset([Numbers("a", 5)], cyclic=False)
    states, steps = {}, []
    for batch in DataLoader(dataset, 2, num_workers=2, collate_fn=mixed_collate, drop_last=True):
        states.update(to_state(batch))
        steps.append([record_of(sample) for sample in batch])
    trace = Trace(dataset, [states])
    assert [trace.at(step).records for step in range(1, len(steps) + 1)] == steps


def test_one_step_of_two_counts_of_batches_is_refused():
    """One of the saves was given up."""
    job = SteppedJob(Mix((Leaf("a", 60),)), Config(1, 1, 2))
    job.go(20)
    job.go(3)
    with pytest.raises(StateError, match="expected one number of batches for each step, got 20 batches at step 10, 23"):
        count_steps([(10, job.saved[0]), (10, job.saved[1])], None)


def test_batches_go_on_after_those_that_only_fill_up():
    """Of a rank that has fewer than another one."""
    states, batches = [], {0: [], 1: []}
    for rank in (0, 1):
        dataset = MergedDataset([Numbers("a", 7)], cyclic=False)
        dataset.set_data_parallel(2, rank)
        loader = StreamLoader(dataset, 1, collate=mixed_collate, uneven="pad")
        batches[rank] = [[record_of(s) for s in batch if not s["__padding__"]] for batch in loader]
        states.append(loader.state_dict())
    trace = Trace(MergedDataset([Numbers("a", 7)], cyclic=False), [merge_states(*states)])
    filler = next(step for step, batch in enumerate(batches[1], 1) if not batch)
    told = list(islice(trace.batches(1, 1), len(batches[1]) + 2))
    assert [step for step, _ in told][:5] == [step for step in range(1, 7) if step != filler][:5]
    assert [[record_of(s) for s in batch] for _, batch in told][: filler - 1] == batches[1][: filler - 1]
    assert next(trace.batches(filler, 1))[0] == filler + 1


@pytest.mark.parametrize(("where", "multiple"), [("source", 1), ("mixture", 1), ("mixture", 4)])
def test_the_documents_of_packed_rows_are_named_and_found(tmp_path, where, multiple):
    """Each with its tokens, as the loop's batches had them; also one in the middle of a row."""
    lines, zipped = (Path(write_jsonl(tmp_path / name, [5, 7])) for name in ("lines", "zipped"))
    for file in zipped.iterdir():
        Path(f"{file}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()

    def tokenized(record):
        return {"input_ids": torch.full((record["value"] % 4 + 1,), record["value"])}

    def make():
        packer = PackTokens(16, lookahead=4, document_multiple=multiple, row_multiple=multiple**2)
        fns = {"single_process_fn": tokenized, "percent": 1, "process_fn": packer if where == "source" else None}
        sources = [JsonlIterableDataset(str(folder), name=folder.name, **fns) for folder in (lines, zipped)]
        sources.append(Numbers("map", 9, **fns))
        return MergedDataset(sources, seed=1, customized_yield_fn=packer if where == "mixture" else None)

    loader = StreamLoader(make(), 2)
    logged = {}
    for step, batch in enumerate(islice(loader, 8), 1):
        begins = batch.get("cu_seqlens_padded", batch["cu_seqlens"])[:-1]
        sources, sizes = batch["source_ids"].tolist(), batch["cu_seqlens"].diff().tolist()
        documents = zip(sources, batch["input_ids"][begins], sizes, strict=True)
        logged[step] = [document for document in documents if document[0] >= 0]
    dataset, trace = make(), Trace(make(), [loader.state_dict()])
    assert dataset.source_names == ("lines", "map", "zipped")
    came = {}
    for step, want in logged.items():
        records = trace.at(step).records
        found = [document for record in records for document in record["documents"]]
        assert [document["source"] for document in found] == [dataset.source_names[source] for source, *_ in want]
        sizes = [document["end"] - document["begin"] for document in found]
        assert sizes == [size for *_, size in want]
        assert not any(document["begin"] % multiple for document in found)
        for document, (_, number, _) in zip(found, want, strict=True):
            if "index" in document:
                value, name = document["index"], f"{document['source']}#{document['index']}"
            else:
                value = int(document["key"]) + (5 if "00001" in document["url"] else 0)
                name = f"{document['url']}#{document['key']}"
            assert value == number
            came.setdefault(name, []).append(step)
    for name in random.Random(0).sample(sorted(came), 6):
        assert [step for step in trace.find(name) if step <= 8] == sorted(set(came[name]))
