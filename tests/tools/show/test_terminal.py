"""What is printed: colour where there is some, signs elsewhere, and never what steers a terminal."""

import io
import re

import numpy as np
from PIL import Image
from rich.console import Console

from streamdata.tools.show.fields import FieldRenderer
from streamdata.tools.show.model import IN_TERMINAL, ShownSample
from streamdata.tools.show.terminal import SamplePrinter
from tests.tools.show.test_tokens import TEXTS

HOSTILE = "a\x1b]0;title\x07\x9b2J\r\u202eb\u2066"


def printed(fields, colour=None, **more):
    """The text of a sample with these fields."""
    out = io.StringIO()
    console = Console(file=out, color_system=colour, force_terminal=colour is not None, width=60, highlight=False)
    views = FieldRenderer(IN_TERMINAL, TEXTS).of(fields)
    SamplePrinter(console).print_sample(
        ShownSample(**{"number": 3, "source": "web", "where": "", "fields": views} | more)
    )
    return out.getvalue()


TOKENS = {"input_ids": np.array([1, 2, 3, 0, 0, 0]), "loss_mask": np.array([0, 1, 1, 0, 0, 0])}


def test_without_colour_there_are_signs():
    """Trained tokens in «…», padding by its number, documents with borders, the first pieces one by one."""
    lines = printed(TOKENS).splitlines()
    assert lines[0] == "── #3  web"
    assert lines[1:4] == [
        "input_ids  int64 (6)  6 tokens, 2 trained, 2 padding",
        "a«bc».<pad> × 2┃",
        "pieces: 1 'a'  2 'b'  3 'c'  0 '.'  …",
    ]


def test_no_color_is_obeyed_in_a_terminal(monkeypatch):
    """What colours would say is said by signs."""
    monkeypatch.setenv("NO_COLOR", "1")
    text = printed(TOKENS | {"photo": Image.new("RGB", (20, 20), "red")}, "truecolor")
    assert "a«bc».<pad> × 2┃" in text
    assert not re.search("\x1b\\[[0-9;]*3[0-9]", text)


def test_in_colour_what_is_trained_is_green():
    """Shades tell tokens apart; there are no signs."""
    text = printed(TOKENS, "truecolor")
    assert "\x1b[32mb\x1b[0m\x1b[92mc\x1b[0m" in text
    assert "«" not in text


def test_an_image_is_told_in_words():
    """Its size and mode; frames of a video each by itself."""
    fields = {"photo": Image.new("RGB", (200, 100), (9, 8, 7)), "clip": np.zeros((2, 30, 20, 3), np.uint8)}
    lines = printed(fields).splitlines()
    assert lines[1] == "photo  Image  image of 200 × 100 pixels, RGB"
    assert lines[3:] == ["image of 20 × 30 pixels, RGB"] * 2


def test_what_would_steer_a_terminal_is_shown():
    """In values, names, keys, urls and records; the only escapes are those of colours."""
    fields = {HOSTILE: HOSTILE, "b": HOSTILE.encode(), "c": [{"role": HOSTILE, "content": HOSTILE}], "d": {HOSTILE: 1}}
    record = ShownSample(number=0, where=HOSTILE, fields=FieldRenderer(IN_TERMINAL).of(fields))
    for colour in (None, "truecolor"):
        text = printed(fields, colour, source=HOSTILE, where=HOSTILE, records=(record,))
        assert "\\x1b]0;title\\x07\\x9b2J" in text.replace("\n", "")
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2066]", re.sub("\x1b\\[[0-9;]*m", "", text))


def test_markup_of_the_printer_is_text():
    """Brackets of a stranger make nothing bold, and close nothing."""
    assert "[bold]x[/bold] [/]" in printed({"text": "[bold]x[/bold] [/]"}, "truecolor")
