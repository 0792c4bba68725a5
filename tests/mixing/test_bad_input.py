"""Bad input gets an error that says who and what, and what is skipped is counted."""

import logging
import pickle
import re
from fractions import Fraction
from itertools import islice

import numpy as np
import pytest

from streamdata import MergedDataset, SourceError, instantiate_from_yaml, to_state
from streamdata.run import MAX_RANKS
from tests.streams import Numbers, NumbersAhead, assert_exact_resume


def named(name, percent=1, **attributes):
    """A source of ten numbers."""
    return Numbers(name, 10, percent, **attributes)


def without(attribute):
    """A source that lacks an attribute."""
    source = named("a")
    delattr(source, attribute)
    return source


SAME = named("same")


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ([], "expected at least one source"),
        ([named("a"), named("a")], "expected a unique name, got 'a' again, first as source 0"),
        ([without("name")], "expected a unique name without '.', got None"),
        ([named("a.b")], r"expected a unique name without '.', got 'a\.b'"),
        ([named("a", 0)], "'a': expected a positive number as percent, got 0"),
        ([named("a", -1)], "expected a positive number as percent, got -1"),
        ([named("a", float("nan"))], "expected a positive number as percent, got nan"),
        ([named("a", float("inf"))], "expected a positive number as percent, got inf"),
        ([named("a", "much")], "expected a positive number as percent, got 'much'"),
        ([without("percent")], "expected a positive number as percent, got None"),
        ([named("a", max_bad="0.1%")], "'a': expected a whole number of failures as max_bad, got '0.1%'"),
        ([named("a", max_bad=0.5)], "expected a whole number of failures as max_bad, got 0.5"),
        ([named("a", max_bad=-1)], "expected a whole number of failures as max_bad, got -1"),
        ([named("a", max_bad=None)], "expected a whole number of failures as max_bad, got None"),
        ([named("a", max_epochs=0)], "'a': expected a whole number of epochs from 1 on as max_epochs, got 0"),
        ([named("a", max_epochs=1.5)], "'a': expected a whole number of epochs from 1 on as max_epochs, got 1.5"),
        ([named("a", max_epochs=True)], "'a': expected a whole number of epochs from 1 on as max_epochs, got True"),
        ([named("a", max_epochs="2")], "'a': expected a whole number of epochs from 1 on as max_epochs, got '2'"),
        ([named("a", process_fn="pkg.fn")], "expected a function as process_fn, got 'pkg.fn'"),
        ([SAME, SAME], "expected a unique name, got 'same' again"),
    ],
)
def test_a_bad_source_is_refused_at_construction(datasets, message):
    """With its number, its kind and its name."""
    with pytest.raises(ValueError, match=message):
        MergedDataset(datasets)


def test_the_same_object_in_two_mixtures_is_refused():
    """Also under two parents."""
    shared = named("shared")
    inner = MergedDataset([shared])
    inner.name, inner.percent = "inner", 1
    with pytest.raises(ValueError, match=r"'inner\.shared' is the same object as 'shared'"):
        MergedDataset([shared, inner])


def test_a_mixture_has_no_epochs_to_be_bounded():
    """A bound that is not kept would be passed over in silence."""
    inner = MergedDataset([named("a")], name="inner", percent=1)
    inner.max_epochs = 2
    with pytest.raises(ValueError, match="'inner': expected no max_epochs of a mixture, got 2"):
        MergedDataset([inner])


def test_an_iterable_of_another_library_is_refused():
    """It could be neither split nor resumed."""

    class Stream:
        name, percent = "stream", 1

        def __iter__(self):
            return iter([])

    with pytest.raises(ValueError, match="'stream': expected a map-style dataset"):
        MergedDataset([Stream()])


def test_an_unknown_stop_rule_is_refused():
    """With the rules that there are."""
    with pytest.raises(ValueError, match=r"first_exhausted.*all_exhausted.*got 'longest'"):
        MergedDataset([named("a")], stop="longest")


