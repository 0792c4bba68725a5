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
from streamdata.tools.show.views.model import (
    ChatView,
    FieldView,
    FramesView,
    ImageView,
    Limits,
    MessageView,
    NumbersView,
    TextView,
    Value,
    short_name,
)
from streamdata.tools.show.views.token_fields import is_tokens, target_summary, tokens_of
from streamdata.tools.show.views.token_sequence import TokenSequence, TokenTexts

_STARTS: Final = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF")
"""First bytes of image files that are read for training."""
_LEAST_SIDE: Final = 4
"""Pixels; an array of fewer is numbers."""
_ENDS: Final = 6
"""How many of the first and of the last numbers are shown."""
_CHANNELS: Final = (1, 3, 4)
_ROLES: Final = ("role", "from")


class FieldsView:
    """Makes views of fields.

    Args:
        limits: How much of each.
        texts: What decodes tokens; None where nobody knows.
    """

    def __init__(self, limits: Limits, texts: TokenTexts | None = None) -> None:
        self._limits, self._texts = limits, texts

    def of(self, fields: Mapping[str, Any], known: Mapping[str, TokenSequence] | None = None) -> tuple[FieldView, ...]:
        """A view of each field, without those that streamdata adds.

        Args:
            fields: By name.
            known: Sequences of which more is known than the fields say, by name.
        """
        return tuple(
            view
            for name, value in fields.items()
            if not is_reserved(name)
            for view in self._views(fields, str(name), value, known or {})
        )

    def _views(
        self, fields: Mapping[str, Any], name: str, value: Any, known: Mapping[str, TokenSequence]
    ) -> Iterator[FieldView]:
        sequence = known.get(name) or tokens_of(fields, name)
        if summary := target_summary(fields, name):
            yield _field(name, "numbers", value, NumbersView(text="", summary=summary))
        elif sequence is not None:
            yield _field(name, "tokens", value, sequence.view(self._texts, self._limits.tokens))
        elif is_tokens(name) and _is_sequences(value):
            yield from self._sequences(fields, name, value)
        elif isinstance(value, Mapping) and any(_is_large(part) for part in value.values()):
            for key, part in value.items():  # `multi_modal_data: {image: …}`
                yield from self._views({}, f"{name}.{key}", part, {})
        else:
            yield self._single(name, value)

    def _sequences(self, fields: Mapping[str, Any], name: str, value: Any) -> Iterator[FieldView]:
        """Several sequences of tokens, each with its part of the masks: responses to a prompt."""
        for number, part in enumerate(value[: self._limits.items]):
            row = {
                key: other[number]
                for key, other in fields.items()
                if not isinstance(other, str) and hasattr(other, "__getitem__") and _length(other) == len(value)
            }
            sequence = tokens_of({**row, name: part}, name)
            if sequence is not None:
                view = sequence.view(self._texts, self._limits.tokens)
                yield _field(f"{name}[{number}]", "tokens", part, view)

    def _single(self, name: str, value: Any) -> FieldView:
        image = self._image(value)
        if image is not None:
            return _field(name, "image", value, image)
        if isinstance(value, str):
            return _field(name, "text", value, self._text(value))
        if isinstance(value, bytes | bytearray):
            return self._bytes(name, bytes(value))
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            return self._array(name, value)
        if isinstance(value, bool | int | float) or value is None:
            return _field(name, "numbers", value, NumbersView(text=str(value)))
        return self._collection(name, value)

    def _collection(self, name: str, value: Any) -> FieldView:
        if isinstance(value, list | tuple) and value:
            if _is_chat(value):
                return _field(name, "chat", value, self._chat(value))
            if all(_is_image(part) for part in value):
                return _field(name, "frames", value, self._frames(value))
        return _field(name, "json", value, self._text(_json(value)))

    def _text(self, text: str) -> TextView:
        limit = self._limits.chars
        return TextView(text=text[:limit], num_cut=max(0, len(text) - limit))

    def _bytes(self, name: str, value: bytes) -> FieldView:
        try:
            return _field(name, "text", value, self._text(value.decode()))
        except UnicodeDecodeError:
            return _field(name, "numbers", value, NumbersView(text=f"{len(value):,} bytes"))

    def _array(self, name: str, value: Any) -> FieldView:
        if getattr(value, "layout", None) is not None and not hasattr(value, "__array__"):
            return _field(name, "numbers", value, NumbersView(text=""))
        try:
            array = np.asarray(value)
        except (TypeError, RuntimeError, ValueError):  # bfloat16, sparse, or on a device: numpy has no such array
            array = _as_floats(value)
        if array is None or array.dtype.kind not in "biuf":
            text = "" if array is None else repr(array.tolist())
            return _field(name, "text", value, self._text(text))
        if array.ndim == 4 and _is_pixels(array[:1]):  # noqa: PLR2004  (frames, …)
            return _field(name, "frames", value, self._frames(list(array)))
        return _field(name, "numbers", value, _numbers(array))

    def _image(self, value: Any) -> ImageView | None:
        if isinstance(value, Image.Image):
            return _image(value)
        if isinstance(value, bytes | bytearray) and bytes(value[:8]).startswith(_STARTS):
            try:
                return _image(decode_image(bytes(value)))
            except (OSError, ValueError) as error:
                problem = f"not shown: {text_of(error)}".partition("\n")[0]
                return ImageView(width=0, height=0, mode="", image=None, problem=problem)
        if hasattr(value, "shape") and hasattr(value, "dtype") and _may_be_pixels(value):
            array = np.asarray(value)
            return _image_of_array(array) if _is_pixels(array[None]) else None
        return None

    def _frames(self, images: Sequence[Any]) -> FramesView:
        shown = [self._image(image) for image in _spread(images, self._limits.frames)]
        return FramesView(frames=tuple(image for image in shown if image is not None), num_frames=len(images))

    def _chat(self, messages: Sequence[Mapping[str, Any]]) -> ChatView:
        shown = [self._message(message) for message in messages[: self._limits.items] if isinstance(message, Mapping)]
        return ChatView(messages=tuple(shown), num_messages=len(messages))

    def _message(self, message: Mapping[str, Any]) -> MessageView:
        role = next((str(message[key]) for key in _ROLES if message.get(key) is not None), "")
        content = message.get("content", message.get("value"))
        images: tuple[ImageView, ...] = ()
        if isinstance(content, list):
            parts = [part for part in content if isinstance(part, Mapping)]
            held = [part[kind] for part in parts for kind in ("image",) if _is_image(part.get(kind))]
            images = self._frames(held).frames if held else ()
            content = "\n".join(str(part.get("text", f"<{part.get('type', '?')}>")) for part in parts)
        more = {
            key: value for key, value in message.items() if key not in ("role", "from", "content", "value") and value
        }
        return MessageView(
            role=short_name(role),
            text=self._text("" if content is None else content if isinstance(content, str) else _json(content)),
            images=images,
            more=self._text(_json(more)).text if more else "",
        )


