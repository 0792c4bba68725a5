"""A yield function over the merged stream: when it gives nothing, and when it fails."""

import logging
from itertools import islice

import pytest

from streamdata import MergedDataset, SourceError, to_state
from streamdata.mixing.mixture import WholeEpochs
from tests.mixing.test_resume import Packer
from tests.streams import Numbers, assert_exact_resume


def nothing(samples):
    """Passes over everything, as long as there is something."""
    return (sample for sample in samples if sample is None)


def nested(function, *, cyclic=True, **attributes):
    """A mixture with that function, to be mixed."""
    inner = MergedDataset([Numbers("a", 9), Numbers("b", 4)], cyclic=cyclic, customized_yield_fn=function)
    inner.name, inner.percent = "inner", 1
    inner.__dict__.update(attributes)
    return inner


@pytest.mark.parametrize(
    ("make", "who"),
    [
        (lambda: MergedDataset([Numbers("a", 9), Numbers("rare", 3, 0.01)], customized_yield_fn=nothing), "the top"),
        (lambda: MergedDataset([nested(None), Numbers("c", 5)], customized_yield_fn=nothing), "the top"),
        (lambda: MergedDataset([nested(None, datasets=[nested(None)])], customized_yield_fn=nothing), "the top"),
        (lambda: MergedDataset([nested(nothing), Numbers("c", 5)]), "inner"),
    ],
)
def test_whole_epochs_without_a_sample_are_an_error(make, who):
    """An endless filter would never return; the error names the mixture, the function and what it passed over."""
    with pytest.raises(
        SourceError,
        match=f"source '{who}': a whole epoch of each source .* passed over [0-9]+ records, the last: index",
    ):
        list(islice(make(), 3))


def test_a_source_that_was_not_gone_through_is_waited_for():
    """However often the others were: what the function wants may lie in the rest of it."""

    def wanted(samples):
        return (sample for sample in samples if sample["value"] == 399)

    dataset = MergedDataset([Numbers("small", 3, 9), Numbers("large", 400)], customized_yield_fn=wanted)
    assert [sample["value"] for sample in islice(dataset, 2)] == [399, 399]


@pytest.mark.parametrize("lanes", [1, 50])
def test_several_epochs_of_small_sources_can_be_joined(lanes):
    """A thousand samples to one, with more lanes than records too."""

    def joined(samples):
        for first in samples:
            yield {"values": [first["value"], *(sample["value"] for sample in islice(samples, 999))]}

    dataset = MergedDataset([Numbers("a", 3), Numbers("b", 2)], customized_yield_fn=joined)
    dataset.set_data_parallel(lanes, 0)
    assert [len(sample["values"]) for sample in islice(dataset, 2)] == [1000, 1000]


def test_a_function_that_gives_something_is_not_followed(monkeypatch):
    """Else each sample of a mixture of a thousand sources would cost what all of them do."""
    monkeypatch.setattr(WholeEpochs, "are_over", lambda *_: pytest.fail("followed"))
    dataset = MergedDataset([Numbers("a", 3), Numbers("b", 2)], customized_yield_fn=lambda samples: samples)
    assert len(list(islice(dataset, 2000))) == 2000


class Slow(Packer):
    """Holds back 3,000 numbers before its first row."""

    def __call__(self, records):
        self.held, self.skip = [], 0
        for record in records:
            self.held.append(record["value"])
            if len(self.held) == 3000:
                yield {"row": self.held[:4]}


def test_what_a_stateful_function_holds_back_is_waited_for():
    """It says so itself."""
    dataset = MergedDataset([Numbers("a", 3)], customized_yield_fn=Slow())
    assert len(next(iter(dataset))["row"]) == 4


@pytest.mark.parametrize("make", [lambda **more: MergedDataset([nested(None, cyclic=False)], **more), nested])
def test_a_finite_stream_without_a_sample_is_an_error(make):
    """Its end would look like that of a run."""
    functions = {"customized_yield_fn": nothing} if make is not nested else {"function": nothing}
    with pytest.raises(
        SourceError, match=r"the stream of this lane's share gave no sample: .* passed over \d+ records"
    ):
        list(make(cyclic=False, **functions))


