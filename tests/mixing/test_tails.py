"""What nodes' entries do not say is counted: what outputs of an open burst are of, and what the end of a stream drops.

Once, whatever comes after; but twice where it is delivered twice.
"""

from collections import Counter
from itertools import islice, pairwise

import numpy as np
import pytest

from streamdata import MergedDataset, PackTokens, StateError, merge_states, report, to_state
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


def unchanged_record(record):
    """A function of one record."""
    return record


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
    costs = ({"a": {"cost": cost}} for cost in ("9", -1.0, float("nan"), float("inf"), True))
    for tail in ([1], {"a": [9]}, {"a": {"dropped": "9"}}, {"a": {"dropped": -1, "records": 9}}, *costs):
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


def document(record):
    """Of one to seven tokens; each ninth of none, and each tenth of too many."""
    value = record["value"]
    return {"input_ids": np.full(0 if value % 9 == 8 else 30 if value % 10 == 9 else 1 + value % 7, value)}


def packed(weight=1, *, longer="drop", size=40, **settings):
    """Rows over two sources of documents."""
    sources = [Numbers(name, size, more, single_process_fn=document) for name, more in (("a", weight), ("b", 1))]
    return MergedDataset(sources, seed=1, customized_yield_fn=PackTokens(8, 20, longer=longer), **settings)


def documents(rows):
    """How many each source has in rows."""
    return Counter(number for row in rows for number in row["source_ids"].tolist())


def taken(dataset, states, number):
    """So many rows, in the states."""
    dataset.set_dataloader_states(through_json(states))
    rows = list(islice(dataset, number))
    for row in rows:
        states.update(to_state(row))
    return rows


@pytest.mark.parametrize("number", [1, 5, 9])
def test_rows_that_come_again_under_other_weights_count_again(number):
    """The burst is drawn anew, of which some was delivered: it goes on counting where it was."""
    states = {}
    before = documents(taken(packed(longer="truncate"), states, number))
    assert [report(states)[f"samples/{name}"] for name in "ab"] == [before[0], before[1]]
    for weight in (3, 5):
        before += documents(taken(packed(weight, longer="truncate"), states, 2))
        found = [report(states)[f"samples/{name}"] for name in "ab"]
        assert found[0] >= before[0]
        assert sum(found) - before.total() <= 2 * 3  # documents without tokens, of the bursts that are over
    before += documents(taken(packed(5, longer="truncate"), states, 300))
    lacking = sum(value % 9 == 8 for value in range(40)) / 40
    assert sum(report(states)[f"samples/{name}"] for name in "ab") * (1 - lacking) == pytest.approx(
        before.total(), 0.05
    )


def test_what_is_in_no_row_counts_once_the_burst_is_over():
    """Documents without tokens, and those that are too long; the last ones with the end."""
    for most in (3, 20, 1000):
        states = {}
        rows = taken(packed(cyclic=False, stop="all_exhausted"), states, most)
        in_rows, numbers = documents(rows), report(states)
        assert numbers["samples/a"] >= in_rows[0]
        assert numbers["samples/a"] + numbers["samples/b"] - in_rows.total() <= 2 * 8
        assert (numbers["epochs/a"] == numbers["epochs/b"] == 1) == (most == 1000)


@pytest.mark.parametrize("lookahead", [1, 6])
def test_of_a_packed_source_too(lookahead):
    """Its records are those in rows, and once a burst is over those in none."""
    source = Numbers("a", 40, single_process_fn=document, process_fn=PackTokens(8, lookahead, longer="drop"))
    states, rows = {}, []
    for most in (1, 4, 1000):
        dataset = MergedDataset([source], seed=1, cyclic=False)
        dataset.set_epoch(0)
        rows += taken(dataset, states, most)
        assert 0 <= report(states)["records/a"] - documents(rows).total() <= 8
    assert report(states)["records/a"] == 40


def test_after_a_failure_a_packer_counts_on():
    """What it held is lost and counts as drawn; the rows after it count their documents, by numbers from 0."""
    sources = [Numbers("a", 40, single_process_fn=document)]
    packer = PackTokens(8, 5, longer="error")
    states, drawn = {}, []
    dataset = MergedDataset(sources, seed=1, customized_yield_fn=packer)
    dataset.max_bad = 99
    for row in islice(dataset, 60):
        states.update(to_state(row))
        drawn.append((report(states)["samples/a"], documents([row])[0]))
    assert states["cursor/0/0/0/0/"]["bad"] > 3
    rises = [after - before for (before, _), (after, _) in pairwise(drawn)]
    assert all(rise >= number for rise, (_, number) in zip(rises, drawn[1:], strict=True))
    assert sum(rise == number for rise, (_, number) in zip(rises, drawn[1:], strict=True)) > 20


