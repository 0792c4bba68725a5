import numpy as np
import pytest
from PIL import Image

from streamdata.chats.media import open_media
from streamdata.text.messages import Medium
from tests.chats.prompts.prompt_files import frames
from tests.sources.tiny_processors import picture, png

PICTURE = picture(6, 4)


@pytest.mark.parametrize(
    "value",
    [
        "p.png",
        "file://p.png",
        {"path": "p.png"},
        {"bytes": None, "path": "p.png"},
        {"image": "p.png"},
        png(PICTURE),
        {"bytes": png(PICTURE), "path": "elsewhere.png"},
        PICTURE,
        PICTURE.convert("RGBA"),
    ],
)
def test_an_image_comes_in_many_ways(value, tmp_path):
    """Always as RGB; a relative path begins where the data lies."""
    (tmp_path / "p.png").write_bytes(png(PICTURE))
    (found,) = open_media([Medium("image", value)], str(tmp_path))
    assert found.mode == "RGB"
    assert found.tobytes() == PICTURE.tobytes()


def test_a_video_is_an_array_of_its_frames(tmp_path):
    """uint8 (frames, height, width, 3), from files, from images, or as it is."""
    files = frames(3)
    videos = [files, {"video": files}, [{"bytes": file} for file in files]]
    found = open_media([Medium("video", video) for video in videos], str(tmp_path))
    found += open_media([Medium("video", found[0])], str(tmp_path))
    assert {(video.shape, video.dtype.name) for video in found} == {((3, 16, 16, 3), "uint8")}
    assert all(np.array_equal(video, found[0]) for video in found)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("image", 3, "expected a path, bytes, a PIL image"),
        ("image", {"bytes": None, "path": None}, "with one of bytes, image, path"),
        ("image", {"image": "p.png", "crop": 3}, "settings of the processor"),
        ("image", {"image": PICTURE, "max_pixel": 3}, "did you mean 'max_pixels'"),
        ("image", {"image": PICTURE, "max_pixels": 3}, "max_pixels of at least min_pixels, got 3 and 3136"),
        ("image", b"no image", "cannot identify"),
        ("image", "none.png", "No such file"),
        ("video", [], "a list of frames"),
        ("video", [PICTURE, Image.new("RGB", (3, 3))], "frames of one size"),
    ],
)
def test_what_cannot_be_opened_says_which(kind, value, message, tmp_path):
    """With its number in the row."""
    with pytest.raises((ValueError, OSError), match=message) as caught:
        open_media([Medium(kind, value)], str(tmp_path))
    assert any(f"{kind} 0 of the row's media" in note for note in caught.value.__notes__)
