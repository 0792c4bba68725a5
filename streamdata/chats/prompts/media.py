"""Opening a row's images and videos."""

import base64
import math
import os
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from streamdata.chats.prompts.sizes import SIZE_KEYS, Size, frame_size, image_size
from streamdata.chats.prompts.videos import FPS, TIME_KEYS, VideoFrames, decode_video, with_metadata
from streamdata.errors import did_you_mean, names_text
from streamdata.sources.functions.images import decode_image, load_pixels, open_image
from streamdata.text.messages import Medium

DEFAULT_PATCH: Final = 14
_MERGED: Final = 2  # patches a side that become one token, of all models that take sizes per medium
_IMAGE_KEYS: Final = ("bytes", "image", "path")
_VIDEO_KEYS: Final = ("bytes", "video", "path")
_IMAGE_OPTIONS: Final = frozenset(SIZE_KEYS)
_VIDEO_OPTIONS: Final = frozenset({*SIZE_KEYS, *TIME_KEYS, "total_pixels", "sample_fps", "raw_fps"})
_MAY_BE_ZERO: Final = ("min_pixels", "min_frames", "video_start", "video_end")
_NUM_AXES: Final = 4  # of a video: frames, height, width, channels


class _UnopenedMedium(NamedTuple):
    """A medium, its options, where relative paths begin, and the pixels of a token's side."""

    value: Any
    options: Mapping[str, Any]
    folder: str
    side: int


def open_media(media: Sequence[Medium], folder: str, patch_size: int = DEFAULT_PATCH) -> list[Any]:
    """Opens each: an image becomes a PIL image in RGB, a video uint8 (frames, height, width, 3).

    Args:
        media: As the row has them. An image is a path, the bytes of a file, a PIL image, or a dict with one of these
            under `bytes`, `image` or `path`; a video a path or the bytes of a file, an array of such shape, a list of
            frames, each an image, or a dict with one of these under `bytes`, `video` or `path`. Beside it, as options,
            `min_pixels`, `max_pixels`, or `resized_height` and `resized_width`; of a video, see `decode_video` and
            `frame_size`, and of a list of frames `sample_fps`: how many are in a second (2).
        folder: Where relative paths begin.
        patch_size: Pixels of a patch's side, of which sizes are multiples.

    Raises:
        ValueError: One is of another kind.
        OSError: One cannot be read; see `open_image`.
    """
    opened = []
    for number, medium in enumerate(media):
        try:
            open_one, keys, known = _KINDS[medium.kind]
            value, options = _unfolded(medium, keys, known)
            opened.append(open_one(_UnopenedMedium(value, options, folder, patch_size * _MERGED)))
        except (OSError, ValueError) as error:
            error.add_note(f"  {medium.kind} {number} of the row's media")
            raise
    return opened


def patch_size_of(processor: Any) -> int:
    """Pixels of a patch's side, as a processor says."""
    size = getattr(getattr(processor, "image_processor", None), "patch_size", None)
    return size if isinstance(size, int) else DEFAULT_PATCH


def _unfolded(medium: Medium, keys: Sequence[str], known: frozenset[str]) -> tuple[Any, dict[str, Any]]:
    """The medium itself and its options, of a dict and of the part that stands for it."""
    # Of a part, what is no option and does not look like one is the template's, or nobody's.
    said = medium.options or {}
    value, options = medium.value, {key: said[key] for key in said if key in known or did_you_mean(key, known)}
    if isinstance(value, dict):
        # As verl's columns have them, such a dict may be a part as it would stand in a message.
        given = {key: part for key, part in value.items() if part is not None and (key, part) != ("type", medium.kind)}
        # Datasets of Hugging Face store bytes and path, of which one may be None; where both are given, the bytes need
        # no second file.
        own = [given.pop(key) for key in keys if key in given]
        if not own:
            raise ValueError(
                f"{medium.kind}: expected a dict with one of {', '.join(keys)}, got the keys {names_text(value)}\n"
                "  Store the file's bytes, or its path."
            )
        # A part says more than its column: it stands for this place of the medium alone.
        value, options = own[0], {**given, **options}
    options = {key: number for key, number in options.items() if number is not None}
    if others := sorted(options.keys() - known):
        raise ValueError(
            f"{medium.kind}: expected options among {', '.join(sorted(known))}, got {others}"
            f"{did_you_mean(others[0], known)}\n  All else are settings of the processor."
        )
    if wrong := {key: number for key, number in options.items() if not _is_valid(key, number)}:
        raise ValueError(
            f"{medium.kind}: expected numbers as options, above 0 but for {', '.join(_MAY_BE_ZERO)}, got {wrong}\n"
            "  Mend them in the row, or leave them out."
        )
    return value, options


