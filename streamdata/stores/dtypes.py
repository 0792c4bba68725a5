"""The contents of a store: which keys for each train type, and which numbers.

Out of a store come int64, bool and float tensors; on disk each key has the dtype that it was written with. A value that
this cannot hold is an error, never changed.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.errors import StoreError, shown

Values = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]


class SourceKeys(NamedTuple):
    """The keys of one source of a train type in a store.

    Attributes:
        tokens: The key of its tokens, or of its numbers.
        mask: The key that says which of them are trained; None where all of them are, or none.
        positions: The key of their position ids, which the train type reads where a store has them.
    """

    tokens: str
    mask: str | None = None
    positions: str | None = None


SOURCES: Final[Mapping[str, Mapping[str, SourceKeys]]] = {
    "seq": {"sequence": SourceKeys("sequence")},
    "sft": {"sequence": SourceKeys("sequence", "loss_mask", "position_ids")},
    "dpo": {"chosen": SourceKeys("chosen", "chosen_mask"), "rejected": SourceKeys("rejected", "rejected_mask")},
    "grpo": {
        "prompts": SourceKeys("prompts"),
        "responses": SourceKeys("responses", "masks"),
        "rewards": SourceKeys("rewards"),
    },
}
"""The sources of each train type. What datasets read and what `streamdata prepare` writes follows from it."""

TRAIN_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    name: (
        *(keys.tokens for keys in sources.values()),
        *(keys.mask for keys in sources.values() if keys.mask is not None),
    )
    for name, sources in SOURCES.items()
}
"""The keys that each train type needs: of tokens, then masks."""


def possible_train_types(keys: Sequence[str]) -> list[str]:
    """The train types whose keys are all there."""
    return [name for name, needed in TRAIN_TYPES.items() if set(needed) <= set(keys)]


DTYPES: Final = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float16", "float32", "float64",
)  # fmt: skip
"""Not uint64: its upper half does not fit into the int64 that comes out."""

_TOKEN_DTYPES: Final = {"bin": ("uint16", "uint32"), "h5": ("uint16", "uint32"), "megatron": ("uint16", "int32")}


def token_dtype(largest_id: int, storage_type: str = "bin") -> str:
    """The smallest dtype in which a format keeps the token ids 0 to `largest_id`; Megatron's knows no uint32.

    Raises:
        ValueError: The format is unknown, or no dtype of it is wide enough.
    """
    if storage_type not in _TOKEN_DTYPES:
        raise ValueError(f"token_dtype: expected a format of {sorted(_TOKEN_DTYPES)}, got {shown(storage_type)}")
    for name in _TOKEN_DTYPES[storage_type]:
        if 0 <= largest_id <= np.iinfo(name).max:
            return name
    raise ValueError(
        f"token_dtype: expected a largest id from 0 to {np.iinfo(name).max} for format {shown(storage_type)}, "
        f"got {largest_id}"
    )


_BYTES: Final = re.compile("[<>=|]?a")
"""An old name of numpy's for texts, of which it warns."""


def stored_dtype(name: object, who: str) -> np.dtype[Any]:
    """The little-endian dtype of this name (such as `uint16` or `<u2`).

    Raises:
        StoreError: It is not the name of a dtype that a store can hold, or of a big-endian one.
    """
    try:
        is_old = isinstance(name, str) and _BYTES.match(name)
        dtype = np.dtype(name) if isinstance(name, str | np.dtype | type) and not is_old else None
    except (TypeError, ValueError, SyntaxError):  # numpy parses text such as "u1,u2" as several dtypes
        dtype = None
    if dtype is None or dtype.name not in DTYPES or (isinstance(name, str) and dtype.str[0] == ">"):
        raise StoreError.mismatch(who, f"a dtype of {', '.join(DTYPES)}", shown(name), "Write the store again.")
    return dtype.newbyteorder("<")


def fitted(values: object, dtype: np.dtype[Any], who: str) -> Values:
    """The values as a 1-D array of `dtype`, every one of them kept.

    Raises:
        StoreError: Not 1-D, not of this kind of number, or one of them does not fit into `dtype`.
    """
    array = np.asarray(values)
    if array.ndim != 1:
        raise StoreError.mismatch(who, "a 1-D array", f"shape {array.shape}", "Give one flat array of values.")
    if array.size == 0 or array.dtype == dtype:
        return np.ascontiguousarray(array.astype(dtype, copy=False))
    if array.dtype.kind not in ("biuf" if dtype.kind == "f" else "biu"):
        raise StoreError.mismatch(who, f"values for {dtype.name}", array.dtype, "Give the key another dtype.")
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            floats = array.astype(dtype)
        if np.any(np.isinf(floats) & np.isfinite(array)):
            raise StoreError(f"{who}: a value is too large for {dtype.name}, the largest is {np.abs(array).max()}")
        return floats
    low, high = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    least, most = int(array.min()), int(array.max())
    if least < low or most > high:
        remedy = "Give the key a wider dtype, such as token_dtype of the tokenizer's largest id."
        allowed = f"values from {low} to {high}, as {dtype.name} has them"
        raise StoreError.mismatch(who, allowed, f"{least} to {most}", remedy)
    return array.astype(dtype)
