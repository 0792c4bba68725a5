"""Image-text pairs as tensors and token ids."""

from collections.abc import Iterable, Iterator
from typing import Any, Final, get_args

from streamdata.errors import names_text, needs, positive
from streamdata.sources.functions.images import (
    IMAGE_FIELDS,
    ImageBackend,
    ImageDtype,
    Size,
    checked_size,
    jpeg_to_tensor,
    one_of,
    to_tensor_by_pillow,
)
from streamdata.text.tokenizer import tokenize
from streamdata.text.truncation import TOKENS_OF_A_SAMPLE

TEXT_FIELDS: Final = ("txt", "caption")


class ImageTextPairProcessFnBuilder:
    """A stream function that turns image-text records into tensors, one sample per record.

    The image is the first of the fields `jpg`, `jpeg`, `png`, `webp`, the text the first of `txt` and `caption` (such
    as a sidecar's, with `meta_names: [caption]`) that the record has. A sample has

    - `img`: uint8, shape (3, height, width), RGB: the whole image, resized;
    - `txt`: token ids, int64, shape (n,), n ≤ max_text_len, with the special tokens of the tokenizer's own format;
    - all other fields of the record.

    Args:
        img_size: Height and width: one number for both, or a pair.
        max_text_len: The most tokens of text; longer texts are cut.
        tokenizer_name: A local directory or a name, as `transformers.AutoTokenizer` takes it; loaded on first use.
        dtype: "uint8" (0 to 255), or "float32" in [0, 1], which takes four times the memory.
        backend: The decoder of JPEGs: "simplejpeg" is faster than "pillow", and its pixels may differ from Pillow's by
            a few 1/255. Other formats (PNG, WebP, CMYK JPEGs) are always decoded by Pillow.

    Raises:
        ValueError: A size is not positive, or `dtype` or `backend` has another value.
        ImportError: simplejpeg is not installed.
    """

    def __init__(
        self,
        img_size: Size,
        max_text_len: int,
        tokenizer_name: str,
        dtype: ImageDtype = "uint8",
        backend: ImageBackend = "pillow",
    ) -> None:
        who = "ImageTextPairProcessFnBuilder"
        self.img_size = img_size
        self._size = checked_size(who, "img_size", img_size)
        self.max_text_len = positive(f"{who}: max_text_len", max_text_len, TOKENS_OF_A_SAMPLE)
        self.tokenizer_name = tokenizer_name
        self.dtype = one_of(who, "dtype", dtype, get_args(ImageDtype))
        self.backend = one_of(who, "backend", backend, get_args(ImageBackend))
        if backend == "simplejpeg":
            with needs("simplejpeg", "jpeg", f"{who}: backend: simplejpeg: it"):
                import simplejpeg  # noqa: F401  # asked for here, not by the first record in a worker

    def __call__(self, records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield a sample per record.

        Raises:
            ValueError: A record has no image or no text, or its image is too large.
            PIL.UnidentifiedImageError: An image is not a valid one, or of a format not in `FORMATS`.
            OSError: An image is damaged.
        """
        return map(self._sample, records)

    def _sample(self, record: dict[str, Any]) -> dict[str, Any]:
        import torch

        fields: list[str] = []
        for what, names in (("an image", IMAGE_FIELDS), ("a text", TEXT_FIELDS)):
            given = [name for name in names if record.get(name) is not None]
            if not given:
                raise ValueError(
                    f"ImageTextPairProcessFnBuilder: expected {what} in one of the fields {list(names)}, the record "
                    f"has {names_text(record)}\n  Rename the field with a single_process_fn, or leave such records out "
                    "there."
                )
            fields.append(given[0])
        image_field, text = fields[0], record[fields[1]]
        text = text.decode() if isinstance(text, bytes) else text
        ids = tokenize(self.tokenizer_name, text, self.max_text_len, with_special_tokens=True)
        load = jpeg_to_tensor if self.backend == "simplejpeg" else to_tensor_by_pillow
        img = load(record[image_field], self._size, self.dtype)
        rest = {name: value for name, value in record.items() if name != image_field}
        return {**rest, "img": img, "txt": torch.from_numpy(ids)}
