"""A mixture keeps to its schedules: in each lane, over changes of size and of text, and exactly over a resume."""

import random
import re
from itertools import islice

import numpy as np
import pytest

from streamdata import MergedDataset, instantiate_from_yaml, to_state
from tests.benchmarks.schedule_table import Figures, schedules, simulate
from tests.mixing.test_resume import many_to_one_stream
from tests.seeds import seeds
from tests.streams import Numbers, assert_exact_resume, loaded, plain, resumed

RAMP, FALL = [[0, 0], [300, 1]], [[0, 1], [300, 0]]
STEP = {"steps": [[0, 1], [100, 0], [200, 1]]}


def mixture(percents, **options):
    """Of sources with these percents; a sample has a cost from 1 to 7."""
    sources = [Numbers(name, 1000 + 7 * k, percent) for k, (name, percent) in enumerate(percents.items())]
    return MergedDataset(sources, seed=7, **options)


def named(inner, percent):
    """The mixture as a source of another one."""
    inner.name, inner.percent = "inner", percent
    return inner


def cost(sample):
    return 1 + sample["value"] % 7


def drawn(dataset, count, states=None):
    """The names of the sources of so many samples; the states are brought up to date."""
    names = []
    for sample in islice(iter(dataset), count):
        names.append(sample["__datasetname__"])
        if states is not None:
            states.update(to_state(sample))
    return names


def nested(**options):
    inner = mixture({"x": RAMP, "y": FALL, "z": STEP}, **options.pop("inner", {}))
    return mixture({"a": [[0, 0.5], [400, 0.1]], "b": STEP}, **options), inner


def both(inner_percent=0.5, **options):
    top, inner = nested(**options)
    top.datasets.append(named(inner, inner_percent))
    return top


