"""What a plan says beforehand is what a job then does."""

import gzip
from itertools import islice

import numpy as np
import pytest

from streamdata import JsonlIterableDataset, MergedDataset, PackTokens, named
from streamdata.errors import SourceError
from streamdata.tools.plan.make_plan import Amount, plan_text
from tests.cpu import cpu_within
from tests.memory import begin_peak, peak
from tests.streams import Numbers
from tests.tools.plan.jobs import delivered_by_job, planned, repeats_of, second_epoch_of

TOPOLOGIES = [(1, 0, 1), (1, 2, 3), (2, 0, 4), (3, 2, 2)]


def nested():
    """Steady weights, two levels, blocks of several records."""
    inner = MergedDataset([Numbers("b", 24, 1), Numbers("c", 60, 2.5)], seed=3)
    return MergedDataset([Numbers("a", 36, 1.7, records_per_block=2), named(inner, name="inner", percent=3)], seed=5)


def source(plan, name):
    """What it says of one."""
    return next(each for each in plan.sources if each.name == name)


@pytest.mark.parametrize(("dp", "workers", "batch"), TOPOLOGIES)
def test_the_first_repeat_is_where_the_second_epoch_begins(dp, workers, batch):
    """Exactly, whatever the topology; of a single lane it is the first record that comes again."""
    plan = planned(nested(), 600, dp=dp, workers=workers, batch=batch)
    samples = list(islice(delivered_by_job(nested, Amount(600, None, dp, workers, batch)), 600))
    for name in ("a", "inner.b", "inner.c"):
        told, repeats = source(plan, name), repeats_of(samples, name)
        assert told.first_repeat == second_epoch_of(samples, name)
        assert told.first_repeat_is == ("exact" if dp * max(1, workers) < 2 else "within")
        if dp * max(1, workers) < 2:
            assert told.first_repeat == repeats[0]
        assert told.first_repeat <= repeats[0]


@pytest.mark.parametrize(("dp", "workers", "batch"), TOPOLOGIES)
def test_epochs_are_what_is_read(dp, workers, batch):
    """Of each source, within the few samples by which a lane drifts."""
    plan = planned(nested(), 600, dp=dp, workers=workers, batch=batch)
    samples = list(islice(delivered_by_job(nested, Amount(600, None, dp, workers, batch)), 600))
    for told in plan.sources:
        drawn = sum(sample["__datasetname__"] == told.name for sample in samples)
        assert told.samples == pytest.approx(drawn, abs=1 + dp * max(1, workers))
        assert told.epochs == pytest.approx(told.samples / told.records)


def finite(**options):
    """Sources that end."""
    inner = MergedDataset([Numbers("b", 30, 1), Numbers("c", 10, 3, max_epochs=2)], cyclic=False, stop="all_exhausted")
    sources = [Numbers("a", 90, 2), named(inner, name="inner", percent=1)]
    return MergedDataset(sources, cyclic=False, **options)


@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted"])
def test_a_stream_that_ends_is_planned_to_its_end(stop):
    """By either rule; nothing repeats that is read once."""
    plan = planned(finite(stop=stop), 10_000)
    samples = list(finite(stop=stop))
    assert plan.ends_after == pytest.approx(len(samples), abs=3)
    for told in plan.sources:
        assert told.samples == pytest.approx(sum(s["__datasetname__"] == told.name for s in samples), abs=3)
    assert source(plan, "a").first_repeat is None
    assert plan.ended
    assert plan_text(plan).plain.count(" the end") == 1


def test_max_epochs_leave_a_source_out():
    """Then the others have its share."""
    dataset = MergedDataset([Numbers("a", 20, 1, max_epochs=2), Numbers("b", 100, 1)], stop="all_exhausted")
    plan = planned(dataset, 300)
    samples = list(islice(dataset, 300))
    drawn = [sample["__datasetname__"] for sample in samples]
    assert (drawn.count("a"), drawn.count("b")) == (40, 260)
    assert [told.samples for told in plan.sources] == [40, 260]
    assert source(plan, "a").first_repeat == pytest.approx(repeats_of(samples, "a")[0], abs=2)


def test_schedules_are_followed():
    """The mean of their shares; the repeat where their sum reaches all records."""

    def make():
        return MergedDataset([Numbers("a", 100, [[0, 1], [400, 0]]), Numbers("b", 50, [[0, 0], [400, 1]])])

    plan = planned(make(), 400)
    samples = list(islice(make(), 400))
    for told in plan.sources:
        assert told.samples == pytest.approx(200, abs=0.01)
        assert told.first_repeat == pytest.approx(repeats_of(samples, told.name)[0], abs=4)


