"""Control characters are shown, never sent."""

import pytest

from streamdata.tools.show.model import visible


@pytest.mark.parametrize("char", ["\x00", "\x07", "\x1b", "\x7f", "\x9b", "\u202e", "\u2066", "\u2028", "\ud800"])
def test_a_control_character_is_shown_by_its_number(char):
    """C0, C1, what turns text around, separators of lines, and half of a character."""
    shown = visible(f"a{char}b")
    assert char not in shown
    assert shown == f"a{char!r}b".replace("'", "")


def test_texts_of_all_languages_stay():
    """With their newlines, tabs, wide spaces and joined emoji."""
    text = "naïve\t東京\u3000a\u00a0b\n👩\u200d🔬 سلام"
    assert visible(text) == text
    assert visible("a\r\n") == "a\\x0d\n"