RECIPES = {
    "flat": lambda: mixture({"a": RAMP, "b": FALL, "c": STEP}),
    "by cost": lambda: mixture({"a": [[0, 0], [900, 1]], "b": FALL, "c": STEP}, cost=cost),
    "finite": lambda: mixture({"a": RAMP, "b": FALL, "c": STEP}, cyclic=False),
    "joined": lambda: mixture({"a": RAMP, "b": FALL}, customized_yield_fn=many_to_one_stream),
    "nested": both,
    "nested in a schedule": lambda: both([[0, 0.1], [200, 0.9]]),
    "nested, the top by cost": lambda: both(cost=cost),
    "nested, the inner one by cost": lambda: both(inner={"cost": cost}),
    "nested, finite": lambda: both(inner={"cyclic": False}, cyclic=False),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_resume_is_exact(name):
    """At each step, also of mixtures within others."""
    assert_exact_resume(RECIPES[name], steps=16, beyond=48)
    assert_exact_resume(RECIPES[name], steps=6, beyond=30, num_workers=2, batch_size=9)


@pytest.mark.parametrize("name", schedules(1.0))
def test_lanes_keep_to_schedules_over_two_changes_of_size(name):
    """Within 4 samples in each lane, or 2 of the largest costs; the job is not further off after the changes."""
    end = 12 * 400.0
    case = schedules(end)[name]
    figures: Figures = simulate(case, end, (12, 18, 4))
    assert figures.in_a_lane < (4 if case.largest is None else 2)
    assert max(figures.in_the_job) <= 12


def test_global_batches_are_even_before_and_after_a_change_of_size():
    """64 ranks with 2 samples each. Under a schedule less so, if better than at random (0.04): see `schedule_table`."""
    end = 64 * 120.0
    assert max(simulate(schedules(end)["constant"], end, (64, 96, 64)).of_batches) <= 0.01
    assert max(simulate(schedules(end)["stepped"], end, (64, 96, 64)).of_batches) <= 0.03


def test_where_samples_of_very_different_costs_are_weighed_by_the_top_only():
    """An inner schedule is followed at the time that the top's costs say."""
    points = 200_000

    def make():
        items = {"x": (10, [[0, 1], [points, 0]]), "y": (1000, [[0, 0], [points, 1]])}
        sources = [
            Numbers(name, 50, percent, single_process_fn=lambda record, n=n: {**record, "n": n})
            for name, (n, percent) in items.items()
        ]
        beside = Numbers("a", 50, 1, single_process_fn=lambda record: {**record, "n": 30})
        return MergedDataset([beside, named(MergedDataset(sources), 1)], cost="n")

    time = wanted = got = worst = 0
    for sample in islice(iter(make()), 8000):
        if sample["__datasetname__"] != "a":
            wanted += min(1, time / points)
            got += sample["__datasetname__"] == "inner.y"
            worst = max(worst, abs(got - wanted))
        time += sample["n"]
    assert time > points
    assert worst < 4


@pytest.mark.parametrize("depth", [1, 2])
def test_below_an_inner_yield_function_a_schedule_is_refused(depth):
    """With what to write in its place; the top may have both, and the inner mixture a schedule of its own."""
    inner = mixture({"x": RAMP, "y": FALL}, customized_yield_fn=many_to_one_stream if depth == 1 else None)
    if depth == 2:
        lowest = named(inner, 1)
        inner = MergedDataset([Numbers("b", 500), lowest], customized_yield_fn=many_to_one_stream)
    with pytest.raises(
        ValueError, match=r"mixture 'inner'.* got a schedule\n  Give the schedule to the percent of 'inner'"
    ):
        MergedDataset([Numbers("a", 1000), named(inner, 1)])
    constant = named(mixture({"x": 1, "y": 2}, customized_yield_fn=many_to_one_stream), RAMP)
    assert MergedDataset([Numbers("a", 1000), constant], customized_yield_fn=many_to_one_stream)


def test_at_a_share_of_zero_a_source_is_not_drawn_but_for_once_at_the_edge():
    """And from then on as its share says."""
    names = np.array(drawn(mixture({"a": STEP, "b": 1}), 400)) == "a"
    assert names[100:200].sum() <= 1
    assert abs(names[:100].sum() - 50) <= 2
    assert abs(names[200:400].sum() - 100) <= 2


def test_a_changed_text_goes_on_in_time_and_makes_nothing_good():
    """What was drawn under the old one is past; the new one counts from the time that has come."""
    states = {}
    drawn(mixture({"a": 1, "b": 3}), 200, states)
    after = drawn(resumed(lambda: mixture({"a": {"steps": [[0, 0], [300, 1]]}, "b": 1}), states), 300)
    assert after[:99].count("a") <= 1
    assert abs(after[100:].count("a") - 100) <= 2


def test_a_schedule_is_left_for_constant_weights_and_taken_up_again():
    """Each resume agrees with the one before."""
    states = {}
    drawn(mixture({"a": [[0, 1], [400, 0]], "b": [[0, 0], [400, 1]]}), 100, states)
    constant = drawn(resumed(lambda: mixture({"a": 1, "b": 1}), states), 100, states)
    assert abs(constant.count("a") - 50) <= 2

    def again():
        return mixture({"a": {"steps": [[0, 1], [250, 0]]}, "b": 1})

    whole = drawn(resumed(again, states), 200)
    assert abs(whole[:50].count("a") - 25) <= 2
    assert whole[51:].count("a") <= 1
    parts: list = []
    while len(parts) < 200:
        parts += drawn(resumed(again, states), 7, states)
    assert parts[:200] == whole


def test_a_source_that_is_set_to_zero_and_back_goes_on_where_it_stood():
    """No record of its epoch comes twice or is lost."""
    states, values = {}, []
    for percent, count in ((1, 40), (0, 30), (1, 400)):
        dataset = MergedDataset([Numbers("a", 100, percent), Numbers("b", 1000)], seed=3)
        dataset.set_dataloader_states(states)
        for sample in islice(iter(dataset), count):
            states.update(to_state(sample))
            if sample["__datasetname__"] == "a":
                values.append(sample["value"])
    assert sorted(values[:100]) == list(range(100))


def test_a_mixture_told_the_time_is_told_it_again_after_its_parents_weights_changed():
    """Its own clocks count its draws, of which time is another multiple then."""

    def make(share):
        return MergedDataset([Numbers("a", 500), named(mixture({"x": STEP, "y": 1}), share)], seed=5)

    states = {}
    drawn(make(1), 60, states)
    names = drawn(resumed(lambda: make(9), states), 240)
    assert names[41:140].count("inner.x") <= 1
    assert names[:40].count("inner.x") > 10
    assert names[141:].count("inner.x") > 30


def test_a_percent_of_zero_is_a_source_that_is_not_there():
    """The very stream of a recipe without it, and of that of its states; but for the numbers that sources have."""
    streams = []
    for extra in ({}, {"gone": 0, "0th": 0.0}):
        states: dict = {}
        sources = [Numbers(name, 61, percent) for name, percent in (extra | {"a": 3, "b": 2}).items()]
        samples = list(islice(MergedDataset(sources, seed=2), 90))
        for sample in samples:
            states.update(to_state(sample))
        without = [{**sample, "__record__": sample["__record__"][1:]} for sample in samples]
        streams.append(([plain(sample) for sample in without], states))
    assert streams[0] == streams[1]


def test_weights_by_size_are_what_the_header_says():
    """Of map-style datasets their length, of a mixture that of its sources together."""
    inner = named(MergedDataset([Numbers("x", 30), Numbers("y", 50), Numbers("z", 9, 0)]), {"by": "records"})
    dataset = MergedDataset([Numbers("a", 20, {"by": "records"}), inner])
    weights = to_state(next(iter(dataset)))["generation/0"]["weights"]
    assert (weights["a"], weights["inner"]) == (20, 80)
    half = {"by": "records", "exponent": 0.5}
    states = to_state(next(iter(MergedDataset([Numbers("a", 100, half), Numbers("b", 25, half)]))))
    assert states["generation/0"]["weights"] == {"a": 10, "b": 5}
    most, least = ({"by": "records", "exponent": exponent} for exponent in (100, -100))  # 10 of them to the power of it
    states = to_state(next(iter(MergedDataset([Numbers("a", 10, most), Numbers("b", 10, least)]))))
    assert states["generation/0"]["weights"] == {"a": 1e100, "b": 1e-100}


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"by": "records"}, 1, "source 'a': percent is by records, that of source 'b' beside it is 1"),
        ({"by": "records"}, {"by": "tokens"}, "that of source 'b' beside it by tokens"),
        ({"by": "tokens"}, {"by": "tokens"}, "source 'a': percent is by tokens, and how many it has is not known"),
        ([[5, 1], [5, 2]], 1, "'a': expected times that increase"),
        ([[-1, 1]], 1, r"'a': expected \[time, percent\], two numbers >= 0"),
        ([[0, float("nan")]], 1, r"'a': expected \[time, percent\], two numbers >= 0"),
        ([[0, 1e-101]], 1, "Those that are not 0 are from 1e-100 to 1e"),
        ({"by": "records", "exponent": 200}, {"by": "records"}, "source 'a': expected a percent .*, got 9 records to"),
        ({"by": "records", "exponent": -1e300}, {"by": "records"}, "source 'a': expected a percent from 1e-100 to 1e"),
        ([], 1, "'a': expected a list of"),
        ({"steps": [[0, 1]], "by": "records"}, 1, "'a': expected 'steps', or 'by'"),
        (0, 0, "'a': expected a positive number as percent, got 0"),
        ([[0, 1], [9, 0]], 0, "got 0 of all of 'a' at time 9"),
    ],
)
def test_percents_that_do_not_fit_are_refused_when_the_mixture_is_built(first, second, message):
    """Naming the source."""
    with pytest.raises(ValueError, match=message):
        MergedDataset([Numbers("a", 9, first), Numbers("b", 9, second)])