@pytest.mark.parametrize("arguments", [(0, 0), (2, 2), (2, -1), (MAX_RANKS + 1, 0)])
def test_an_impossible_rank_is_refused(arguments):
    """0 <= dp_rank < dp_size, and as many ranks as states may have."""
    with pytest.raises(ValueError, match="expected 0 <= dp_rank < dp_size"):
        MergedDataset([named("a")]).set_data_parallel(*arguments)


@pytest.mark.parametrize("epoch", [-1, 1.5, True, 2**53, 10**400])
def test_an_impossible_pass_is_refused(epoch):
    """Passes count from 0."""
    with pytest.raises(ValueError, match="expected an int >= 0"):
        MergedDataset([named("a")]).set_epoch(epoch)


def test_an_empty_source_is_refused():
    """It would give nothing for ever."""
    with pytest.raises(SourceError, match="source 'none': expected at least one record"):
        next(iter(MergedDataset([Numbers("none", 0), named("a")])))


class Bad(Numbers):
    """Fails at multiples of three."""

    def __getitem__(self, index):
        if index % 3 == 0:
            raise OSError(f"cannot read {index}")
        return super().__getitem__(index)


class BadAhead(Bad, NumbersAhead):
    """The same, read many at once."""


def fails_at_three(record):
    if record["value"] % 3 == 0:
        raise KeyError("three")
    return record


def stream_fails_at_three(records):
    for record in records:
        yield fails_at_three(record)


FAILING = {
    "dataset": (lambda **more: Bad("a", 10, **more), OSError, "__getitem__"),
    "dataset ahead": (lambda **more: BadAhead("a", 10, **more), OSError, "__getitem__"),
    "per record": (lambda **more: named("a", single_process_fn=fails_at_three, **more), KeyError, "single_process_fn"),
    "stream": (lambda **more: named("a", process_fn=stream_fails_at_three, **more), KeyError, "process_fn"),
}


@pytest.mark.parametrize("kind", FAILING)
def test_a_failure_keeps_its_type_and_gains_its_place(kind):
    """Source, and url and key or index."""
    make, error, what = FAILING[kind]
    with pytest.raises(error) as caught:
        list(MergedDataset([make()], cyclic=False))
    assert f"source 'a': {what} failed at index " in caught.value.__notes__[0]


@pytest.mark.parametrize("kind", FAILING)
def test_max_bad_skips_and_counts(kind, caplog):
    """Four of ten are skipped with a log line each; the count is in the state; the rest is delivered once."""
    dataset = MergedDataset([FAILING[kind][0](max_bad=4)], cyclic=False)
    with caplog.at_level(logging.WARNING, "streamdata"):
        samples = list(dataset)
    assert sorted(sample["value"] for sample in samples) == [1, 2, 4, 5, 7, 8]
    assert len([r for r in caplog.records if "skipped" in r.message and "index" in r.message]) == 4
    endless = MergedDataset([FAILING[kind][0](max_bad=4)])
    assert to_state(list(islice(iter(endless), 7)))["cursor/0/0/0/0/a"]["bad"] == 4


@pytest.mark.parametrize("kind", FAILING)
def test_past_max_bad_it_is_an_error(kind):
    """The fourth failure, where three are forgiven."""
    make, error, _ = FAILING[kind]
    with pytest.raises(error) as caught:
        list(MergedDataset([make(max_bad=3)], cyclic=False))
    assert "failure number 4, and max_bad=3" in caught.value.__notes__[0]


@pytest.mark.parametrize("kind", FAILING)
def test_skips_resume_exactly(kind):
    """The failures before are neither counted again nor forgotten."""

    def make():
        return MergedDataset([FAILING[kind][0](max_bad=20), named("b")], seed=4)

    assert_exact_resume(make, steps=20, beyond=20)


