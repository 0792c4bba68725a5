import io
import logging

import numpy as np
import pytest
import torch
from PIL import Image

from streamdata import DecodeImages, ImageFolderDataset, MergedDataset
from tests.shard_files import jpeg
from tests.streams import assert_exact_resume


@pytest.fixture
def folder(tmp_path):
    """Three classes; images of one lie deeper."""
    for number, name in enumerate(["dog/b.jpg", "cat/1.JPEG", "cat/deep/2.png", "ant/x.webp", "dog/a.jpg"]):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number * 40))
    return tmp_path / "images"


def test_the_class_is_the_folder(folder):
    """By the sorted names of the folders, images by path."""
    data = ImageFolderDataset(str(folder))
    assert data.class_names == ["ant", "cat", "dog"]
    got = [(data[number]["cls"], data[number]["class_name"]) for number in range(len(data))]
    assert got == [(0, "ant"), (1, "cat"), (1, "cat"), (2, "dog"), (2, "dog")]
    assert [data[number]["image"].size for number in (-1, 4)] == [(12, 12)] * 2
    with pytest.raises(IndexError):
        data[5]


def test_folders_are_exact_and_decoded(folder):
    """As any map-style source."""
    data = ImageFolderDataset(str(folder), DecodeImages("image", 8), name="s", percent=1)
    (batch, *_) = assert_exact_resume(lambda: MergedDataset([data]), steps=7, beyond=5)
    assert batch[0]["image"][1] == torch.uint8


@pytest.mark.parametrize("kind", ["BMP", "GIF", "TIFF"])
def test_older_formats_are_exact_and_decoded(tmp_path, kind):
    """By either suffix of TIFF; of an animation it is the first picture."""
    (tmp_path / "cat").mkdir()
    frames = [Image.new("RGB", (6, 4), (number * 50, 90, 180)) for number in range(4)]
    more = {} if kind == "BMP" else {"save_all": True, "append_images": frames[::-1]}
    for number, frame in enumerate(frames):
        suffix = ".TIF" if kind == "TIFF" and number % 2 else f".{kind.lower()}"
        frame.save(tmp_path / "cat" / f"{number}{suffix}", kind, **more)
    data = ImageFolderDataset(str(tmp_path), DecodeImages("image", (4, 6)), name="s", percent=1)
    got = assert_exact_resume(lambda: MergedDataset([data], shuffle_streaming_subsets=False), steps=4, beyond=4)
    assert sorted(batch[0]["image"][2][0][0][0] for batch in got[:4]) == [0, 50, 100, 150]


def test_values_of_more_than_16_bits_are_an_error(tmp_path):
    """Of measured data no scale is known."""
    (tmp_path / "cat").mkdir()
    for values, got in ((np.full((4, 4), 0.5, np.float32), "F, 0.5"), (np.full((4, 4), 9, np.int32), "I, 9 to 9")):
        Image.fromarray(values).save(tmp_path / "cat" / "a.tiff")
        with pytest.raises(ValueError, match=f"expected values of 8 or 16 bits, got mode {got}"):
            DecodeImages("image", 4)(ImageFolderDataset(str(tmp_path))[0])


def test_what_does_not_fit_the_layout_is_an_error(folder, caplog):
    """Images outside of folders, folders without images, no folders; other files are told."""
    (folder / "dog/notes.txt").touch()
    with caplog.at_level(logging.WARNING):
        ImageFolderDataset(str(folder))
    assert "'dog': left out, by suffix: {'.txt': 1}" in caplog.text
    (folder / "empty").mkdir()
    with pytest.raises(ValueError, match="in each folder, got none in 'empty'"):
        ImageFolderDataset(str(folder))
    (folder / "z.png").write_bytes(jpeg(1))
    with pytest.raises(ValueError, match=r"got 1 outside of them, such as 'z\.png'"):
        ImageFolderDataset(str(folder))
    with pytest.raises(ValueError, match="got no folder"):
        ImageFolderDataset(str(folder / "empty"))
    with pytest.raises(FileNotFoundError, match="expected a folder"):
        ImageFolderDataset(str(folder / "none"))


def picture(width=40, height=20):
    """Black on the left, white in the middle, black on the right."""
    image = Image.new("RGB", (width, height))
    image.paste("white", (width // 4, 0, width * 3 // 4, height))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("size", "resize", "shape"),
    [
        (16, "squash", (3, 16, 16)),
        ((8, 16), "squash", (3, 8, 16)),
        ([10, 10], "crop", (3, 10, 10)),
        ((30, 10), "crop", (3, 30, 10)),
        (10, "fit", (3, 5, 10)),
        ((4, 100), "fit", (3, 4, 8)),
    ],
)
def test_images_become_tensors_of_the_size(size, resize, shape):
    """From the bytes of a file, as parquet has them, and from PIL images; other fields stay."""
    decode = DecodeImages(["a", "b", "c"], size, resize)
    data = picture()
    out = decode({"a": data, "b": {"bytes": data, "path": "x"}, "c": Image.open(io.BytesIO(data)), "cls": b"3"})
    assert out["cls"] == b"3"
    assert [tuple(out[name].shape) for name in "abc"] == [shape] * 3
    assert torch.equal(out["a"], out["b"])
    assert torch.equal(out["a"], out["c"])


def test_crop_keeps_the_middle_and_its_proportions():
    """What is cut off is as much on both sides."""
    cropped = DecodeImages("a", 20, "crop", "float32")({"a": picture()})["a"]
    assert cropped.dtype == torch.float32
    assert cropped.min() == 1.0  # the white middle is as wide as the picture is high
    squashed = DecodeImages("a", 20)({"a": picture()})["a"]
    assert (squashed[:, :, 0] == 0).all()


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"b": b""}, "expected an image in field 'a', the record has: b"),
        ({"a": {"bytes": None, "path": "x.jpg"}}, "field 'a': .* got dict without bytes"),
        ({"a": "x.jpg"}, "field 'a': .* got str"),
    ],
)
def test_what_is_no_image_is_an_error(record, message):
    """That names the field."""
    with pytest.raises(ValueError, match=message):
        DecodeImages("a", 4)(record)


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 0},
        {"size": (1, 2, 3)},
        {"size": 1.5},
        {"resize": "pad"},
        {"dtype": "int8"},
        {"fields": []},
        {"fields": None},
    ],
)
def test_wrong_settings_are_errors_at_the_start(wrong):
    """Not at the first record."""
    with pytest.raises(ValueError, match="DecodeImages: "):
        DecodeImages(**{"fields": "a", "size": 4, **wrong})
