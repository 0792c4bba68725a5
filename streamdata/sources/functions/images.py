"""Images of records as tensors: decoding with Pillow or simplejpeg, within bounds, and resizing."""

import io
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

import numpy as np
import numpy.typing as npt
from PIL import Image

from streamdata.errors import listing, names_text, shown
from streamdata.fields import is_reserved
from streamdata.recipe.limits import open_regular

ImageDtype = Literal["uint8", "float32"]
ImageBackend = Literal["pillow", "simplejpeg"]
Size = int | Sequence[int]
"""Height and width: one number for both, or a pair."""

FORMATS: Final = ("JPEG", "PNG", "WEBP")
"""Other decoders of Pillow are not reachable, whatever a file contains."""

MAX_PIXELS: Final = 89_478_485
"""Width times height that is decoded at most (256 MiB as RGB): where Pillow begins to warn of decompression bombs."""

IMAGE_FIELDS: Final = ("jpg", "jpeg", "png", "webp")

_OVERSAMPLING: Final = 2
"""A JPEG is decoded at the smallest scale that has this many pixels per pixel wanted: within 2/255 of full scale."""

_JPEG_START: Final = b"\xff\xd8\xff"
_TURBO_COLORS: Final = ("Gray", "RGB", "YCbCr")
"""Color spaces that simplejpeg turns into RGB as Pillow does. The inks of a printer are left to Pillow."""


