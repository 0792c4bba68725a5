import pickle

import numpy as np
import pytest
from PIL import Image

from streamdata.chats.media import Size, frame_size, image_size, num_frames, open_media
from streamdata.text.messages import Medium
from tests.sources.tiny_processors import picture

SIDE = 28
FRAMES, FPS = 40, 10


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    """Four seconds of grey that becomes lighter, 64 by 48."""
    av = pytest.importorskip("av")
    path = str(tmp_path_factory.mktemp("film") / "film.mp4")
    with av.open(path, "w") as container:
        stream = container.add_stream("mpeg4", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(FRAMES):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 6 * number, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def opened(value, **options):
    """A video."""
    return open_media([Medium("video", value, options or None)], "")[0]


@pytest.mark.parametrize(
    ("options", "indices"),
    [
        ({}, [0, 6, 11, 17, 22, 28, 33, 39]),
        ({"fps": 1}, [0, 13, 26, 39]),
        ({"fps": 2, "min_frames": 1, "max_frames": 4}, [0, 13, 26, 39]),
        ({"nframes": 6}, [0, 8, 16, 23, 31, 39]),
        ({"nframes": 2, "video_start": 1.0, "video_end": 2.0}, [10, 20]),
    ],
)
def test_frames_are_those_that_are_asked_for(film, options, indices):
    """Evenly spaced, at two in a second unless it says otherwise; the indices are those of qwen-vl-utils 0.0.14."""
    frames = opened({"video": film, **options})
    assert frames.metadata["frames_indices"] == indices
    assert (frames.metadata["fps"], frames.metadata["total_num_frames"]) == (FPS, FRAMES)
    assert np.abs(frames.mean((1, 2, 3)) - 6 * np.array(indices)).max() < 6
    assert (frames.dtype, frames.shape[0], frames.shape[3]) == (np.uint8, len(indices), 3)


def test_a_film_comes_as_a_path_bytes_or_a_part(film):
    """With the sizes that the row gives it; what is opened stays as it is, and keeps its times across processes."""
    with open(film, "rb") as file:
        content = file.read()
    one, other = opened(f"file://{film}"), opened({"bytes": content, "path": None})
    assert np.array_equal(one, other)
    small = opened(film, resized_height=56, resized_width=112, nframes=2)
    assert small.shape == (2, 56, 112, 3)
    sent = pickle.loads(pickle.dumps(small))
    assert np.array_equal(opened(sent), small)
    assert opened(sent).metadata == small.metadata


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fps": 2, "nframes": 4}, "fps or nframes, got both"),
        ({"nframes": 60}, "take 2 to 40 frames"),
        ({"video_start": 3, "video_end": 1}, "frames from 3 s to 1 s"),
        ({"frames": 3}, "did you mean 'nframes'"),
    ],
)
def test_what_a_film_does_not_have_is_an_error(film, options, message):
    """With what it has."""
    with pytest.raises(ValueError, match=message):
        opened({"video": film, **options})


def test_what_is_no_film_is_an_error(tmp_path, film):
    """By its path, and where it is something else."""
    (tmp_path / "text.mp4").write_text("no film" * 100)
    with pytest.raises(ValueError, match="cannot be read"):
        opened(str(tmp_path / "text.mp4"))
    with pytest.raises(FileNotFoundError):
        opened(str(tmp_path / "none.mp4"))


def test_frames_in_a_list_have_their_rate():
    """Two in a second unless the row says otherwise; sizes apply to each."""
    frames = [picture(64, 48, shade) for shade in range(4)]
    assert opened(frames).metadata["fps"] == 2.0
    assert opened({"type": "video", "video": frames}).metadata["fps"] == 2.0
    slow = opened({"video": frames, "sample_fps": 1.0, "raw_fps": 25.0})
    assert (slow.metadata["fps"], slow.metadata["frames_indices"]) == (25.0, [0, 25, 50, 75])
    assert opened({"video": frames, "resized_height": 56, "resized_width": 56}).shape == (4, 56, 56, 3)


def test_how_many_frames_is_an_even_number():
    """Recorded from qwen-vl-utils 0.0.14."""
    assert num_frames({"fps": 2, "min_frames": 1, "max_frames": 32}, 250, 25.0) == 20
    assert (num_frames({}, 250, 25.0), num_frames({"nframes": 7}, 250, 25.0)) == (20, 8)
    assert num_frames({"fps": 0.1}, 250, 25.0) == 4


def test_sizes_are_whole_tokens_within_the_bounds():
    """Recorded from qwen-vl-utils 0.0.14; a side has at least one token."""
    assert image_size(Size(700, 500), {"min_pixels": 1, "max_pixels": 100_000}, SIDE) == (364, 252)
    assert image_size(Size(20, 30), {}, SIDE) == (56, 84)
    assert image_size(Size(113, 2250), {"max_pixels": 16_154}, 32)[0] == 32
    assert frame_size(Size(1080, 1920), {}, SIDE, 16)[0] * frame_size(Size(1080, 1920), {}, SIDE, 16)[1] <= 768 * 784
    assert frame_size(Size(480, 640), {"max_pixels": 128 * 784}, SIDE, 4) == frame_size(
        Size(480, 640), {"max_pixels": 128 * 784}, SIDE, 400
    )


def test_an_image_gets_the_size_that_its_part_or_column_says():
    """In a typed part, or in a dict beside the image."""
    image = Image.new("RGB", (500, 700))
    bounds = {"min_pixels": 1, "max_pixels": 100_000}
    media = [Medium("image", image, bounds), Medium("image", {"image": image, **bounds}), Medium("image", image)]
    assert [found.size for found in open_media(media, "")] == [(252, 364), (252, 364), (500, 700)]


@pytest.mark.parametrize(
    "options",
    [{"fps": 0}, {"fps": -1}, {"fps": "2"}, {"fps": True}, {"nframes": float("nan")}, {"video_start": "1"},
     {"total_pixels": 0}, {"resized_height": 0, "resized_width": 0}],
)  # fmt: skip
def test_options_of_a_film_are_numbers_above_zero(options):
    """Before the file is opened; at a rate of 0 it would be a few frames, silently."""
    with pytest.raises(ValueError, match=f"video: expected numbers as options, above 0 .*{next(iter(options))}"):
        opened({"video": "film.mp4", **options})


def test_frames_without_a_rate_are_an_error():
    """Where they are a list."""
    frames = [picture(32, 24, number) for number in range(2)]
    for options in ({"sample_fps": 0}, {"raw_fps": 0}, {"sample_fps": "x"}):
        with pytest.raises(ValueError, match="video: expected numbers as options"):
            opened({"video": frames, **options})


def test_a_film_that_is_cut_short_is_an_error_wherever_it_is_cut(film, tmp_path):
    """In its index, too, which stands at its end."""
    with open(film, "rb") as file:
        content = file.read()
    for share in (0.1, 0.5, 0.9):
        with pytest.raises(ValueError, match="video: expected a video file, got one that cannot be read"):
            opened(content[: int(share * len(content))])


def test_one_frame_is_no_film_and_an_address_no_path(tmp_path):
    """With what to do."""
    pytest.importorskip("av")
    picture(32, 24, 1).save(tmp_path / "one.png")
    with pytest.raises(
        ValueError, match=r"expected at least 2 frames, got a video of 1 in .*\n  Store a picture as an im"
    ):
        opened(str(tmp_path / "one.png"))
    with pytest.raises(ValueError, match=r"media: expected a local path, got https://host/film\.mp4"):
        opened("https://host/film.mp4")
