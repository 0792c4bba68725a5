"""Images small enough to be shown: `arrays, images of Pillow → at most MAX_SIDE wide and high → files`.

What is shown is encoded anew from pixels, so nothing but pixels of a stranger's file goes on.
"""

import io
from typing import Any, Final, NamedTuple

import numpy as np
from PIL import Image

from streamdata.sources.functions.images import load_pixels

MAX_SIDE: Final = 320
"""Pixels, of the longer side."""
_FEW_COLOURS: Final = 64
"""Up to so many, PNG is smaller and exact: drawings, masks, tiny images."""
_QUALITY: Final = 82


class Thumbnail(NamedTuple):
    """An image as a file."""

    data: bytes
    media_type: str


def shrunk(image: Image.Image) -> Image.Image:
    """At most `MAX_SIDE` wide and high, in RGB or with an alpha channel.

    Raises:
        OSError: It is damaged.
    """
    image.draft("RGB", (2 * MAX_SIDE, 2 * MAX_SIDE))  # of a JPEG that is not decoded yet: an eighth of the time
    load_pixels(image)
    if image.mode.startswith(("I", "F")):
        image = _stretched(np.asarray(image))
    small = image.convert("RGBA" if image.has_transparency_data else "RGB")
    small.thumbnail((MAX_SIDE, MAX_SIDE))
    return small


def image_of_array(array: "np.ndarray[Any, Any]") -> Image.Image:
    """The image of an array of shape (h, w), (h, w, c) or (c, h, w), of uint8 or floats."""
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (1, 3, 4):  # noqa: PLR2004
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:  # noqa: PLR2004
        array = array[:, :, 0]
    # Every n-th pixel before all arithmetic: of a photograph 30 times as many as are shown would be converted.
    step = max(1, max(array.shape[:2]) // (2 * MAX_SIDE))
    array = array[::step, ::step]
    return Image.fromarray(np.ascontiguousarray(array)) if array.dtype == np.uint8 else _stretched(array)


def _stretched(array: "np.ndarray[Any, Any]") -> Image.Image:
    """Values of [0, 1] as they are; of any other range from its least to its most."""
    values = np.nan_to_num(array.astype(np.float32))
    least, most = float(values.min()), float(values.max())
    if least < 0 or most > 1:
        values = (values - least) / max(most - least, 1e-9)
    return Image.fromarray((values * 255).astype(np.uint8))


def encode(image: Image.Image) -> Thumbnail:
    """Of few colours or with transparency a PNG, else a JPEG; without anything that the original had beside pixels."""
    out = io.BytesIO()
    if image.mode == "RGBA" or image.getcolors(_FEW_COLOURS) is not None:
        Image.frombytes(image.mode, image.size, image.tobytes()).save(out, "PNG")
        return Thumbnail(out.getvalue(), "image/png")
    Image.frombytes(image.mode, image.size, image.tobytes()).save(out, "JPEG", quality=_QUALITY)
    return Thumbnail(out.getvalue(), "image/jpeg")