def _is_valid(key: str, number: Any) -> bool:
    if isinstance(number, bool) or not isinstance(number, Real) or not math.isfinite(number):
        return False
    return float(number) > 0 or key in _MAY_BE_ZERO


def _open_image(given: _UnopenedMedium) -> Image.Image:
    image = _image(given.value, given.folder)
    if not given.options:  # the processor finds the size
        return image
    size = image_size(Size(image.height, image.width), given.options, given.side)
    return image.resize((size.width, size.height))


def _image(value: Any, folder: str) -> Image.Image:
    # As chat APIs have images; what type it says is not asked, since the bytes say it themselves.
    if isinstance(value, str) and value.startswith("data:image"):
        value = base64.b64decode(value.partition("base64,")[2])
    if isinstance(value, str | os.PathLike):
        image = open_image(_path(value, folder))
    elif isinstance(value, bytes):
        image = decode_image(value)
    elif isinstance(value, Image.Image):
        image = value
    else:
        raise ValueError(
            f"image: expected a path, bytes, a PIL image or a dict of one, got {type(value).__name__}\n"
            "  Store the file's bytes, or its path."
        )
    return load_pixels(image).convert("RGB")


def _path(value: str | os.PathLike[str], folder: str) -> Path:
    path = os.fspath(value).removeprefix("file://")
    if "://" in path:
        raise ValueError(
            f"media: expected a local path, got {path}\n  Fetch the file and store its path, or store its bytes."
        )
    return Path(folder, path)


def _open_video(given: _UnopenedMedium) -> npt.NDArray[np.uint8]:
    value, options = given.value, given.options

    def resize(size: Size, num_frames: int) -> Size:
        return frame_size(size, options, given.side, num_frames)

    if isinstance(value, str | os.PathLike):
        return decode_video(str(_path(value, given.folder)), options, resize)
    if isinstance(value, bytes):
        return decode_video(value, options, resize)
    frames = _listed_frames(value, given.folder)
    # Without their times a second opening would take frames of any video for two in a second.
    if isinstance(value, VideoFrames) and value.metadata and not options:
        return value  # opened before
    if any(key in options for key in (*SIZE_KEYS, "total_pixels")):
        height, width = resize(Size(*frames.shape[1:3]), len(frames))
        frames = np.stack([np.asarray(Image.fromarray(frame).resize((width, height))) for frame in frames])
    # Where nobody says how far apart frames are, they are taken to be as `decode_video` takes them.
    sampled = float(options.get("sample_fps", FPS))
    original = float(options.get("raw_fps", sampled))
    step = original / sampled
    indices = [round(number * step) for number in range(len(frames))]
    return with_metadata(frames, original, indices, round(len(frames) * step))


def _listed_frames(value: Any, folder: str) -> npt.NDArray[np.uint8]:
    if isinstance(value, np.ndarray) and value.ndim == _NUM_AXES and value.dtype == np.uint8:
        return value
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(
            f"video: expected a path, bytes, a list of frames, or uint8 (frames, height, width, 3), got "
            f"{type(value).__name__}\n  Store the file's bytes, its path, or the paths or bytes of frames."
        )
    frames = [np.asarray(_image(_frame(frame), folder)) for frame in value]
    sizes = {frame.shape for frame in frames}
    if len(sizes) > 1:
        raise ValueError(
            f"video: expected frames of one size, got {sorted(sizes)}\n  Resize them when they are stored."
        )
    return np.stack(frames)


def _frame(value: Any) -> Any:
    return _unfolded(Medium("image", value), _IMAGE_KEYS, frozenset())[0]


_KINDS: Final = {
    "image": (_open_image, _IMAGE_KEYS, _IMAGE_OPTIONS),
    "video": (_open_video, _VIDEO_KEYS, _VIDEO_OPTIONS),
}