def test_costs_are_those_of_sampled_records():
    """A source of long samples gives fewer of them."""

    def make():
        sources = [
            Numbers("a", 100, 1, single_process_fn=lambda r: {"cost": 3}),
            Numbers("b", 100, 1, single_process_fn=lambda r: {"cost": 1}),
        ]
        return MergedDataset(sources, cost="cost")

    plan = planned(make(), 400, sample=5, draws=20)
    assert [told.samples for told in plan.sources] == pytest.approx([100, 300])
    assert [draw.source for draw in plan.draws] == [s["__datasetname__"] for s in islice(make(), 20)]


def test_tokens_become_samples():
    """By how many a sample of the mixture has; of what has none, by the others."""
    texts = named([{"input_ids": [1, 2, 3, 4]}] * 40, name="texts", percent=1)
    plan = planned(MergedDataset([texts, Numbers("images", 40, 1)]), tokens=1000, sample=10)
    assert (plan.samples, plan.tokens) == (500, 1000)
    assert source(plan, "texts").tokens == 160
    with pytest.raises(SourceError, match="Give --read"):
        planned(MergedDataset([texts, Numbers("images", 40, 1)]), tokens=1000)
    with pytest.raises(SourceError, match="expected samples with tokens"):
        planned(MergedDataset([Numbers("images", 40, 1)]), tokens=1000, sample=5)


def test_a_stream_that_ends_before_the_tokens_says_so():
    """As one of samples does."""
    texts = MergedDataset([named([{"input_ids": [1, 2, 3, 4]}] * 40, name="texts", percent=1)], cyclic=False)
    assert planned(texts, tokens=161, sample=10).ends_after == 40
    assert planned(texts, tokens=160, sample=10).ends_after is None


def test_a_run_of_tokens_is_as_long_as_its_schedule_gives_tokens():
    """To the sample that has the last of them; of more than ever come it is an error."""
    texts = named([{"input_ids": [1, 2, 3, 4]}] * 40, name="texts", percent=[[0, 1], [300, 0]])
    dataset = MergedDataset([texts, Numbers("images", 40, [[0, 0], [300, 1]])])
    assert planned(dataset, tokens=3, sample=10).tokens == 4
    plan = planned(dataset, tokens=400, sample=10)
    assert sum(len(sample.get("input_ids", ())) for sample in islice(dataset, int(plan.samples))) == 400
    with pytest.raises(SourceError, match="and none after them"):
        planned(dataset, tokens=4000, sample=10)


def test_tokens_may_begin_after_what_is_drawn(monkeypatch):
    """A run of tokens then goes on by rates from where it has none."""
    monkeypatch.setattr("streamdata.tools.plan.course._MAX_DRAWS", 1000)
    first = Numbers("first", 20_000, [[0, 1], [1500, 1], [1501, 0]])
    later = Numbers("later", 20_000, [[0, 0], [1500, 0], [1501, 1]])
    later.single_process_fn = lambda sample: {**sample, "input_ids": [1, 2, 3]}
    plan = planned(MergedDataset([first, later]), tokens=5000, sample=10)
    assert plan.samples == pytest.approx(1500 + 5000 / 3, rel=0.02)


def test_tokens_of_a_run_without_any_are_not_known():
    """They are no 0."""
    assert planned(nested(), 60, sample=5).tokens is None


def test_few_blocks_are_told():
    """What follows depends on whether the stream ends."""
    dataset = MergedDataset([Numbers("a", 8, 1, records_per_block=4), Numbers("b", 80, 1)])
    plan = planned(dataset, 40, dp=2, workers=2)
    assert "2 blocks for 4 lanes: lanes read other epochs" in source(plan, "a").advice
    assert not source(plan, "b").advice.startswith("20 blocks")
    told = source(planned(dataset.finite(), 40, dp=2, workers=2), "a")
    assert ("2 lanes get none of it" in told.advice, told.level) == (True, "hurts")


