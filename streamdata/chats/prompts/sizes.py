"""The sizes that a row gives its images and videos: `height, width, pixels allowed → height, width`.

The rule is Qwen2-VL's, which verl's data sets follow: sides are multiples of what becomes one token, the area lies
within the bounds, and the shape stays as nearly as that allows. Bounds of area are counted in tokens.
"""

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

IMAGE_TOKENS: Final = (4, 16_384)
FRAME_TOKENS: Final = (128, 768)
VIDEO_TOKENS: Final = 115_200
"""Of all frames of a video together, two frames to a token: nine tenths of a context of 128,000."""
FRAMES_PER_TOKEN: Final = 2
SIZE_KEYS: Final = ("min_pixels", "max_pixels", "resized_height", "resized_width")
_ROOM_ABOVE_LEAST: Final = 1.05


class Size(NamedTuple):
    """In pixels."""

    height: int
    width: int


def image_size(size: Size, options: Mapping[str, Any], side: int) -> Size:
    """The size of an image.

    Args:
        size: As it is.
        options: Of the row, with some of `SIZE_KEYS`.
        side: Pixels of a token's side.

    Raises:
        ValueError: The bounds exclude each other.
    """
    least, most = (tokens * side**2 for tokens in IMAGE_TOKENS)
    return _sized(size, options, side, options.get("min_pixels", least), options.get("max_pixels", most))


def frame_size(size: Size, options: Mapping[str, Any], side: int, num_frames: int) -> Size:
    """The size of each frame of a video, which `total_pixels` may bound too; otherwise as `image_size`."""
    least, most = (tokens * side**2 for tokens in FRAME_TOKENS)
    least = options.get("min_pixels", least)
    share = options.get("total_pixels", VIDEO_TOKENS * side**2) / num_frames * FRAMES_PER_TOKEN
    # Long videos get small frames, but never so small that the lower bound cannot be kept.
    most = max(min(most, share), int(least * _ROOM_ABOVE_LEAST))
    return _sized(size, options, side, least, min(options.get("max_pixels", most), most))


def _sized(size: Size, options: Mapping[str, Any], side: int, least: float, most: float) -> Size:
    if most < least:
        raise ValueError(
            f"media: expected max_pixels of at least min_pixels, got {most} and {least}\n"
            f"  Raise one or lower the other; a token has {side**2} pixels."
        )
    if "resized_height" in options and "resized_width" in options:
        size = Size(options["resized_height"], options["resized_width"])
        least, most = (tokens * side**2 for tokens in IMAGE_TOKENS)
    height, width = (max(side, round(length / side) * side) for length in size)
    # Rounded towards the bounds: a side more would pass them, which the processor would then correct another time.
    if height * width > most:
        shrink = math.sqrt(size.height * size.width / most)
        height, width = (math.floor(length / shrink / side) * side for length in size)
    elif height * width < least:
        grow = math.sqrt(least / (size.height * size.width))
        height, width = (math.ceil(length * grow / side) * side for length in size)
    # A very thin picture has one token across, even where the rule leaves it none.
    return Size(max(height, side), max(width, side))
