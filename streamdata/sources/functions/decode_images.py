"""Images of records as tensors, by a function per record."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from PIL import Image

from streamdata.errors import listing, shown
from streamdata.fields import is_reserved
from streamdata.sources.functions.process_image import (
    ImageDtype,
    Size,
    checked_size,
    decode_image,
    one_of,
    scaled_to_tensor,
)

Resize = Literal["squash", "crop", "fit"]
_WHO = "DecodeImages"


class DecodeImages:
    """Turns the images in some fields of a record into tensors of shape (3, height, width), RGB; other fields stay.

    An image is what an image file holds (bytes), as a tar's `jpg` is, a dict with these as its `bytes`, as parquet has
    them, or a PIL image.

    Args:
        fields: The field, or several.
        size: Height and width: one number for both, or a pair.
        resize: `squash` scales the whole image to the size, whatever its proportions; `crop` scales it so that it
            covers the size, and cuts out the middle; `fit` scales it into the size, and does not pad, so that one side
            may be shorter.
        dtype: `uint8`, or `float32` with values in [0, 1].

    Raises:
        ValueError: No field is named, a size is not positive, or there is no such resize or dtype.
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
        return scaled_to_tensor(image, self.size, self.resize, self.dtype)