def test_huge_sources_and_many_are_planned_at_once():
    """Nothing of it grows with the records; of a thousand sources it takes a second."""

    class Huge(Numbers):
        def __getitem__(self, index):
            raise AssertionError("nothing is read")

    sources = [Huge(f"s{n}", 10**9 + n, 1 + n % 7) for n in range(300)]
    plan = planned(MergedDataset(sources), 10**13, dp=8, workers=2, draws=20)
    assert (len(plan.sources), len(plan.draws)) == (300, 20)
    assert source(plan, "s3").epochs == pytest.approx(10**13 * 4 / sum(1 + n % 7 for n in range(300)) / 1e9, rel=1e-6)
    assert source(plan, "s3").first_repeat_is == "estimated"


def test_weights_need_not_add_to_anything():
    """Nor be of any size."""
    plan = planned(MergedDataset([Numbers("a", 10, 3e-10), Numbers("b", 10, 7e-10)]), 100)
    assert [told.samples for told in plan.sources] == pytest.approx([30, 70])
    assert "lower its weight to 2e-10" in source(plan, "b").advice


def ids_of(record):
    """A document of 20 to 69 tokens, which says which one it is."""
    return {"input_ids": np.arange(20 + record["value"] * 7 % 50), "documents": record["value"]}


def packed(lookahead, **options):
    """A packer over 100 documents, beside a source without one."""
    rows = Numbers("rows", 100, 1, single_process_fn=ids_of, process_fn=PackTokens(90, lookahead=lookahead))
    return MergedDataset([rows, Numbers("others", 500, 1)], **options)


@pytest.mark.parametrize("lookahead", [1, 60, 1000])
def test_a_packer_that_looks_further_than_its_source_is_planned_by_what_it_delivers(lookahead):
    """It holds ten epochs, and has delivered two."""
    told = source(planned(packed(lookahead), 1000, sample=100), "rows")
    samples = list(islice(packed(lookahead), 1000))
    documents = sum(np.size(sample.get("documents", ())) for sample in samples)
    assert told.epochs == pytest.approx(documents / 100, rel=0.05)
    assert told.first_repeat_is == "estimated"
    first = repeats_of_documents(samples)
    assert told.first_repeat == pytest.approx(first, abs=40)


def repeats_of_documents(samples):
    """The number, from 1, of the first sample with a document that came before."""
    seen: set = set()
    for number, sample in enumerate(samples, 1):
        documents = sample.get("documents", [])
        if seen.intersection(documents) or len(set(documents)) < len(documents):
            return number
        seen.update(documents)
    raise AssertionError("none repeats")


@pytest.mark.parametrize("lookahead", [1, 1000])
def test_a_packer_does_not_end_the_stream(lookahead):
    """Of a finite source it gives all rows, though it has seen the end before the first."""
    options = {"cyclic": False, "stop": "all_exhausted"}
    plan, samples = planned(packed(lookahead, **options), 10_000, sample=100), list(packed(lookahead, **options))
    assert plan.ends_after == pytest.approx(len(samples), rel=0.05)
    assert plan.end_is_estimated
    rows = sum(sample["__datasetname__"] == "rows" for sample in samples)
    assert source(plan, "rows").samples == pytest.approx(rows, rel=0.05)
    assert source(plan, "rows").epochs == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("is_long", [False, True])
def test_what_a_finite_stream_takes_beside_uncounted_shards_is_an_estimate(tmp_path, is_long):
    """Compressed shards end somewhere: nobody has counted their records."""
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"n": 1}\n' * 300))
    zipped = JsonlIterableDataset(str(tmp_path / "a.jsonl.gz"), name="zipped", percent=1)
    plan = planned(MergedDataset([zipped, Numbers("rows", 500, 1)], cyclic=False), 2000 if is_long else 400)
    assert all(told.samples_are_estimated and told.epochs_are_estimated for told in plan.sources)
    assert plan.end_is_estimated == is_long
    assert any("as if there were no end to zipped" in note for note in plan.notes)
    text = plan_text(plan).plain
    assert ("after ≈ 1,000 samples" in text, "≈ 500" in text) == (is_long, is_long)
    assert source(planned(MergedDataset([zipped, Numbers("rows", 500, 1)]), 400), "rows").samples_are_estimated is False


def test_first_repeats_of_schedules_are_seen():
    """To the sample, since the run is drawn."""

    def make():
        return MergedDataset([Numbers("a", 100, [[0, 1], [400, 0]]), Numbers("b", 50, [[0, 0], [400, 1]])])

    plan, samples = planned(make(), 400), list(islice(make(), 400))
    for told in plan.sources:
        assert (told.first_repeat_is, told.first_repeat) == ("exact", repeats_of(samples, told.name)[0])


