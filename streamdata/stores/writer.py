"""Records → shards of a store, in bounded memory."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from streamdata.errors import StoreError, names_text, shown
from streamdata.run.publish import temporary_beside
from streamdata.stores.dtypes import Int64s, Values, fitted, stored_dtype
from streamdata.stores.megatron_index import CODES
from streamdata.stores.meta import Purpose
from streamdata.stores.publish_shard import PUBLISH
from streamdata.stores.record_batch import KeyRecords, RecordBatch
from streamdata.stores.spool import Spool
from streamdata.stores.train_types import TRAIN_TYPES, possible_train_types

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_SHARDS = ("shard_*", "data_*")
DEFAULT_SHARD_TOKENS: Final = 1 << 28
"""512 MiB of uint16."""

Lengths = npt.ArrayLike | Mapping[str, npt.ArrayLike]


class StoreWriter:
    """Writes records to a new store, shard by shard. The same records give the same bytes, in any portions.

    Use it as a context manager, or call `close`; a shard is published when it is full, and the last by `close`. After
    an error nothing of the unfinished shard can be read.

    Args:
        storage_type: `bin`, `h5` or `megatron`. Megatron's has one key, `sequence`, and no packed rows.
        directory: Where shards go: `shard_0000/`, or `data_0000.h5`, or `data_0000.bin` and `.idx`. Made if missing.
        keys: Name → dtype on disk; see `token_dtype`. The first is the one that shards' tokens are counted in.
        items: The keys whose records are lists of 1-D arrays, such as the responses to a prompt.
        rows: The records are packed rows, which windows do not cross.
        max_tokens_per_shard: A shard ends before the record with which any of its keys would have more values. A record
            longer than that is a shard of its own.
        train_types: What the store is for; by default every train type whose keys it has.

    Attributes:
        shards: The paths published so far.
        num_records: How many records were appended.
        num_tokens: How many values of the first key.

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
        self._dtypes = {key: stored_dtype(dtype, self._whose(key)) for key, dtype in keys.items()}
        self._storage_type, self._items = storage_type, frozenset(items)
        self._max_tokens = max_tokens_per_shard
        types = possible_train_types(list(keys)) if train_types is None else train_types
        self._purpose = Purpose(rows, tuple(types))
        self._check()
        self._directory.mkdir(parents=True, exist_ok=True)
        if found := sorted(path.name for pattern in _SHARDS for path in self._directory.glob(pattern)):
            raise StoreError(f"{self._who}: expected no shards in it, got {found[:4]}\n  Write to a new directory.")
        self._spool: Spool | None = None
        self._with_documents: bool | None = None
        self._closed = False
        self.shards: list[Path] = []
        self.num_records = self.num_tokens = 0

    def append(self, record: Mapping[str, Any], documents: Sequence[int] | None = None) -> None:
        """Write one record.

        Args:
            record: Per key a 1-D array, or of `items` a list of these.
            documents: Of a packed row, the lengths of the documents in it. Padding counts as one.

        Raises:
            StoreError: See `extend`.
        """
        self._check_keys(record)
        flat: dict[str, Values] = {}
        lengths: dict[str, list[int]] = {}
        item_lengths: dict[str, list[int]] = {}
        for key, dtype in self._dtypes.items():
            if key in self._items:
                runs = [fitted(item, dtype, self._whose(key)) for item in record[key]]
                flat[key] = np.concatenate([np.empty(0, dtype), *runs])
                lengths[key], item_lengths[key] = [len(runs)], [len(run) for run in runs]
            else:
                flat[key] = fitted(record[key], dtype, self._whose(key))
                lengths[key] = [len(flat[key])]
        self.extend(flat, lengths, item_lengths, documents)

    def extend(
        self,
        flat: Mapping[str, npt.ArrayLike],
        lengths: Lengths,
        item_lengths: Mapping[str, npt.ArrayLike] | None = None,
        documents: npt.ArrayLike | None = None,
    ) -> None:
        """Write many records at once, the values of each key joined.

        Args:
            flat: Per key the values of all records, 1-D.
            lengths: The length of each record, int (records,), for all keys or per key. Of `items` the number of items.
            item_lengths: Per key of `items` the length of each item, int (items,).
            documents: The lengths of all documents in these rows, int (documents,), which fill every row exactly.

        Raises:
            StoreError: Keys are missing or unknown, lengths do not add up, a value does not fit into its key's dtype,
                or documents are given for some records and not for others. Nothing of these records was written.
            OSError: They cannot be written. The shard under way is dropped, and the writer closed.
        """
        if self._closed:
            raise StoreError(f"{self._who}: expected an open writer, got one that was closed\n  Make a new one.")
        batch = self._checked(flat, lengths, item_lengths or {}, documents)
        try:
            self._write(batch)
        except BaseException:
            self.discard()  # some keys may have the records, and some not
            raise
        self.num_records += batch.num_records
        self.num_tokens += len(next(iter(batch.keys.values())).values)

    def close(self) -> None:
        """Publish the last shard. A writer that was given no records leaves no shard."""
        if not self._closed:
            self._finish()
            self._closed = True

    def discard(self) -> None:
        """Drop the shard under way; those published stay."""
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

    def _write(self, batch: RecordBatch) -> None:
        begin = 0
        while begin < batch.num_records:
            spool = self._spool or self._open()
            end = batch.fitting(begin, spool, self._max_tokens)
            batch.spool(spool, begin, end)
            if end < batch.num_records:
                self._finish()
            begin = end

    def _open(self) -> Spool:
        first = next(iter(self._dtypes))
        temporary = temporary_beside(self._directory / f"shard_{len(self.shards):04d}")
        self._spool = Spool(temporary, self._dtypes, self._items, first if self._with_documents else None)
        return self._spool

    def _finish(self) -> None:
        if self._spool is None:
            return
        spool, self._spool = self._spool, None
        try:
            spool.close()
            path = PUBLISH[self._storage_type](spool, self._directory, len(self.shards), self._purpose)
            self.shards.append(path)
        finally:
            spool.discard()

    def _checked(
        self, flat: Mapping[str, Any], lengths: Any, item_lengths: Mapping[str, Any], documents: Any
    ) -> RecordBatch:
        self._check_keys(flat)
        keys = {}
        for key, dtype in self._dtypes.items():
            who = self._whose(key)
            values = fitted(flat[key], dtype, who)
            of_records = _lengths(lengths[key] if isinstance(lengths, Mapping) else lengths, who)
            of_items = _lengths(item_lengths.get(key, ()), f"{who}, items") if key in self._items else None
            keys[key] = KeyRecords(values, of_records, of_items, who)
        of_documents = None if documents is None else _lengths(documents, f"{self._who}, documents")
        batch = RecordBatch(keys, of_documents)
        if batch.num_records:
            self._check_documents(documents is not None)
        return batch

    def _whose(self, key: str) -> str:
        return f"{self._who}, key {shown(key)}"

    def _check_keys(self, record: Mapping[str, Any]) -> None:
        if set(record) != set(self._dtypes):
            raise StoreError(
                f"{self._who}: expected records with the keys {sorted(self._dtypes)}, got {names_text(record)}\n"
                "  Give every record all keys of its store."
            )

    def _check_documents(self, given: bool) -> None:
        if given and not self._purpose.rows:
            raise StoreError(f"{self._who}: documents lie in packed rows, got rows=False\n  Each record is a document.")
        if self._with_documents is None:
            self._with_documents = given
        if self._with_documents != given:
            raise StoreError(f"{self._who}: expected documents of all rows or of none\n  Give them with every row.")

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
        for name in self._purpose.train_types:
            missing = [key for key in TRAIN_TYPES.get(name, (name,)) if key not in self._dtypes]
            if missing:
                raise StoreError(
                    f"{self._who}: train type {shown(name)} needs the keys {missing}, got {list(self._dtypes)}"
                )
        if self._storage_type == "megatron":
            self._check_megatron()

    def _check_megatron(self) -> None:
        names = {key: dtype.name for key, dtype in self._dtypes.items()}
        if list(names) != ["sequence"] or self._items or self._purpose.rows or names["sequence"] not in CODES.values():
            raise StoreError(
                f"{self._who}: format 'megatron' holds one key 'sequence' of dtype {', '.join(CODES.values())}, "
                f"without items and rows, got {names}, rows={self._purpose.rows}\n  Write 'bin' or 'h5'."
            )


def _lengths(values: Any, who: str) -> Int64s:
    lengths = fitted(values, np.dtype(np.int64), f"{who}, lengths")
    if len(lengths) and int(lengths.min()) < 0:
        raise StoreError(f"{who}: expected lengths of at least 0, got {lengths.min()}")
    return lengths
