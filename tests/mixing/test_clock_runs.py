"""Many draws at once: to the bit what adding one step after another gives."""

import math
import random

import pytest

from streamdata.mixing.schedule import ScheduledPace, Shares, advance


def one_by_one(due, clock, limit, most):
    """The same, slowly."""
    draws = 0
    while clock < limit and draws < most:
        clock, draws = due(clock), draws + 1
    return draws, clock


@pytest.mark.parametrize("seed", range(6))
def test_steps_of_any_size_round_as_they_do_one_by_one(seed):
    """Steps that lie halfway between two floats, starts at powers of two, and limits that a clock hits exactly."""
    rng = random.Random(seed)
    for _ in range(300):
        halfway = 2.0 ** rng.randint(-20, 20) * (1 + 2.0 ** -rng.randint(1, 52))
        step = rng.choice([1 / rng.random(), rng.randint(1, 64) / 8, 1 / 3, 10 / 3, halfway])
        clock = rng.choice([0.0, rng.random(), 2.0**20, 2.0 ** rng.randint(-3, 40) * (1 + rng.random()), 2.0**52])
        draws = rng.choice([0, 1, 2, 3, 5, 10, 300])
        limit = rng.choice([math.inf, clock + step * draws, clock + step * draws * rng.random(), clock])
        assert tuple(advance(clock, step, limit, draws)) == one_by_one(lambda at: at + step, clock, limit, draws)  # noqa: B023


def test_a_clock_that_stands_still_is_drawn_all_the_same():
    """Its step is lost in the rounding: it ends with the source."""
    assert advance(2.0**60, 1.0, math.inf, 10**9) == (10**9, 2.0**60)


@pytest.mark.parametrize("source", [0, 1])
def test_schedules_are_drawn_alike(source):
    """Through segments where shares change, stay and step, and before the lane's first draw."""
    weights = [[[0, 0.5], [40, 0.1], [80, 0.1], [200, 0.9]], {"steps": [[0, 0.5], [50, 0.1], [120, 0.4]]}]
    pace = ScheduledPace(Shares(["a", "b"], weights), 7.0, 3.0, 2.0)
    for limit in (2.5, 30.0, 61.25, 500.0):
        want = one_by_one(lambda clock: pace.due(source, clock, 1.0), 0.25, limit, math.inf)
        assert tuple(pace.advance(source, 0.25, limit, math.inf)) == want
