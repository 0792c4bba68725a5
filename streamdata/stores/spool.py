"""One shard on its way to disk: flat files in a temporary directory, which become a shard of a format, all at once.

    <key>.bin            the values of all records, little-endian, bool as one byte
    <key>.records.bin    int64 (records + 1,): where each record begins, in values or, where it is a list, in items
    <key>.items.bin      int64 (items + 1,): where each item of the lists begins, in values
    <key>.documents.bin  int64 (documents + 1,): where each document in packed rows begins, in values

bin: `shard_NNNN/` with these and `meta.json`. h5: `data_NNNN.h5`, one group per key with the contiguous datasets
`data_0`, `records`, `items`, `documents`, and the meta as attribute. megatron: `data_NNNN.bin`, then the
`data_NNNN.idx` that makes it readable. Each file of values has its sums beside it (see `stored_values`), which
are there before the shard can be read.

Everything passes through in the order given, so that the bytes depend on the records alone, and memory stays bounded.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from streamdata.run.publish import publish_written
from streamdata.stores.dtypes import Values
from streamdata.stores.megatron_store import encode_index
from streamdata.stores.mmap_store import FORMAT, META, OFFSET_DTYPE, VERSION
from streamdata.stores.stored_values import SUMS, write_sums

_BUFFER_BYTES = 1 << 16
_CHUNK = 1 << 22
_H5_OVERHEAD = 1 << 16
"""More than the groups and datasets of all keys take beside their values."""

Part: TypeAlias = tuple[str, str]
"""A key, and what of it: `data`, `records`, `items` or `documents`."""


def checksum() -> Any:
    """The hash whose hex digest is a checksum: BLAKE2b of 128 bits."""
    return hashlib.blake2b(digest_size=16)


class _FlatFile:
    """A file that is open only while it is written to: a store may have many keys, and a run many stores."""

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


class _OffsetsFile(_FlatFile):
    """A file of positions at which runs begin, made from their lengths, of which the least and the largest are kept."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        super().__init__(path, dtype)
        self._end, self.lengths = 0, set[int]()
        super().add(np.zeros(1, dtype))

    def add(self, values: Values) -> None:
        if len(values):
            ends = self._end + np.cumsum(values)
            super().add(ends)
            self._end = int(ends[-1])
            self.lengths |= {int(values.min()), int(values.max())}


class Spool:
    """The files of one shard.

    Args:
        directory: Is made, and removed by `discard`.
        dtypes: Of each key.
        items: The keys whose records are lists of runs of values.
        about: What the meta says of the store: `rows` and `train_types`.
        documents: Whether records of the first key hold documents.

    Attributes:
        files: Those of each part.
    """

    def __init__(
        self,
        directory: Path,
        dtypes: Mapping[str, np.dtype[Any]],
        items: Collection[str],
        about: Mapping[str, Any],
        *,
        documents: bool,
    ) -> None:
        directory.mkdir()
        self.directory, self._about = directory, about
        self._first = next(iter(dtypes))
        self.files: dict[Part, _FlatFile] = {
            (key, "data"): _FlatFile(directory / f"{key}.bin", dtype) for key, dtype in dtypes.items()
        }
        offsets = [(key, part) for key in dtypes for part in ("records", "items") if part == "records" or key in items]
        offsets += [(self._first, "documents")] if documents else []
        self._offsets = {part: _OffsetsFile(directory / f"{'.'.join(part)}.bin", OFFSET_DTYPE) for part in offsets}
        self.files |= self._offsets

    @property
    def num_records(self) -> int:
        """How many records were added."""
        return self.files[self._first, "records"].count - 1

    def num_values(self, key: str) -> int:
        """How many values of a key were added."""
        return self.files[key, "data"].count

    def close(self, names: Mapping[Part, str]) -> dict[str, Any]:
        """End all files, and remove those that say nothing more: the meta, in which each part is called by its name."""
        told: dict[str, dict[str, Any]] = {}
        num_records, keys = self.num_records, {}
        for key in [key for key, part in self.files if part == "data"]:
            file, name = self.files[key, "data"], names[key, "data"]
            keys[key] = {
                "shape": [file.count], "dtype": file.dtype.name, "data": name, "checksum": file.close(),
                "records": self._told((key, "records"), told, names),
            }  # fmt: skip
            if (key, "items") in self._offsets:
                keys[key]["items"] = self._told((key, "items"), told, names)
        meta: dict[str, Any] = {
            "format": FORMAT, "version": VERSION, "num_tokens": self.num_values(self._first),
            "num_records": num_records, **self._about, "keys": keys,
        }  # fmt: skip
        if (self._first, "documents") in self._offsets:
            meta["documents"] = {"key": self._first, **self._told((self._first, "documents"), told, names)}
        return meta

    def _told(self, part: Part, told: dict[str, dict[str, Any]], names: Mapping[Part, str]) -> dict[str, Any]:
        """The entry of runs in a meta. Where all are equally long, or others have the same offsets, no file is kept."""
        file = self._offsets[part]
        digest, count = file.close(), file.count - 1
        own = {"count": count, "data": names[part], "checksum": digest}
        even = {"count": count, "length": max(file.lengths, default=0)}
        same = told.setdefault(digest, own if len(file.lengths) > 1 else even)
        if same is not own:
            file.path.unlink()
            del self.files[part]
        return same

    def discard(self) -> None:
        """Remove what is left of the temporary directory."""
        shutil.rmtree(self.directory, ignore_errors=True)


