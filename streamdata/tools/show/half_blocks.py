"""Images in a terminal: two pixels in each character cell, the upper one as its text, the lower one as its back."""

from typing import Final

import numpy as np
from PIL import Image
from rich.color import Color
from rich.style import Style
from rich.text import Text

_UPPER: Final = "▀"
_MAX_WIDTH, _MAX_HEIGHT = 56, 32
"""In pixels: a cell is one pixel wide and two high."""


def half_blocks(image: Image.Image, width: int) -> Text:
    """The image in at most so many columns; what is transparent is on white, as it is trained."""
    small = image.copy()
    small.thumbnail((min(width, _MAX_WIDTH), _MAX_HEIGHT))
    if small.mode == "RGBA":
        small = Image.alpha_composite(Image.new("RGBA", small.size, "white"), small)
    pixels = np.asarray(small.convert("RGB"))
    text = Text(no_wrap=True)
    for row in range(0, len(pixels), 2):
        lower = pixels[row + 1] if row + 1 < len(pixels) else None
        for column, upper in enumerate(pixels[row]):
            back = None if lower is None else _colour(lower[column])
            text.append(_UPPER, Style(color=_colour(upper), bgcolor=back))
        text.append("\n" if row + 2 < len(pixels) else "")
    return text


def _colour(pixel: "np.ndarray[tuple[int], np.dtype[np.uint8]]") -> Color:
    return Color.from_rgb(*(int(value) for value in pixel))