@pytest.mark.parametrize("kind", FAILING)
def test_skips_count_on_after_a_resume(kind):
    """The limit is for the whole run of a lane: stopped after any sample, the same failure is the last straw."""
    make, error, _ = FAILING[kind]

    def endless():
        return MergedDataset([make(max_bad=9)])

    whole = values_until_error(endless, 0, error)
    assert len(whole) > 11
    for stop in (1, 7, 11, len(whole)):
        assert values_until_error(endless, stop, error) == whole


def values_until_error(endless, stop, error):
    """The values up to the error, of a run that was stopped and resumed after `stop` samples."""
    states, first = {}, []
    for sample in islice(iter(endless()), stop):
        first.append(sample["value"])
        states.update(to_state(sample))
    with pytest.raises(error):
        first.extend(sample["value"] for sample in endless().__iter_from__(states))
    return first


class AllBad(Numbers):
    """Cannot read anything."""

    def __getitem__(self, index):
        raise OSError(f"cannot read {index}")


@pytest.mark.parametrize("cyclic", [True, False])
@pytest.mark.parametrize(
    "functions", [{}, {"single_process_fn": fails_at_three}, {"process_fn": stream_fails_at_three}]
)
def test_a_source_that_is_all_bad_is_an_error(cyclic, functions):
    """However many failures are forgiven: it would end, or go on, in silence."""
    with pytest.raises(SourceError, match=r"gave no sample: 0 records dropped, 10 failures skipped; the last: index"):
        list(MergedDataset([AllBad("a", 10, max_bad=10_000, **functions)], cyclic=cyclic))


class Short(NumbersAhead):
    """Leaves out what it does not like."""

    def __getitems__(self, indices):
        return [self[index] for index in indices if index % 5]


def test_items_that_do_not_answer_their_indices_are_an_error():
    """Before a record is delivered under another's index."""
    with pytest.raises(SourceError, match=r"source 'a': __getitems__ gave \d+ items for the \d+ indices"):
        list(MergedDataset([Short("a", 50)], cyclic=False))


@pytest.mark.parametrize("cost", [3, "", ["tokens"]])
def test_what_cannot_weigh_is_refused_at_construction(cost):
    """It is a function or the name of a field."""
    with pytest.raises(ValueError, match=r"expected a function of a sample, or the name of a field, as cost, got"):
        MergedDataset([named("a")], cost=cost)


@pytest.mark.parametrize(("cost", "error"), [(lambda sample: sample["tokens"], KeyError), (lambda _: None, TypeError)])
def test_a_cost_that_fails_says_where(cost, error):
    """Its own exception, with the source and the record in a note."""
    with pytest.raises(error) as caught:
        next(iter(MergedDataset([named("a")], cost=cost)))
    assert re.search(r"source 'a': cost failed at index \d", caught.value.__notes__[0])


def test_a_cost_that_ends_its_own_iterator_ends_no_stream():
    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        next(iter(MergedDataset([named("a")], cost=lambda sample: next(iter(())))))
    assert "source 'a': cost failed" in caught.value.__notes__[0]


def yields_one_record(records):
    """A function of one record that yields."""
    yield {**records}


@pytest.mark.parametrize(
    "function",
    [
        lambda r: {**r},
        lambda r: {"x": r["n"]},
        lambda r: r.get("n"),
        lambda r: {"x": 1},
        lambda r: 1,
        yields_one_record,
    ],
)
def test_a_function_of_one_record_as_process_fn_says_what_it_is_called(function):
    """Whether it fails on the iterator, or returns a sample; the source is named."""
    with pytest.raises((TypeError, AttributeError)) as caught:
        list(MergedDataset([named("a", process_fn=function)], cyclic=False))
    said = "\n".join([str(caught.value), *caught.value.__notes__])
    assert "with an iterator of records: name a function of one record single_process_fn" in said
    assert "source 'a': process_fn" in said
    with pytest.raises(TypeError, match="customized_yield_fn: expected an iterator of samples, got dict\nsource"):
        list(MergedDataset([named("a")], cyclic=False, customized_yield_fn=lambda samples: {"x": 1}))