def _field(name: str, kind: str, value: Any, view: Value) -> FieldView:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    has_shape = shape is not None and dtype is not None
    return FieldView(
        name=short_name(name),
        kind=kind,
        type=type(value).__name__,
        value=view,
        shape=tuple(map(int, shape or ())) if has_shape else None,
        dtype=str(dtype).removeprefix("torch.") if has_shape else "",
    )


def _image(image: Image.Image) -> ImageView:
    width, height, mode = image.width, image.height, image.mode
    try:
        return ImageView(width=width, height=height, mode=mode, image=shrunk(image))
    except (OSError, ValueError) as error:
        return ImageView(width=width, height=height, mode=mode, image=None, problem=f"damaged image: {error}")


def _numbers(array: "np.ndarray[Any, Any]") -> NumbersView:
    flat = array.reshape(-1)
    shown = flat if len(flat) <= 2 * _ENDS else np.concatenate([flat[:_ENDS], flat[-_ENDS:]])
    words = [f"{number:.4g}" if array.dtype.kind == "f" else str(int(number)) for number in shown]
    if len(flat) > 2 * _ENDS:
        words.insert(_ENDS, "…")
    return NumbersView(text=" ".join(words), summary=_summary(flat))


def _summary(flat: "np.ndarray[Any, Any]") -> str:
    if len(flat) <= 1:
        return ""
    if flat.dtype.kind == "b":
        return f"{int(np.count_nonzero(flat)):,} of {len(flat):,} true"
    if flat.dtype.kind == "f":
        return f"{flat.min():.4g} to {flat.max():.4g}, mean {flat.mean(dtype=np.float64):.4g}"
    return f"{int(flat.min()):,} to {int(flat.max()):,}"


