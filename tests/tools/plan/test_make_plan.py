"""What a plan says beforehand is what a job then does."""

from itertools import islice

import pytest

from streamdata import MergedDataset, named
from streamdata.errors import SourceError
from streamdata.tools.plan.make_plan import Amount
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
    assert any("end" in told.advice for told in plan.sources)


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
    assert [line.name for line in plan.schedules] == ["a", "b"]
    assert any("shares are linear, percents are not" in note for note in plan.notes)
    shares = plan.schedules[0].shares
    assert (shares[0], shares[-1]) == (pytest.approx(1, abs=0.02), pytest.approx(0, abs=0.02))


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
    assert (source(plan, "texts").tokens, source(plan, "texts").tokens_interval) == (160, (160, 160))
    with pytest.raises(SourceError, match="Give --sample"):
        planned(MergedDataset([texts, Numbers("images", 40, 1)]), tokens=1000)
    with pytest.raises(SourceError, match="expected samples with tokens"):
        planned(MergedDataset([Numbers("images", 40, 1)]), tokens=1000, sample=5)


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
