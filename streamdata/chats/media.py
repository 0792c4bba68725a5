"""Opening images and videos: `media as rows have them → PIL images, frames with their times`, in the sizes asked for.

The rule of sizes is Qwen2-VL's, which verl's data sets follow: sides are multiples of what becomes one token, the area
lies within the bounds, and the shape stays as nearly as that allows. Bounds of area are counted in tokens. Videos are
decoded by PyAV.
"""

import base64
import io
import math
import os
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from streamdata.errors import did_you_mean, names_text, needs
from streamdata.recipe.limits import check_regular
from streamdata.sources.functions.images import decode_image, load_pixels, open_image
from streamdata.text.messages import Medium

DEFAULT_PATCH: Final = 14
_MERGED: Final = 2  # patches a side that become one token, of all models that take sizes per medium
_IMAGE_TOKENS: Final = (4, 16_384)
_FRAME_TOKENS: Final = (128, 768)
_VIDEO_TOKENS: Final = 115_200  # of all frames, two to a token: nine tenths of a context of 128,000
_FRAMES_PER_TOKEN: Final = 2
_ROOM_ABOVE_LEAST: Final = 1.05
_FPS: Final = 2.0
_MIN_FRAMES, _MAX_FRAMES = 4, 768
_NUM_AXES: Final = 4  # of a video: frames, height, width, channels
_SIZE_KEYS: Final = ("min_pixels", "max_pixels", "resized_height", "resized_width")
_TIME_KEYS: Final = ("fps", "nframes", "min_frames", "max_frames", "video_start", "video_end")
_MAY_BE_ZERO: Final = ("min_pixels", "min_frames", "video_start", "video_end")
_KEYS: Final = {"image": ("bytes", "image", "path"), "video": ("bytes", "video", "path")}
_OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    "image": frozenset(_SIZE_KEYS),
    "video": frozenset({*_SIZE_KEYS, *_TIME_KEYS, "total_pixels", "sample_fps", "raw_fps"}),
}


class Size(NamedTuple):
    """Height and width in pixels."""

    height: int
    width: int


class VideoFrames(np.ndarray[Any, np.dtype[np.uint8]]):
    """Frames, uint8 (frames, height, width, 3), that know when they are.

    Attributes:
        metadata: `fps` and `total_num_frames` of the video that they are from, and their numbers there,
            `frames_indices`; as processors of transformers take it.
    """

    metadata: dict[str, Any]

    def __array_finalize__(self, source: Any) -> None:
        self.metadata = getattr(source, "metadata", {})

    def __reduce__(self) -> Any:
        # An array's own forgets attributes, and items cross from DataLoader workers by pickle.
        reduced: Any = super().__reduce__()
        make, arguments, state = reduced
        return make, arguments, (state, self.metadata)

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state[0])
        self.metadata = state[1]


def open_media(media: Sequence[Medium], folder: str, patch_size: int = DEFAULT_PATCH) -> list[Any]:
    """Opens each medium: an image becomes a PIL image in RGB, a video `VideoFrames`.

    Args:
        media: As the row has them. An image is a path, the bytes of a file, a PIL image, or a dict with one of these
            under `bytes`, `image` or `path`; a video a path or the bytes of a file, an array of frames, a list of
            frames, each an image, or a dict with one of these under `bytes`, `video` or `path`. Beside it, as options,
            `min_pixels`, `max_pixels`, or `resized_height` and `resized_width`; of a video, see `decode_video` and
            `frame_size`, and of a list of frames `sample_fps`: how many are in a second (2).
        folder: Where relative paths begin.
        patch_size: Pixels of a patch's side, of which sizes are multiples.

    Raises:
        ValueError: One is of another kind.
        OSError: One cannot be read; see `open_image`.
    """
    opened: list[Any] = []
    for number, medium in enumerate(media):
        try:
            value, options = _unfolded(medium, _OPTIONS[medium.kind])
            if medium.kind == "video":
                opened.append(_open_video(value, options, folder, patch_size * _MERGED))
                continue
            image = _image(value, folder)
            if options:  # else the processor finds the size
                size = image_size(Size(image.height, image.width), options, patch_size * _MERGED)
                image = image.resize((size.width, size.height))
            opened.append(image)
        except (OSError, ValueError) as error:
            error.add_note(f"  {medium.kind} {number} of the row's media")
            raise
    return opened