def ending(**options):
    """Schedules, an inner mixture, a source of two epochs."""
    inner = MergedDataset([Numbers("b", 240, 1), Numbers("c", 900, 2.5)], seed=3)
    schedule = [[0, 0.5], [1500, 3], [4000, 0.5]]
    sources = [Numbers("a", 1500, schedule), Numbers("d", 60, 1, max_epochs=2), named(inner, name="inner", percent=3)]
    return MergedDataset(sources, seed=5, stop="all_exhausted", **options)


@pytest.mark.parametrize(("make", "samples"), [(ending, 6000), (nested, 6000), (finite, 5000)])
def test_what_was_not_drawn_goes_on_by_rates(monkeypatch, make, samples):
    """As it is when all of it is drawn; what is told beyond is marked."""
    drawn = planned(make(), samples)
    monkeypatch.setattr("streamdata.tools.plan.course._MAX_DRAWS", 100)
    going = planned(make(), samples)
    assert any(note.startswith("the first 100 samples were drawn") for note in going.notes)
    for told, real in zip(going.sources, drawn.sources, strict=True):
        assert told.samples == pytest.approx(real.samples, rel=0.02, abs=2)
        assert told.samples_are_estimated
        if real.first_repeat is not None:
            assert told.first_repeat == pytest.approx(real.first_repeat, rel=0.02, abs=2 + 0.02 * samples / 10)
            assert told.first_repeat <= 100 or told.first_repeat_is == "estimated"
    if drawn.ends_after is not None:
        assert going.ends_after == pytest.approx(drawn.ends_after, rel=0.02)


def test_more_lanes_than_are_drawn_are_estimated():
    """Then 64 draw in their place, and each number says so."""
    plan = planned(MergedDataset([Numbers("a", 9000, 1), Numbers("b", 700, 1)]), 2000, dp=100, workers=2)
    assert plan.notes[0].startswith("drawn on 64 of 200 lanes")
    assert [told.samples for told in plan.sources] == pytest.approx([1000, 1000], abs=2)
    told = source(plan, "b")
    assert (told.samples_are_estimated, told.first_repeat_is) == (True, "estimated")
    assert told.first_repeat == pytest.approx(1400, rel=0.1)


def test_what_is_seldom_read_is_one_line():
    """However many sources it is; each of them has its advice in JSON."""
    plan = planned(MergedDataset([Numbers(f"s{number}", 1000) for number in range(50)]), 500)
    lines = [line for line in plan_text(plan).plain.split("\n") if "is read" in line]
    assert len(lines) == 1
    assert "s0 (1 %), s1 (1 %), s2 (1 %), s3 (1 %) and 46 more" in lines[0]
    assert all("is read" in told.advice for told in plan.sources)


@pytest.mark.parametrize("columns", [80, 120])
def test_a_plan_fits_the_terminal(monkeypatch, columns):
    """Names are shortened in the middle, paragraphs wrapped."""
    monkeypatch.setenv("COLUMNS", str(columns))
    names = ["a_source/with/a/long/path/of/names/that/goes/on", "another_one_of_that_kind_which_is_even_longer"]
    sources = [Numbers(name, 10**9, [[0, 1], [50_000, 2]], single_process_fn=ids_of) for name in names]
    sources += [Numbers("b", 30, 1), Numbers("c", 40, 1e-4)]
    monkeypatch.setattr("streamdata.tools.plan.course._MAX_DRAWS", 2000)
    plan = planned(MergedDataset(sources), 3_000_000, dp=8, workers=4, sample=5, draws=20)
    text = plan_text(plan).plain
    assert max(map(len, text.split("\n"))) <= columns
    assert "…" in text
    assert any(line.startswith("a_") and line.count("≈") >= 2 for line in text.split("\n"))


@pytest.mark.long
def test_a_thousand_sources_are_planned_in_seconds():
    """In 10 s of one core, and 1 GB: measured 3 s and 310 MB."""
    sources = [Numbers(f"s{number}", 1000 + number, 1 + number % 7) for number in range(1000)]
    resident = begin_peak()
    with cpu_within(10):
        plan = planned(MergedDataset(sources), 10**7, dp=64, workers=4, sample=10)
    assert peak() - resident < 10**9
    assert source(plan, "s3").epochs == pytest.approx(10**7 * 4 / sum(1 + n % 7 for n in range(1000)) / 1003, rel=1e-3)