def _as_floats(value: Any) -> Any:
    try:
        return np.asarray(value.detach().cpu().to_dense().float())
    except Exception:  # a stranger's class; its shape and dtype are shown all the same
        return None


def _may_be_pixels(value: Any) -> bool:
    """By its shape and type alone: tensors need not be copied for the answer."""
    shape = tuple(value.shape)
    kind = str(value.dtype).removeprefix("torch.")
    if len(shape) == 2:  # noqa: PLR2004
        return kind == "uint8" and min(shape) >= 4 * _LEAST_SIDE
    is_colours = len(shape) == 3 and (shape[0] in _CHANNELS or shape[2] in _CHANNELS)  # noqa: PLR2004
    sides = sorted(shape)[-2:]
    return is_colours and min(sides) >= _LEAST_SIDE and (kind == "uint8" or kind.startswith("float"))


def _is_pixels(frames: "np.ndarray[Any, Any]") -> bool:
    return frames.size > 0 and _may_be_pixels(frames[0])


def _is_image(value: Any) -> bool:
    if isinstance(value, bytes | bytearray):
        return bytes(value[:8]).startswith(_STARTS)
    is_array = hasattr(value, "shape") and hasattr(value, "dtype")
    return isinstance(value, Image.Image) or (is_array and _may_be_pixels(value))


def _is_large(value: Any) -> bool:
    """Whether it is better shown as a field of its own than as JSON."""
    is_images = isinstance(value, list | tuple) and bool(value) and all(map(_is_image, value))
    return _is_image(value) or is_images or (hasattr(value, "shape") and hasattr(value, "dtype"))


def _is_chat(value: Sequence[Any]) -> bool:
    return isinstance(value[0], Mapping) and any(key in value[0] for key in _ROLES)


def _is_sequences(value: Any) -> bool:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return len(value.shape) == 2 and str(value.dtype).removeprefix("torch.")[:3] in ("int", "uin")  # noqa: PLR2004
    return isinstance(value, list) and bool(value) and all(hasattr(part, "shape") for part in value)


def _length(value: Any) -> int:
    try:
        return len(value)
    except TypeError:  # a tensor of no dimensions has no length
        return -1


def _spread(values: Sequence[Any], most: int) -> list[Any]:
    """At most so many of them, from the first to the last."""
    if len(values) <= most:
        return list(values)
    return [values[number * (len(values) - 1) // (most - 1)] for number in range(most)]


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


def shrunk(image: Image.Image) -> Image.Image:
    """At most `MAX_SIDE` wide and high, in RGB or with an alpha channel.

    Raises:
        OSError: It is damaged.
    """
    image.draft("RGB", (2 * MAX_SIDE, 2 * MAX_SIDE))  # of a JPEG that is not decoded yet: an eighth of the time
    load_pixels(image)
    if image.mode.startswith(("I", "F")):
        image = _stretched(np.asarray(image))
    small = image.convert("RGBA" if image.has_transparency_data else "RGB")
    small.thumbnail((MAX_SIDE, MAX_SIDE))
    return small


def _image_of_array(array: "np.ndarray[Any, Any]") -> ImageView:
    """The view of an array of shape (h, w), (h, w, c) or (c, h, w), of uint8 or floats."""
    if array.ndim == 3 and array.shape[0] in _CHANNELS and array.shape[2] not in _CHANNELS:  # noqa: PLR2004
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:  # noqa: PLR2004
        array = array[:, :, 0]
    height, width = array.shape[:2]
    # Every n-th pixel before all arithmetic: of a photograph 30 times as many as are shown would be converted.
    step = max(1, max(height, width) // (2 * MAX_SIDE))
    array = array[::step, ::step]
    small = shrunk(Image.fromarray(np.ascontiguousarray(array)) if array.dtype == np.uint8 else _stretched(array))
    return ImageView(width=width, height=height, mode=small.mode, image=small)


def _stretched(array: "np.ndarray[Any, Any]") -> Image.Image:
    """Values of [0, 1] as they are; of any other range from its least to its most."""
    values = np.nan_to_num(array.astype(np.float32))
    least, most = float(values.min()), float(values.max())
    if least < 0 or most > 1:
        values = (values - least) / max(most - least, 1e-9)
    return Image.fromarray((values * 255).astype(np.uint8))
