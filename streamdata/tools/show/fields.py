"""The fields of a sample or a record → what there is to show of each, by what it holds and by its name.

Images are encoded anew from their pixels, so nothing but pixels of a stranger's file goes on.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from PIL import Image

from streamdata.errors import text_of
from streamdata.fields import is_reserved
from streamdata.sources.functions.images import decode_image, load_pixels
from streamdata.tools.show.model import (
    Limits,
    ShownField,
    ShownImage,
    ShownSegment,
    both_ends,
    short_name,
    short_text,
    shown_field,
)
from streamdata.tools.show.tokens import TokenTexts, is_tokens, target_summary, tokens_of

_STARTS: Final = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF")
"""First bytes of image files that are read for training."""
_LEAST_SIDE: Final = 4
"""Pixels; an array of fewer is numbers."""
_CHANNELS: Final = (1, 3, 4)
_ROLES: Final = ("role", "from")


class FieldRenderer:
    """Shows fields.

    Args:
        limits: How much of each.
        texts: What decodes tokens; None where nobody knows.
    """

    def __init__(self, limits: Limits, texts: TokenTexts | None = None) -> None:
        self._limits, self._texts = limits, texts

    def of(self, fields: Mapping[str, Any]) -> tuple[ShownField, ...]:
        """Each field, without those that streamdata adds."""
        named = [(str(name), value) for name, value in fields.items() if not is_reserved(name)]
        return tuple(shown for name, value in named for shown in self._shown(fields, name, value))

    def _shown(self, fields: Mapping[str, Any], name: str, value: Any) -> Iterator[ShownField]:
        sequence = tokens_of(fields, name)
        if summary := target_summary(fields, name):
            yield shown_field(name, "numbers", value, summary=summary)
        elif sequence is not None:
            yield sequence.field(name, value, self._texts, self._limits.tokens)
        elif _is_sequences(value) and (is_tokens(name) or isinstance(value, list)):
            yield from self._sequences(fields, name, value)
        elif isinstance(value, Mapping) and any(
            _is_image(one) or _is_array(one)
            for part in value.values()
            for one in (part[:1] if isinstance(part, list | tuple) else [part])
        ):
            for key, part in value.items():  # `multi_modal_data: {image: …}`
                yield from self._shown({}, f"{name}.{key}", part)
        else:
            yield self._single(name, value)

    def _sequences(self, fields: Mapping[str, Any], name: str, value: Any) -> Iterator[ShownField]:
        """Several sequences, of tokens each with its part of the masks: responses to a prompt."""
        beside = {
            key: other
            for key, other in fields.items()
            if (isinstance(other, list) or (_is_array(other) and len(other.shape))) and len(other) == len(value)
        }
        first, num_cut, last = both_ends(range(len(value)), self._limits.items)
        for number in (*first, *last):
            sequence = tokens_of({key: other[number] for key, other in beside.items()}, name)
            part = f"{name}[{number}]"
            if sequence is None:
                yield self._single(part, value[number])
            else:
                yield sequence.field(part, value[number], self._texts, self._limits.tokens)
        if num_cut:
            yield shown_field(f"{name}[{len(first)}]", "numbers", value, summary=f"and {num_cut - 1:,} more left out")

    def _single(self, name: str, value: Any) -> ShownField:
        image = _shown_image(value)
        if image is not None:
            return shown_field(name, "image", value, images=(image,), summary=image.alt)
        if isinstance(value, bytes | bytearray):
            try:
                return self._text(name, "text", value, bytes(value).decode())
            except UnicodeDecodeError:
                return shown_field(name, "numbers", value, text=f"{len(value):,} bytes")
        if _is_array(value):
            return self._array(name, value)
        return self._plain(name, value)

    def _plain(self, name: str, value: Any) -> ShownField:
        if isinstance(value, int | float | None):
            return shown_field(name, "numbers", value, text=str(value))
        if isinstance(value, list | tuple) and value:
            if isinstance(value[0], Mapping) and any(key in value[0] for key in _ROLES):
                return self._chat(name, value)
            if all(map(_is_image, value)):
                return self._frames(name, value, value)
        is_text = isinstance(value, str)
        return self._text(name, "text" if is_text else "json", value, value if is_text else _json(value))

    def _text(self, name: str, kind: str, value: Any, text: str) -> ShownField:
        shown, counts = short_text(text, self._limits.chars)
        return shown_field(name, kind, value, text=shown, counts=counts)

    def _array(self, name: str, value: Any) -> ShownField:
        try:
            array = np.asarray(value)
        except (TypeError, RuntimeError, ValueError):  # bfloat16, sparse, or on a device: numpy has no such array
            try:
                array = np.asarray(value.detach().cpu().to_dense().float())
            except Exception:  # a stranger's class; its shape and dtype are shown all the same
                return shown_field(name, "numbers", value)
        if array.dtype.kind not in "biuf":
            return self._text(name, "text", value, repr(array.tolist()))
        if array.ndim == 4 and array.size and _may_be_pixels(array[0]):  # noqa: PLR2004  (frames, …)
            return self._frames(name, value, array)
        flat = array.reshape(-1)
        first, cut, last = both_ends(flat.tolist(), self._limits.numbers)
        word = "{:.4g}".format if array.dtype.kind == "f" else lambda number: str(int(number))
        words = [*map(word, first), *(["…"] if cut else []), *map(word, last)]
        return shown_field(name, "numbers", value, text=" ".join(words), summary=_summary(flat))

    def _frames(self, name: str, value: Any, images: Any) -> ShownField:
        """From the first to the last image, at even distances."""
        count = min(len(images), self._limits.frames)
        chosen = [images[number * (len(images) - 1) // max(1, count - 1)] for number in range(count)]
        shown = tuple(image for image in map(_shown_image, chosen) if image is not None)
        more = {"summary": f"{len(images):,} images", "counts": {"num_frames": len(images)}}
        return shown_field(name, "frames", value, images=shown, **more)

    def _chat(self, name: str, messages: Sequence[Any]) -> ShownField:
        first, cut, last = both_ends(messages, self._limits.items)
        gap = [ShownSegment(more=f"… {cut:,} more messages …")] if cut else []
        segments = [*map(self._message, first), *gap, *map(self._message, last)]
        return shown_field(name, "chat", messages, segments=tuple(segments), counts={"num_messages": len(messages)})

    def _message(self, message: Any) -> ShownSegment:
        said = dict(message) if isinstance(message, Mapping) else {"content": message}
        role = next((str(said[key]) for key in _ROLES if said.get(key) is not None), "")
        content = said.get("content", said.get("value"))
        images: list[ShownImage | None] = []
        if isinstance(content, list):
            parts = [part for part in content if isinstance(part, Mapping)]
            images = [_shown_image(part.get("image")) for part in parts][: self._limits.frames]
            content = "\n".join(str(part.get("text", f"<{part.get('type', '?')}>")) for part in parts)
        others = {key: value for key, value in said.items() if value and key not in (*_ROLES, "content", "value")}
        text = "" if content is None else content if isinstance(content, str) else _json(content)
        return ShownSegment(
            role=short_name(role),
            text=short_text(text, self._limits.chars)[0],
            images=tuple(image for image in images if image is not None),
            more=short_text(_json(others), self._limits.chars)[0] if others else "",
        )


def _summary(flat: "np.ndarray[Any, Any]") -> str:
    if len(flat) <= 1:
        return ""
    if flat.dtype.kind == "b":
        return f"{int(np.count_nonzero(flat)):,} of {len(flat):,} true"
    if flat.dtype.kind == "f":
        return f"{flat.min():.4g} to {flat.max():.4g}, mean {flat.mean(dtype=np.float64):.4g}"
    return f"{int(flat.min()):,} to {int(flat.max()):,}"


def _may_be_pixels(value: Any) -> bool:
    """By its shape and type alone: tensors need not be copied for the answer."""
    shape = tuple(value.shape)
    kind = str(value.dtype).removeprefix("torch.")
    if len(shape) == 2:  # noqa: PLR2004
        return kind == "uint8" and min(shape) >= 4 * _LEAST_SIDE
    is_colours = len(shape) == 3 and (shape[0] in _CHANNELS or shape[2] in _CHANNELS)  # noqa: PLR2004
    sides = sorted(shape)[-2:]
    return is_colours and min(sides) >= _LEAST_SIDE and (kind == "uint8" or kind.startswith("float"))


def _is_image(value: Any) -> bool:
    if isinstance(value, bytes | bytearray):
        return bytes(value[:8]).startswith(_STARTS)
    return isinstance(value, Image.Image) or (_is_array(value) and _may_be_pixels(value))


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _is_sequences(value: Any) -> bool:
    if _is_array(value):
        return len(value.shape) == 2 and str(value.dtype).removeprefix("torch.")[:3] in ("int", "uin")  # noqa: PLR2004
    is_list = isinstance(value, list) and bool(value)
    return is_list and all(hasattr(part, "shape") and not _is_image(part) for part in value)


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, default=_in_words)


def _in_words(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): part for key, part in value.items()}
    if isinstance(value, bytes | bytearray):
        return f"<{len(value):,} bytes>"
    if hasattr(value, "shape"):
        return f"<{type(value).__name__} {tuple(value.shape)}>"
    return value.tolist() if hasattr(value, "tolist") else f"<{type(value).__name__}>"


MAX_SIDE: Final = 320
"""Pixels, of the longer side."""


def _shown_image(value: Any) -> ShownImage | None:
    """The image that a value is, be it a damaged one; None where it is something else."""
    if not _is_image(value):
        return None
    size: dict[str, Any] = {}
    try:
        if _is_array(value):
            image, width, height = _image_of_array(np.asarray(value))
        else:
            image = decode_image(bytes(value)) if isinstance(value, bytes | bytearray) else value
            width, height = image.size
        size = {"width": width, "height": height, "mode": image.mode}
        image.draft("RGB", (2 * MAX_SIDE, 2 * MAX_SIDE))  # of a JPEG that is not decoded yet: an eighth of the time
        load_pixels(image)
        if image.mode.startswith(("I", "F")):
            image, *_ = _image_of_array(np.asarray(image, dtype=np.float32))
        small = image.convert("RGBA" if image.has_transparency_data else "RGB")
        small.thumbnail((MAX_SIDE, MAX_SIDE))
        return ShownImage(**size, image=small)
    except (OSError, ValueError) as error:
        problem = f"{'damaged image' if size else 'not shown'}: {text_of(error)}"
        return ShownImage(**size, problem=problem.partition("\n")[0])


def _image_of_array(array: "np.ndarray[Any, Any]") -> tuple[Image.Image, int, int]:
    """The image of an array of shape (h, w), (h, w, c) or (c, h, w), of uint8 or floats; and its width and height.

    Floats of [0, 1] are taken as they are; those of any other range from their least to their most.
    """
    if array.ndim == 3 and array.shape[0] in _CHANNELS and array.shape[2] not in _CHANNELS:  # noqa: PLR2004
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:  # noqa: PLR2004
        array = array[:, :, 0]
    height, width = array.shape[:2]
    # Every n-th pixel before all arithmetic: of a photograph 30 times as many as are shown would be converted.
    step = max(1, max(height, width) // (2 * MAX_SIDE))
    array = array[::step, ::step]
    if array.dtype != np.uint8:
        array = np.nan_to_num(array.astype(np.float32))
        least, most = float(array.min()), float(array.max())
        if least < 0 or most > 1:
            array = (array - least) / max(most - least, 1e-9)
        array = (array * 255).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(array)), width, height
