"""The base of all stores: finds their files; values by position, records by number, over the borders of segments."""

import logging
import os
import re
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, overload

import numpy as np

from streamdata.errors import StoreError, names_text, one_line, shown
from streamdata.fields import DOCUMENT_WEIGHTS
from streamdata.run import stable_seed
from streamdata.run.per_process import open_files
from streamdata.stores.dtypes import Int64s, Values, possible_train_types
from streamdata.stores.segments import Column, Runs, Segment, Shard, StoredArray
from streamdata.stores.stored_values import StoredValues

if TYPE_CHECKING:  # imported where tensors are made: who looks at a record does not wait for it
    import torch

logger = logging.getLogger("streamdata")

H5_SUFFIXES: Final = (".h5", ".hdf5")
_PAIR = (".bin", ".idx")
_DIGITS = re.compile(r"(\d+)")
_OVER_BORDERS = -1

KeyNames = list[str] | tuple[str, ...]
RecordValues: TypeAlias = "torch.Tensor | list[torch.Tensor]"


class Store(ABC):
    """Base of token stores: tokenized arrays on disk, by key. Subclasses say where they lie and how they are read.

    It pickles as its path, and loads again in the process that uses it. It returns fresh tensors: int64 for integers of
    any width, bool and floats as they are stored.

    Attributes:
        path: The path that was loaded.
    """

    storage_type: str

    def __init__(self) -> None:
        self.path: str | None = None
        self._columns: dict[str, Column] | None = None
        self._train_types: tuple[str, ...] = ()
        self._make = partial(StoredValues, verify=True, mapped=False)
        self._warned = False

    @abstractmethod
    def read_shards(self, path: Path) -> list[Shard]:
        """Find the shards at a path, in an order that is equal on all ranks; reads no tokens.

        Raises:
            FileNotFoundError: Nothing lies at the path.
            StoreError: The path holds no shards, or one is damaged.
        """

    def values(self, array: StoredArray) -> Any:
        """The values of an array, or an object that reads them when it is sliced."""
        return open_files.get(array, self._make)

    def load(self, path: str | Path, *, verify: bool = True, mapped: bool = False) -> Self:
        """Load the shards at a path, without reading tokens.

        Args:
            path: A directory, a file, or the common prefix of a `.bin` and an `.idx`.
            verify: Compare everything read with the files' checksums, and warn of files without any.
            mapped: Read through memory maps. A file that is then cut short ends the process: only for files that
                nobody else changes.

        Raises:
            FileNotFoundError: Nothing lies at the path.
            StoreError: The path holds no shards, or one that is damaged or does not fit the others.
        """
        absolute = os.path.abspath(path)  # a worker may have another working directory
        self._make = partial(StoredValues, verify=verify, mapped=mapped)
        shards = self.read_shards(Path(absolute))
        if not shards:
            expected = f"shards of format {shown(self.storage_type)}"
            raise StoreError.mismatch(f"store '{path}'", expected, "none", "Name another.")
        first, *others = shards
        for shard in others:
            if set(shard.segments) != set(first.segments):
                raise StoreError.mismatch(
                    f"shard '{shard.name}'", f"the keys {names_text(first.segments)} of '{first.name}'",
                    names_text(shard.segments), "Give stores of different keys their own directories.",
                )  # fmt: skip
        self._columns = {
            key: Column(key, [part for shard in shards for part in shard.segments[key]]) for key in first.segments
        }
        named = [shard.train_types for shard in shards if shard.train_types is not None]
        possible = possible_train_types(list(self._columns))
        self._train_types = tuple(name for name in possible if all(name in types for types in named))
        self.path = absolute
        if verify and not self._warned:
            self._warn_unchecked()
        return self

    def arrays(self) -> list[StoredArray]:
        """All arrays on disk."""
        segments = [segment for column in self._loaded().values() for segment in column.segments]
        return list(dict.fromkeys(array for segment in segments for array in segment.arrays))

    def files_without_sums(self) -> list[str]:
        """The files without checksums, in which damage goes unnoticed when they are read."""
        return sorted({array.file for array in self.arrays() if not array.has_sums})

    @property
    def keys(self) -> list[str]:
        """The store's keys."""
        return list(self._loaded())

    @property
    def identity(self) -> str:
        """A text of 16 hexadecimal digits that identifies the store's content, wherever it lies.

        It is computed from the shards' names, sizes and dtypes, and the checksums that some formats record.
        """
        parts = [
            (key, [_identity(segment, str(self.path)) for segment in column.segments])
            for key, column in self._loaded().items()
        ]
        return f"{stable_seed(parts):016x}"

    @property
    def train_types(self) -> tuple[str, ...]:
        """The train types that the store supports."""
        self._loaded()
        return self._train_types

    @property
    def num_records(self) -> int:
        """The number of records.

        Raises:
            StoreError: The keys have different numbers of records.
        """
        counts = {key: column.num_records for key, column in self._loaded().items()}
        if len(set(counts.values())) > 1:
            raise StoreError.mismatch(self._who, "as many records of every key", counts, "Write it again.")
        return next(iter(counts.values()))

    def __len__(self) -> int:
        """How many values every key has: those of the shortest."""
        return min(len(column) for column in self._loaded().values())

    def share_memory_(self) -> Self:
        """Move data that each worker would copy into shared memory; memory maps need nothing."""
        return self

    @overload
    def fetch(self, begin: int, end: int, keys: str) -> "torch.Tensor": ...
    @overload
    def fetch(self, begin: int, end: int, keys: KeyNames) -> "dict[str, torch.Tensor]": ...
    def fetch(self, begin: int, end: int, keys: str | KeyNames) -> "torch.Tensor | dict[str, torch.Tensor]":
        """Read values [begin, end) of a key, shape (end - begin,), or of several keys.

        Raises:
            RuntimeError: The store is not loaded.
            ValueError: Not 0 <= begin <= end <= the key's length, or the key is unknown.
        """
        import torch

        if isinstance(keys, str):
            return torch.from_numpy(self.array(keys, begin, end))
        return {key: torch.from_numpy(self.array(key, begin, end)) for key in keys}

    def stored(self, key: str, begin: int, end: int) -> Values:
        """Read values [begin, end) of a key without copying if they lie in one segment; do not write to the result."""
        column = self.column(key)
        ends = column.ends
        if not 0 <= begin < end <= ends[-1] or end > ends[number := bisect_right(ends, begin)]:
            return self.array(key, begin, end)
        start = column.starts[number]
        data = self.values(column.segments[number].data)
        read = data.read if isinstance(data, StoredValues) else lambda first, last: data[first:last]
        return read(begin - start, end - start)

    def array(self, key: str, begin: int, end: int) -> Values:
        """Read values [begin, end) of a key as a fresh array; see `fetch`."""
        column = self.column(key)
        if not 0 <= begin <= end <= len(column):
            within = f"a range within 0 to {len(column)}"
            raise ValueError(f"{self._who}, key {shown(key)}: expected {within}, got {begin} to {end}")
        out = np.empty(end - begin, column.dtype)
        self._fill(column, begin, out)
        return out

    @overload
    def fetch_record(self, index: int, keys: str) -> RecordValues: ...
    @overload
    def fetch_record(self, index: int, keys: KeyNames) -> dict[str, RecordValues]: ...
    def fetch_record(self, index: int, keys: str | KeyNames) -> "RecordValues | dict[str, RecordValues]":
        """Read record `index` of a key, or of several keys.

        Returns:
            A tensor (values,). For keys whose records are lists, (items, values), or a list if items differ in length.

        Raises:
            RuntimeError: The store is not loaded.
            ValueError: Not 0 <= index < num_records, or the key is unknown.
        """
        if isinstance(keys, str):
            return _tensors(self.record(keys, index))
        return {key: _tensors(self.record(key, index)) for key in keys}

    def record(self, key: str, index: int) -> Values | list[Values]:
        """Read record `index` of a key as fresh arrays; see `fetch_record`."""
        column = self.column(key)
        if not 0 <= index < column.num_records:
            expected = f"a record of {column.num_records}, from 0"
            raise ValueError(f"{self._who}, key {shown(column.key)}: expected {expected}, got {index}")
        number, local = column.segment_of_record(index)
        segment = column.segments[number]
        begin, end = segment.records.span(local, self.values)
        if segment.items is None:
            return self._piece(column, segment.data, begin, end)
        if end > segment.items.count:
            raise StoreError(f"file '{segment.data.file}': record {local} ends at item {end} of {segment.items.count}")
        spans = [segment.items.span(item, self.values) for item in range(begin, end)]
        if len({end - begin for begin, end in spans}) > 1:
            return [self._piece(column, segment.data, begin, end) for begin, end in spans]
        first, last = (spans[0][0], spans[-1][1]) if spans else (0, 0)
        return self._piece(column, segment.data, first, last).reshape(len(spans), -1 if last > first else 0)

    def column(self, key: str) -> Column:
        """The segments of a key, over all shards.

        Raises:
            RuntimeError: The store is not loaded.
            ValueError: The key is unknown.
        """
        found = self._columns or self._loaded()
        column = found.get(key)
        if column is None:
            raise StoreError(f"{self._who}: expected one of the keys {names_text(found)}, got {shown(key)}")
        return column

    def gather(self, key: str, begins: Sequence[int], length: int) -> Values:
        """Read `length` values from each begin on: (begins, length), in the dtype on disk, bool as uint8."""
        column = self.column(key)
        out = np.empty((len(begins), length), column.raw_dtype)
        by_segment: dict[int, Any] = defaultdict(list)
        if len(column.segments) == 1 and begins and min(begins) >= 0 and max(begins) + length <= len(column):
            by_segment[0] = enumerate(begins)
        else:
            for number, begin in enumerate(begins):
                segment = bisect_right(column.ends, begin)
                is_inside = begin + length <= column.ends[segment]
                by_segment[segment if is_inside else _OVER_BORDERS].append((number, begin))
        for segment, runs in by_segment.items():
            data = None if segment == _OVER_BORDERS else self.values(column.segments[segment].data)
            if isinstance(data, StoredValues) and data.dtype == out.dtype:
                data.read_into(out, runs, column.starts[segment])
            else:
                for number, begin in runs:
                    self._fill(column, begin, out[number])
        return out

    def record_begin(self, key: str, index: int) -> int:
        """The position where record `index` of a key begins (not for keys of lists); after the last record, the end."""
        column = self.column(key)
        if index >= column.num_records:
            return len(column)
        number, local = column.segment_of_record(index)
        return column.starts[number] + column.segments[number].records.span(local, self.values)[0]

    def document_starts(self, key: str, begin: int, end: int) -> Int64s:
        """The positions strictly between `begin` and `end` where documents begin. A segment also begins one.

        Raises:
            StoreError: The store does not record its documents.
        """
        column, found = self.column(key), []
        for number, documents, first, stop in self._documents(key, begin, end):
            start = column.starts[number]
            found += [start] if start > begin else []
            found += (documents.starts(first, stop, self.values) + start).tolist()
        return np.array(found, np.int64)

    def loss_weights(self, key: str, begin: int, end: int) -> Values:
        """The weight of each of the values [begin, end) of a key, float32 (end - begin,): that of its document.

        Raises:
            StoreError: The store has no weights of documents, or does not record these.
        """
        weights, found = self.column(DOCUMENT_WEIGHTS), [np.empty(0, np.float32)]
        for number, documents, start, stop in self._documents(key, begin, end):
            first, last = documents.number_at(start, self.values), documents.number_at(stop - 1, self.values) + 1
            lengths = np.diff(documents.spans(first, last, self.values).clip(start, stop))
            found.append(np.repeat(self.values(weights.segments[number].data)[first:last], lengths))
        return np.concatenate(found, dtype=np.float32)

    def _documents(self, key: str, begin: int, end: int) -> Iterator[tuple[int, Runs, int, int]]:
        """Yields the number and the documents of each segment in a range, and which of its values are in it."""
        column = self.column(key)
        for number in range(bisect_right(column.ends, begin), bisect_left(column.starts, end)):
            segment, start = column.segments[number], column.starts[number]
            if segment.documents is None:
                raise self.no_documents(key)
            if segment.data.count:
                yield number, segment.documents, max(begin - start, 0), min(end - start, segment.data.count)

    def no_documents(self, key: str) -> StoreError:
        """Make the error for a key whose documents' starts are not all recorded."""
        recorded = f"the documents in {shown(key)} to be recorded"
        return StoreError.mismatch(self._who, recorded, "none", "Give eod_token, the id with which each document ends.")

    @property
    def _who(self) -> str:
        return f"store '{self.path}'"

    def _loaded(self) -> dict[str, Column]:
        if self._columns is None:
            if self.path is None:
                raise RuntimeError("Store not loaded")
            self.load(self.path, **self._make.keywords)
            assert self._columns is not None, "load() that loads nothing"
        return self._columns

    def _warn_unchecked(self) -> None:
        self._warned = True  # once, and not in each worker
        if without := self.files_without_sums():
            logger.warning(
                "store '%s': no sums of %d of its files, such as '%s': damage in them is not noticed\n"
                "  Write them with `streamdata verify --write-sums`, or accept it with verify=False.",
                one_line(self.path), len(without), one_line(without[0]),
            )  # fmt: skip
        if unchecked := [array for array in self.arrays() if array.offset is None]:
            logger.warning(
                "store '%s': not checked when they are read, since they are chunked or compressed: %d datasets, "
                "such as %r of '%s'", self.path, len(unchecked), unchecked[0].dataset, unchecked[0].file,
            )  # fmt: skip

    def _fill(self, column: Column, begin: int, out: Values) -> None:
        number, done = bisect_right(column.ends, begin), 0
        while done < len(out):
            local = begin + done - column.starts[number]
            some = min(len(out) - done, column.segments[number].data.count - local)
            if some:
                out[done : done + some] = self.values(column.segments[number].data)[local : local + some]
            done, number = done + some, number + 1

    def _piece(self, column: Column, array: StoredArray, begin: int, end: int) -> Values:
        out = np.empty(end - begin, column.dtype)
        if len(out):
            out[:] = self.values(array)[begin:end]
        return out

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_columns": None}


