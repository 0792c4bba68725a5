"""The header of numpy's `.npy`: `path → dtype, shape, where the values begin`, which are then read as others are.

Format: numpy's `numpy.lib.format`, versions 1.0 to 3.0. The header is a dict as Python writes it; of what Python could
write only what numpy does is read, since evaluating it would take a parser that a damaged file can crash.
"""

import re
from math import prod
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np

from streamdata.errors import StoreError, place_of_io, shown
from streamdata.recipe.regular_files import open_regular
from streamdata.stores.bounds import StoredArray
from streamdata.stores.dtypes import stored_dtype

_MAGIC: Final = b"\x93NUMPY"
_SIZE_BYTES: Final = {b"\1\0": 2, b"\2\0": 4, b"\3\0": 4}
"""By version, of the number that says how long the header is."""
_MAX_HEADER: Final = 10_000
_ITEM: Final = re.compile(
    r"""\s*'(\w+)'\s*:\s*  # a name, then a text, a truth value or a tuple of integers (as Python 2 writes them, too)
    (?:'([^'\\]*)'|(True|False)|\(\s*((?:\d{1,19}L?\s*,\s*)*(?:\d{1,19}L?)?)\s*\))\s*,?""",
    re.VERBOSE | re.ASCII,
)
_NUMBER: Final = re.compile(r"\d+", re.ASCII)


class NpyHeader(NamedTuple):
    """What a `.npy` says of its array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int  # the byte at which the values begin

    def stored(self, file: str) -> StoredArray:
        """The values of the file as one run."""
        return StoredArray(file, self.dtype, prod(self.shape), self.offset)


def read_npy_header(file: str) -> NpyHeader | None:
    """The header of a file; None where it does not begin with numpy's magic.

    Raises:
        FileNotFoundError: There is no such file.
        StoreError: The header is damaged, or its dtype is not one that a store can hold.
    """
    with open_regular(file, StoreError) as opened, place_of_io(file):
        if opened.read(len(_MAGIC)) != _MAGIC:
            return None
        text = _text(opened)
        found = _items(text)
        descr, shape = found.get("descr", ("", "", ""))[0], found.get("shape", ("", "", ""))[2]
        if found.keys() != {"descr", "fortran_order", "shape"} or not descr or not found["fortran_order"][1]:
            raise StoreError(f"file '{file}': expected numpy's header, got {shown(text)}\n  Copy it again.")
        sizes = tuple(map(int, _NUMBER.findall(shape)))
        return NpyHeader(stored_dtype(descr, f"file '{file}'"), sizes, opened.tell())


def _text(opened: BinaryIO) -> str:
    """The header's text; nothing where its version is unknown, or it does not have the length that it should."""
    size_bytes = _SIZE_BYTES.get(opened.read(2), 0)
    size = int.from_bytes(opened.read(size_bytes), "little")
    text = opened.read(size) if size <= _MAX_HEADER else b""
    return text.decode("utf-8", "replace") if len(text) == size else ""


def _items(text: str) -> dict[str, tuple[str, str, str]]:
    """The items of a dict: of each its text, truth value or tuple; nothing where it is another text."""
    body = text.strip()
    if not (body.startswith("{") and body.endswith("}")):
        return {}
    found, at = {}, 1
    while match := _ITEM.match(body, at):
        name, *values = match.groups(default="")
        found[name] = (values[0], values[1], values[2])
        at = match.end()
    return found if body[at:].strip() == "}" else {}
