import hashlib
import io
import os
import pickle
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image, UnidentifiedImageError

from streamdata.sources.functions.images import (
    MAX_PIXELS,
    DecodeImages,
    ImageJsonlProcessFnBuilder,
    decode_image,
    jpeg_to_tensor,
    open_image,
    to_tensor,
)
from streamdata.text.image_text_pairs import ImageTextPairProcessFnBuilder
from streamdata.text.tokenizer import load_tokenizer
from tests.text.tiny_tokenizer import save_tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where a tiny tokenizer lies."""
    return save_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def encode(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The bytes of an image file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def halves(width: int = 40, height: int = 20) -> Image.Image:
    """Left half red, right half blue."""
    image = Image.new("RGB", (width, height), "red")
    image.paste("blue", (width // 2, 0, width, height))
    return image


def noise(width: int, height: int) -> Image.Image:
    """Random bytes, the same each time."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def smooth() -> Image.Image:
    """A gradient of 512 x 320, another in each channel."""
    across, down = np.meshgrid(np.arange(512) // 2, np.arange(320) * 4 // 5)
    return Image.fromarray(np.stack([across, down, 255 - across], axis=-1).astype(np.uint8))


@pytest.mark.parametrize(("field", "kind"), [("jpg", "JPEG"), ("jpeg", "JPEG"), ("png", "PNG"), ("webp", "WEBP")])
def test_pair_becomes_image_and_token_ids(tokenizer: str, field: str, kind: str) -> None:
    """Each kind of image arrives as bytes (3, size, size), left red and right blue; the text as its ids."""
    record = {field: encode(halves(), kind), "txt": b"the cat", "__key__": "x/1", "width": 40}
    (sample,) = ImageTextPairProcessFnBuilder(16, 32, tokenizer)(iter([record]))
    img, txt = sample["img"], sample["txt"]
    assert (img.dtype, tuple(img.shape), img.is_contiguous()) == (torch.uint8, (3, 16, 16), True)
    for side, color in ((img[:, :, 2], [255, 0, 0]), (img[:, :, -3], [0, 0, 255])):
        assert torch.allclose(side.float().mean(dim=1), torch.tensor(color).float(), atol=15)
    assert txt.dtype == torch.int64
    assert load_tokenizer(tokenizer).decode(txt.tolist()) == "the cat"
    assert {key: sample[key] for key in sample if key not in ("img", "txt")} == {"__key__": "x/1", "width": 40}


def test_a_size_may_be_a_pair(tokenizer: str) -> None:
    """Height and width, of both builders."""
    image = encode(halves(), "PNG")
    (sample,) = ImageTextPairProcessFnBuilder([8, 12], 4, tokenizer)(iter([{"png": image, "txt": b"the"}]))
    assert tuple(sample["img"].shape) == (3, 8, 12)
    assert tuple(ImageJsonlProcessFnBuilder((8, 12))({"image": halves()})["image"].shape) == (3, 8, 12)


def test_pair_cuts_its_text(tokenizer: str) -> None:
    """No more than max_text_len ids, from the start."""
    record = {"png": encode(halves()), "txt": "the cat sat on the mat"}
    (whole,) = ImageTextPairProcessFnBuilder(4, 99, tokenizer)(iter([record]))
    (cut,) = ImageTextPairProcessFnBuilder(4, 3, tokenizer)(iter([record]))
    assert cut["txt"].tolist() == whole["txt"][:3].tolist()


def test_pair_takes_a_caption_where_there_is_no_txt(tokenizer: str) -> None:
    """A sidecar's caption is a text, too; `txt` goes first; the caption itself stays."""
    caption_only = {"png": encode(halves()), "caption": "the cat", "txt": None}
    both = {"png": encode(halves()), "caption": "the cat", "txt": b"mat"}
    first, second = ImageTextPairProcessFnBuilder(4, 99, tokenizer)(iter([caption_only, both]))
    assert load_tokenizer(tokenizer).decode(first["txt"].tolist()) == "the cat"
    assert load_tokenizer(tokenizer).decode(second["txt"].tolist()) == "mat"
    assert first["caption"] == "the cat"


@pytest.mark.parametrize(
    ("record", "what"), [({"txt": b"x", "gif": b""}, "an image"), ({"png": b"", "id": 1}, "a text")]
)
def test_pair_names_the_fields_of_a_record_that_lacks_one(tokenizer: str, record: Any, what: str) -> None:
    """The error says what was expected where, and what there is."""
    with pytest.raises(ValueError, match=rf"expected {what} in one of the fields .*") as caught:
        list(ImageTextPairProcessFnBuilder(4, 4, tokenizer)(iter([record])))
    assert str(sorted(record)) in str(caught.value)


def test_pair_does_not_change_its_record(tokenizer: str) -> None:
    """A sample is a dict of its own."""
    record = {"png": encode(halves()), "txt": b"x"}
    before = dict(record)
    list(ImageTextPairProcessFnBuilder(4, 4, tokenizer)(iter([record])))
    assert record == before


def test_image_of_a_record_becomes_a_tensor(tmp_path: Path) -> None:
    """A PIL image under `image` becomes (3, size, size); other fields stay."""
    halves().save(tmp_path / "a.png")
    record = {"image": open_image(tmp_path / "a.png"), "caption": "x"}
    sample = pickle.loads(pickle.dumps(ImageJsonlProcessFnBuilder(8)))(record)
    assert tuple(sample["image"].shape) == (3, 8, 8)
    assert sample["caption"] == "x"
    assert isinstance(record["image"], Image.Image)


def test_record_without_pil_image_is_an_error_that_names_its_fields() -> None:
    """It says what was found."""
    with pytest.raises(ValueError, match=r"got bytes; the record has \['image', 'x'\]"):
        ImageJsonlProcessFnBuilder(8)({"image": b"", "x": 1})


@pytest.mark.parametrize(
    "build", [lambda: ImageJsonlProcessFnBuilder(0), lambda: ImageTextPairProcessFnBuilder(4, 0, "")]
)
def test_sizes_must_be_positive(build: Any) -> None:
    """At construction."""
    with pytest.raises(ValueError, match=r"is 0, expected .*at least 1"):
        build()


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: ImageJsonlProcessFnBuilder(4, dtype="float16"), r"dtype is 'float16', expected .*'uint8', 'float32'"),
        (lambda: ImageTextPairProcessFnBuilder(4, 4, "", dtype="int8"), r"dtype is 'int8', expected .*'uint8'"),
        (lambda: ImageTextPairProcessFnBuilder(4, 4, "", backend="turbo"), r"backend is 'turbo', expected .*'pillow'"),
    ],
)
def test_other_dtypes_and_backends_are_refused(build: Any, problem: str) -> None:
    """At construction, with those that there are."""
    with pytest.raises(ValueError, match=problem):
        build()


