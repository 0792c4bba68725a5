"""What a shard says of itself: the JSON in `meta.json`, and in the attribute `streamdata` of our h5 files.

    {"format": "streamdata", "version": 1, "num_tokens": 9, "num_records": 2, "rows": false, "train_types": ["seq"],
     "keys": {"sequence": {"shape": [9], "dtype": "uint16", "data": "sequence.bin", "checksum": "…",
                           "records": {"count": 2, "data": "sequence.records.bin", "checksum": "…"}}}}

`records` and `items` (of keys whose records are lists) have either `data`, an array of count + 1 offsets from 0 to
the end, or `length`, where all are equally long. `documents`, of packed rows, is the same with the `key` that they
lie in. `data` names a file beside meta.json, or a dataset in the h5 file. `num_tokens` counts the values of the first
key. Checksums are BLAKE2b of 128 bits over the little-endian values, in hex.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from streamdata.errors import StoreError, shown
from streamdata.stores.bounds import Even, Offsets, StoredArray
from streamdata.stores.dtypes import stored_dtype
from streamdata.stores.segments import Segment, Shard
from streamdata.stores.spool import OFFSET_DTYPE, Spool, SpooledBounds

FORMAT: Final = "streamdata"
VERSION: Final = 1
_MAX_NUMBER: Final = 1 << 62
"""So that no sum of two of them leaves int64."""

Locate = Callable[[str, np.dtype[Any], int, str | None], StoredArray]
"""What finds an array by its name, dtype, number of values and checksum, and checks that all of it is there."""


class Purpose(NamedTuple):
    """What a store is for: whether its records are packed rows, and which train types it serves."""

    rows: bool
    train_types: tuple[str, ...]


def encode(spool: Spool, purpose: Purpose, name: Callable[[str, str], str]) -> dict[str, Any]:
    """The meta of a spooled shard, whose part (key, part) is called `name(key, part)`."""

    def bounds(found: SpooledBounds) -> dict[str, Any]:
        if found.length is not None:
            return {"count": found.count, "length": found.length}
        return {"count": found.count, "data": name(*found.part), "checksum": found.checksum}

    keys = {}
    for key, written in spool.keys.items():
        keys[key] = {
            "shape": [written.count],
            "dtype": written.dtype.name,
            "data": name(key, "data"),
            "checksum": written.checksum,
            "records": bounds(written.records),
        }
        if written.items is not None:
            keys[key]["items"] = bounds(written.items)
    first = next(iter(spool.keys))
    meta: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "num_tokens": spool.keys[first].count,
        "num_records": spool.keys[first].records.count,
        "rows": purpose.rows,
        "train_types": list(purpose.train_types),
        "keys": keys,
    }
    if spool.documents is not None:
        meta["documents"] = {"key": first, **bounds(spool.documents)}
    return meta


def parsed(text: bytes | str, who: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        StoreError: It is not one.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{who}: expected JSON, got {shown(text[:60])}: {error}\n  Copy the shard again.") from error
    if not isinstance(value, dict) or not value:
        raise StoreError(f"{who}: expected a JSON object of keys, got {shown(text[:60])}\n  Copy the shard again.")
    return value


def decode(meta: Mapping[str, Any], locate: Locate, who: str) -> Shard:
    """The shard that a meta describes.

    Raises:
        StoreError: It is of another format or version, or contradicts itself.
    """
    if (meta.get("format"), meta.get("version")) != (FORMAT, VERSION):
        raise StoreError(
            f"{who}: expected format {FORMAT!r} version {VERSION}, got {shown(meta.get('format'))} "
            f"{shown(meta.get('version'))}\n"
            "  Read it with the version of streamdata that wrote it."
        )
    reader = _MetaReader(who, locate)
    rows, types = reader.field(meta, "rows", bool), reader.field(meta, "train_types", list)
    num_records, keys = reader.number(meta, "num_records"), reader.field(meta, "keys", dict)
    documents = reader.field(meta, "documents", dict) if "documents" in meta else None
    segments = {}
    for key in keys:
        of_rows = documents if documents is not None and documents.get("key") == key else None
        segments[key] = [reader.segment(key, reader.field(keys, key, dict), rows, of_rows, num_records)]
    if not segments or next(iter(segments.values()))[0].data.count != reader.number(meta, "num_tokens"):
        raise StoreError(f"{who}: expected num_tokens of its first key, got {meta.get('num_tokens')}\n  Copy it again.")
    return Shard(who, segments, tuple(map(str, types)))


class _MetaReader:
    def __init__(self, who: str, locate: Locate) -> None:
        self._who, self._locate = who, locate

    def field(self, mapping: Mapping[str, Any], name: str, kind: type) -> Any:
        value = mapping.get(name)
        if type(value) is not kind:
            raise StoreError(
                f"{self._who}: expected {shown(name)} of type {kind.__name__}, got {shown(value)}\n  Copy it again."
            )
        return value

    def number(self, mapping: Mapping[str, Any], name: str) -> int:
        value: int = self.field(mapping, name, int)
        if not 0 <= value < _MAX_NUMBER:
            raise StoreError(f"{self._who}: expected {shown(name)} of at least 0, got {value}\n  Copy the shard again.")
        return value

    def segment(
        self, key: str, meta: Mapping[str, Any], rows: bool, documents: Mapping[str, Any] | None, num_records: int
    ) -> Segment:
        shape = self.field(meta, "shape", list)
        count = self.number({"shape": shape[0]} if len(shape) == 1 else {}, "shape")
        dtype = stored_dtype(meta.get("dtype"), f"{self._who}, key {shown(key)}")
        data = self._locate(self.field(meta, "data", str), dtype, count, self.field(meta, "checksum", str))
        items = self._bounds(meta, "items", count, key) if "items" in meta else None
        records = self._bounds(meta, "records", count if items is None else items.count, key)
        if records.count != num_records:
            raise StoreError(f"{self._who}: expected {num_records} records of key {shown(key)}, got {records.count}")
        in_rows = None if documents is None else self._bounds({"documents": documents}, "documents", count, key)
        runs = records if items is None else items  # in values
        return Segment(data, records, items, runs if rows else None, in_rows if rows else runs)

    def _bounds(self, meta: Mapping[str, Any], name: str, end: int, key: str) -> Even | Offsets:
        found = self.field(meta, name, dict)
        runs = self.number(found, "count")
        who = f"{self._who}, {name} of key {shown(key)}"
        if "length" in found:
            length = self.number(found, "length")
            if runs * length != end:
                raise StoreError(f"{who}: expected {end} in all, got {runs} of length {length}\n  Copy it again.")
            return Even(runs, length)
        values = self._locate(
            self.field(found, "data", str), OFFSET_DTYPE, runs + 1, self.field(found, "checksum", str)
        )
        return Offsets(runs, values, end, who)
