import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from streamdata.recipe.interpolation import Interpolation, LiteralPart, closing, join, split

TEXT = st.text(alphabet="a\\${}'\": ,.", max_size=12)


@given(TEXT)
def test_a_literal_survives_omegaconf(text: str) -> None:
    """Whatever a value holds, OmegaConf gives it back as it was."""
    assert OmegaConf.create({"a": join([LiteralPart(text)])}).a == text


@given(TEXT, TEXT)
def test_literals_beside_an_interpolation_survive_omegaconf(before: str, after: str) -> None:
    """Backslashes before an interpolation do not escape it."""
    text = join([LiteralPart(before), Interpolation("${b}"), LiteralPart(after)])
    assert OmegaConf.create({"a": text, "b": "B"}).a == f"{before}B{after}"


@given(st.lists(TEXT.map(LiteralPart) | st.just(Interpolation("${b}")), max_size=5))
def test_split_is_the_inverse_of_join(parts: list[LiteralPart | Interpolation]) -> None:
    """Splitting what was joined gives the same text again when joined."""
    text = join(parts)
    assert join(split(text)) == text


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("${a}b", 4),
        ("${a:${b}}c", 9),
        ("${a:'}'}", 8),
        ("${a:it's}", 9),
        ("${a:{b: 1}}", 11),
        ("${a", None),
        (r"${a:\}}", 7),
        ("${a:'x}", 7),
        (r"${a:'\'}'}", 10),
    ],
)
def test_closing_matches_braces(text: str, end: int | None) -> None:
    """Nested braces count, quoted and escaped ones do not."""
    assert closing(text, 0) == end


def test_an_escaped_opening_is_literal() -> None:
    """An odd number of backslashes makes it text, an even number does not."""
    assert split(r"a\${b}") == [LiteralPart("a${b}")]
    assert split(r"a\\${b}") == [LiteralPart("a\\"), Interpolation("${b}")]
