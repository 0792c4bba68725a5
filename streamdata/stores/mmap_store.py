"""Stores of flat files: `**/shard_NNNN/{meta.json, <key>.bin}`."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from streamdata.errors import StoreError, place_of_io, shown
from streamdata.recipe.regular_files import open_regular
from streamdata.stores.bounds import Even, Offsets, StoredArray
from streamdata.stores.dtypes import Int64s, stored_dtype
from streamdata.stores.files import META, meta_files, store_files, suffixed
from streamdata.stores.meta import decode, parsed
from streamdata.stores.segments import Segment, Shard
from streamdata.stores.store import Store
from streamdata.stores.sums import has_sums

_DIMENSIONS = 3
_MAX_NAME_BYTES = 255


class MmapStore(Store):
    """Reads `<key>.bin`: little-endian values, bool as one byte.

    The `meta.json` beside them says which keys there are, of which dtype and length: that of `streamdata.stores.meta`,
    or an older one, `{key: {shape, dtype[, offsets]}}`. There a 1-D array without offsets is one record (`dpo` and
    `grpo` refuse it), a 2-D array is one packed row or record per row, and offsets (the begin of every record and maybe
    the end of the last) count along the first dimension; a key without them has those of a key of the same length.
    """

    storage_type = "bin"

    def read_shards(self, path: Path) -> list[Shard]:
        root, files = store_files(path)
        metas = meta_files(files)
        directories = {file.removesuffix(META) for file in metas}
        for file in suffixed(files, ".bin"):
            if file[: file.rfind("/") + 1] not in directories:
                raise StoreError(
                    f"file '{root / file}': expected {META} beside it, which comes last, got none\n"
                    "  The shard was not finished: write or copy it again, or remove it."
                )
        return [_shard(root / file) for file in metas]


def _shard(path: Path) -> Shard:
    directory, who = str(path.parent), f"shard '{path.parent}'"
    with place_of_io(path), open_regular(path, StoreError) as file:
        meta = parsed(file.read(), f"file '{path}'")

    def locate(name: str, dtype: np.dtype[Any], count: int, checksum: str | None) -> StoredArray:
        if not _is_name(name):
            raise StoreError(f"{who}: expected the name of a file beside {META}, got {shown(name)}\n  Do not trust it.")
        file = f"{directory}/{name}"
        return sized(StoredArray(file, dtype, count, 0, checksum, has_sums(file)))

    if isinstance(meta.get("format"), str):  # older ones have keys alone, and a key called so is an object
        return decode(meta, locate, who)
    return Shard(who, _Older(meta, who).segments(locate))


def _is_name(name: str) -> bool:
    """Whether a file in a folder can be called so; what leads out of the folder is no name."""
    try:
        size_bytes = len(os.fsencode(name))
    except UnicodeEncodeError:  # JSON can hold half a character
        return False
    is_inside = os.path.basename(name) == name and name not in ("", ".", "..")
    return is_inside and "\0" not in name and size_bytes <= _MAX_NAME_BYTES


def sized(array: StoredArray) -> StoredArray:
    """The array, after a check that its file is there and has exactly its size.

    Raises:
        StoreError: There is no such file, or it has another size.
    """
    expected = array.count * array.dtype.itemsize
    try:
        size = os.stat(array.file).st_size
    except FileNotFoundError:
        raise StoreError(f"file '{array.file}': expected {expected} bytes, got no file\n  Copy it again.") from None
    if size != expected:
        raise StoreError(
            f"file '{array.file}': expected {expected} bytes for {array.count} values of {array.dtype.name}, "
            f"got {size}\n  It was cut short or belongs to another {META}: copy the shard again."
        )
    return array


class _Older:
    """A `meta.json` that is only `{key: {shape, dtype[, offsets]}}`."""

    def __init__(self, meta: Mapping[str, Any], who: str) -> None:
        self._who = who
        self._shapes = {key: self._shape(key, value) for key, value in meta.items()}
        self._dtypes = {
            key: stored_dtype(value.get("dtype"), f"{who}, key {shown(key)}") for key, value in meta.items()
        }
        self._offsets = {
            key: self._bounds(key, value["offsets"]) for key, value in meta.items() if value.get("offsets") is not None
        }

    def segments(self, locate: Any) -> dict[str, list[Segment]]:
        """One segment of each key."""
        found = {}
        for key, shape in self._shapes.items():
            data = locate(f"{key}.bin", self._dtypes[key], int(np.prod(shape, dtype=object)), None)
            alike = [other for other in self._offsets if self._shapes[other][0] == shape[0]]
            offsets = self._offsets[key if key in self._offsets else alike[0]] if alike else None
            found[key] = [older_segment(data, shape, offsets)]
        return found

    def _shape(self, key: str, value: Any) -> tuple[int, ...]:
        shape = value.get("shape") if isinstance(value, dict) else None
        if (
            not isinstance(shape, list)
            or not 1 <= len(shape) <= _DIMENSIONS
            or not all(type(size) is int and 0 <= size < 1 << 62 for size in shape)
        ):
            raise StoreError(
                f"{self._who}, key {shown(key)}: expected a shape of 1 to {_DIMENSIONS} sizes and a dtype, got "
                f"{shown(value)}\n"
                "  Copy the shard again, or write it with StoreWriter."
            )
        return tuple(shape)

    def _bounds(self, key: str, listed: Any) -> Offsets:
        end = self._shapes[key][0]
        try:
            offsets: Int64s = np.array(listed, np.int64)
            if offsets.tolist() != listed:  # such as fractions, which numpy cuts off
                offsets = np.empty((0, 0), np.int64)
        except (TypeError, ValueError, OverflowError):
            offsets = np.empty((0, 0), np.int64)
        if offsets.ndim == 1 and (not len(offsets) or offsets[-1] != end):
            offsets = np.append(offsets, end)
        if offsets.ndim != 1 or offsets[0] != 0 or bool((np.diff(offsets) < 0).any()):
            raise StoreError(
                f"{self._who}, key {shown(key)}: expected offsets that rise from 0 to {end}, got {shown(listed)}\n"
                "  Copy the shard again, or write it with StoreWriter."
            )
        return Offsets(len(offsets) - 1, offsets, end, f"{self._who}, key {shown(key)}")


def older_segment(data: StoredArray, shape: tuple[int, ...], offsets: Offsets | None) -> Segment:
    """A segment from the shape of its array, and where records begin along the first dimension."""
    if len(shape) == 1:
        return Segment(data, offsets or Even(1, data.count), documents=offsets, is_undivided=offsets is None)
    items = Even(shape[0] if len(shape) == 2 else shape[0] * shape[1], shape[-1])  # noqa: PLR2004 (dimensions)
    if len(shape) == _DIMENSIONS:
        return Segment(data, Even(shape[0], shape[1]), items, rows=items)
    if offsets is not None:
        return Segment(data, offsets, items, rows=items)
    return Segment(data, items, rows=items)
