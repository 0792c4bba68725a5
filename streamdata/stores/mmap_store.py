"""Stores of flat files, `**/shard_NNNN/{meta.json, <key>.bin}`, and what a shard says of itself.

That is the JSON in `meta.json`, and in the attribute `streamdata` of our h5 files:

    {"format": "streamdata", "version": 1, "num_tokens": 9, "num_records": 2, "rows": false, "train_types": ["seq"],
     "keys": {"sequence": {"shape": [9], "dtype": "uint16", "data": "sequence.bin", "checksum": "…",
                           "records": {"count": 2, "data": "sequence.records.bin", "checksum": "…"}}}}

`records` and `items` (of keys whose records are lists) have either `data`, an array of count + 1 offsets from 0 to
the end, or `length`, where all are equally long. `documents`, of packed rows, is the same with the `key` that they
lie in. The key `document_weights`, if there is one, has in each record a float for each document that the first key
has there. `data` names a file beside meta.json, or a dataset in the h5 file. `num_tokens` counts the values of the
first key. Checksums are BLAKE2b of 128 bits over the little-endian values, in hex.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from streamdata.errors import StoreError, place_of_io, shown
from streamdata.recipe.limits import open_regular
from streamdata.stores.dtypes import stored_dtype
from streamdata.stores.segments import Even, Offsets, Runs, Segment, Shard, StoredArray
from streamdata.stores.store import Store, store_files, suffixed
from streamdata.stores.stored_values import has_sums

META: Final = "meta.json"
FORMAT: Final = "streamdata"
VERSION: Final = 1
OFFSET_DTYPE: Final = np.dtype("<i8")
_MAX_NUMBER: Final = 1 << 62
"""The largest number of values: no sum of two such numbers leaves int64."""
_DIMENSIONS: Final = 3
_FILE_NAME: Final = re.compile(r"[\w-][\w.-]{0,249}", re.ASCII)  # nothing in it leads out of the folder
_COPY: Final = "Copy the shard again."

Locate = Callable[[str, np.dtype[Any], int, str | None], StoredArray]
"""Finds an array by its name, dtype, number of values and checksum, and checks that all of it is there."""


class MmapStore(Store):
    """Reads `<key>.bin` files: little-endian values, bool as one byte.

    The `meta.json` beside them lists the keys with dtype and length, in streamdata's format or AstrAI's,
    `{key: {shape, dtype[, offsets]}}`. In AstrAI's a 1-D array without offsets is one record (`dpo` and `grpo` refuse
    it), a 2-D array is one packed row or record per row, and offsets (the start of each record, optionally the end of
    the last) count along the first dimension; a key without offsets uses those of a key of the same length.
    """

    storage_type = "bin"

    def read_shards(self, path: Path) -> list[Shard]:
        root, files = store_files(path)
        metas = meta_files(files)
        directories = {file.removesuffix(META) for file in metas}
        for file in suffixed(files, ".bin"):
            if file[: file.rfind("/") + 1] not in directories:
                remedy = "The shard was not finished: write or copy it again, or remove it."
                expected = f"{META} beside it, which comes last"
                raise StoreError.mismatch(f"file '{root / file}'", expected, "none", remedy)
        return [_shard(root / file) for file in metas]


def meta_files(files: list[str]) -> list[str]:
    """Every `meta.json`."""
    return [file for file in files if os.path.basename(file) == META]


def _shard(path: Path) -> Shard:
    who = f"shard '{path.parent}'"
    with place_of_io(path), open_regular(path, StoreError) as file:
        meta = parsed(file.read(), f"file '{path}'")

    def locate(name: str, dtype: np.dtype[Any], count: int, checksum: str | None) -> StoredArray:
        if not _FILE_NAME.fullmatch(name):
            raise StoreError.mismatch(who, f"the name of a file beside {META}", shown(name), "Do not trust it.")
        file, size_bytes = f"{path.parent}/{name}", count * dtype.itemsize
        try:
            found = os.stat(file).st_size
        except FileNotFoundError:
            raise StoreError.mismatch(f"file '{file}'", f"{size_bytes} bytes", "no file") from None
        if found != size_bytes:
            remedy = f"It was cut short or belongs to another {META}: copy the shard again."
            expected = f"{size_bytes} bytes for {count} values of {dtype.name}"
            raise StoreError.mismatch(f"file '{file}'", expected, found, remedy)
        return StoredArray(file, dtype, count, 0, checksum, has_sums(file))

    if isinstance(meta.get("format"), str):  # in AstrAI's there are keys alone, and one that is called so is an object
        return MetaReader(who, locate).shard(meta)
    return Shard(who, _astrai_segments(meta, locate, who))


def parsed(text: bytes | str, who: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        StoreError: It is not one.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError.mismatch(who, "JSON", f"{shown(text[:60])}: {error}", _COPY) from error
    if not isinstance(value, dict) or not value:
        raise StoreError.mismatch(who, "a JSON object of keys", shown(text[:60]), _COPY)
    return value


class MetaReader:
    """Reads what a shard says of itself.

    Args:
        who: The shard, for errors.
        locate: Finds its arrays.
    """

    def __init__(self, who: str, locate: Locate) -> None:
        self._who, self._locate = who, locate

    def shard(self, meta: Mapping[str, Any]) -> Shard:
        """The shard that a meta describes.

        Raises:
            StoreError: It is of another format or version, or contradicts itself.
        """
        if (meta.get("format"), meta.get("version")) != (FORMAT, VERSION):
            found = f"{shown(meta.get('format'))} {shown(meta.get('version'))}"
            remedy = "Read it with the version of streamdata that wrote it."
            raise StoreError.mismatch(self._who, f"format {FORMAT!r} version {VERSION}", found, remedy)
        rows, types = self._field(meta, "rows", bool), self._field(meta, "train_types", list)
        num_records, keys = self._field(meta, "num_records", int), self._field(meta, "keys", dict)
        documents = self._field(meta, "documents", dict) if "documents" in meta else {}
        segments = {}
        for key in keys:
            segment = self._segment(key, self._field(keys, key, dict), rows, documents)
            if segment.records.count != num_records:
                found = f"{segment.records.count}\n  {_COPY}"
                raise StoreError(f"{self._who}: expected {num_records} records of key {shown(key)}, got {found}")
            segments[key] = [segment]
        if not segments or next(iter(segments.values()))[0].data.count != self._field(meta, "num_tokens", int):
            raise StoreError.mismatch(self._who, "num_tokens of its first key", meta.get("num_tokens"))
        return Shard(self._who, segments, tuple(map(str, types)))

    def _field(self, mapping: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
        value: Any = mapping.get(name)
        if type(value) is not kind:
            raise StoreError.mismatch(self._who, f"{shown(name)} of type {kind.__name__}", shown(value))
        if isinstance(value, int) and not 0 <= value < _MAX_NUMBER:
            raise StoreError.mismatch(self._who, f"{shown(name)} of at least 0", value, _COPY)
        return value

    def _segment(self, key: str, meta: Mapping[str, Any], rows: bool, documents: Mapping[str, Any]) -> Segment:
        shape = self._field(meta, "shape", list)
        count = self._field({"shape": shape[0]} if len(shape) == 1 else {}, "shape", int)
        dtype = stored_dtype(meta.get("dtype"), f"{self._who}, key {shown(key)}")
        data = self._locate(self._field(meta, "data", str), dtype, count, self._field(meta, "checksum", str))
        items = self._runs(meta, "items", count, key) if "items" in meta else None
        records = self._runs(meta, "records", count if items is None else items.count, key)
        runs = records if items is None else items  # in values
        in_rows = self._runs({"documents": documents}, "documents", count, key) if documents.get("key") == key else None
        return Segment(data, records, items, runs if rows else None, in_rows if rows else runs)

    def _runs(self, meta: Mapping[str, Any], name: str, end: int, key: str) -> Runs:
        found = self._field(meta, name, dict)
        count, who = self._field(found, "count", int), f"{self._who}, {name} of key {shown(key)}"
        if "length" not in found:
            file, checksum = self._field(found, "data", str), self._field(found, "checksum", str)
            return Offsets(count, self._locate(file, OFFSET_DTYPE, count + 1, checksum), end, who)
        length = self._field(found, "length", int)
        if count * length != end:
            raise StoreError.mismatch(who, f"{end} in all", f"{count} of length {length}")
        return Even(count, length)


def _astrai_segments(meta: Mapping[str, Any], locate: Locate, who: str) -> dict[str, list[Segment]]:
    """One segment of each key of a `meta.json` that is only `{key: {shape, dtype[, offsets]}}`."""
    shapes: dict[str, list[int]] = {}
    offsets: dict[str, Offsets] = {}
    segments = {}
    for key, value in meta.items():
        shape = value.get("shape") if isinstance(value, dict) else None
        if (
            not isinstance(shape, list)
            or not 1 <= len(shape) <= _DIMENSIONS
            or not all(type(size) is int and 0 <= size < _MAX_NUMBER for size in shape)
        ):
            expected = f"a shape of 1 to {_DIMENSIONS} sizes and a dtype"
            raise StoreError.mismatch(f"{who}, key {shown(key)}", expected, shown(value), _COPY)
        shapes[key] = shape
        if value.get("offsets") is not None:
            listed, end = value["offsets"], shape[0]
            begins = [*listed, *([] if listed[-1:] == [end] else [end])] if isinstance(listed, list) else []
            if any(type(begin) is not int for begin in begins) or begins[:1] != [0] or sorted(begins) != begins:
                expected = f"offsets that rise from 0 to {end}"
                raise StoreError.mismatch(f"{who}, key {shown(key)}", expected, shown(listed), _COPY)
            offsets[key] = Offsets(len(begins) - 1, np.array(begins, np.int64), end, f"{who}, key {shown(key)}")
    for key, shape in shapes.items():
        dtype = stored_dtype(meta[key].get("dtype"), f"{who}, key {shown(key)}")
        data = locate(f"{key}.bin", dtype, int(np.prod(shape, dtype=object)), None)
        alike = [other for other in offsets if shapes[other][0] == shape[0]]
        segments[key] = [shaped_segment(data, shape, offsets[key if key in offsets else alike[0]] if alike else None)]
    return segments


def shaped_segment(data: StoredArray, shape: list[int], offsets: Offsets | None) -> Segment:
    """A segment from the shape of its array, and where records begin along the first dimension."""
    if len(shape) == 1:
        return Segment(data, offsets or Even(1, data.count), documents=offsets, is_undivided=offsets is None)
    items = Even(shape[0] if len(shape) < _DIMENSIONS else shape[0] * shape[1], shape[-1])
    if len(shape) == _DIMENSIONS:
        return Segment(data, Even(shape[0], shape[1]), items, rows=items)
    return Segment(data, items, rows=items) if offsets is None else Segment(data, offsets, items, rows=items)