def _tensors(values: Values | list[Values]) -> RecordValues:
    import torch

    return [torch.from_numpy(run) for run in values] if isinstance(values, list) else torch.from_numpy(values)


def _identity(segment: Segment, path: str) -> list[object]:
    data = segment.data
    # From a file, or a pair, its own name counts: a directory with nothing else is the same store.
    name = os.path.relpath(data.file, path if data.file.startswith(path + os.sep) else os.path.dirname(path))
    return [name, data.dtype.str, data.count, data.checksum, segment.records.count, segment.rows is not None]


def store_files(path: Path) -> tuple[Path, list[str]]:
    """All files below a directory, in natural order; what begins with a dot is passed over. Or a file, or a pair.

    Args:
        path: A directory; a file; what a `.bin` and an `.idx` have before their suffixes, with or without one of these.

    Returns:
        The directory they lie in, at some depth, and their names relative to it, in the order of every rank.

    Raises:
        FileNotFoundError: There is nothing.
        StoreError: There is only one of the two files.
    """
    prefix = path.name[:-4] if path.suffix in _PAIR else path.name
    pair = [f"{prefix}{suffix}" for suffix in _PAIR]
    there = [name for name in pair if path.with_name(name).is_file()] if path.name else []
    # Megatron keeps its indices in a directory with the name of the pair: that is no other store.
    if there == pair and not (path.is_dir() and suffixed(_walk(str(path), "", ()), *H5_SUFFIXES, *_PAIR)):
        return (path.parent, pair)
    if len(there) == 1 and (path.suffix == ".idx" or not (path.exists() or path.suffix == ".bin")):
        remedy = "The .idx comes last: write or copy the pair again."
        raise StoreError.mismatch(f"store '{path}'", " and ".join(pair), f"only {there[0]}", remedy)
    if path.is_dir():
        return (path, sorted(_walk(str(path), "", ()), key=natural))
    if path.exists():
        return (path.parent, [path.name])
    raise FileNotFoundError(
        f"store '{path}': expected a directory of shards, a file, or a .bin and an .idx of that name, got nothing there"
    )


def _walk(directory: str, prefix: str, above: Sequence[tuple[int, int]]) -> Iterator[str]:
    status = os.stat(directory)
    identity = (status.st_dev, status.st_ino)
    if identity in above:  # a link to a directory above
        return
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from _walk(entry.path, f"{prefix}{entry.name}/", (*above, identity))
            else:
                yield prefix + entry.name


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts shard_2 before shard_10."""
    return [(int(part), part) if part.isdecimal() else (-1, part) for part in _DIGITS.split(name)]


def suffixed(files: Iterable[str], *suffixes: str) -> list[str]:
    """The files with one of these suffixes."""
    return [file for file in files if file.endswith(suffixes)]
