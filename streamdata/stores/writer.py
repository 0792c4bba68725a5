"""Records → shards of a store, in bounded memory."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from streamdata.errors import StoreError, names_text, shown
from streamdata.run.publish import temporary_beside
from streamdata.stores.dtypes import TRAIN_TYPES, Int64s, Values, fitted, possible_train_types, stored_dtype
from streamdata.stores.megatron_store import CODES
from streamdata.stores.spool import PUBLISH, Part, Spool

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_SHARDS = ("shard_*", "data_*")
DEFAULT_SHARD_TOKENS: Final = 1 << 28
"""512 MiB of uint16."""

Lengths = npt.ArrayLike | Mapping[str, npt.ArrayLike]
Parts: TypeAlias = dict[Part, tuple[Values, Int64s | range]]
"""The values of some records for each file of a shard, and where each record begins in it, (records + 1,)."""


class StoreWriter:
    """Writes records to a new store, shard by shard. Equal records give equal bytes, however they are portioned.

    Use it as a context manager, or call `close`; a shard is published when it is full, and the last by `close`. After
    an error nothing of the unfinished shard can be read.

    Args:
        storage_type: `bin`, `h5` or `megatron`. The last has one key, `sequence`, and no packed rows.
        directory: The directory for shards: `shard_0000/`, or `data_0000.h5`, or `data_0000.bin` and `.idx`. Made if
            missing.
        keys: Name → dtype on disk, such as "uint16" for token ids below 65,536. The first is the one that shards'
            tokens are counted in.
        items: The keys whose records are lists of 1-D arrays, such as the responses to a prompt.
        rows: The records are packed rows, which windows do not cross.
        max_tokens_per_shard: A shard ends before the record with which any of its keys would exceed this number of
            values. A longer record is a shard of its own.
        train_types: The train types that the store is for; by default every one whose keys it has.

    Attributes:
        shards: The paths published so far.
        num_records: The number of records appended.
        num_tokens: The number of values of the first key.

    Raises:
        StoreError: The directory has shards already, a dtype or key the format does not hold, or a train type without
            its keys.
    """

    def __init__(
        self,
        storage_type: str,
        directory: str | Path,
        keys: Mapping[str, str],
        *,
        items: Collection[str] = (),
        rows: bool = False,
        max_tokens_per_shard: int = DEFAULT_SHARD_TOKENS,
        train_types: Sequence[str] | None = None,
    ) -> None:
        self._directory = Path(directory)
        self._who = f"store '{directory}'"
        self._whose = {key: f"{self._who}, key {shown(key)}" for key in keys}
        self._dtypes = {key: stored_dtype(dtype, self._whose[key]) for key, dtype in keys.items()}
        self._storage_type, self._items = storage_type, frozenset(items)
        self._max_tokens = max_tokens_per_shard
        self._rows = rows
        self._train_types = possible_train_types(list(keys)) if train_types is None else list(train_types)
        self._check()
        self._directory.mkdir(parents=True, exist_ok=True)
        if found := sorted(path.name for pattern in _SHARDS for path in self._directory.glob(pattern)):
            raise StoreError.mismatch(self._who, "no shards in it", found[:4], "Write to a new directory.")
        self._spool: Spool | None = None
        self._with_documents: bool | None = None
        self._closed = False
        self.shards: list[Path] = []
        self.num_records = self.num_tokens = 0

    def append(self, record: Mapping[str, Any], documents: Sequence[int] | None = None) -> None:
        """Write one record.

        Args:
            record: For each key a 1-D array; for keys in `items` a list of 1-D arrays.
            documents: For a packed row, the lengths of its documents. Padding counts as one.

        Raises:
            StoreError: See `extend`.
        """
        self._check_keys(record)
        flat: dict[str, Values] = {}
        lengths: dict[str, list[int]] = {}
        item_lengths: dict[str, list[int]] = {}
        for key, dtype in self._dtypes.items():
            is_list = key in self._items
            runs = [fitted(run, dtype, self._whose[key]) for run in (record[key] if is_list else [record[key]])]
            flat[key] = np.concatenate([np.empty(0, dtype), *runs]) if is_list else runs[0]
            item_lengths[key] = [len(run) for run in runs]
            lengths[key] = [len(runs)] if is_list else item_lengths[key]
        self.extend(flat, lengths, item_lengths, documents)

    def extend(
        self,
        flat: Mapping[str, npt.ArrayLike],
        lengths: Lengths,
        item_lengths: Mapping[str, npt.ArrayLike] | None = None,
        documents: npt.ArrayLike | None = None,
    ) -> None:
        """Write many records at once, given the concatenated values of each key.

        Args:
            flat: For each key the values of all records, 1-D.
            lengths: The length of each record, int (records,), for all keys or per key; for keys in `items` the number
                of items.
            item_lengths: For each key in `items` the length of each item, int (items,).
            documents: The lengths of all documents in these rows, int (documents,), which fill every row exactly.

        Raises:
            StoreError: Keys are missing or unknown, lengths do not add up, a value does not fit into its key's dtype,
                or documents are given for some records and not for others. None of these records was written.
            OSError: The disk cannot be written. The unfinished shard is dropped, and the writer closed.
        """
        if self._closed:
            raise StoreError.mismatch(self._who, "an open writer", "one that was closed", "Make a new one.")
        parts = self._parts(flat, lengths, item_lengths or {}, documents)
        first = next(iter(self._dtypes))
        num_records = len(parts[first, "records"][0])
        try:
            begin = 0
            while begin < num_records:
                spool = self._spool or self._open(with_documents=documents is not None)
                end = self._fitting(parts, begin, num_records, spool)
                for part, (values, cuts) in parts.items():
                    spool.files[part].add(values[cuts[begin] : cuts[end]])
                if end < num_records:
                    self._finish()
                begin = end
        except BaseException:
            self.discard()  # some keys may have the records, and some not
            raise
        self.num_records += num_records
        self.num_tokens += len(parts[first, "data"][0])

    def close(self) -> None:
        """Publish the last shard. A writer without records leaves no shard."""
        if not self._closed:
            self._finish()
            self._closed = True

    def discard(self) -> None:
        """Drop the unfinished shard; published shards stay."""
        self._closed = True
        if self._spool is not None:
            self._spool.discard()
            self._spool = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def _open(self, *, with_documents: bool) -> Spool:
        temporary = temporary_beside(self._directory / f"shard_{len(self.shards):04d}")
        about = {"rows": self._rows, "train_types": self._train_types}
        self._spool = Spool(temporary, self._dtypes, self._items, about, documents=with_documents)
        return self._spool

    def _fitting(self, parts: Parts, begin: int, num_records: int, spool: Spool) -> int:
        """The end of the records from `begin` on with which no key of the shard has too many values."""
        end = num_records
        for key in self._dtypes:
            cuts = parts[key, "data"][1]
            room = self._max_tokens - spool.num_values(key)
            end = min(end, int(np.searchsorted(cuts, cuts[begin] + room, side="right")) - 1)
        return max(end, begin if spool.num_records else begin + 1)

    def _finish(self) -> None:
        if self._spool is None:
            return
        spool, self._spool = self._spool, None
        try:
            self.shards.append(PUBLISH[self._storage_type](spool, self._directory, len(self.shards)))
        finally:
            spool.discard()

    def _parts(self, flat: Mapping[str, Any], lengths: Any, item_lengths: Mapping[str, Any], documents: Any) -> Parts:
        """Splits all records into the values of each file of a shard."""
        self._check_keys(flat)
        parts: Parts = {}
        rows: dict[str, Int64s] = {}
        for key, dtype in self._dtypes.items():
            who = self._whose[key]
            values = fitted(flat[key], dtype, who)
            of_records = _lengths(lengths[key] if isinstance(lengths, Mapping) else lengths, who)
            records = tokens = _bounds(of_records)
            if key in self._items:
                of_items = _lengths(item_lengths.get(key, ()), f"{who}, items")
                if records[-1] != len(of_items):
                    raise StoreError(f"{who}: its records have {records[-1]} items, got {len(of_items)} lengths")
                parts[key, "items"] = of_items, records
                tokens = _bounds(of_items)[records]
            if tokens[-1] != len(values):
                raise StoreError(
                    f"{who}: its lengths add up to {tokens[-1]}, got {len(values)} values\n"
                    "  Give the length of every record (and of every item of lists)."
                )
            parts[key, "records"] = of_records, range(len(of_records) + 1)
            parts[key, "data"] = values, tokens
            rows[key] = tokens
        first, counts = next(iter(rows)), {key: len(tokens) - 1 for key, tokens in rows.items()}
        if len(set(counts.values())) > 1:
            raise StoreError(f"{self._whose[first]}: expected as many records of every key, got {counts}")
        if documents is not None:
            of_documents = _lengths(documents, f"{self._who}, documents")
            parts[first, "documents"] = of_documents, self._row_documents(of_documents, rows[first])
        if counts[first]:
            given = documents is not None
            if given and not self._rows:
                raise StoreError(f"{self._who}: documents lie in packed rows, got rows=False\n  Each is a document.")
            if self._with_documents not in (None, given):
                raise StoreError(f"{self._who}: expected documents of all rows or of none\n  Give them with every row.")
            self._with_documents = given
        return parts

    def _row_documents(self, lengths: Int64s, rows: Int64s) -> Int64s:
        """With which document each row begins, and how many there are, (rows + 1,)."""
        who, ends = self._whose[next(iter(self._dtypes))], _bounds(lengths)
        if len(lengths) and not lengths.all():
            raise StoreError(f"{who}: expected documents of at least one value, got one of none")
        firsts = np.searchsorted(ends, rows)
        if ends[-1] != rows[-1] or not np.array_equal(ends[firsts], rows):
            found = f"{len(lengths)} documents of {ends[-1]} values in rows of {rows[-1]}"
            remedy = "Count a row's padding as a document."
            raise StoreError.mismatch(who, "documents that end with every row", found, remedy)
        return firsts

    def _check_keys(self, record: Mapping[str, Any]) -> None:
        if record.keys() != self._dtypes.keys():
            expected, got = f"records with the keys {sorted(self._dtypes)}", names_text(record)
            raise StoreError.mismatch(self._who, expected, got, "Give every record all keys of its store.")

    def _check(self) -> None:
        if self._storage_type not in PUBLISH:
            raise StoreError(f"{self._who}: expected a format of {sorted(PUBLISH)}, got {shown(self._storage_type)}")
        for key in self._dtypes:
            if not _KEY.fullmatch(key):
                raise StoreError(f"{self._who}: expected a key of letters, digits, '_' and '-', got {shown(key)}")
        if not self._dtypes or not self._items <= set(self._dtypes):
            raise StoreError(f"{self._who}: expected keys, and items among them, got {sorted(self._items)}")
        if self._max_tokens < 1:
            raise StoreError(f"{self._who}: expected max_tokens_per_shard of at least 1, got {self._max_tokens}")
        names = {key: dtype.name for key, dtype in self._dtypes.items()}
        for name in self._train_types:
            missing = [key for key in TRAIN_TYPES.get(name, (name,)) if key not in names]
            if missing:
                raise StoreError(f"{self._who}: train type {shown(name)} needs the keys {missing}, got {list(names)}")
        is_plain = list(names) == ["sequence"] and not self._items and not self._rows
        if self._storage_type == "megatron" and not (is_plain and names["sequence"] in CODES.values()):
            raise StoreError(
                f"{self._who}: format 'megatron' holds one key 'sequence' of dtype {', '.join(CODES.values())}, "
                f"without items and rows, got {names}, rows={self._rows}\n  Write 'bin' or 'h5'."
            )


def _lengths(values: Any, who: str) -> Int64s:
    lengths = fitted(values, np.dtype(np.int64), f"{who}, lengths")
    if len(lengths) and int(lengths.min()) < 0:
        raise StoreError(f"{who}: expected lengths of at least 0, got {lengths.min()}")
    return lengths


def _bounds(lengths: Int64s) -> Int64s:
    bounds = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds
