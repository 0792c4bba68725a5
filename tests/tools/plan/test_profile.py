"""Where time goes, by functions, stores and collates that know how long they took."""

import time
from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from torch.utils.data import DataLoader

from streamdata import JsonlIterableDataset, MergedDataset, mixed_collate
from streamdata.errors import SourceError
from streamdata.tools.profile import stage_times
from streamdata.tools.profile.make_profile import Rate, counts_up_to, make_profile, profile_json, profile_text
from streamdata.tools.profile.stage_times import MIXING, PACK, PROCESS, READ, STAGES, WAIT, Doing, StageTimes
from tests.io.servers import http_server
from tests.shard_files import write_jsonl
from tests.streams import Numbers, plain


class Clock:
    """Stands for the module `time`: no time passes but where somebody sleeps."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    """The clock by which stages are timed."""
    clock = Clock()
    monkeypatch.setattr(stage_times, "time", clock)
    return clock


class Taking:
    """A function that takes its time, and knows how much it took."""

    def __init__(self, seconds, clock=time):
        self.seconds, self.clock, self.took = seconds, clock, 0.0

    def __call__(self, value):
        self.clock.sleep(self.seconds)
        self.took += self.seconds
        return value


def observed(dataset, count, collate=mixed_collate):
    """The seconds of each (source, stage) over so many batches, and of all."""
    with StageTimes() as times:
        loader = DataLoader(dataset, batch_size=4, collate_fn=times.timed(collate, Doing("", PACK)))
        start = stage_times.time.perf_counter()
        batches = list(islice(loader, count))
        whole = stage_times.time.perf_counter() - start
    assert len(batches) == count
    found: Counter = Counter()
    for doing, seconds in times.seconds.items():
        found[doing.source, doing.stage] += seconds
    return found, whole


def test_functions_have_the_time_that_they_took(clock):
    """Of each source its own; all stages together are the time that passed."""
    a, b = Taking(0.004, clock), Taking(0.002, clock)
    dataset = MergedDataset([Numbers("a", 99, 1, single_process_fn=a), Numbers("b", 99, 1, single_process_fn=b)])
    found, whole = observed(dataset, 50)
    assert whole > 0.5
    assert sum(found.values()) == pytest.approx(whole)
    assert found["a", PROCESS] == pytest.approx(a.took)
    assert found["b", PROCESS] == pytest.approx(b.took)


def test_stream_functions_and_yield_functions_are_processing(clock):
    """What they pull is not: that is the sources' own time."""
    inside, over, single = Taking(0.003, clock), Taking(0.001, clock), Taking(0.002, clock)
    source = Numbers("a", 99, 1, single_process_fn=single, process_fn=lambda rs: map(inside, rs))
    found, _ = observed(MergedDataset([source], customized_yield_fn=lambda ss: map(over, ss)), 30)
    assert found["the top", PROCESS] == pytest.approx(over.took)
    assert found["a", PROCESS] == pytest.approx(inside.took + single.took)


def test_a_collate_function_packs_and_a_dataset_reads(clock):
    """Both are the caller's own code."""
    collate, get = Taking(0.01, clock), Taking(0.002, clock)

    class Slow(Numbers):
        def __getitem__(self, index):
            return get(super().__getitem__(index))

    found, _ = observed(MergedDataset([Slow("a", 99)]), 30, lambda batch: mixed_collate(collate(batch)))
    assert found["", PACK] == pytest.approx(collate.took)
    assert found["a", READ] == pytest.approx(get.took)


def test_waiting_for_a_store_is_told_from_reading(tmp_path):
    """As long as the dataset itself says that its readers waited."""
    write_jsonl(tmp_path / "a", [300])
    files = {"a/00000.jsonl": (tmp_path / "a/00000.jsonl").read_bytes()}
    with http_server(files) as server:
        options = {"name": "a", "percent": 1, "block_size": 10, "shuffle_buffer": 10}
        source = JsonlIterableDataset(f"{server.url}/a/00000.jsonl", **options)
        dataset = MergedDataset([source], read_ahead_bytes=0)
        server.delay_s = 0.03
        before = dataset.traffic().waited_s
        found, _ = observed(dataset, 30)
        waited = dataset.traffic().waited_s - before
    assert waited > 0.1
    assert found["a", WAIT], found
    assert found["a", WAIT] == pytest.approx(waited)


def test_what_is_timed_is_the_stream_as_it_is(tmp_path):
    """Bit for bit."""
    write_jsonl(tmp_path / "a", [80, 50])

    def make():
        lines = JsonlIterableDataset(str(tmp_path / "a"), single_process_fn=dict, name="lines", percent=2)
        return MergedDataset([lines, Numbers("rows", 40, 1)])

    want = [plain(sample) for sample in islice(make(), 400)]
    with StageTimes():
        got = [plain(sample) for sample in islice(make(), 400)]
    assert got == want


def large(record):
    """A sample of a megabyte."""
    return {"x": np.full(1 << 20, record["value"] % 256, np.uint8)}


def test_stages_are_shares_of_the_time_of_one_process():
    """Rates are of what came, and a step that needs more than was measured is told so."""
    dataset = MergedDataset([Numbers("a", 99, 1, single_process_fn=large)])
    profile = make_profile(dataset, seconds=1, workers=[0, 1], batch_size=8, step_time_s=1e-5)
    assert [rate.workers for rate in profile.rates] == [0, 1]
    assert {stage.stage for stage in profile.stages} == {READ, PROCESS, PACK, MIXING} <= set(STAGES)
    assert sum(stage.share for stage in profile.stages) == pytest.approx(1)
    assert 0.1 < profile.busy_s < 10
    assert next(stage.function for stage in profile.stages if stage.stage == PROCESS) == "large"
    assert profile.enough_workers is None
    assert "more than was measured" in " ".join(profile_text(profile).split())


def test_what_a_step_needs_is_told_of_what_was_measured():
    """The fewest workers that gave it."""
    dataset = MergedDataset([Numbers("a", 99, 1, single_process_fn=Taking(0.002))])
    profile = make_profile(dataset, seconds=0.8, workers=[0], batch_size=4, step_time_s=1)
    assert (profile.wanted_samples_per_s, profile.enough_workers, profile.knee) == (4, 0, 0)
    assert 4 < profile.rates[0].samples_per_s <= 500  # each sleeps 2 ms at least, and on a busy machine longer
    assert profile.stages[0].stage == PROCESS
    assert "Taking" in profile.advice
    assert profile_json(profile)["sources"][0].keys() == {"name", "process", "read"}


def test_the_least_that_can_be_measured_takes_as_long_as_it_takes():
    """A batch after the first; a stream that ends before it is an error."""
    slow = MergedDataset([Numbers("a", 99, 1, single_process_fn=Taking(0.1))])
    profile = make_profile(slow, seconds=0.01, workers=[0], batch_size=1)
    assert 0 < profile.rates[0].samples_per_s <= 10
    with pytest.raises(SourceError, match="The stream ends"):
        make_profile(MergedDataset([Numbers("a", 3, 1)], cyclic=False), seconds=1, workers=[0], batch_size=8)


def rated(*rates):
    """The text of a profile with these rates, of 0, 1, 2 … workers."""
    profile = make_profile(MergedDataset([Numbers("a", 99)]), seconds=0.1, workers=[0], batch_size=1)
    numbered = [Rate(workers=n, samples_per_s=rate, first_batch_s=0, samples=9) for n, rate in enumerate(rates)]
    knee = next(number for number, rate in enumerate(rates) if rate >= 0.9 * max(rates))
    return profile_text(replace(profile, rates=numbered, knee=knee))


def test_of_more_workers_than_were_measured_nothing_is_said():
    """Nor of one measurement alone, nor where the last one was the best."""
    assert "more added little" not in rated(100.0)
    assert "more added little" not in rated(100.0, 200.0)
    assert "150       0.00 s  more added little" in rated(100.0, 150.0, 155.0)


@pytest.mark.parametrize("columns", [80, 120])
def test_a_profile_fits_the_terminal(monkeypatch, columns):
    """Long names of sources and functions are shortened."""
    monkeypatch.setenv("COLUMNS", str(columns))
    names = ["a_source/with/a/long/path/of/names/that/goes/on" * n for n in (1, 2)]
    sources = [Numbers(name, 99, 1, single_process_fn=a_function_with_a_name_that_is_as_long_as_that) for name in names]
    profile = make_profile(MergedDataset(sources), seconds=0.2, workers=[0], batch_size=4, step_time_s=1e-9)
    text = profile_text(profile)
    assert "…" in text
    # A name in a sentence is left whole, on a line of its own where it is longer than that.
    assert max(len(line) for line in text.split("\n") if " " in line.strip()) <= columns


def a_function_with_a_name_that_is_as_long_as_that(record):
    """The record as it is."""
    return record


def test_workers_are_counted_up_to_the_cores():
    """Doubled, a few numbers."""
    assert [counts_up_to(cores) for cores in (1, 2, 6)] == [[0, 1], [0, 1, 2], [0, 1, 2, 4, 6]]
    assert counts_up_to(96) == [0, 1, 2, 4, 8, 96]