def _unfolded(medium: Medium, known: frozenset[str]) -> tuple[Any, dict[str, Any]]:
    """The medium itself and its options, of a dict and of the part that stands for it."""
    # Of a part, what is no option and does not look like one is the template's, or nobody's.
    said, keys = medium.options or {}, _KEYS[medium.kind]
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
    wrong = {
        key: number
        for key, number in options.items()
        if isinstance(number, bool)
        or not isinstance(number, Real)
        or not math.isfinite(number)
        or not (float(number) > 0 or key in _MAY_BE_ZERO)
    }
    if wrong:
        raise ValueError(
            f"{medium.kind}: expected numbers as options, above 0 but for {', '.join(_MAY_BE_ZERO)}, got {wrong}\n"
            "  Mend them in the row, or leave them out."
        )
    return value, options


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


def _open_video(value: Any, options: Mapping[str, Any], folder: str, side: int) -> VideoFrames:
    if isinstance(value, str | os.PathLike | bytes):
        return decode_video(value if isinstance(value, bytes) else str(_path(value, folder)), options, side)
    if isinstance(value, np.ndarray) and value.ndim == _NUM_AXES and value.dtype == np.uint8:
        frames = value
    elif isinstance(value, list | tuple) and value:
        listed = [np.asarray(_image(_unfolded(Medium("image", frame), frozenset())[0], folder)) for frame in value]
        if len(sizes := {frame.shape for frame in listed}) > 1:
            raise ValueError(
                f"video: expected frames of one size, got {sorted(sizes)}\n  Resize them when they are stored."
            )
        frames = np.stack(listed)
    else:
        raise ValueError(
            f"video: expected a path, bytes, a list of frames, or uint8 (frames, height, width, 3), got "
            f"{type(value).__name__}\n  Store the file's bytes, its path, or the paths or bytes of frames."
        )
    # Without their times a second opening would take frames of any video for two in a second.
    if isinstance(value, VideoFrames) and value.metadata and not options:
        return value  # opened before
    if any(key in options for key in (*_SIZE_KEYS, "total_pixels")):
        height, width = frame_size(Size(*frames.shape[1:3]), options, side, len(frames))
        frames = np.stack([np.asarray(Image.fromarray(frame).resize((width, height))) for frame in frames])
    # Where nobody says how far apart frames are, they are taken to be as `decode_video` takes them.
    sampled = float(options.get("sample_fps", _FPS))
    original = float(options.get("raw_fps", sampled))
    step = original / sampled
    indices = [round(number * step) for number in range(len(frames))]
    return _with_metadata(frames, original, indices, round(len(frames) * step))


def _with_metadata(frames: npt.NDArray[np.uint8], fps: float, indices: Sequence[int], total: int) -> VideoFrames:
    video = frames.view(VideoFrames)
    video.metadata = {"fps": fps, "frames_indices": list(indices), "total_num_frames": total, "video_backend": "pyav"}
    return video


def decode_video(source: str | bytes, options: Mapping[str, Any], side: int) -> VideoFrames:
    """Decodes the frames of a video that are asked for, evenly spaced; only these are held, in the size they get.

    Args:
        source: A path, or the content of a file.
        options: `fps` (2 by default) with `min_frames` (4) and `max_frames` (768), or `nframes`; `video_start` and
            `video_end` in seconds; of sizes, see `frame_size`.
        side: Pixels of a token's side.

    Raises:
        ValueError: It is not a video, or is too short for what is asked.
        FileNotFoundError: There is no such file.
        ImportError: PyAV is missing.
    """
    with needs("av", "video", "a video: it"):
        import av
    if isinstance(source, str):
        check_regular(source, ValueError)
    try:
        with av.open(io.BytesIO(source) if isinstance(source, bytes) else source) as container:
            if not container.streams.video:
                raise ValueError("video: expected a file with pictures, got one without\n  Is it sound alone?")
            return _decoded(container, options, side)
    except (av.error.InvalidDataError, av.error.EOFError) as error:  # at the start, or where it is cut short
        raise ValueError(
            f"video: expected a video file, got one that cannot be read: {error}\n  Copy it again."
        ) from error