def test_a_backend_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """At construction, with what to install; no other decoder takes its place."""
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    with pytest.raises(ImportError, match=r"simplejpeg\n  pip install torch-streamdata\[jpeg\]"):
        ImageTextPairProcessFnBuilder(4, 4, "", backend="simplejpeg")


@pytest.mark.parametrize("backend", ["pillow", "simplejpeg"])
def test_float32_is_uint8_divided_by_255(tokenizer: str, backend: Any) -> None:
    """Exactly, whatever decodes."""
    record = {"jpg": encode(noise(90, 70), "JPEG"), "txt": b"x"}
    small, large = (
        next(ImageTextPairProcessFnBuilder(16, 4, tokenizer, dtype, backend)([record]))["img"]
        for dtype in ("uint8", "float32")
    )
    assert (small.dtype, large.dtype) == (torch.uint8, torch.float32)
    assert torch.equal(large, small / 255)
    image = {"image": decode_image(record["jpg"])}
    assert torch.equal(
        ImageJsonlProcessFnBuilder(16, "float32")(image)["image"], by_pillow(record["jpg"], size=16) / 255
    )


def test_values_are_exact() -> None:
    """0 is 0 and 255 is 1, and the tensor may be written to."""
    tensor = to_tensor(Image.new("RGB", (5, 5), (0, 51, 255)), 5, "float32")
    assert [set(channel.unique().tolist()) for channel in tensor] == [{0.0}, {torch.tensor(0.2).item()}, {1.0}]
    tensor += 1


