"""One parquet file, local or remote: `footer → facts of its row groups; a row group → batches of a bounded size`.

All of the house that reads parquet reads it here. Nothing that the file says of itself is believed that its size
contradicts, and what is decoded at once is bounded whatever it says.
Format: https://parquet.apache.org/docs/file-format, https://github.com/apache/parquet-format.
"""

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

from streamdata.errors import ShardError, did_you_mean, listing, needs, shown
from streamdata.shards.one_pass import ByteSource
from streamdata.shards.parquet_types import cast_batch, leaves_of, plain_schema
from streamdata.shards.signatures import refuse_foreign
from streamdata.shards.stored_rows import import_pyarrow

PARQUET_SUFFIXES = (".parquet",)
MAX_BATCH_ROWS = 1024
_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
MAX_COUNT = 1 << 40  # of rows or values of a group, so that sums of them are numbers of 64 bits
_TAIL_BYTES = 1 << 16  # read at once from the end: most footers are smaller
_FOOTER_END = 8  # bytes: the length of the footer, and the magic
_BUFFER_BYTES = 1 << 20
_MAX_BATCH_BYTES = 4 << 20  # about, by the mean row
_MAX_REPEATED_BYTES = 128 << 20  # what a batch may come to if each of its values is the longest of a dictionary
_KEPT_WITH_DICTIONARY = frozenset({"PLAIN", "RLE", "BIT_PACKED", "RLE_DICTIONARY", "PLAIN_DICTIONARY"})  # by pyarrow
_LONG_VALUE = 1024  # bytes: a dictionary of shorter ones costs more than small batches do
_NEXT_INT32, _GOES_ON = b"\x15", 0x80  # of Thrift: the head of the next field, a 32-bit integer; a bit of its bytes
_WIDTHS = {"INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8, "BYTE_ARRAY": 4}


class GroupFacts(NamedTuple):
    """What the footer says of a row group, as far as some columns go."""

    group: int
    num_rows: int
    num_bytes: int
    """Decoded, about: a dictionary's values may be repeated more often than anything here tells."""
    spans: list[tuple[int, int]]
    """Where these columns lie in the file, sorted; those that touch are one."""

    @property
    def begin(self) -> int:
        """Its first byte."""
        return self.spans[0][0] if self.spans else 0


class _StoredColumn(NamedTuple):
    """A column in storage."""

    number: int
    top: str
    """The column of the table that it is of."""
    is_flat: bool
    """Whether its rows have one value each."""
    width: int
    """Bytes of a value, at least."""
    path: str | None
    """By which pyarrow finds it to keep its dictionary; None where that cannot be."""


class RangedFile(io.RawIOBase):
    """A file as pyarrow reads it: from pieces that are held, and where none has the bytes from its source."""

    def __init__(self, source: ByteSource) -> None:
        assert source.size is not None, "a file of row groups has a size"
        self.held: list[tuple[int, memoryview]] = []
        """Where each piece begins in the file, and its bytes."""
        self._source, self._size, self._at = source, source.size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        """Bytes of the file."""
        return self._size

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        data = self.bytes_at(self._at, wanted)
        self._at += len(data)
        return data

    def bytes_at(self, begin: int, size: int) -> bytes:
        """So many bytes from there on, fewer at the end of the file."""
        for first, piece in self.held:
            if first <= begin and begin + size <= first + len(piece):
                return bytes(piece[begin - first : begin - first + size])
        return self._source.read(size, begin) if size > 0 else b""


class OpenParquet:
    """An open parquet file.

    Args:
        url: For messages.
        source: Its bytes.
        data: The same as a file of pyarrow's, from which row groups are read; by default they are read from `source`.

    Raises:
        ShardError: It is not a parquet file of rows, or its footer is damaged.
        ImportError: pyarrow is missing.
    """

    def __init__(self, url: str, source: ByteSource, data: Any = None) -> None:
        with needs("pyarrow", "parquet", f"'{url}': reading parquet"):
            pyarrow = import_pyarrow()
        self._url, self.file, self._data = url, RangedFile(source), data
        self._data_end = 0
        with self._damage("its footer"):
            footer = self._footer()
            self.metadata = pyarrow.parquet.read_metadata(pyarrow.BufferReader(footer))
            self._parquet = self._parquet_file()
            self._keeping: tuple[frozenset[str], Any] | None = None
            self.schema = plain_schema(self._parquet.schema_arrow)
        if twins := [name for name, count in Counter(self.schema.names).items() if count > 1]:
            raise ShardError(
                f"shard '{url}': expected a parquet file whose columns have different names, got several of "
                f"each of the names {twins}, of which a row would keep only one\n"
                "  Rename or drop them where the file is written."
            )

    def _parquet_file(self, dictionaries: Sequence[str] | None = None) -> Any:
        return import_pyarrow().parquet.ParquetFile(
            self._data or self.file,
            metadata=self.metadata,
            read_dictionary=dictionaries,
            pre_buffer=False,  # it would hold a whole row group
            buffer_size=_BUFFER_BYTES,
            page_checksum_verification=True,
        )

    @contextmanager
    def _damage(self, where: str) -> Iterator[None]:
        """Says which file it is that pyarrow cannot read."""
        try:
            yield
        except ShardError:
            raise
        except (ValueError, NotImplementedError, OSError, MemoryError) as error:  # pyarrow's too
            if type(error).__module__.partition(".")[0] not in ("pyarrow", "builtins"):
                raise
            raise ShardError(
                f"shard '{self._url}': expected a parquet file, got what pyarrow cannot read in {where}: {error}\n"
                "  The file is damaged or incomplete: copy or write it again.\n"
                f"  Or it misses a list of a fixed size: pyarrow {import_pyarrow().__version__} is here, 26 reads that."
            ) from error

    def _footer(self) -> bytes:
        """The end of the file from its footer on."""
        size = self.file.size()
        tail = self.file.bytes_at(max(0, size - _TAIL_BYTES), min(size, _TAIL_BYTES))
        if not tail.endswith(_MAGIC) or size < _FOOTER_END + len(_MAGIC):
            raise self._no_footer(size, tail)
        length = int.from_bytes(tail[-_FOOTER_END:-4], "little")
        self._data_end = size - _FOOTER_END - length
        if self._data_end < len(_MAGIC):
            raise ShardError(
                f"shard '{self._url}': expected a parquet file, got one of {size} bytes whose footer has {length}, by "
                "its last 8\n  The file is damaged or incomplete: copy or write it again."
            )
        missing = length + _FOOTER_END - len(tail)
        if missing > 0:
            tail = self.file.bytes_at(self._data_end, missing) + tail
        return tail[-length - _FOOTER_END :]

    def _no_footer(self, size: int, tail: bytes) -> ShardError:
        head = self.file.bytes_at(0, min(size, 512))
        if head and not head.startswith(_MAGIC):
            refuse_foreign(self._url, head, "a parquet file")
        got = f"one of {size} bytes that ends in {shown(tail[-4:])}, and so has no footer"
        remedy = "The file is incomplete, or no parquet: copy or write it again."
        if tail.endswith(_ENCRYPTED):
            got, remedy = "an encrypted one", "Write it without encryption."
        return ShardError(f"shard '{self._url}': expected a parquet file, got {got}\n  {remedy}")

    def check_columns(self, columns: Sequence[str] | None) -> list[str]:
        """The columns that are read: these, in this order, or all.

        Raises:
            ShardError: One of them is not there.
        """
        names = self.schema.names
        for name in columns or ():
            if name not in names:
                guess = did_you_mean(name, names)
                raise ShardError(
                    f"shard '{self._url}': expected the column {shown(name)}, got none of this name{guess}\n"
                    f"  It has: {listing(names)}."
                )
        return list(columns or names)

    def groups(self, columns: Sequence[str] | None = None) -> list[GroupFacts]:
        """The row groups that have rows.

        Raises:
            ShardError: A group does not lie within the file, or its counts contradict each other.
        """
        leaves = self._leaves(columns)
        groups = range(self.metadata.num_row_groups)
        return [self._facts(number, leaves) for number in groups if self.metadata.row_group(number).num_rows]

    def _leaves(self, columns: Sequence[str] | None) -> list[_StoredColumn]:
        """The columns in storage that these have."""
        wanted = None if columns is None else set(columns)
        return [leaf for leaf in self._all_leaves if wanted is None or leaf.top in wanted]

    @cached_property
    def _all_leaves(self) -> list[_StoredColumn]:
        # By count, not by the path's first part: a name may have dots in it.
        tops = [(field.name, ok) for field in self._parquet.schema_arrow for ok in leaves_of(field.type)]
        stored = [self.metadata.schema.column(number) for number in range(len(self.metadata.schema))]
        counts = Counter(leaf.path for leaf in stored)
        return [
            _StoredColumn(
                number,
                top,
                is_flat=leaf.max_repetition_level == 0,
                width=max(_WIDTHS.get(leaf.physical_type, 0), leaf.length or 0),
                path=leaf.path if keeps_dictionary and counts[leaf.path] == 1 else None,
            )
            for number, (leaf, (top, keeps_dictionary)) in enumerate(zip(stored, tops, strict=True))
        ]

    def _facts(self, number: int, leaves: Sequence[_StoredColumn]) -> GroupFacts:
        group = self.metadata.row_group(number)
        num_rows, num_bytes, spans = group.num_rows, 0, []
        for leaf in leaves:
            column = group.column(leaf.number)
            values, size = column.num_values, column.total_compressed_size
            begin = _first_byte(column)
            fits = len(_MAGIC) <= begin and size >= 0 and begin + size <= self._data_end
            if (
                not fits
                or not 0 <= num_rows <= MAX_COUNT
                or not 0 <= values <= MAX_COUNT
                or (leaf.is_flat and values != num_rows)
            ):
                raise ShardError(
                    f"shard '{self._url}': row group {number}: expected {num_rows} rows within the first "
                    f"{self._data_end} bytes, got column '{column.path_in_schema}' of {values} values in bytes {begin} "
                    f"to {begin + size}\n  The file is damaged or incomplete: copy or write it again."
                )
            spans.append((begin, begin + size))
            unpacked = min(max(column.total_uncompressed_size, 0), MAX_COUNT)
            width = leaf.width * values
            num_bytes += unpacked + width if column.physical_type == "BYTE_ARRAY" else max(unpacked, width)
        return GroupFacts(number, num_rows, num_bytes, _joined(spans))

    def batches(
        self,
        facts: GroupFacts,
        columns: Sequence[str] | None = None,
        most: int = MAX_BATCH_ROWS,
        most_bytes: int = _MAX_BATCH_BYTES,
        *,
        keep_dictionaries: bool = False,
    ) -> Iterator[Any]:
        """The rows of a group as Arrow's record batches. Each is decoded when it is asked for, without Python's lock.

        Args:
            facts: Of the group.
            columns: Of the table; None for all.
            most: Rows of a batch, at most.
            most_bytes: Bytes of a batch, about, by what the footer says of the group.
            keep_dictionaries: Whether columns may stay dictionaries, of which each value is there once. Then those that
                could come to much more do, and all of the group is one batch; without it all are in `schema`.

        Raises:
            ShardError: It is damaged, or has not as many rows as the footer says.
        """
        names = self.schema.names if columns is None else list(columns)
        most = min(most, max(1, most_bytes * facts.num_rows // max(1, facts.num_bytes)))
        with self._damage(f"row group {facts.group}"):
            size, kept = self._bounds(facts, columns, most, keep_dictionaries=keep_dictionaries)
            reader = self._reader(kept)
            schema = plain_schema(reader.schema_arrow, keep_dictionaries=True) if keep_dictionaries else self.schema
            found = reader.iter_batches(size, row_groups=[facts.group], columns=columns, use_threads=False)
        return self._checked(found, facts, import_pyarrow().schema([schema.field(name) for name in names]))

    def _checked(self, found: Iterator[Any], facts: GroupFacts, schema: Any) -> Iterator[Any]:
        rows = 0
        with self._damage(f"row group {facts.group}"):
            for batch in found:
                rows += batch.num_rows
                # As it is, mostly: of long values a batch has few rows, and there are many.
                chosen = batch if batch.schema.names == schema.names else batch.select(schema.names)
                yield chosen if chosen.schema.equals(schema) else cast_batch(chosen, schema)
        if rows != facts.num_rows:
            raise ShardError(
                f"shard '{self._url}': row group {facts.group}: expected {facts.num_rows} rows, as its footer says, "
                f"got {rows}\n  The file is damaged: write it again."
            )

    def _bounds(
        self, facts: GroupFacts, columns: Sequence[str] | None, most: int, *, keep_dictionaries: bool
    ) -> tuple[int, frozenset[str]]:
        """How many rows to decode at once, few of those that may be long; and of which columns to keep dictionaries."""
        rows, bounded, kept = most, most, set[str]()
        group = self.metadata.row_group(facts.group)
        for leaf in self._leaves(columns):
            column = group.column(leaf.number)
            if column.physical_type != "BYTE_ARRAY" or not (longest := self._longest_repeated(column)):
                continue
            at_once = max(1, _MAX_REPEATED_BYTES // (longest * max(1, column.num_values // facts.num_rows)))
            if at_once >= most:
                continue
            rows = min(rows, at_once)
            is_long = column.total_uncompressed_size >= _LONG_VALUE * column.num_values
            if keep_dictionaries and is_long and leaf.path and _KEPT_WITH_DICTIONARY.issuperset(column.encodings):
                kept.add(leaf.path)
            else:
                bounded = rows
        # All rows or none: each batch would have all values of the dictionary that were found so far.
        return (facts.num_rows, frozenset(kept)) if kept and bounded == most else (rows, frozenset())

    def _reader(self, kept: frozenset[str]) -> Any:
        """What reads row groups, and leaves these columns the dictionaries that they are in storage."""
        if not kept:
            return self._parquet
        if self._keeping is None or self._keeping[0] != kept:  # mostly the same ones in all groups
            self._keeping = kept, self._parquet_file(sorted(kept))
        return self._keeping[1]

    def _longest_repeated(self, column: Any) -> int:
        """How long a value may be that the column has once and names many times; 0 where it has no such values.

        A page of a few bytes can name a dictionary's longest value a million times.
        """
        # Each value repeats as much as it likes of the one before.
        longest = int(column.total_uncompressed_size) // 16 if "DELTA_BYTE_ARRAY" in column.encodings else 0
        if column.has_dictionary_page and column.dictionary_page_offset:
            return max(longest, _unpacked_bytes(self.file.bytes_at(column.dictionary_page_offset, 32)))
        return longest


def _first_byte(column: Any) -> int:
    offsets = [column.data_page_offset, column.dictionary_page_offset]
    return int(min(offset for offset in offsets if offset is not None and (offset or offset == offsets[0])))


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        elif begin < end:
            joined.append((begin, end))
    return joined


def _unpacked_bytes(header: bytes) -> int:
    """The size of a page when it is decompressed: the second field of its header, in Thrift's compact protocol."""
    after_kind = _varint_end(header, 1)
    end = _varint_end(header, after_kind + 1)
    if header[:1] != _NEXT_INT32 or header[after_kind : after_kind + 1] != _NEXT_INT32 or end > len(header):
        return 0  # no header that anybody reads
    groups = header[after_kind + 1 : end]
    number = sum((group & ~_GOES_ON) << 7 * place for place, group in enumerate(groups))
    return max(0, (number >> 1) ^ -(number & 1))


def _varint_end(data: bytes, at: int) -> int:
    """Where the number ends that begins there: at the first byte without the bit that says that it goes on."""
    while at < len(data) and data[at] & _GOES_ON:
        at += 1
    return at + 1
