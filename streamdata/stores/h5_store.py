"""Stores in HDF5: `**/data_NNNN.h5`, one group per key, datasets `data_0`, `data_1` and so on."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from streamdata.errors import StoreError, shown
from streamdata.recipe.limits import check_regular
from streamdata.run.per_process import OpenFiles
from streamdata.stores.dtypes import stored_dtype
from streamdata.stores.mmap_store import MetaReader, parsed, shaped_segment
from streamdata.stores.segments import Even, Segment, Shard, StoredArray
from streamdata.stores.store import H5_SUFFIXES, Store, natural, store_files, suffixed
from streamdata.stores.stored_values import check_size, has_sums

if TYPE_CHECKING:
    import torch

_MAX_OPEN_FILES: Final = 64  # an open h5 file has a descriptor and a cache of chunks of 1 MiB
_DATASET = re.compile(r"data_(0|[1-9][0-9]*)")
_ALIGNMENT = 64
_COPIED = 1 << 20  # values at once


class H5Store(Store):
    """Reads HDF5 files: contiguous datasets directly, others (chunked, compressed) through h5py, without checksums.

    A file written by streamdata has the content of a `meta.json` in its attribute `streamdata`. In other files every
    dataset is a record, and one of shape (items, values) a list of items. Each process opens files when it first
    reads them.
    """

    storage_type = "h5"

    def __init__(self) -> None:
        super().__init__()
        self._open_files: dict[int, OpenFiles[str, Any]] = {}  # by process: a handle must not cross a fork
        self._shared: torch.Tensor | None = None
        self._shared_at: dict[tuple[str, str], int] = {}

    def read_shards(self, path: Path) -> list[Shard]:
        root, files = store_files(path)
        return [_shard(str(root / file)) for file in suffixed(files, *H5_SUFFIXES)]

    def values(self, array: StoredArray) -> Any:
        if self._shared is not None:
            return self._shared_values(self._shared, array)
        if array.offset is not None:
            return super().values(array)
        files = self._open_files.setdefault(os.getpid(), OpenFiles(_MAX_OPEN_FILES))
        return _Dataset(files.get(array.file, _open), array.dataset, array.file)

    def share_memory_(self) -> Self:
        """Copy all arrays into shared memory, once; workers forked, or sent the store, afterwards use it.

        Raises:
            RuntimeError: The store is not loaded, or there is not enough shared memory.
        """
        import torch

        if self._shared is None:
            arrays, end = self.arrays(), 0
            for array in arrays:
                self._shared_at[array.file, array.dataset] = end
                end += -(-array.count * array.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
            shared = torch.empty(end, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
            for array in arrays:
                values, copy = self.values(array), self._shared_values(shared, array)
                for begin in range(0, array.count, _COPIED):
                    copy[begin : begin + _COPIED] = values[begin : begin + _COPIED]
            self._shared = shared
        return self

    def _shared_values(self, shared: "torch.Tensor", array: StoredArray) -> Any:
        dtype = np.dtype(np.uint8) if array.dtype.kind == "b" else array.dtype
        begin = self._shared_at[array.file, array.dataset]
        return shared.numpy()[begin : begin + array.count * dtype.itemsize].view(dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_open_files": {}}


def _open(path: str) -> Any:
    import h5py

    with _damage_named(path):
        check_regular(path, StoreError)
        return h5py.File(path, "r", locking=False)  # a published file does not change, and some mounts have no locks


@contextmanager
def _damage_named(path: str) -> Iterator[None]:
    """Names the file: h5py raises any of these where it cannot make sense of one."""
    try:
        yield
    except StoreError:  # ours, of what the file says
        raise
    except (KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        got = f"{type(error).__name__}: {error}"
        raise StoreError.mismatch(f"file '{path}'", "a readable h5 file", got) from error


class _Dataset:
    """A dataset that is read through the library, by ints and slices; one of two dimensions row after row."""

    def __init__(self, file: Any, name: str, path: str) -> None:
        self._path = path
        with _damage_named(path):
            self._dataset = file[name]

    def __getitem__(self, key: Any) -> Any:
        with _damage_named(self._path):
            if self._dataset.ndim == 1:
                return self._dataset[key]
            first, last, _ = key.indices(int(self._dataset.size))
            width = self._dataset.shape[1]
            top = first // max(1, width)
            rows = self._dataset[top : -(-last // max(1, width))]
            return rows.reshape(-1)[first - top * width : max(first, last) - top * width]


def _shard(path: str) -> Shard:
    with _open(path) as file, _damage_named(path):
        return _H5Reader(file, path).shard()


class _H5Reader:
    """Finds the datasets of an open file, and refuses those that lead out of it."""

    def __init__(self, file: Any, path: str) -> None:
        self._file, self._path, self._who = file, path, f"file '{path}'"
        self._size_bytes, self._has_sums = os.stat(path).st_size, has_sums(path)

    def shard(self) -> Shard:
        if "streamdata" in self._file.attrs:
            text = self._file.attrs["streamdata"]
            meta = parsed(str(text), f"{self._who}, attribute 'streamdata'")
            return MetaReader(self._who, self._locate).shard(meta)
        keys = sorted(self._file)
        if not keys:
            raise StoreError.mismatch(self._who, "a group per key", "an empty file")
        return Shard(self._who, {key: [self._segment(name) for name in self._names(key)] for key in keys})

    def _names(self, key: str) -> list[str]:
        import h5py

        group = self._file[key] if self._is_hard(key) else None
        names = sorted(group, key=natural) if isinstance(group, h5py.Group) else []
        if not names or not all(map(_DATASET.fullmatch, names)):
            expected = f"a group {shown(key)} with datasets data_0, data_1 …"
            remedy = "Write it again, as groups of arrays."
            raise StoreError.mismatch(self._who, expected, names[:5] or group, remedy)
        return [f"{key}/{name}" for name in names]

    def _segment(self, name: str) -> Segment:
        """The segment of a dataset without a meta: one record, of two dimensions a list of items."""
        dataset = self._dataset(name)
        if dataset.ndim not in (1, 2):
            raise StoreError.mismatch(self._who, f"1 or 2 dimensions of {shown(name)}", f"shape {dataset.shape}")
        data = self._array(dataset, name, dataset.size, None)
        return (
            Segment(data, Even(1, data.count)) if dataset.ndim == 1 else shaped_segment(data, [1, *dataset.shape], None)
        )

    def _locate(self, name: str, dtype: np.dtype[Any], count: int, checksum: str | None) -> StoredArray:
        dataset = self._dataset(name)
        if dataset.shape != (count,) or dataset.dtype.newbyteorder("<") != dtype:
            expected = f"{shown(name)} to be {dtype.name} of shape ({count},)"
            raise StoreError.mismatch(self._who, expected, f"{dataset.dtype} of {dataset.shape}")
        return self._array(dataset, name, count, checksum)

    def _array(self, dataset: Any, name: str, count: int, checksum: str | None) -> StoredArray:
        stored_dtype(dataset.dtype, f"{self._who}, dataset {shown(name)}")
        offset = None if dataset.chunks is not None else dataset.id.get_offset() if count else 0
        array = StoredArray(self._path, dataset.dtype, count, offset, checksum, self._has_sums, name)
        if offset is not None:
            check_size(array, self._size_bytes)
        return array

    def _dataset(self, name: str) -> Any:
        import h5py

        parents = name.split("/")
        if not all(self._is_hard("/".join(parents[: depth + 1])) for depth in range(len(parents))):
            remedy = "Soft and external links are refused: copy what they lead to."
            raise StoreError.mismatch(self._who, f"{shown(name)} to lie in this file", "a link or nothing", remedy)
        dataset = self._file[name]
        if not isinstance(dataset, h5py.Dataset) or dataset.external or dataset.is_virtual:
            expected, got = f"{shown(name)} to be a dataset in this file", f"{dataset}, external or virtual"
            raise StoreError.mismatch(self._who, expected, got, "Copy the arrays into the file.")
        return dataset

    def _is_hard(self, name: str) -> bool:
        import h5py

        return isinstance(self._file.get(name, getlink=True), h5py.HardLink)