@pytest.mark.parametrize(("width", "height", "left", "top"), [(27, 20, 3, 0), (20, 27, 0, 3), (26, 20, 3, 0)])
def test_a_crop_is_of_the_middle(width: int, height: int, left: int, top: int) -> None:
    """Of an odd rest, one pixel more is cut off at the bottom or on the right."""
    image = noise(width, height)
    middle = image.crop((left, top, left + 20, top + 20))
    (cropped,) = DecodeImages("image", 20, "crop")({"image": image}).values()
    assert torch.equal(cropped, to_tensor(middle, 20))


def test_an_image_of_its_size_is_not_resized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pixels are what resizing would give."""
    image, interpolate = noise(30, 20), torch.nn.functional.interpolate
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    assert torch.equal(interpolate(pixels[None], size=(20, 30), mode="bicubic", antialias=True)[0], pixels)
    monkeypatch.delattr(torch.nn.functional, "interpolate")
    tensor = to_tensor(image, (20, 30))
    assert torch.equal(tensor, pixels)
    assert tensor.is_contiguous()


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.new("L", (4, 4), 102), [102, 102, 102]),
        (Image.new("1", (4, 4), 1), [255, 255, 255]),
        (Image.new("RGBA", (4, 4), (255, 0, 0, 0)), [255, 255, 255]),
        (Image.new("RGBA", (4, 4), (255, 0, 0, 255)), [255, 0, 0]),
        (Image.new("LA", (4, 4), (0, 0)), [255, 255, 255]),
        (Image.new("RGB", (4, 4), "blue").quantize(2), [0, 0, 255]),
        (Image.fromarray(np.full((4, 4), 0x6666, np.uint16)), [102, 102, 102]),
        (Image.new("CMYK", (4, 4), (255, 0, 0, 0)), [0, 255, 255]),
    ],
    ids=["grey", "bits", "transparent", "opaque", "grey-transparent", "palette", "16-bit", "cmyk"],
)
def test_any_mode_becomes_rgb(image: Image.Image, expected: list[int]) -> None:
    """Also what Pillow would clip (16 bits); transparent parts become white."""
    stored = image if image.mode == "CMYK" else decode_image(encode(image))
    assert to_tensor(stored, 2).flatten(1).tolist() == [[value] * 4 for value in expected]


def test_palette_with_transparency_becomes_white() -> None:
    """One entry of the palette may be transparent."""
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 255, 0, 0])
    assert torch.equal(to_tensor(decode_image(encode(image, transparency=b"\xff\x00")), 2), torch.full((3, 2, 2), 255))


def test_large_jpeg_is_decoded_at_reduced_scale() -> None:
    """To twice the size wanted at least; the result is that of the whole image, nearly."""
    gradient = np.add.outer(np.arange(1024), np.arange(1600)) // 11
    image = Image.fromarray(gradient.astype(np.uint8)).convert("RGB")
    stored = decode_image(encode(image, "JPEG", quality=95))
    tensor = to_tensor(stored, 64)
    assert stored.size == (200, 128)
    assert (tensor.int() - to_tensor(image, 64)).abs().max() < 3


@pytest.mark.skipif(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9), reason="torch rounds otherwise there")
def test_pixels_are_the_same_on_all_processors(python: Callable) -> None:
    """Resizing by the plainest instructions gives what this processor gives."""
    code = (
        "from tests.sources.test_process_image import digest_of_resized; print(digest_of_resized())\n"
        "import torch; print(torch.backends.cpu.get_cpu_capability())"
    )
    plain = python("-c", code, env=os.environ | {"ATEN_CPU_CAPABILITY": "default"})
    assert plain.stdout.split() == [digest_of_resized(), "DEFAULT"]


def digest_of_resized() -> str:
    """A hash over several sizes, smaller and larger."""
    sizes = [(8, 8, 20), (64, 64, 48), (100, 33, 64), (31, 77, 16), (1, 5, 7)]
    images = [to_tensor(noise(width, height), size) for width, height, size in sizes]
    return hashlib.sha256(b"".join(image.numpy().tobytes() for image in images)).hexdigest()


def test_simplejpeg_gives_nearly_what_pillow_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of colour, grey and inks, at a reduced scale where that is enough; inks are Pillow's."""
    decode, decoded = simplejpeg.decode_jpeg, []

    def note(data: bytes, **settings: int) -> Any:
        decoded.append(decode(data, **settings))
        return decoded[-1]

    monkeypatch.setattr(simplejpeg, "decode_jpeg", note)
    small = smooth().resize((80, 50))
    for image in (smooth(), small, small.convert("L"), small.convert("CMYK")):
        data = encode(image, "JPEG", quality=95)
        by_turbo, by_pillow = jpeg_to_tensor(data, 32), to_tensor(decode_image(data), 32)
        assert (by_turbo.int() - by_pillow).abs().max() < 6
    assert [pixels.shape for pixels in decoded] == [(80, 128, 3), (50, 80, 3), (50, 80, 3)]


