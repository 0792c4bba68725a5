"""Records on their way into shards: per key their values joined, cut where a shard is full."""

from dataclasses import dataclass, field

import numpy as np

from streamdata.errors import StoreError
from streamdata.stores.dtypes import Int64s, Values
from streamdata.stores.spool import Spool


def _bounds(lengths: Int64s) -> Int64s:
    bounds = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


@dataclass
class KeyRecords:
    """The records of one key.

    Args:
        values: Of all records, joined.
        lengths: Of each record, in values; in items where it has such.
        item_lengths: Of each item, in values; None for a key whose records are no lists.
        who: Store and key, for errors.
    """

    values: Values
    lengths: Int64s
    item_lengths: Int64s | None
    who: str
    records: Int64s = field(init=False)  # (records + 1,): where each begins, in values or items
    tokens: Int64s = field(init=False)  # (records + 1,): where each begins, in values

    def __post_init__(self) -> None:
        self.records = self.tokens = _bounds(self.lengths)
        total = int(self.records[-1])
        if self.item_lengths is not None:
            if total != len(self.item_lengths):
                raise StoreError(f"{self.who}: its records have {total} items, got {len(self.item_lengths)} lengths")
            items = _bounds(self.item_lengths)
            self.tokens, total = items[self.records], int(items[-1])
        if total != len(self.values):
            raise StoreError(
                f"{self.who}: its lengths add up to {total}, got {len(self.values)} values\n"
                "  Give the length of every record (and of every item of lists)."
            )


class RecordBatch:
    """Records of all keys.

    Args:
        keys: Per key as many records.
        documents: The lengths of the documents in the rows of the first key.

    Raises:
        StoreError: Keys have different numbers of records, or a document reaches over the end of its row.
    """

    def __init__(self, keys: dict[str, KeyRecords], documents: Int64s | None) -> None:
        self.keys = keys
        counts = {key: len(records.lengths) for key, records in keys.items()}
        first = next(iter(keys.values()))
        if len(set(counts.values())) > 1:
            raise StoreError(f"{first.who}: expected as many records of every key, got {counts}")
        self.num_records = len(first.lengths)
        self._documents = documents
        if documents is not None:
            if len(documents) and not documents.all():
                raise StoreError(f"{first.who}: expected documents of at least one value, got one of none")
            ends = _bounds(documents)
            self._row_documents = np.searchsorted(ends, first.tokens)
            if ends[-1] != first.tokens[-1] or not np.array_equal(ends[self._row_documents], first.tokens):
                raise StoreError(
                    f"{first.who}: expected documents that end with every row, got {len(documents)} documents of "
                    f"{ends[-1]} values in rows of {first.tokens[-1]}\n  Count a row's padding as a document."
                )

    def fitting(self, begin: int, spool: Spool, max_values: int) -> int:
        """The end of the records from `begin` on with which no key of the shard has more than `max_values`."""
        end = self.num_records
        for name, key in self.keys.items():
            room = max_values - spool.num_values(name)
            end = min(end, int(np.searchsorted(key.tokens, key.tokens[begin] + room, side="right")) - 1)
        return max(end, begin if spool.num_records else begin + 1)

    def spool(self, spool: Spool, begin: int, end: int) -> None:
        """Append records begin to end."""
        for name, key in self.keys.items():
            values = key.values[key.tokens[begin] : key.tokens[end]]
            of_items = None if key.item_lengths is None else key.item_lengths[key.records[begin] : key.records[end]]
            spool.add(name, values, key.lengths[begin:end], of_items)
        if self._documents is not None:
            spool.add_documents(self._documents[self._row_documents[begin] : self._row_documents[end]])
        spool.num_records += end - begin