@pytest.mark.parametrize("cost", [0, -1, 1e-101, 1e101, float("nan"), float("inf")])
def test_an_impossible_cost_is_an_error(cost):
    """The clock would stand still, or go nowhere."""
    with pytest.raises(ValueError, match=re.escape(f"source 'a': cost gave {cost}, expected a positive number")):
        next(iter(MergedDataset([named("a")], cost=lambda sample: cost)))


def test_a_function_that_cannot_be_called_is_an_error_of_its_source():
    """Even where failures are forgiven."""
    with pytest.raises(ZeroDivisionError) as caught:
        list(MergedDataset([named("a", process_fn=lambda records: 1 / 0, max_bad=99)], cyclic=False))
    assert caught.value.__notes__ == ["source 'a': process_fn could not be called"]


def test_waiting_for_an_endless_mixture_is_refused():
    """all_exhausted over a mixture that never is."""
    inner = MergedDataset([named("a")])
    inner.name, inner.percent = "inner", 1
    with pytest.raises(ValueError, match="waits forever for 'inner'"):
        MergedDataset([inner], cyclic=False, stop="all_exhausted")


@pytest.mark.parametrize(
    ("name", "around"), [(None, "the mixture around it"), ("outer", "the mixture 'outer' around it")]
)
def test_a_finite_mixture_within_an_endless_one_is_refused(name, around):
    """The error names both, and what to write; also at a deeper level."""
    lowest = MergedDataset([named("a")], cyclic=False, name="lowest", percent=1)
    finite = MergedDataset([lowest, named("b")], cyclic=False, name="finite", percent=1)
    assert list(finite)
    for inner in (lowest, finite):
        with pytest.raises(ValueError, match=f"mixture '{inner.name}': expected cyclic=True, as of {around}") as caught:
            MergedDataset([inner, named("c")], name=name, percent=1)
        assert f"`cyclic: true` in '{inner.name}', or list its sources in {around}, or" in str(caught.value)


def test_a_finite_mixture_of_percent_0_within_an_endless_one_is_not_there():
    """It is refused when it has a share."""
    finite = MergedDataset([named("a")], cyclic=False, name="finite", percent=0)
    assert next(iter(MergedDataset([finite, named("b")])))["__datasetname__"] == "b"


@pytest.mark.parametrize("seed", ["x", 1.5, None])
def test_a_seed_is_an_integer(seed):
    """Of any integer type."""
    with pytest.raises(ValueError, match="expected an integer as seed"):
        MergedDataset([named("a")], seed=seed)
    assert MergedDataset([named("a", Fraction(1, 3)), named("b", np.float32(2))], seed=np.int64(3)).seed == 3


@pytest.mark.parametrize("name", ["single_process_fn", "process_fn"])
def test_an_epoch_without_a_sample_is_an_error(name):
    """An endless filter would never return; the error names the source and what was dropped."""
    function = (lambda record: None) if name == "single_process_fn" else (lambda records: (r for r in records if False))
    with pytest.raises(
        SourceError, match=r"source 'a': a whole epoch \(number 0\) of this lane's share gave no sample"
    ):
        next(iter(MergedDataset([named("a", **{name: function}), named("b")])))


def test_a_finite_source_without_a_sample_is_an_error():
    """The summary says how many records were dropped, and the last of them."""
    with pytest.raises(
        SourceError,
        match=r"10 records dropped, 0 failures skipped; the last: index \d: single_process_fn gave no sample",
    ):
        list(MergedDataset([named("a", single_process_fn=lambda record: None)], cyclic=False))


