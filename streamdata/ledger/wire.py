"""Prompts as JSON: tensors, arrays and bytes as `{dtype, shape, base64}`. No pickle: what arrives runs nothing."""

import base64
import json
from typing import Any, Final

import numpy as np
import torch

from streamdata.errors import SourceError, shown

_ARRAY: Final = {"dtype", "shape", "base64"}


def to_json(value: object, who: str) -> object:
    """Make a value one that JSON has; tuples become lists.

    Args:
        value: Of dicts, lists, texts, numbers, None, bytes, tensors and arrays.
        who: What it is, for the message.

    Raises:
        SourceError: Something in it is none of these; the message says where.
    """
    match value:
        case str() | int() | float() | None if not isinstance(value, np.generic):
            return value
        case dict() if value.keys() != _ARRAY and all(type(key) is str for key in value):
            return {key: to_json(part, f"{who}, {shown(key)}") for key, part in value.items()}
        case list() | tuple():
            return [to_json(part, who) for part in value]
        case bytes():
            return _packed("bytes", (len(value),), value)
        case torch.Tensor() if value.layout == torch.strided:
            content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)  # NumPy has no bfloat16
            return _packed(str(value.dtype), value.shape, content.numpy().tobytes())
        case np.ndarray() | np.generic() if value.dtype.kind in "biufcSU":
            return _packed(value.dtype.str, value.shape, value.tobytes())
    raise SourceError(
        f"{who}: expected dicts with texts as keys, lists, texts, numbers, None, bytes, tensors or arrays, got "
        f"{shown(value)}\n  Prompts are sent as JSON: let a process function make these of it."
    )


def from_json(content: bytes) -> Any:
    """Read the JSON of what `to_json` made.

    Raises:
        ValueError: It is something else.
    """
    try:
        return json.loads(content, object_hook=_unpacked)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"expected JSON, got {shown(content)} ({error})") from error


def _packed(dtype: str, shape: tuple[int, ...], content: bytes) -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "base64": base64.b64encode(content).decode()}


def _unpacked(value: dict[str, Any]) -> Any:
    if value.keys() != _ARRAY:
        return value
    dtype, shape, content = value["dtype"], value["shape"], bytearray(base64.b64decode(value["base64"]))
    if dtype == "bytes":
        return bytes(content)
    if not dtype.startswith("torch."):
        return np.frombuffer(content, dtype).reshape(shape)[()]  # of shape () a number
    flat = torch.from_numpy(np.frombuffer(content, np.uint8))
    return flat.view(getattr(torch, dtype.removeprefix("torch."))).reshape(shape)