def publish_bin(spool: Spool, directory: Path, number: int) -> Path:
    """Publish `shard_NNNN/`."""
    meta = spool.close({part: file.path.name for part, file in spool.files.items()})
    for file in sorted(spool.directory.iterdir()):
        _with_sums(file)
    spool.directory.joinpath(META).write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
    path = directory / f"shard_{number:04d}"
    publish_written(spool.directory, path)
    return path


def publish_h5(spool: Spool, directory: Path, number: int) -> Path:
    """Publish `data_NNNN.h5`; one version of the file format and no times in it, so that its bytes are reproducible."""
    import h5py

    names = {(key, part): f"{key}/{'data_0' if part == 'data' else part}" for key, part in spool.files}
    meta = json.dumps(spool.close(names))
    temporary = spool.directory / "data.h5"
    size_bytes = sum(file.path.stat().st_size for file in spool.files.values()) + len(meta) + _H5_OVERHEAD
    with temporary.open("wb") as opened:  # an error where it does not fit: HDF5 ends the process when the disk is full
        os.posix_fallocate(opened.fileno(), 0, size_bytes)
    with h5py.File(temporary, "w", libver=("v110", "v110"), locking=False) as h5:
        h5.attrs["streamdata"] = meta
        for part, file in spool.files.items():
            dataset = h5.create_dataset(names[part], (file.count,), file.dtype, track_times=False)
            for begin in range(0, file.count, _CHUNK):
                values = np.fromfile(file.path, file.dtype, _CHUNK, offset=begin * file.dtype.itemsize)
                dataset[begin : begin + len(values)] = values
    path = directory / f"data_{number:04d}.h5"
    _publish_in_turn(zip(reversed(_with_sums(temporary)), (Path(f"{path}{SUMS}"), path), strict=True))
    return path


def publish_megatron(spool: Spool, directory: Path, number: int) -> Path:
    """Publish `data_NNNN.bin`, then `data_NNNN.idx`, which cannot record what it is for."""
    records = spool.files["sequence", "records"]
    records.close()
    ends = np.fromfile(records.path, OFFSET_DTYPE)
    data = spool.files["sequence", "data"]
    data.close()
    index = spool.directory / "index"
    with index.open("wb") as file:
        file.writelines(encode_index(ends, data.dtype))
    (tokens, tokens_sums), (index, index_sums) = _with_sums(data.path), _with_sums(index)
    path = directory / f"data_{number:04d}.bin"
    paths = [path, Path(f"{path}{SUMS}"), path.with_suffix(f".idx{SUMS}"), path.with_suffix(".idx")]
    _publish_in_turn(zip([tokens, tokens_sums, index_sums, index], paths, strict=True))
    return path


PUBLISH: Final[Mapping[str, Callable[[Spool, Path, int], Path]]] = {
    "bin": publish_bin,
    "h5": publish_h5,
    "megatron": publish_megatron,
}


def _with_sums(file: Path) -> tuple[Path, Path]:
    """The file, and that of its sums, written beside it."""
    sums = Path(f"{file}{SUMS}")
    write_sums(file, sums)
    return file, sums


def _publish_in_turn(files: Iterable[tuple[Path, Path]]) -> None:
    """Publish files, each from its temporary path; the last makes the others readable. All of them or none."""
    published: list[Path] = []
    try:
        for temporary, path in files:
            publish_written(temporary, path)
            published.append(path)
    except BaseException:
        for path in published:
            path.unlink()
        raise
