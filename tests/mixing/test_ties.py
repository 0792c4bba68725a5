"""Where clocks are truly equal, the first source in the recipe is drawn."""

from itertools import islice

import pytest

from streamdata import MergedDataset, to_state
from streamdata.mixing.clock import GOLDEN_RATIO, start_clocks
from streamdata.run import Lane
from tests.streams import Numbers, resumed


def names_drawn(dataset, count):
    """The sources of the next samples."""
    return "".join(sample["__datasetname__"] for sample in islice(iter(dataset), count))


def clocks_of(dataset, count):
    """The clock of each source after so many draws, as the states tell it."""
    states = {}
    for sample in islice(iter(dataset), count):
        states.update(to_state(sample))
    return {key.rpartition("/")[2]: value["clock"] for key, value in states.items() if key.startswith("cursor/")}


def tied(order):
    """Sources a and b start at 0 and at the golden fraction of a step, which is also what a sample costs."""
    return MergedDataset([Numbers(name, 50) for name in order], cost=lambda _: GOLDEN_RATIO)


@pytest.mark.parametrize(("order", "drawn"), [("ab", "aababab"), ("ba", "abababa")])
def test_ties_go_to_the_first_in_the_recipe(order, drawn):
    """After a's first sample both clocks are equal to the last bit, and again after each second one."""
    assert names_drawn(tied(order), 7) == drawn
    clocks = clocks_of(tied("ba"), 3)
    assert clocks["a"] == clocks["b"] == 4 * GOLDEN_RATIO


@pytest.mark.parametrize(("order", "clocks"), [("ab", [2, 1]), ("ba", [1 + 1 / GOLDEN_RATIO, 1])])
def test_a_tie_before_the_first_draw_goes_to_the_first_in_the_recipe(order, clocks):
    """Worker 2 starts two draws into the sequence: a's first sample, then a tie."""
    steps = {"a": 2 * GOLDEN_RATIO, "b": 2.0}
    lane = Lane(dp_size=1, dp_rank=0, num_workers=3, worker=2)
    found = start_clocks(order, [steps[name] for name in order], lane, (0,))
    assert found == pytest.approx([clock * steps["a"] for clock in clocks], rel=1e-12)


@pytest.mark.parametrize(
    ("before", "order", "drawn"),
    [(6, "nab", "na"), (6, "anb", "an"), (6, "abn", "an"), (1, "nab", "na"), (1, "anb", "na"), (1, "abn", "na")],
)
def test_a_source_that_joins_ties_with_the_lowest(before, order, drawn):
    """It starts at the lowest clock, and the recipe says which comes first; or lower, at that of one not drawn yet."""

    def mixture(names):
        return MergedDataset([Numbers(name, 50) for name in names])

    states = {}
    for sample in islice(iter(mixture("ab")), before):
        states.update(to_state(sample))
    assert names_drawn(resumed(lambda: mixture(order), states), 2) == drawn
