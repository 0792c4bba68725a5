"""Opening a row's images and videos."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from streamdata.sources.process_image import decode_image, open_image
from streamdata.text.messages import Medium

_IMAGE_KEYS: Final = ("bytes", "image", "path")
_NUM_AXES: Final = 4  # of a video: frames, height, width, channels


def open_media(media: Sequence[Medium], folder: str) -> list[Any]:
    """Opens each: an image becomes a PIL image in RGB, a video uint8 (frames, height, width, 3).

    Args:
        media: As the row has them. An image is a path, the bytes of a file, a PIL image, or a dict with one of these
            under `bytes`, `image` or `path`; a video an array of such shape, or a list of frames, each an image.
        folder: Where relative paths begin.

    Raises:
        ValueError: One is of another kind.
        OSError: One cannot be read; see `open_image`.
    """
    opened = []
    for number, medium in enumerate(media):
        try:
            open_one = _open_image if medium.kind == "image" else _open_video
            opened.append(open_one(medium.value, folder))
        except (OSError, ValueError) as error:
            error.add_note(f"  {medium.kind} {number} of the row's media")
            raise
    return opened


def _open_image(value: Any, folder: str) -> Image.Image:
    if isinstance(value, dict):
        value = _from_dict(value)
    if isinstance(value, str | os.PathLike):
        image = open_image(Path(folder, os.fspath(value).removeprefix("file://")))
    elif isinstance(value, bytes):
        image = decode_image(value)
    elif isinstance(value, Image.Image):
        image = value
    else:
        raise ValueError(
            f"image: expected a path, bytes, a PIL image or a dict of one, got {type(value).__name__}\n"
            "  Store the file's bytes, or its path."
        )
    return image.convert("RGB")


def _from_dict(value: dict[str, Any]) -> Any:
    # Datasets of Hugging Face store bytes and path, of which one may be None; where both are given, the bytes need no
    # second file.
    given = [value[key] for key in _IMAGE_KEYS if value.get(key) is not None]
    others = [key for key, part in value.items() if key not in _IMAGE_KEYS and part is not None]
    if not given or others:
        raise ValueError(
            f"image: expected a dict with one of {', '.join(_IMAGE_KEYS)}, got the keys {sorted(value)}\n"
            "  Sizes and the like are settings of the processor."
        )
    return given[0]


def _open_video(value: Any, folder: str) -> npt.NDArray[np.uint8]:
    if isinstance(value, dict) and set(value) == {"video"}:
        value = value["video"]
    if isinstance(value, np.ndarray) and value.ndim == _NUM_AXES and value.dtype == np.uint8:
        return value
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(
            f"video: expected a list of frames, or uint8 (frames, height, width, 3), got {type(value).__name__}\n"
            "  No video decoder is built in: store the sampled frames, as paths or bytes of images."
        )
    frames = [np.asarray(_open_image(frame, folder)) for frame in value]
    sizes = {frame.shape for frame in frames}
    if len(sizes) > 1:
        raise ValueError(
            f"video: expected frames of one size, got {sorted(sizes)}\n  Resize them when they are stored."
        )
    return np.stack(frames)