def test_a_lane_without_records_ends_in_silence():
    """There was nothing that the function could have passed over."""
    dataset = MergedDataset([Numbers("a", 1)], cyclic=False, customized_yield_fn=nothing)
    dataset.set_data_parallel(2, 1)
    assert list(dataset) == []


def fails_at_four(samples):
    """Fails at multiples of four, and gives the others in pairs of echoes."""
    for sample in samples:
        if sample.get("value", 1) % 4 == 0:
            raise KeyError("four")
        yield sample
        yield {"echo": sample.get("value")}


@pytest.mark.parametrize("function", [None, lambda samples: samples])
def test_a_mixture_has_no_position_of_its_own(function):
    """Its sources say where it stands, in whichever epoch they are; it says how many samples these have given."""
    states = to_state(list(islice(MergedDataset([nested(function)]), 40)))
    assert states["cursor/0/0/0/0/inner.a"]["epoch"] > 0
    inner = states["cursor/0/0/0/0/inner"]
    assert [inner.get(name, 0) for name in ("epoch", "window", "output")] == [0] * 3
    drawn = sum(value["draws"] for key, value in states.items() if "/inner." in key)
    assert inner["taken"] == (drawn if function else 0)


def test_a_failure_keeps_its_type_and_gains_its_place():
    """The mixture, the function, the record that it had pulled last."""
    with pytest.raises(KeyError, match="four") as caught:
        list(nested(fails_at_four))
    assert caught.value.__notes__[0].startswith("source 'the top': customized_yield_fn failed at index ")


def test_most_bad_a_mixture_without_a_function_is_an_error():
    """It would forgive nothing, least of all failures of the sources below."""
    with pytest.raises(ValueError, match="source 'inner': max_bad=3 of a mixture is for its customized_yield_fn"):
        next(iter(MergedDataset([nested(None, max_bad=3)])))


def test_most_bad_a_mixture_forgives_failures_of_its_function(caplog):
    """With a log line each; the count is in the state; past the limit it is an error."""
    with caplog.at_level(logging.WARNING, "streamdata"):
        samples = list(islice(nested(fails_at_four, max_bad=9), 16))
    skipped = [record for record in caplog.records if "customized_yield_fn raised KeyError" in record.message]
    assert to_state(samples)["cursor/0/0/0/0/"]["bad"] == len(skipped) > 0
    with pytest.raises(KeyError) as caught:
        list(nested(fails_at_four, max_bad=2))
    assert "failure number 3, and max_bad=2" in caught.value.__notes__[0]


@pytest.mark.parametrize("cyclic", [True, False])
def test_forgiven_failures_resume_exactly(cyclic):
    """At the top and below it; the failures before are neither counted again nor forgotten."""

    def make():
        inner = nested(fails_at_four, cyclic=cyclic, max_bad=100)
        top = MergedDataset([inner, Numbers("c", 12)], cyclic=cyclic, customized_yield_fn=fails_at_four)
        top.max_bad = 100
        return top

    assert_exact_resume(make, steps=30, beyond=12)


def test_failures_count_on_after_a_resume():
    """Stopped after any sample, the same failure is the last straw."""

    def make():
        return nested(fails_at_four, max_bad=3)

    whole = values_until_error(make, 0)
    assert len(whole) > 9
    for stop in (1, 5, len(whole)):
        assert values_until_error(make, stop) == whole


def values_until_error(make, stop):
    """What comes before the error, of a run that was stopped and resumed after `stop` samples."""
    samples = list(islice(make(), stop))
    states = to_state(samples) if samples else {}
    with pytest.raises(KeyError):
        samples.extend(make().__iter_from__(states))
    return [sample.get("value", sample.get("echo")) for sample in samples]