class ImageJsonlProcessFnBuilder:
    """A `single_process_fn` that turns the PIL image in a record's field `image` into a tensor. Other fields stay.

    Args:
        img_size: Height and width of the result, one number for both or a pair. Its shape is (3, height, width), RGB;
            the whole image is resized to it, so crop before where proportions matter.
        dtype: "uint8" (0 to 255), or "float32" in [0, 1], which takes four times the memory.

    Raises:
        ValueError: The size is not positive, or the dtype is another one.
    """

    def __init__(self, img_size: Size, dtype: ImageDtype = "uint8") -> None:
        self.img_size = img_size
        self._size = checked_size("ImageJsonlProcessFnBuilder", "img_size", img_size)
        self.dtype: ImageDtype = one_of("ImageJsonlProcessFnBuilder", "dtype", dtype, get_args(ImageDtype))

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return the record with its image as a tensor.

        Raises:
            ValueError: It has no PIL image in `image`.
            OSError: The image is damaged.
        """
        image = record.get("image")
        if not isinstance(image, Image.Image):
            raise ValueError(
                f"ImageJsonlProcessFnBuilder: expected a PIL image in field 'image', got {type(image).__name__}; "
                f"the record has {names_text(record)}\n  Use it on a source that opens images, such as "
                "ImageJsonlDataset."
            )
        return {**record, "image": to_tensor(image, self._size, self.dtype)}


def open_image(path: Path, formats: tuple[str, ...] = FORMATS) -> Image.Image:
    """Open an image file and read its header; pixels are decoded on first use.

    No file stays open: an image may wait long in a batch.

    Raises:
        FileNotFoundError: The file does not exist.
        PIL.UnidentifiedImageError: It is not a valid image, or of a format not in `formats`.
        ValueError: The image has more than `MAX_PIXELS` pixels.
    """
    try:
        with open_regular(path, ValueError) as file:
            data = file.read()
        image: Any = decode_image(data, formats=formats)
        image.filename = str(path)  # for who meets damage later: pixels are decoded when they are used
        return cast("Image.Image", image)
    except (OSError, ValueError) as error:
        error.add_note(f"image {path}")
        raise


def decode_image(data: bytes, max_pixels: int = MAX_PIXELS, formats: tuple[str, ...] = FORMATS) -> Image.Image:
    """Open an image from bytes and read its header, as `open_image` does."""
    # This reads the header alone, so that what is too large is refused before memory is taken for it.
    try:
        image = Image.open(io.BytesIO(data), formats=formats)
    except Image.DecompressionBombError as error:  # of twice as many as Pillow warns of
        raise _too_large(max_pixels, f"more ({error})") from error
    if image.width * image.height > max_pixels:
        raise _too_large(max_pixels, f"{image.width} x {image.height}")
    return image


def load_pixels(image: Image.Image) -> Image.Image:
    """Decode the pixels of an image, if they are not decoded yet.

    Raises:
        OSError: The image is damaged.
    """
    try:
        image.load()
    except SyntaxError as error:  # so Pillow says that chunks of a PNG are broken
        raise _damaged(str(error)) from error
    return image


def _too_large(max_pixels: int, got: str) -> ValueError:
    return ValueError(
        f"image: expected at most {max_pixels} pixels, got {got}; it is not decoded\n"
        "  Shrink it before training, or filter its record out."
    )


def _damaged(why: str) -> OSError:
    return OSError(f"image: it is damaged: {why}\n  Repair it, or drop its record by max_bad.")


def to_tensor(image: Image.Image, size: Size, dtype: ImageDtype = "uint8") -> Any:
    """Convert an image to a tensor (3, height, width), RGB: uint8, or float32 in [0, 1].

    The whole image is resized to this, bicubic with antialiasing; its proportions are not kept. Crop before where
    they matter. Transparent parts become white. EXIF is not looked at: what is stored is what is trained.

    Args:
        image: Any mode; a JPEG that is not decoded yet is decoded at a reduced scale where that is enough.
        size: Height and width: one number for both, or a pair.
        dtype: Of the tensor.

    Raises:
        OSError: The image is damaged. Pillow notices truncation, but not every changed byte.
        ValueError: Its values have more than 16 bits.
    """
    # Before anything else asks for pixels: only a JPEG that is not decoded yet can be decoded at a smaller scale.
    height, width = checked_size("image", "size", size)
    image.draft(None, (width * _OVERSAMPLING, height * _OVERSAMPLING))
    return _resized(np.array(_as_rgb(load_pixels(image))), (height, width), dtype)


def to_tensor_by_pillow(data: bytes, size: Size, dtype: ImageDtype, max_pixels: int = MAX_PIXELS) -> Any:
    """Decode image bytes with Pillow into a tensor; see `to_tensor`."""
    return to_tensor(decode_image(data, max_pixels), size, dtype)


def jpeg_to_tensor(data: bytes, size: Size, dtype: ImageDtype = "uint8", max_pixels: int = MAX_PIXELS) -> Any:
    """Decode image bytes into a tensor: JPEGs with simplejpeg (except CMYK), the rest with Pillow; see `to_tensor`.

    The choice of decoder depends only on the bytes, never on what is installed.

    Raises:
        ValueError: The image has more than `max_pixels` pixels.
        PIL.UnidentifiedImageError: It is not a valid image, or of a format not in `FORMATS`.
        OSError: The image is damaged.
    """
    from simplejpeg import decode_jpeg, decode_jpeg_header

    if not data.startswith(_JPEG_START):
        return to_tensor_by_pillow(data, size, dtype, max_pixels)
    wanted = checked_size("image", "size", size)
    least = {"min_height": wanted[0] * _OVERSAMPLING, "min_width": wanted[1] * _OVERSAMPLING}
    try:
        height, width, color, _ = decode_jpeg_header(data)
        is_of_turbo = color in _TURBO_COLORS and width * height <= max_pixels  # Pillow refuses what is too large
        pixels = decode_jpeg(data, **least) if is_of_turbo else None
    except ValueError as error:
        raise _damaged(str(error)) from error
    if pixels is None:
        return to_tensor_by_pillow(data, size, dtype, max_pixels)
    return _resized(pixels, wanted, dtype)


def _resized(pixels: npt.NDArray[np.uint8], size: tuple[int, int], dtype: ImageDtype) -> Any:
    """From (height, width, 3) to (3, height, width) of this size."""
    import torch

    # On bytes, torch computes in integers, since 2.9 the same on all processors, in a fraction of Pillow's time. Both
    # round between the two passes, in another order: photographs differ by 1/255 in less than one value of a hundred.
    if pixels.shape[:2] == size:  # of which torch would make the same, in twice the time
        resized = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
    else:
        batch = torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0)
        resized = torch.nn.functional.interpolate(batch, size=size, mode="bicubic", antialias=True)[0].contiguous()
    if dtype == "uint8":
        return resized
    # Divided in numpy: 255 / 255 is exactly 1.
    return torch.from_numpy(np.divide(resized.numpy(), np.float32(255), dtype=np.float32))


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith(("I", "F")):
        # 16 bits per pixel, which Pillow's own conversion would clip at 255.
        deep: npt.NDArray[Any] = np.asarray(image)
        # Of 32 bits a small one may be of 8 bits or a dark one of 16.
        is_deep = image.mode != "F" and deep.min() >= 0 and deep.max() < 1 << 16
        if not is_deep or (image.mode == "I" and deep.max() < 1 << 8):
            got = f"mode {image.mode}, {deep.min()} to {deep.max()}"
            raise ValueError(f"image: expected values of 8 or 16 bits, got {got}\n  Scale them, and write it again.")
        return Image.fromarray((deep // 257).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        opaque = image.convert("RGBA")
        white = Image.new("RGBA", opaque.size, "white")
        return Image.alpha_composite(white, opaque).convert("RGB")
    # Pillow's conversion would copy what is RGB already: a twentieth of the time that a photograph takes.
    return image if image.mode == "RGB" else image.convert("RGB")


def checked_size(who: str, name: str, size: Any) -> tuple[int, int]:
    """Check an image size; return height and width.

    Raises:
        ValueError: The size is neither a positive whole number nor a pair of them.
    """
    sides = list(size) if isinstance(size, Sequence) and not isinstance(size, str) else [size, size]
    is_whole = all(isinstance(side, Integral) and not isinstance(side, bool) for side in sides)
    if len(sides) != 2 or not is_whole or min(sides) < 1:  # noqa: PLR2004  (height and width)
        raise ValueError(
            f"{who}: {name} is {shown(size)}, expected at least 1\n"
            "  Set it to a positive number, or to a pair of them: height and width."
        )
    return int(sides[0]), int(sides[1])


def one_of(who: str, name: str, value: Any, allowed: tuple[str, ...]) -> Any:
    """Return `value` if it is allowed, else raise.

    Raises:
        ValueError: The value is not allowed.
    """
    if value not in allowed:
        raise ValueError(
            f"{who}: {name} is {shown(value)}, expected one of {list(allowed)}\n  Leave it out for {shown(allowed[0])}."
        )
    return value


Resize = Literal["squash", "crop", "fit"]
_WHO = "DecodeImages"


class DecodeImages:
    """Turns the images in some fields of a record into tensors of shape (3, height, width), RGB; other fields stay.

    An image is given as the bytes of an image file (a tar's `jpg`), as a dict with these under `bytes` (parquet), or as
    a PIL image.

    Args:
        fields: The name of the field, or several names.
        size: Height and width: one number for both, or a pair.
        resize: `squash` scales the whole image to the size, whatever its proportions; `crop` scales it so that it
            covers the size, and cuts out the middle; `fit` scales it into the size, and does not pad, so that one side
            may be shorter.
        dtype: `uint8`, or `float32` with values in [0, 1].

    Raises:
        ValueError: No field is named, a size is not positive, or `resize` or `dtype` has another value.
    """

    def __init__(
        self, fields: str | Sequence[str], size: Size, resize: Resize = "squash", dtype: ImageDtype = "uint8"
    ) -> None:
        self.fields = [fields] if isinstance(fields, str) or not isinstance(fields, Sequence) else list(fields)
        if not self.fields or not all(isinstance(field, str) for field in self.fields):
            raise ValueError(
                f"{_WHO}: expected fields to be names of fields, got {shown(fields)}\n  Name one or several."
            )
        self.size = checked_size(_WHO, "size", size)
        self.resize: Resize = one_of(_WHO, "resize", resize, get_args(Resize))
        self.dtype: ImageDtype = one_of(_WHO, "dtype", dtype, get_args(ImageDtype))

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return the record with its images as tensors.

        Raises:
            ValueError: A field is not there or holds no image, or the image is too large.
            PIL.UnidentifiedImageError: It is not a valid image, or of another format than JPEG, PNG and WebP.
            OSError: It is damaged.
        """
        return {**record, **{field: self._tensor(record, field) for field in self.fields}}

    def _tensor(self, record: dict[str, Any], field: str) -> Any:
        if field not in record:
            names = listing(name for name in record if not is_reserved(name))
            raise ValueError(
                f"{_WHO}: expected an image in field {shown(field)}, the record has: {names}\n"
                "  Name one of these in fields."
            )
        value = record[field]
        # Not by its path: data that name files of this machine would have them read.
        data = value.get("bytes") if isinstance(value, Mapping) else value
        if not isinstance(data, bytes | Image.Image):
            raise ValueError(
                f"{_WHO}: field {shown(field)}: expected the bytes of an image file, a dict with these as its 'bytes', "
                f"or a PIL image, got {type(value).__name__}{' without bytes' if isinstance(value, Mapping) else ''}\n"
                "  Write the images into the records, or open them in a function before this one."
            )
        image = decode_image(data) if isinstance(data, bytes) else data
        if self.resize == "squash":
            return to_tensor(image, self.size, self.dtype)
        height, width = self.size
        ratios = height / image.height, width / image.width
        # One ratio for both sides keeps the proportions; which one decides what is cut off, or missing.
        ratio = max(ratios) if self.resize == "crop" else min(ratios)
        scaled = max(1, round(image.height * ratio)), max(1, round(image.width * ratio))
        pixels = to_tensor(image, scaled, self.dtype)
        if self.resize == "fit":
            return pixels
        # Where an odd number of pixels is left over, one more of them is cut off at the bottom and on the right.
        top, left = (scaled[0] - height) // 2, (scaled[1] - width) // 2
        return pixels[:, top : top + height, left : left + width].contiguous()
