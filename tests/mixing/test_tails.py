"""What the end of a finite stream drops, after its last sample, is counted: once, whatever comes after."""

import pytest

from streamdata import MergedDataset, StateError, merge_states, to_state
from streamdata.tools.view.totals import totals_of
from tests.streams import Numbers, in_lane, through_json


def below_eleven(record):
    """Drops all that it is given later."""
    return record if record["value"] < 11 else None


def in_pairs(samples):
    """Two samples each."""
    for sample in samples:
        yield {**sample, **next(samples, {})}


def unchanged(samples):
    """A stream function."""
    yield from samples


def stream(functions=None, yield_fn=None, more=()):
    """Twenty records, nine of which are dropped at the end, beside a longer source."""
    functions = functions or {"single_process_fn": below_eleven}
    sources = [Numbers("a", 20, 0.9, **functions), Numbers("b", 30, 0.1), *more]
    return MergedDataset(
        sources,
        seed=1,
        cyclic=False,
        stop="all_exhausted",
        shuffle_unstreaming_subsets=False,
        customized_yield_fn=yield_fn,
    )


def read(dataset, states=None, lane=None, most=1000):
    """All that a lane gives, in its states."""
    states = {} if states is None else states
    dataset.set_dataloader_states(through_json(states))
    for _, sample in zip(range(most), dataset if lane is None else in_lane(dataset, *lane), strict=False):
        states.update(to_state(sample))
    return states


def counted(states):
    """Of source a: dropped, and read."""
    source = next(source for source in totals_of(through_json(states)).sources if source.name == "a")
    return source.dropped, source.records


@pytest.mark.parametrize("yield_fn", [None, in_pairs])
@pytest.mark.parametrize("functions", [{}, {"process_fn": unchanged}], ids=["record", "stream"])
def test_all_that_was_read_is_counted(functions, yield_fn):
    """Also what a mixture's function was given in its last burst; a resume in between changes nothing."""
    functions = {"single_process_fn": below_eleven, **functions}
    assert counted(read(stream(functions, yield_fn))) == (9, 20)
    for most in (1, 7, 12, 14):
        states = read(stream(functions, yield_fn), most=most)
        assert counted(read(stream(functions, yield_fn), states)) == (9, 20)


def inner(yield_fn):
    """Two sources beside a third, below a function of their own."""
    below = [Numbers("a", 20, 0.6), Numbers("b", 9, 0.4)]
    end = {"cyclic": False, "stop": "all_exhausted"}
    nested = MergedDataset(below, name="inner", percent=1, customized_yield_fn=yield_fn, **end)
    return MergedDataset([nested, Numbers("c", 30)], seed=1, **end)


@pytest.mark.parametrize("most", [5, 30, 1000])
def test_what_a_nested_function_was_given_last_counts(most):
    """However early its sources ended."""
    states = read(inner(in_pairs), read(inner(in_pairs), most=most))
    totals = totals_of(through_json(states))
    passes = 1 if most < 1000 else 2
    assert {source.name: source.samples for source in totals.sources} == {
        "inner.a": 20 * passes,
        "inner.b": 9 * passes,
        "c": 30 * passes,
    }
    assert totals.uncounted == 0


def test_a_lane_of_each_size_counts_once():
    """One of two lanes has ended; what both have counted goes on over changes of size."""
    states = merge_states(read(stream(), lane=(0, 2)), read(stream(), lane=(1, 2), most=2))
    assert counted(read(stream(), states)) == (9, 20)


def test_a_pass_after_it_counts_on():
    """The next one begins with all."""
    states = read(stream())
    assert counted(read(stream(), states)) == (18, 40)


def test_a_source_that_joins_does_not_count_it_twice():
    """The lane goes on, and reads the end of its first source again."""
    states, longer = read(stream()), stream(more=[Numbers("c", 5)])
    longer.set_epoch(0)
    states = read(longer, states)
    assert states["cursor/1/0/0/0/c"]["draws"] == 5
    assert counted(states) == (9, 20)


def test_a_damaged_tail_is_refused():
    """It is added to what people are told."""
    states = read(stream())
    key = next(key for key, value in states.items() if "tail" in value)
    assert states[key]["tail"] == {"a": {"dropped": 9, "records": 9}}
    for tail in ([1], {"a": [9]}, {"a": {"dropped": "9"}}, {"a": {"dropped": -1, "records": 9}}):
        with pytest.raises(StateError, match="tail"):
            totals_of({**states, key: states[key] | {"tail": tail}})


def test_what_only_the_end_of_a_later_size_dropped_is_counted():
    """The lanes of the new size give nothing of the source any more: no entry tells of it."""
    early = read(stream(), most=13)
    assert counted(early)[1] < 20
    ranks = []
    for rank in range(2):
        dataset = stream()
        dataset.set_data_parallel(2, rank)
        ranks.append(read(dataset, dict(early)))
    states = merge_states(*ranks)
    assert "cursor/1/0/0/0/a" not in states
    assert counted(states) == (9, 20)
    assert counted(read(stream(), states)) == (18, 40)