def _decoded(container: Any, options: Mapping[str, Any], side: int) -> VideoFrames:
    import torch

    stream = container.streams.video[0]
    fps = float(stream.average_rate or stream.guessed_rate or 0)
    total = stream.frames
    if not total:  # some containers do not say how many frames they have: their packets are counted, undecoded
        total = sum(1 for packet in container.demux(stream) if packet.size)
        container.seek(0)
    if fps <= 0 or total <= 0:
        raise ValueError(f"video: expected frames at a rate, got {total} at {fps}\n  Encode the video again.")
    length = total / fps
    # The first and the last frame between `video_start` and `video_end`.
    start, end = options.get("video_start") or 0, options.get("video_end")
    first = math.ceil(min(max(start, 0), length) * fps)
    last = total - 1 if end is None else min(math.floor(min(max(end, 0), length) * fps), total - 1)
    if first >= last:
        of_time = f" from {start} s to {end or length:g} s" if {"video_start", "video_end"} & options.keys() else ""
        raise ValueError(
            f"video: expected at least {_FRAMES_PER_TOKEN} frames{of_time}, got a video of {total} in {length:.2f} "
            "s\n  Store a picture as an image, or change video_start and video_end."
        )
    count = num_frames(options, last - first + 1, fps)
    # By torch, in float32: verl takes the same frames. (Who reads no video does not wait for torch.)
    indices = torch.linspace(first, last, count).round().long().tolist()
    frames, wanted = [], set(indices)
    # One after the other, without seeking: a seek lands on a key frame, and what a file says of those may be wrong.
    for number, frame in zip(range(indices[-1] + 1), container.decode(stream), strict=False):
        if number in wanted:
            size = frame_size(Size(frame.height, frame.width), options, side, count)
            image = frame.to_image().resize((size.width, size.height), Image.Resampling.BICUBIC)
            frames.append(np.asarray(image))
    if len(frames) < count:
        raise ValueError(f"video: expected {count} of {total} frames, got {len(frames)}\n  The file is cut short.")
    return _with_metadata(np.stack(frames), fps, indices, total)


def num_frames(options: Mapping[str, Any], total: int, fps: float) -> int:
    """Returns how many of `total` frames are taken: an even number, since two become one token.

    Raises:
        ValueError: Both `fps` and `nframes` are given, or the video is too short.
    """
    if "fps" in options and "nframes" in options:
        raise ValueError("video: expected fps or nframes, got both\n  Leave one of them out.")
    if "nframes" in options:
        count = int(round(options["nframes"] / _FRAMES_PER_TOKEN) * _FRAMES_PER_TOKEN)
    else:
        least = math.ceil(options.get("min_frames", _MIN_FRAMES) / _FRAMES_PER_TOKEN) * _FRAMES_PER_TOKEN
        most = options.get("max_frames", min(_MAX_FRAMES, total)) // _FRAMES_PER_TOKEN * _FRAMES_PER_TOKEN
        wanted = total / fps * options.get("fps", _FPS)
        count = int(min(max(wanted, least), most, total) // _FRAMES_PER_TOKEN * _FRAMES_PER_TOKEN)
    if not _FRAMES_PER_TOKEN <= count <= total:
        raise ValueError(
            f"video: expected to take {_FRAMES_PER_TOKEN} to {total} frames, which it has, got {count}\n"
            "  Change nframes, min_frames or max_frames of this video."
        )
    return count


def image_size(size: Size, options: Mapping[str, Any], side: int) -> Size:
    """Returns the size that an image gets.

    Args:
        size: As it is.
        options: Of the row: `min_pixels` and `max_pixels`, or `resized_height` and `resized_width`.
        side: Pixels of a token's side.

    Raises:
        ValueError: The bounds exclude each other.
    """
    least, most = (tokens * side**2 for tokens in _IMAGE_TOKENS)
    return _sized(size, options, side, options.get("min_pixels", least), options.get("max_pixels", most))


def frame_size(size: Size, options: Mapping[str, Any], side: int, num_frames: int) -> Size:
    """Returns the size of each frame of a video, which `total_pixels` may bound too; see `image_size`."""
    least, most = (tokens * side**2 for tokens in _FRAME_TOKENS)
    least = options.get("min_pixels", least)
    share = options.get("total_pixels", _VIDEO_TOKENS * side**2) / num_frames * _FRAMES_PER_TOKEN
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
        least, most = (tokens * side**2 for tokens in _IMAGE_TOKENS)
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
