"""What a sample holds, small and comparable: a digest for each field."""

import pickle
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from PIL import Image

from streamdata.delivery.collate import memory_of
from streamdata.fields import CURSOR, STATES


def fingerprint(sample: Mapping[str, Any]) -> dict[str, str]:
    """Digest each field of a sample by type and content, tensors, arrays and images too.

    The private fields with the stream's state are left out: they describe the run, not the sample.
    """
    return {name: _digest(value).hex() for name, value in sample.items() if name not in (CURSOR, STATES)}


def _digest(value: Any) -> bytes:
    hasher = blake2b(digest_size=12)
    for part in _parts(value):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


def _parts(value: Any) -> Iterator[bytes]:
    """Yield the name of the type, and what makes two values of it equal."""
    yield type(value).__qualname__.encode()
    if isinstance(value, bool | int | float | complex | str | None):
        yield repr(value).encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes | bytearray):
        yield bytes(value)
    elif isinstance(value, Mapping):
        yield from sorted(_digest(key) + _digest(part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from map(_digest, value)
    elif isinstance(value, set | frozenset):
        yield from sorted(map(_digest, value))
    elif isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_quantized:
        yield repr((value.dtype, tuple(value.shape))).encode()
        yield memory_of(value.cpu()).numpy().tobytes()
    elif isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        yield repr((value.dtype.str, value.shape)).encode()
        yield value.tobytes()
    elif isinstance(value, Image.Image):
        yield repr((value.mode, value.size)).encode()
        yield value.tobytes()
    else:
        yield _pickled(value)


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value, protocol=5)
    except Exception:  # a user's class may raise anything; such a value cannot reach a trainer, its type alone counts
        return b""
