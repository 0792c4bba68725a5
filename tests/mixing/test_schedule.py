"""Shares over time: what they are, and when a source is due by them."""

import math
from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdata import MergedDataset
from streamdata.mixing.schedule import ScheduledPace, Shares
from tests.streams import Numbers

FADE = Shares(["a", "b"], [[[100.0, 1.0], [200.0, 0.0]], [[100.0, 0.0], [200.0, 1.0]]])
STEP = Shares(["a", "b"], [{"steps": [[0.0, 3.0], [100.0, 0.0], [200.0, 1.0]]}, 1.0])


@pytest.mark.parametrize(("time", "share"), [(0, 1), (100, 1), (125, 0.75), (150, 0.5), (200, 0), (10**9, 0)])
def test_a_list_is_linear_between_its_points(time, share):
    """Before the first and after the last, theirs hold."""
    assert FADE.at(time, 0) == share
    assert FADE.at(time, 1) == 1 - share


@pytest.mark.parametrize(("time", "share"), [(0, 0.75), (99, 0.75), (100, 0), (199, 0), (200, 0.5), (10**9, 0.5)])
def test_steps_hold_until_the_next(time, share):
    """A point begins what it says."""
    assert STEP.at(time, 0) == share


def test_percents_are_normalised_at_each_point_of_any_sibling():
    """Between two such points shares are linear, though their percents do not add to a constant."""
    shares = Shares(["a", "b"], [[[0.0, 1.0], [100.0, 3.0]], 1.0])
    assert [shares.at(time, 0) for time in (0, 50, 100)] == [0.5, 0.625, 0.75]


def test_one_steps_up_where_all_others_have_fallen_to_zero():
    """Only just before that time are all 0: until then the others keep their ratios."""
    falling = [[0.0, 3.0], [100.0, 0.0]]
    shares = Shares(["a", "b", "c"], [falling, [[0.0, 1.0], [100.0, 0.0]], {"steps": [[0.0, 0.0], [100.0, 1.0]]}])
    assert [shares.at(99.9, source) for source in range(3)] == [0.75, 0.25, 0]
    assert [shares.at(100, source) for source in range(3)] == [0, 0, 1]


@pytest.mark.parametrize("other", [[[0.0, 0.0]], [[0.0, 1.0], [50.0, 0.0]], {"steps": [[0.0, 1.0], [20.0, 0.0]]}])
def test_a_time_at_which_all_are_zero_is_an_error(other):
    """It names them and the time."""
    with pytest.raises(ValueError, match="got 0 of all of 'a', 'b' at time"):
        Shares(["a", "b"], [[[0.0, 1.0], [50.0, 0.0]], other])


# Nobody asks for shares of 1e-308, of which a step is longer than a float.
percents = st.just(0.0) | st.floats(1e-9, 5)
points = st.lists(st.tuples(st.floats(0, 1000), percents), min_size=1, max_size=5, unique_by=lambda p: p[0])
weights = st.one_of(
    st.floats(0.1, 5),
    points.map(lambda some: [list(point) for point in sorted(some)]),
    points.map(lambda some: {"steps": [list(point) for point in sorted(some)]}),
)


@given(first=weights, second=weights, time=st.floats(0, 1200), rate=st.floats(0.5, 64), amount=st.floats(0.01, 5))
def test_what_has_grown_on_the_way_to_a_draw_is_that_draw(first, second, time, rate, amount):
    """`reach` and `grown` are each other's inverse, over any number of segments."""
    shares = Shares(["a", "b", "c"], [first, second, [[0.0, 1.0], [700.0, 2.0]]])
    for source in range(3):
        way = shares.reach(source, time, rate, amount)
        assert shares.grown(source, time, rate, way) == pytest.approx(amount, rel=1e-6, abs=1e-9)


@given(second=weights, clock=st.floats(-50, 50), since=st.floats(0, 40), amount=st.floats(0.01, 5))
def test_what_has_grown_until_a_source_is_due_is_that_amount(second, clock, since, amount):
    """Before the time begins to run too, while shares stand still."""
    pace = ScheduledPace(Shares(["a", "b", "c"], [1.0, second, [[0.0, 1.0], [700.0, 2.0]]]), 100.0, since, 2.0)
    assert pace.grown(0, clock, pace.due(0, clock, amount)) == pytest.approx(amount, rel=1e-6)


def test_a_source_waits_for_the_time_from_which_its_share_grows():
    """Also one that is due at once; where it never grows, for longer than any run."""
    assert FADE.reach(1, 0.0, 10.0, 0.0) == 10
    assert FADE.reach(1, 0.0, 10.0, 0.2) == pytest.approx(10 + 2)  # over 2 draws of 10, the share grows to 0.2
    assert 10**9 < FADE.reach(0, 300.0, 10.0, 0.0) < 2**53


def test_finer_segments_are_the_same_shares():
    """At their ends and between."""
    fine = FADE.refined()
    assert len(fine.times) > len(FADE.times) + 10
    for time in (0, 99, 100, 100.01, 110, 150, 199.99, 200, 300):
        assert math.isclose(fine.at(time, 0), FADE.at(time, 0), abs_tol=1e-12)


def test_shares_are_linear_between_points_and_percents_are_not():
    """The example of README: a linear percent would give 1,655."""
    falling = Numbers("a", 50, [[0, 10], [2000, 0]])
    samples = islice(MergedDataset([falling, Numbers("b", 50, 0.6)]), 2000)
    assert Counter(sample["__datasetname__"] for sample in samples) == {"a": 944, "b": 1056}
