r"""Texts of strangers, made visible: what would steer a terminal or turn a line around is shown by its number.

`"\x1b[2J" → "\\x1b[2J"`. Newlines and tabs stay.
"""

import re
from typing import Final

_CONTROL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks, embeddings, overrides and isolates of direction
    "\u2028\u2029\ufeff\ufff9-\ufffb"  # separators that some take for a newline, and what is invisible
    "\xad\u115f\u1160\u180e\u200b\u2060-\u2064\u206a-\u206f\u3164\uffa0"  # too; joiners stay, which change what is seen
    "\ud800-\udfff"  # surrogates alone, which no encoding has
    "\U000e0000-\U000e007f]"  # tags: invisible letters
)


def visible(text: str) -> str:
    """The text with each control character as its number, as Python writes it."""
    return _CONTROL.sub(lambda found: _escaped(ord(found[0])), text)


def in_one_line(text: str) -> str:
    """The same, newlines and tabs too: for names and places."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def _escaped(code: int) -> str:
    if code <= 0xFF:  # noqa: PLR2004
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004