def test_a_cost_may_be_the_name_of_a_field(tmp_path):
    """From YAML, too; a sample without it is named with the field and its source."""
    recipe = tmp_path / "recipe.yaml"
    source = "{target: tests.streams.Numbers, params: {name: a, size: 9}}"
    recipe.write_text(f"target: streamdata.MergedDataset\nparams:\n  cost: value\n  datasets: [{source}]\n")
    with pytest.raises(ValueError, match="cost gave 0, expected a positive number"):
        list(islice(instantiate_from_yaml(str(recipe)), 9))
    by_name, by_function = (mixture({"a": 1, "b": 3}, cost=how) for how in ("__index__", cost))
    assert by_name.cost == "__index__"
    assert drawn(by_function, 50) == drawn(mixture({"a": 1, "b": 3}, cost=cost), 50)
    with pytest.raises(ValueError, match=re.escape("source 'a': expected the field 'num_tokens'")):
        next(iter(mixture({"a": 1}, cost="num_tokens")))


def test_what_samples_have_cost_is_in_the_entries_of_their_sources():
    """The sum since the start, over a resume; without a cost there is nothing."""
    states, totals = {}, {"a": 0, "b": 0}
    for _ in range(3):
        for sample in islice(resumed(lambda: mixture({"a": 1, "b": 3}, cost=cost), states), 20):
            totals[sample["__datasetname__"]] += cost(sample)
            states.update(to_state(sample))
    assert {name: states[f"cursor/0/0/0/0/{name}"]["cost"] for name in totals} == totals
    assert "cost" not in to_state(next(iter(mixture({"a": 1}))))["cursor/0/0/0/0/a"]


