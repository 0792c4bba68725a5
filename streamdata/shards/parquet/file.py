"""One parquet file, local or remote: `footer → facts of its row groups; a row group → batches of a bounded size`.

All of the house that reads parquet reads it here. Nothing that the file says of itself is believed that its size
contradicts, and what is decoded at once is bounded, as far as the footer and the first page of a column tell: pages
after that are pyarrow's alone, and a file may be made so that a batch of them comes to any size.
Format: https://parquet.apache.org/docs/file-format, https://github.com/apache/parquet-format.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

from streamdata.errors import ShardError, needs, shown
from streamdata.io.one_pass import ByteSource
from streamdata.io.signatures import refuse_foreign
from streamdata.shards.parquet.pages import HEADER_BYTES, DictionaryPage, RangedFile, dictionary_page, longest_value
from streamdata.shards.parquet.stored_rows import import_pyarrow
from streamdata.shards.parquet.values import leaves_of, plain_schema

PARQUET_SUFFIXES = (".parquet",)
MAX_BATCH_ROWS = 1024
_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
MAX_COUNT = 1 << 40  # of rows or values of a group, so that sums of them are numbers of 64 bits
_TAIL_BYTES = 1 << 16  # read at once from the end: most footers are smaller
_FOOTER_END = 8  # bytes: the length of the footer, and the magic
_BUFFER_BYTES = 1 << 20
MAX_BATCH_BYTES = 4 << 20  # about, by the mean row
_MAX_REPEATED_BYTES = 128 << 20  # what a batch may come to if each of its values is the longest of a dictionary
_PLAIN_OR_KEPT = frozenset({"PLAIN", "RLE", "BIT_PACKED", "RLE_DICTIONARY", "PLAIN_DICTIONARY"})  # by pyarrow
_CODECS = {"UNCOMPRESSED": None, "SNAPPY": "snappy", "GZIP": "gzip", "BROTLI": "brotli", "ZSTD": "zstd"}
_WORTH_A_LOOK = 3  # times the dictionary, which is decompressed twice: what of a column is decoded faster after a look
_MAX_LOOK_BYTES, _MAX_LOOK_VALUES = 64 << 20, 1 << 16  # of a dictionary's page that is looked at: a value takes 0.1 µs
_READS_MISSING_FIXED_LISTS = 26  # pyarrow from this version on
_LONG_VALUE = 1024  # bytes: a dictionary of shorter ones costs more than small batches do
_OFFSET_BYTES = 4
_WIDTHS = {"INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8, "BYTE_ARRAY": 4}


class GroupFacts(NamedTuple):
    """Facts from a file's footer about a row group, for the columns that are read."""

    group: int
    num_rows: int
    num_bytes: int
    """Decoded, about: a dictionary's values may be repeated more often than anything here tells."""
    spans: list[tuple[int, int]]
    """Where these columns lie in the file, sorted; those that touch are one."""

    @property
    def begin(self) -> int:
        """The offset of the row group's first byte."""
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
    """The path by which pyarrow finds it to keep its dictionary; None where that cannot be."""


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

    _what, _where = "a parquet file", "its footer"

    def __init__(self, url: str, source: ByteSource, data: Any = None) -> None:
        with needs("pyarrow", "parquet", f"'{url}': reading {self._what}"):
            import_pyarrow()
        self._url, self.file, self._data = url, RangedFile(source), data
        self._data_end = 0
        with self._damage(self._where):
            self.schema = plain_schema(self._open())
        if twins := [name for name, count in Counter(self.schema.names).items() if count > 1]:
            raise ShardError(
                f"shard '{url}': expected {self._what} whose columns have different names, got several of "
                f"each of the names {twins}, of which a row would keep only one\n"
                "  Rename or drop them where the file is written."
            )

    def _open(self) -> Any:
        """Read the footer, and return the schema."""
        pyarrow, footer = import_pyarrow(), self._footer()
        self.metadata = pyarrow.parquet.read_metadata(pyarrow.BufferReader(footer))
        self._parquet = self._parquet_file()
        self._readers: dict[frozenset[str], Any] = {frozenset(): self._parquet}
        """Readers by the columns of which they keep dictionaries."""
        return self._parquet.schema_arrow

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
            version = import_pyarrow().__version__
            is_old = int(version.partition(".")[0]) < _READS_MISSING_FIXED_LISTS
            raise ShardError(
                f"shard '{self._url}': expected {self._what}, got what pyarrow cannot read in {where}: {error}\n"
                "  The file is damaged or incomplete: copy or write it again."
                + (f"\n  Or it misses a list of a fixed size: pyarrow {version} is here, 26 reads that." * is_old)
            ) from error

    def _footer(self) -> bytes:
        """The end of the file from its footer on."""
        size = self.file.size()
        tail = self.file.bytes_at(max(0, size - _TAIL_BYTES), min(size, _TAIL_BYTES))
        if not tail.endswith(_MAGIC) or size < _FOOTER_END + len(_MAGIC):
            head = self.file.bytes_at(0, min(size, 512))
            if head and not head.startswith(_MAGIC):
                refuse_foreign(self._url, head, "a parquet file")
            got = f"one of {size} bytes that ends in {shown(tail[-4:])}, and so has no footer"
            remedy = "The file is incomplete, or no parquet: copy or write it again."
            if tail.endswith(_ENCRYPTED):
                got, remedy = "an encrypted one", "Write it without encryption."
            raise ShardError(f"shard '{self._url}': expected a parquet file, got {got}\n  {remedy}")
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

    def groups(self, columns: Sequence[str] | None = None) -> list[GroupFacts]:
        """The row groups that have rows, with facts on `columns`.

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
            # Arrow's bits for missing values, and where the list of each row begins.
            num_bytes += -(-values // 8) + (0 if leaf.is_flat else _OFFSET_BYTES * num_rows)
        return GroupFacts(number, num_rows, num_bytes, _joined(spans))

    def batches(
        self,
        groups: Sequence[GroupFacts],
        columns: Sequence[str] | None = None,
        most: int = MAX_BATCH_ROWS,
        most_bytes: int = MAX_BATCH_BYTES,
        *,
        keep_dictionaries: bool = False,
    ) -> Iterator[Any]:
        """Yield the rows of groups as Arrow record batches, decoded on demand without holding the GIL.

        Args:
            groups: Their facts, in the order in which they are read.
            columns: Of the table; None for all.
            most: Rows of a batch, at most.
            most_bytes: Bytes of a batch, about, by what the footer says of the group.
            keep_dictionaries: Whether columns may stay dictionaries, of which each value is there once. Then those that
                could come to much more do, and all of a group is one batch; without it all are in `schema`.

        Raises:
            ShardError: The groups are damaged, or have another number of rows than the footer says.
        """
        names = self.schema.names if columns is None else list(columns)
        num_rows, num_bytes = sum(facts.num_rows for facts in groups), sum(facts.num_bytes for facts in groups)
        most = min(most, max(1, most_bytes * num_rows // max(1, num_bytes)))
        numbers = [facts.group for facts in groups]
        where = f"row group {', '.join(map(str, numbers))}"
        with self._damage(where):
            size, kept = self._bounds(groups, columns, most, keep_dictionaries=keep_dictionaries)
            if kept not in self._readers:  # mostly the same ones in all groups
                self._readers[kept] = self._parquet_file(sorted(kept))
            reader = self._readers[kept]
            schema = plain_schema(reader.schema_arrow, keep_dictionaries=True) if keep_dictionaries else self.schema
            found = reader.iter_batches(size, row_groups=numbers, columns=columns, use_threads=False)
        return self._checked(found, num_rows, where, import_pyarrow().schema([schema.field(name) for name in names]))

    def _checked(self, found: Iterator[Any], num_rows: int, where: str, schema: Any) -> Iterator[Any]:
        rows = 0
        with self._damage(where):
            for batch in found:
                rows += batch.num_rows
                # As it is, mostly: of long values a batch has few rows, and there are many.
                chosen = batch if batch.schema.names == schema.names else batch.select(schema.names)
                if not chosen.schema.equals(schema):
                    # Only columns of other types: pyarrow fails to cast lists of nulls in structs, even to their own.
                    columns = [
                        column if column.type == field.type else column.cast(field.type)
                        for column, field in zip(chosen.columns, schema, strict=True)
                    ]
                    chosen = import_pyarrow().record_batch(columns, schema=schema)
                yield chosen
        if rows != num_rows:
            raise ShardError(
                f"shard '{self._url}': {where}: expected {num_rows} rows, as its footer says, "
                f"got {rows}\n  The file is damaged: write it again."
            )

    def _bounds(
        self, groups: Sequence[GroupFacts], columns: Sequence[str] | None, most: int, *, keep_dictionaries: bool
    ) -> tuple[int, frozenset[str]]:
        """How many rows to decode at once, few of those that may be long; and of which columns to keep dictionaries."""
        rows, bounded, kept = most, most, set[str]()
        for facts, leaf in product(groups, self._leaves(columns)):
            column = self.metadata.row_group(facts.group).column(leaf.number)
            if column.physical_type != "BYTE_ARRAY" or not (longest := self._longest_repeated(column)):
                continue
            values_per_row = max(1, column.num_values // facts.num_rows)
            is_long = column.total_uncompressed_size >= _LONG_VALUE * column.num_values
            # Of lists, how many values the first rows have is not known, so that short ones may come to much as well.
            may_keep = (is_long or not leaf.is_flat) and leaf.path and _PLAIN_OR_KEPT.issuperset(column.encodings)
            most_values = _MAX_REPEATED_BYTES // values_per_row
            if may_keep and most_values // longest < most:
                longest = self._longest_in_dictionary(column)
            at_once = max(1, most_values // max(1, longest))  # all values of a dictionary may be empty
            if at_once >= most:
                continue
            rows = min(rows, at_once)
            if keep_dictionaries and may_keep and leaf.path:
                kept.add(leaf.path)
            else:
                bounded = rows
        # All rows or none: each batch would have all values of the dictionary that were found so far.
        whole = sum(facts.num_rows for facts in groups)
        return (whole, frozenset(kept)) if kept and bounded == most else (rows, frozenset())

    def _longest_repeated(self, column: Any) -> int:
        """How long a value may be that the column has once and names many times; 0 where it has no such values.

        A page of a few bytes can name a dictionary's longest value a million times.
        """
        # Each value repeats as much as it likes of the one before.
        longest = int(column.total_uncompressed_size) // 16 if "DELTA_BYTE_ARRAY" in column.encodings else 0
        page = self._dictionary_page(column)
        # Of a column without compression pyarrow reads what lies there, whatever the other size is.
        return longest if page is None else max(longest, page.size, page.stored)

    def _dictionary_page(self, column: Any) -> DictionaryPage | None:
        """The first page of a column, whatever the footer says of it, if it is a dictionary."""
        if not column.total_compressed_size:
            return None
        return dictionary_page(self.file.bytes_at(_first_byte(column), HEADER_BYTES))

    def _longest_in_dictionary(self, column: Any) -> int:
        """How long a value of a dictionary is; all of its page where that is not known."""
        page = self._dictionary_page(column)
        assert page is not None, "the column has a dictionary"
        is_worth_it = page.size * _WORTH_A_LOOK <= column.total_uncompressed_size and page.size <= _MAX_LOOK_BYTES
        if column.compression not in _CODECS or not is_worth_it or page.num_values > _MAX_LOOK_VALUES:
            return max(page.size, page.stored)
        data = self.file.bytes_at(_first_byte(column) + page.begin, page.stored)
        if codec := _CODECS[column.compression]:
            data = import_pyarrow().decompress(data, page.size, codec, asbytes=True)
        longest = longest_value(data, page.num_values)
        return max(page.size, page.stored) if longest is None else longest


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
