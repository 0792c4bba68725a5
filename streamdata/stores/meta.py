"""What a shard says of itself: the JSON in `meta.json`, and in the attribute `streamdata` of our h5 files.

    {"format": "streamdata", "version": 1, "num_tokens": 9, "num_records": 2, "rows": false, "train_types": ["seq"],
     "keys": {"sequence": {"shape": [9], "dtype": "uint16", "data": "sequence.bin", "checksum": "…",
                           "records": {"count": 2, "data": "sequence.records.bin", "checksum": "…"}}}}

`records` and `items` (of keys whose records are lists) have either `data`, an array of count + 1 offsets from 0 to
the end, or `length`, where all are equally long. `documents`, of packed rows, is the same with the `key` that they
lie in. `data` names a file beside meta.json, or a dataset in the h5 file. `num_tokens` counts the values of the first
key. Checksums are BLAKE2b of 128 bits over the little-endian values, in hex.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from streamdata.stores.spool import Spool, SpooledBounds

FORMAT: Final = "streamdata"
VERSION: Final = 1


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
