import pytest

from streamdata.tools.view.tree import percent_text, table


def test_numbers_are_aligned_to_the_right_and_names_to_the_left() -> None:
    """The last column is text too; no line ends in spaces."""
    assert table([["name", "n", "what"], ["a", "1,000", ""]]) == "name      n  what\na     1,000"


@pytest.mark.parametrize(("share", "text"), [(1, "100 %"), (0.75, "75 %"), (1 / 3, "33.3 %"), (0.000213, "0.0213 %")])
def test_small_shares_keep_their_digits(share: float, text: str) -> None:
    """A source of a tenth of a percent is not shown as 0."""
    assert percent_text(share) == text
