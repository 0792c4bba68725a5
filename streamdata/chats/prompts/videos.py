"""Decoding videos: `a file or its bytes, how many frames → those frames`, by PyAV; and frames with their times."""

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from streamdata.chats.prompts.sizes import FRAMES_PER_TOKEN, Size
from streamdata.errors import needs
from streamdata.recipe.limits import check_regular

FPS: Final = 2.0
MIN_FRAMES: Final = 4
MAX_FRAMES: Final = 768
TIME_KEYS: Final = ("fps", "nframes", "min_frames", "max_frames", "video_start", "video_end")
Resize = Callable[[Size, int], Size]
"""From a frame's size and the number of frames to the size that they get."""


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


def with_metadata(frames: npt.NDArray[np.uint8], fps: float, indices: Sequence[int], total: int) -> VideoFrames:
    """The frames with where in their video they are."""
    video = frames.view(VideoFrames)
    video.metadata = {"fps": fps, "frames_indices": list(indices), "total_num_frames": total, "video_backend": "pyav"}
    return video


def decode_video(source: str | bytes, options: Mapping[str, Any], resize: Resize) -> VideoFrames:
    """Decode the frames of a video that are asked for, evenly spaced.

    Args:
        source: A path, or the content of a file.
        options: `fps` (2 by default) with `min_frames` (4) and `max_frames` (768), or `nframes`; `video_start` and
            `video_end` in seconds.
        resize: What size frames get; only those that are taken are held, in this size.

    Raises:
        ValueError: It is not a video, or is too short for what is asked.
        FileNotFoundError: There is no such file.
        ImportError: PyAV is missing.
    """
    import torch

    with _opened(source) as container:
        stream = container.streams.video[0]
        fps = float(stream.average_rate or stream.guessed_rate or 0)
        # Some containers say nothing of how many frames they have; then their packets are counted, undecoded.
        total = stream.frames or _counted(container, stream)
        first, last = _range(options, total, fps)
        count = num_frames(options, last - first + 1, fps)
        # By torch, in float32: verl takes the same frames. (Who reads no video does not wait for torch.)
        indices = torch.linspace(first, last, count).round().long().tolist()
        frames = list(_frames(container, stream, indices, resize))
    if len(frames) < count:
        raise ValueError(f"video: expected {count} of {total} frames, got {len(frames)}\n  The file is cut short.")
    return with_metadata(np.stack(frames), fps, indices, total)


def num_frames(options: Mapping[str, Any], total: int, fps: float) -> int:
    """How many of `total` frames are taken: an even number, since two become one token.

    Raises:
        ValueError: Both `fps` and `nframes` are given, or the video is too short.
    """
    if "fps" in options and "nframes" in options:
        raise ValueError("video: expected fps or nframes, got both\n  Leave one of them out.")
    if "nframes" in options:
        count = int(round(options["nframes"] / FRAMES_PER_TOKEN) * FRAMES_PER_TOKEN)
    else:
        least = math.ceil(options.get("min_frames", MIN_FRAMES) / FRAMES_PER_TOKEN) * FRAMES_PER_TOKEN
        most = options.get("max_frames", min(MAX_FRAMES, total)) // FRAMES_PER_TOKEN * FRAMES_PER_TOKEN
        wanted = total / fps * options.get("fps", FPS)
        count = int(min(max(wanted, least), most, total) // FRAMES_PER_TOKEN * FRAMES_PER_TOKEN)
    if not FRAMES_PER_TOKEN <= count <= total:
        raise ValueError(
            f"video: expected to take {FRAMES_PER_TOKEN} to {total} frames, which it has, got {count}\n"
            "  Change nframes, min_frames or max_frames of this video."
        )
    return count


@contextmanager
def _opened(source: str | bytes) -> Iterator[Any]:
    with needs("av", "video", "a video: it"):
        import av
    if isinstance(source, str):
        check_regular(source, ValueError)
    try:
        with av.open(io.BytesIO(source) if isinstance(source, bytes) else source) as container:
            if not container.streams.video:
                raise ValueError("video: expected a file with pictures, got one without\n  Is it sound alone?")
            yield container
    except (av.error.InvalidDataError, av.error.EOFError) as error:  # at the start, or where it is cut short
        raise ValueError(
            f"video: expected a video file, got one that cannot be read: {error}\n  Copy it again."
        ) from error


def _counted(container: Any, stream: Any) -> int:
    """How many frames there are, of a file that does not say so."""
    count = sum(1 for packet in container.demux(stream) if packet.size)
    container.seek(0)
    return count


def _range(options: Mapping[str, Any], total: int, fps: float) -> tuple[int, int]:
    """The first and the last frame between `video_start` and `video_end`."""
    start, end = options.get("video_start"), options.get("video_end")
    if fps <= 0 or total <= 0:
        raise ValueError(f"video: expected frames at a rate, got {total} at {fps}\n  Encode the video again.")
    first = 0 if start is None else math.ceil(min(max(start, 0), total / fps) * fps)
    last = total - 1 if end is None else min(math.floor(min(max(end, 0), total / fps) * fps), total - 1)
    if first >= last:
        of_time = "" if start is None and end is None else f" from {start or 0} s to {end or total / fps:g} s"
        raise ValueError(
            f"video: expected at least {FRAMES_PER_TOKEN} frames{of_time}, got a video of {total} in {total / fps:.2f} "
            "s\n  Store a picture as an image, or change video_start and video_end."
        )
    return first, last


def _frames(container: Any, stream: Any, indices: Sequence[int], resize: Resize) -> Iterator[npt.NDArray[np.uint8]]:
    # One after the other, without seeking: a seek lands on a key frame, and what a file says of those may be wrong.
    wanted = set(indices)
    for number, frame in enumerate(container.decode(stream)):
        if number in wanted:
            size = resize(Size(frame.height, frame.width), len(indices))
            image = frame.to_image()
            yield np.asarray(image.resize((size.width, size.height), Image.Resampling.BICUBIC))
        if number >= indices[-1]:
            return