def test_an_output_that_is_no_dict_is_an_error():
    """With what it was."""
    with pytest.raises(TypeError, match="single_process_fn: expected a dict, got int"):
        list(MergedDataset([named("a", single_process_fn=lambda record: 3)], cyclic=False))


def test_a_stream_function_that_ends_early_is_an_error():
    """The rest of its records would be lost in silence."""
    with pytest.raises(ValueError, match="process_fn ended before its records did"):
        list(MergedDataset([named("a", process_fn=lambda records: islice(records, 3))], cyclic=False))


def test_a_stream_function_cannot_swallow_an_error_of_its_records():
    """What the records raise is raised again when the function goes on."""

    def swallows(records):
        while True:
            try:
                yield next(records)
            except StopIteration:
                return
            except OSError:
                continue

    with pytest.raises(OSError, match="cannot read"):
        list(MergedDataset([Bad("a", 10, process_fn=swallows)], cyclic=False))


class Rewinds:
    """A stateful function that asks for more records than it pulled."""

    rewind = 0

    def state_dict(self):
        return {"rewind": self.rewind}

    def load_state_dict(self, state):
        pass

    def __call__(self, records):
        self.rewind = 5
        yield from records


def test_an_impossible_rewind_is_an_error():
    """It cannot need records that it never pulled."""
    with pytest.raises(ValueError, match="'rewind' between 0 and 1"):
        list(islice(iter(MergedDataset([named("a", process_fn=Rewinds())])), 3))


def test_an_unpicklable_dynamic_object_is_named_by_its_recipe_path(tmp_path):
    """When workers are spawned: which object of the recipe cannot cross."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "target: streamdata.MergedDataset\n"
        "params:\n"
        "  datasets:\n"
        "    - target: tests.streams.Numbers\n"
        "      params: {name: a, size: 9, single_process_fn: '${dynamic_objs:fn}'}\n"
    )
    dataset = instantiate_from_yaml(recipe, dynamic_objs={"fn": lambda record: record})
    assert next(iter(dataset))["value"] in range(9)
    with pytest.raises(Exception, match="pickle") as caught:
        pickle.dumps(dataset)
    assert re.search(r"recipe\.yaml:5:\d+: params\.datasets\[0\]\.params\.single_process_fn", caught.value.__notes__[0])


@pytest.mark.parametrize("attributes", ["name: a\n      percent: -1", "name: a", "name: b\n      percent: 1"])
def test_a_bad_source_of_a_recipe_is_named_by_its_line(tmp_path, attributes):
    """The place of the source, not only of the mixture."""
    recipe = tmp_path / "recipe.yaml"
    source = "    - target: tests.mixing.test_bad_input.Items\n      params: {}\n      "
    sources = f"{source}{attributes}\n{source}name: b\n      percent: 1\n"
    recipe.write_text(f"target: streamdata.MergedDataset\nparams:\n  datasets:\n{sources}")
    with pytest.raises(ValueError, match=r"source (0 \(Items\) at .*recipe\.yaml:4:|1 \(Items\) at .*recipe\.yaml:8:)"):
        instantiate_from_yaml(recipe)


class Items(Numbers):
    """Ten numbers, without name and percent."""

    def __init__(self):
        self.size = 10


class Watched(NumbersAhead):
    """Notes how many records were asked for at once."""

    def __getitems__(self, indices):
        self.asked.append(len(indices))
        return super().__getitems__(indices)


def test_look_ahead_grows_from_one_to_32():
    """The first sample is not late, and what was read ahead is not counted as delivered."""
    dataset = MergedDataset([Watched("a", 200, asked=[])])
    asked = dataset.datasets[0].asked
    samples = []
    for sample in islice(iter(dataset), 100):
        samples.append(sample)
        if len(samples) == 1:
            assert asked == [1]
    assert asked[:6] == [1, 2, 4, 8, 16, 32]
    assert max(asked) == 32
    assert to_state(samples)["cursor/0/0/0/0/a"]["window"] == 100