@pytest.mark.parametrize("weights", [(1, 1000), (1000, 1), (1, 1)])
@pytest.mark.parametrize("costs", [(100, 1), (1, 100)])
def test_after_a_change_of_weights_shares_by_cost_hold_at_once(weights, costs):
    """No source is starved by its old, long step, nor flooded: within 2 of the largest costs from the change on."""

    def make(first, second):
        sources = [Numbers("a", 400, first), Numbers("b", 400, second)]
        return MergedDataset(sources, cost=lambda sample: costs[sample["__datasetname__"] == "b"])

    states: dict = {}
    drawn(make(1, 500), 900, states)
    spent, worst = np.zeros(2), 0.0
    for name in drawn(resumed(lambda: make(*weights), states), 3000):
        source = "ab".index(name)
        spent[source] += costs[source]
        worst = max(worst, abs(spent[0] - spent.sum() * weights[0] / sum(weights)))
    assert worst <= 2 * max(costs)


def random_percent(rng):
    """A number, or a schedule that some of the first 300 samples see."""
    if rng.random() < 0.4:
        return rng.choice([1, 2, 5, 0.5])
    points = [[time, rng.choice([0, 1, 2, 5])] for time in sorted(rng.sample(range(300), rng.randint(1, 3)))]
    return points if rng.random() < 0.5 else {"steps": points}


def random_percents(rng, tree):
    """New ones for the sources of a tree, at all levels; the last source of each mixture is always there."""
    return {name: (random_percents(rng, below), random_percent(rng)) for name, below in tree.items()}


def random_mixture(percents, costly, path=""):
    """Of these; what has a cost at a path has one each time."""
    sources = []
    for name, (below, percent) in percents.items():
        where = f"{path}.{name}"
        source = random_mixture(below, costly, where) if below else Numbers(name, 7 + len(where), 1)
        source.name, source.percent = name, percent
        sources.append(source)
    sources.append(Numbers("always", 11))
    return MergedDataset(sources, cost=cost if path in costly else None)


@pytest.mark.parametrize("seed", seeds(2, 4))
def test_resumes_agree_after_each_change_of_schedules_in_a_tree(seed):
    """Trees with costs, their percents changed twice: any number of resumes is the same stream."""
    rng = random.Random(seed)
    tree = {"a": {"a": {"a": {}, "b": {}}, "b": {}}, "b": {}, "c": {"a": {}, "b": {}}}
    costly = {path for path in ("", ".a", ".a.a", ".c") if rng.random() < 0.3}
    states: dict = {}
    for _ in range(3):
        percents = random_percents(rng, tree)

        def make(percents=percents):
            return random_mixture(percents, costly)

        whole = [plain(batch) for batch in islice(loaded(resumed(make, states), 2, 2), 50)]
        parts: list = []
        while len(parts) < 50:
            for batch in islice(loaded(resumed(make, states), 2, 2), rng.randint(1, 9)):
                states.update(to_state(batch))
                parts.append(plain(batch))
        assert parts[:50] == whole
