"""One shard while it is written: flat files in a temporary directory, which each format turns into its own.

    <key>.bin            the values of all records, little-endian, bool as one byte
    <key>.records.bin    int64 (records + 1,): where each record begins, in values or, where it is a list, in items
    <key>.items.bin      int64 (items + 1,): where each item of the lists begins, in values
    <key>.documents.bin  int64 (documents + 1,): where each document in packed rows begins, in values

Everything passes through in the order given, so that the bytes depend on the records alone, and memory stays bounded.
"""

import hashlib
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from streamdata.stores.dtypes import Int64s, Values

OFFSET_DTYPE: Final = np.dtype("<i8")
_BUFFER_BYTES = 1 << 16


def checksum() -> Any:
    """The hash whose hex digest is a checksum: BLAKE2b of 128 bits."""
    return hashlib.blake2b(digest_size=16)


def file_name(key: str, part: str) -> str:
    """The file of a key's `data`, `records`, `items` or `documents`."""
    return f"{key}.bin" if part == "data" else f"{key}.{part}.bin"


@dataclass
class SpooledBounds:
    """Where runs of values begin. Where all are equally long that length says everything, and no file is kept.

    Attributes:
        count: How many runs there are.
        length: Of each of them; None where they differ.
        part: The file `<key>.<part>.bin` with the offsets; a (key, part), since keys may share one.
        checksum: Of that file.
    """

    count: int
    length: int | None
    part: tuple[str, str]
    checksum: str


@dataclass
class SpooledKey:
    """What was written for a key."""

    dtype: np.dtype[Any]
    count: int
    checksum: str
    records: SpooledBounds
    items: SpooledBounds | None


class _FlatFile:
    """Is open only while it is written to: a store may have many keys, and a run many stores."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self.path, self.dtype, self.count = path, dtype, 0
        self._waiting, self._hash = bytearray(), checksum()
        path.touch(exist_ok=False)

    def add(self, values: Values) -> None:
        data = np.ascontiguousarray(values, self.dtype).data.cast("B") if len(values) else b""
        self._waiting += data
        self._hash.update(data)
        self.count += len(values)
        if len(self._waiting) >= _BUFFER_BYTES:
            self._write()

    def close(self) -> str:
        self._write()
        return str(self._hash.hexdigest())

    def _write(self) -> None:
        with self.path.open("ab") as file:
            file.write(self._waiting)
        self._waiting = bytearray()


class _BoundsFile:
    def __init__(self, directory: Path, key: str, part: str) -> None:
        self._file = _FlatFile(directory / file_name(key, part), OFFSET_DTYPE)
        self._part = (key, part)
        self._end, self._shortest, self._longest = 0, -1, -1
        self._file.add(np.zeros(1, OFFSET_DTYPE))

    def add(self, lengths: Int64s) -> None:
        if not len(lengths):
            return
        ends = self._end + np.cumsum(lengths)
        self._file.add(ends)
        self._end = int(ends[-1])
        shortest, longest = int(lengths.min()), int(lengths.max())
        self._shortest = shortest if self._shortest < 0 else min(shortest, self._shortest)
        self._longest = max(longest, self._longest)

    def close(self) -> SpooledBounds:
        digest, count = self._file.close(), self._file.count - 1
        even = self._shortest == self._longest
        return SpooledBounds(count, max(self._shortest, 0) if even else None, self._part, digest)


class Spool:
    """The files of one shard.

    Args:
        directory: Is made, and removed by `discard`.
        dtypes: Of each key.
        items: The keys whose records are lists of runs of values.
        documents: The key whose rows hold documents, if any does.
    """

    def __init__(
        self, directory: Path, dtypes: Mapping[str, np.dtype[Any]], items: Collection[str], documents: str | None
    ) -> None:
        directory.mkdir()
        self.directory = directory
        self._data = {key: _FlatFile(directory / file_name(key, "data"), dtype) for key, dtype in dtypes.items()}
        self._records = {key: _BoundsFile(directory, key, "records") for key in dtypes}
        self._items = {key: _BoundsFile(directory, key, "items") for key in dtypes if key in items}
        self._documents = _BoundsFile(directory, documents, "documents") if documents else None
        self.num_records = 0
        self.keys: dict[str, SpooledKey] = {}
        self.documents: SpooledBounds | None = None

    def add(self, key: str, values: Values, lengths: Int64s, item_lengths: Int64s | None) -> None:
        """Append records of one key: their values, the length of each (in items if it has such), and of each item."""
        self._data[key].add(values)
        self._records[key].add(lengths)
        if item_lengths is not None:
            self._items[key].add(item_lengths)

    def num_values(self, key: str) -> int:
        """How many values of a key were written."""
        return self._data[key].count

    def add_documents(self, lengths: Int64s) -> None:
        """Append the lengths of the documents of rows."""
        assert self._documents is not None, "documents that were not announced"
        self._documents.add(lengths)

    def close(self) -> None:
        """End all files; then `keys` and `documents` say what is in them, and files that say nothing are gone."""
        seen: dict[str, SpooledBounds] = {}
        for key, file in self._data.items():
            items = self._items[key].close() if key in self._items else None
            records = self._settled(self._records[key].close(), seen)
            items = self._settled(items, seen) if items is not None else None
            self.keys[key] = SpooledKey(file.dtype, file.count, file.close(), records, items)
        if self._documents is not None:
            self.documents = self._settled(self._documents.close(), seen)

    def path(self, key: str, part: str) -> Path:
        """Where a part of a key lies."""
        return self.directory / file_name(key, part)

    def _settled(self, bounds: SpooledBounds, seen: dict[str, SpooledBounds]) -> SpooledBounds:
        same = seen.setdefault(bounds.checksum, bounds)
        if bounds.length is not None or same is not bounds:
            self.path(*bounds.part).unlink()
        return same

    def discard(self) -> None:
        """Remove what is left of the temporary directory."""
        shutil.rmtree(self.directory, ignore_errors=True)