def test_what_is_no_jpeg_is_decoded_by_pillow() -> None:
    """With simplejpeg, too: what decodes follows from the bytes."""
    for kind in ("PNG", "WEBP"):
        data = encode(halves(), kind)
        assert torch.equal(jpeg_to_tensor(data, 8), to_tensor(decode_image(data), 8))


def by_pillow(data: bytes, size: int = 32, max_pixels: int = MAX_PIXELS) -> Any:
    """What the backend `pillow` does."""
    return to_tensor(decode_image(data, max_pixels), size)


def by_simplejpeg(data: bytes, max_pixels: int = MAX_PIXELS) -> Any:
    """What the backend `simplejpeg` does."""
    return jpeg_to_tensor(data, 32, max_pixels=max_pixels)


both = pytest.mark.parametrize("load", [by_pillow, by_simplejpeg])


@both
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_image_of_too_many_pixels_is_refused_before_decoding(load: Any, kind: str) -> None:
    """The error gives its size and the limit."""
    with pytest.raises(ValueError, match=r"at most 799 pixels, got 40 x 20; it is not decoded"):
        load(encode(halves(), kind), max_pixels=799)
    load(encode(halves(), kind), max_pixels=800)


@both
@pytest.mark.parametrize("kind", ["GIF", "BMP", "TIFF", "PPM"])
def test_other_formats_are_not_decoded(load: Any, kind: str) -> None:
    """Only the decoders that are needed see a file's bytes."""
    with pytest.raises(UnidentifiedImageError):
        load(encode(halves(), kind))


@both
@pytest.mark.parametrize("kept", [3, 200, 2000, -2])
def test_damaged_image_is_an_error(load: Any, kept: int) -> None:
    """A truncated file never gives a half-grey image, wherever it ends."""
    with pytest.raises(OSError, match=r"(?i)image|truncated"):
        load(encode(noise(64, 64), "JPEG")[:kept])


@both
def test_a_png_with_a_broken_chunk_is_damaged(load: Any) -> None:
    """Among its pixels, where Pillow raises a SyntaxError."""
    content = encode(halves(), "PNG")
    empty = b"\0\0\0\0IDAT" + zlib.crc32(b"IDAT").to_bytes(4, "big")
    with pytest.raises(OSError, match=r"image: it is damaged: broken PNG file"):
        load(content[:33] + empty + b"\0\0\0\0~\xd8K\xca" + content[33:])


@both
def test_an_image_that_pillow_takes_for_a_bomb_is_too_large(load: Any) -> None:
    """By its header alone; the error is the same as that of fewer pixels."""
    content = bytearray(encode(halves(), "PNG"))
    content[16:24] = (300_000).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    with pytest.raises(ValueError, match=r"image: expected at most 89478485 pixels, got more \(.*90000000000 pixels"):
        load(bytes(content))


def test_open_image_keeps_no_file_open_and_names_the_path(tmp_path: Path) -> None:
    """The file may go once its header was read; an error says which file it was."""
    path = tmp_path / "a.jpg"
    path.write_bytes(encode(halves(), "JPEG"))
    image = open_image(path)
    path.write_bytes(b"no image")
    assert image.size == (40, 20)
    assert tuple(to_tensor(image, 4).shape) == (3, 4, 4)
    with pytest.raises(UnidentifiedImageError) as caught:
        open_image(path)
    assert caught.value.__notes__ == [f"image {path}"]