class Damaged(Numbers):
    """Of which every third cannot be read."""

    def __getitem__(self, index):
        if index % 3 == 1:
            raise ValueError("damaged")
        return super().__getitem__(index)


def some(record):
    """Of four tokens; of every other record none."""
    return {"input_ids": np.full(4, record["value"])} if record["value"] % 2 else None


def failing(record):
    """Of four tokens; fails at every other record."""
    return {"input_ids": some(record)["input_ids"]}


KINDS = [(Numbers, some), (Numbers, failing), (Damaged, some), (Damaged, failing)]


@pytest.mark.parametrize(("kind", "function"), KINDS)
def test_records_of_rows_that_come_again_are_those_in_them(kind, function):
    """Not those that were dropped, failed, or could not be read: these count once the burst is over."""
    states, rows = {}, []
    for weight in (1, 2, 1, 2):
        more = {"single_process_fn": function, "max_bad": 10**6}
        sources = [kind("a", 300, weight, **more), Numbers("b", 300, **more)]
        rows += taken(MergedDataset(sources, seed=1, customized_yield_fn=PackTokens(8, 150)), states, 20)
        assert report(states)["records/a"] == documents(rows)[0] > 0


def in_singles(samples):
    """One sample each."""
    for sample in samples:
        yield {"source_ids": np.array([sample["__record__"][0]])}


@pytest.mark.parametrize("function", [PackTokens(8, 20), in_singles])
@pytest.mark.parametrize(("kind", "records"), KINDS)
def test_records_of_a_pass_that_comes_again_are_those_in_rows(kind, records, function):
    """A source joins the pass after its end, where all that was read counts: of it only what was delivered again."""
    states, rows = {}, []
    for names in ("a", "ab"):
        more = {"single_process_fn": records, "max_bad": 10**6}
        ends = {"cyclic": False, "stop": "all_exhausted", "customized_yield_fn": function}
        dataset = MergedDataset([kind(name, 21, **more) for name in names], seed=1, **ends)
        dataset.set_epoch(0)
        rows += taken(dataset, states, 1000)
        numbers = report(states)
        assert numbers["records/a"] - numbers["dropped/a"] - numbers["bad/a"] == documents(rows)[0]
        assert numbers["dropped/a"] + numbers["bad/a"] == 21 - (6 if kind is Damaged else 10)


@pytest.mark.parametrize("functions", [{}, {"single_process_fn": unchanged_record}, {"process_fn": unchanged}])
def test_what_cannot_be_read_counts_for_its_epoch(functions):
    """Whatever functions there are."""
    source = Damaged("a", 21, max_bad=10**6, **functions)
    states = read(MergedDataset([source], cyclic=False))
    assert [report(states)[f"{name}/a"] for name in ("samples", "bad", "records", "epochs")] == [14, 7, 21, 1]


def short(record):
    """Of three tokens."""
    return {"input_ids": np.full(3, record["value"])}


def test_what_a_function_below_another_was_given_counts_once_a_burst_is_over():
    """Nobody says which of it is in a row; so many samples of open bursts are told as not counted."""
    below = [Numbers("a", 40, single_process_fn=short)]
    nested = MergedDataset(below, name="inner", percent=1, customized_yield_fn=unchanged)
    sources = [nested, Numbers("b", 40, single_process_fn=short)]
    states, rows = {}, []
    for row in islice(MergedDataset(sources, customized_yield_fn=PackTokens(8, 20, longer="truncate")), 30):
        states.update(to_state(row))
        rows.append(row)
        numbers = report(states)
        assert numbers["uncounted"] > 0
        assert numbers["samples/inner.a"] + numbers["samples/b"] < documents(rows).total()


def test_a_function_that_passes_over_thousands_counts_and_resumes():
    """The entries of all sources that it passed over are in its next sample, though few are kept until then."""

    def seldom(samples):
        for number, sample in enumerate(samples, 1):
            if number % 2500 == 0:
                yield sample

    def seldom_of(weight):
        return MergedDataset([Numbers("a", 7), Numbers("b", 9, weight)], seed=1, customized_yield_fn=seldom)

    states = {}
    for number in (1, 2, 3):
        (sample,) = taken(seldom_of(1 / 2000), states, 1)
        assert sample["value"] == list(islice(seldom_of(1 / 2000), number))[-1]["value"]
        assert report(states)["samples/a"] + report(states)["samples/b"] == 2500 * number
