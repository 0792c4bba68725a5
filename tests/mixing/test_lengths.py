"""How often a run reads each source."""

import pytest

from streamdata import MergedDataset, named
from streamdata.mixing.lengths import count_text
from tests.sources.own_streams import Counting
from tests.streams import Numbers


def nested():
    """Three sources, one below another mixture."""
    inner = named(MergedDataset([Numbers("b", 10, 1), Numbers("c", 30, 3)]), name="inner", percent=3)
    return MergedDataset([Numbers("a", 50, 1, length_multiplier=4, length_divisor=2), inner])


def test_epochs_follow_from_shares_and_lengths():
    """Required times share, by the samples of an epoch."""
    rows = nested().check_length(1000)
    assert [(row["name"], row["share"], row["length"], row["epochs"]) for row in rows] == [
        ("a", 0.25, 50, 2.5), ("inner.b", 0.1875, 10, 18.75), ("inner.c", 0.5625, 30, 18.75)
    ]  # fmt: skip
    assert rows[0]["advice"] == ""
    assert "18.8 times" in rows[1]["advice"]


def test_a_table_has_names_on_the_left_and_numbers_on_the_right(capsys):
    """Without the number of samples, no epochs."""
    nested().print_dataset_length_stats()
    assert capsys.readouterr().out.splitlines() == [
        "source    share  length  multiplier  divisor  epochs  advice",
        "a          25 %      50           4        2",
        "inner.b  18.8 %      10           1        1",
        "inner.c  56.2 %      30           1        1",
    ]


def test_a_length_counts_before_the_records():
    """And is what a source without any needs."""
    (row,) = MergedDataset([Counting(length=200)]).check_length(50)
    assert (row["length"], row["epochs"]) == (200, 0.25)
    assert "25 % of it is read" in row["advice"]
    with pytest.raises(ValueError, match=r"source 'own' \(Counting\): expected a length"):
        MergedDataset([Counting()]).check_length(50)


def test_schedules_count_as_they_are_on_average():
    """From the start of a pass to the last sample required."""
    sources = [Numbers("a", 100, [[0, 1], [100, 0]]), Numbers("b", 100, [[0, 0], [100, 1]])]
    assert [row["share"] for row in MergedDataset(sources).check_length(50)] == pytest.approx([0.75, 0.25])


def test_max_epochs_end_before():
    """Said in place of how often."""
    (row,) = MergedDataset([Numbers("a", 10, max_epochs=2)]).check_length(50)
    assert "ends before, after max_epochs=2" in row["advice"]


def test_it_is_printed_as_a_table(capsys):
    """Without a number of samples, lengths and shares alone."""
    nested().print_dataset_length_stats()
    header, first, *_ = capsys.readouterr().out.splitlines()
    assert header.split() == ["source", "share", "length", "multiplier", "divisor", "epochs", "advice"]
    assert first.split() == ["a", "25", "%", "50", "4", "2"]


@pytest.mark.parametrize("required", [0, -1, True, "9"])
def test_required_is_a_number_above_0(required):
    """What else would it be."""
    with pytest.raises(ValueError, match="expected the number of samples of a run"):
        nested().check_length(required)


@pytest.mark.parametrize("name", ["length", "length_multiplier", "length_divisor"])
def test_what_is_no_length_is_said_when_it_is_built(name):
    """Zero would divide."""
    with pytest.raises(ValueError, match=f"'a': expected a number above 0 as {name}, got 0"):
        MergedDataset([Numbers("a", 9, **{name: 0})])


@pytest.mark.parametrize(
    ("number", "text"),
    [(999_999, "999,999"), (1_200_000, "1.2 M"), (999_900_000, "1 G"), (10**9, "1 G"), (10**15, "1,000 T")],
)
def test_numbers_have_three_digits_and_no_powers(number, text):
    """Also where rounding leads to the next unit, and above the last one."""
    assert count_text(number) == text
