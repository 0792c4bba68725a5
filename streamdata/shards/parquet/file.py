"""One file of rows, local or remote: `footer → facts of its row groups; a row group → batches of a bounded size`.

A file is parquet, or an Arrow stream as `save_to_disk` of Hugging Face datasets writes them: a record batch of such a
stream is a row group. All of the house that reads these reads them here. Nothing that a file says of itself is believed
that its size contradicts; what is decoded at once is bounded as far as the footer tells.
Formats: https://parquet.apache.org/docs/file-format, https://github.com/apache/parquet-format,
https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format.
"""

import io
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from streamdata.errors import ShardError, did_you_mean, listing, shown
from streamdata.fields import SET_HERE
from streamdata.io.one_pass import ByteSource, byte_source
from streamdata.io.signatures import refuse_foreign
from streamdata.io.storage import FileStamp, is_remote, local_path
from streamdata.shards.parquet.values import as_schema, import_pyarrow, plain_schema, shape_of

PARQUET_SUFFIXES = (".parquet",)
ARROW_SUFFIX = ".arrow"
"""Folders also hold such files that are no shards, such as caches: only those are taken that their notes name."""
ROW_SUFFIXES = (*PARQUET_SUFFIXES, ARROW_SUFFIX)
MAX_COUNT = 1 << 40  # of rows or values of a group, so that sums of them are numbers of 64 bits
_MAX_BATCH_ROWS = 1024
_MAX_BATCH_BYTES = 4 << 20  # about, by the mean row
# A buffer beforehand would hold a whole row group.
_READING: Final = {"pre_buffer": False, "buffer_size": 1 << 20, "page_checksum_verification": True}
_OFFSET_BYTES = 4  # before each text, and of each list
_HEADER_BYTES = 16 << 10  # of pages: with the least and greatest text, each 4 KiB at most
_TEXT_BYTES = 64  # stored, of a dictionary for each value that names one of its texts
_WIDTHS = {"INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8, "BYTE_ARRAY": 4}


class RangedFile(io.RawIOBase):
    """A file object for pyarrow that reads from pieces held in memory, else from its source."""

    def __init__(self, source: ByteSource) -> None:
        assert source.size is not None, "a file of row groups has a size"
        self.held: Sequence[tuple[int, memoryview]] = ()
        """Pieces that are held: where each begins in the file, and its bytes."""
        self.size = source.size
        self._source, self._at = source, 0

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self.size - self._at)
        data = self.bytes_at(self._at, left if size is None or size < 0 else min(size, left))
        self._at += len(data)
        return data

    def bytes_at(self, begin: int, size: int) -> bytes:
        """Read `size` bytes from `begin`, fewer at the end of the file."""
        for first, piece in self.held:
            if first <= begin and begin + size <= first + len(piece):
                return bytes(piece[begin - first : begin - first + size])
        return self._source.read(size, begin) if size > 0 else b""


class GroupFacts(NamedTuple):
    """Facts from a file's footer about a row group, for the columns that are read."""

    group: int
    num_rows: int
    num_bytes: int
    """Decoded, about: a dictionary's values may be repeated more often than anything here tells."""
    spans: list[tuple[int, int]]
    """Where each of these columns lies in the file, sorted."""
    named: tuple[str, ...] = ()
    """Columns of texts that are written as numbers of a small dictionary."""


class OpenParquet:
    """An open parquet file.

    Args:
        url: For messages.
        source: Its bytes; a file of this machine is also read by pyarrow itself.

    Raises:
        ShardError: It is not a parquet file of rows, or its footer is damaged.
        ImportError: pyarrow is missing.
    """

    _what, _where = "a parquet file", "its footer"

    def __init__(self, url: str, source: ByteSource) -> None:
        self._url, self.file = url, RangedFile(source)
        with self.damage(self._where):
            self.schema = plain_schema(self._open())
        self._texts = {field.name for field in self.schema if shape_of(field.type) in ("text", "bytes")}
        if twins := [name for name, count in Counter(self.schema.names).items() if count > 1]:
            raise ShardError(
                f"shard '{url}': expected {self._what} whose columns have different names, got several of "
                f"each of the names {twins}, of which a row would keep only one\n"
                "  Rename or drop them where the file is written."
            )

    def _open(self) -> Any:
        """Read the footer, and return the schema."""
        self._data = self.file if is_remote(self._url) else import_pyarrow().OSFile(local_path(self._url))
        self.metadata: Any = None
        self._readers = dict[tuple[str, ...], Any]()
        self.metadata = self._reader(()).metadata
        return self._reader(()).schema_arrow

    def _reader(self, dictionaries: tuple[str, ...]) -> Any:
        """The reader that keeps the dictionaries of these columns: mostly the same ones in all groups."""
        if dictionaries not in self._readers:
            self._readers[dictionaries] = import_pyarrow().parquet.ParquetFile(
                self._data, metadata=self.metadata, read_dictionary=dictionaries, **_READING
            )
        return self._readers[dictionaries]

    @contextmanager
    def damage(self, where: str) -> Iterator[None]:
        """Says which file it is that pyarrow cannot read, and where in it."""
        try:
            yield
        except (ValueError, NotImplementedError, OSError, MemoryError) as error:  # pyarrow's too
            if type(error).__module__.partition(".")[0] not in ("pyarrow", "builtins"):  # our own
                raise
            if where == self._where:
                refuse_foreign(self._url, self.file.bytes_at(0, min(self.file.size, 512)), self._what)
            raise ShardError(
                f"shard '{self._url}': expected {self._what}, got one of {self.file.size} bytes with what pyarrow "
                f"cannot read in {where}: {error}\n  The file is damaged or incomplete: copy or write it again."
            ) from error

    def groups(self, columns: Sequence[str] | None = None) -> list[GroupFacts]:
        """The row groups that have rows, with facts on `columns`.

        Raises:
            ShardError: A group does not lie within the file, or its counts contradict each other.
        """
        stored = [self.metadata.schema.column(number) for number in range(len(self.metadata.schema))]
        wanted = "" if columns is None else tuple(f"{name}." for name in columns)
        # The columns in storage that pyarrow reads for these: those within them, by their paths.
        leaves = [leaf for leaf in enumerate(stored) if f"{leaf[1].path}.".startswith(wanted)]
        groups = range(self.metadata.num_row_groups)
        return [self._facts(number, leaves) for number in groups if self.metadata.row_group(number).num_rows]

    def _facts(self, number: int, leaves: Sequence[tuple[int, Any]]) -> GroupFacts:
        group = self.metadata.row_group(number)
        num_rows, num_bytes, spans, named = group.num_rows, 0, [], list[str]()
        for place, leaf in leaves:
            column, is_flat = group.column(place), leaf.max_repetition_level == 0
            values, size, first = column.num_values, column.total_compressed_size, column.data_page_offset
            begin = min(first, column.dictionary_page_offset or first)
            is_within = 0 <= begin < begin + size <= self.file.size
            counts_fit = values == num_rows or not is_flat
            if not (is_within and counts_fit and 0 <= num_rows <= MAX_COUNT and 0 <= values <= MAX_COUNT):
                raise ShardError(
                    f"shard '{self._url}': row group {number}: expected {num_rows} rows within the first "
                    f"{self.file.size} bytes, got column '{column.path_in_schema}' of {values} values in bytes {begin} "
                    f"to {begin + size}\n  The file is damaged or incomplete: copy or write it again."
                )
            spans.append((begin, begin + size))
            unpacked = min(max(column.total_uncompressed_size, 0), MAX_COUNT)
            width = max(_WIDTHS.get(leaf.physical_type, 0), leaf.length or 0) * values
            num_bytes += unpacked + width if leaf.physical_type == "BYTE_ARRAY" else max(unpacked, width)
            # Arrow's bits for missing values, and where the list of each row begins.
            num_bytes += -(-values // 8) + (0 if is_flat else _OFFSET_BYTES * num_rows)
            if leaf.path in self._texts and column.has_dictionary_page:
                of_dictionary = column.data_page_offset - column.dictionary_page_offset
                # A text that is written out has its length before it; a number is mostly shorter than that. A large
                # dictionary is one of many texts, which come to little more without it.
                is_short = size - of_dictionary < _OFFSET_BYTES * values + _HEADER_BYTES
                named += [leaf.path] if is_short and of_dictionary < _TEXT_BYTES * values else []
        return GroupFacts(number, num_rows, num_bytes, sorted(spans), tuple(named))

    def batches(self, facts: GroupFacts, most: int = _MAX_BATCH_ROWS) -> Iterator[Any]:
        """Yield the rows of a group as Arrow record batches of about 4 MiB at most, decoded on demand without the GIL.

        Args:
            facts: Of the group.
            most: Rows of a batch, at most.

        Raises:
            ShardError: The group is damaged, or has another number of rows than the footer says.
        """
        num_rows = min(most, max(1, _MAX_BATCH_BYTES * facts.num_rows // max(1, facts.num_bytes)))
        return (as_schema(batch, self.schema) for batch in self.runs(facts._replace(named=()), None, num_rows))

    def runs(self, facts: GroupFacts, columns: Sequence[str] | None, num_rows: int) -> Iterator[Any]:
        """Yield the rows of a group, so many at a time, with types as they are decoded. Errors as in `batches`.

        Columns of texts that are written as numbers of a dictionary stay dictionaries: a text of a megabyte may be
        there once, and be named a thousand times.
        """
        found, where = 0, f"row group {facts.group}"
        with self.damage(where):
            reader = self._reader(facts.named)
            for batch in reader.iter_batches(num_rows, row_groups=[facts.group], columns=columns, use_threads=False):
                found += batch.num_rows
                yield batch
        if found != facts.num_rows:
            raise ShardError(
                f"shard '{self._url}': {where}: expected {facts.num_rows} rows, as its footer says, "
                f"got {found}\n  The file is damaged: write it again."
            )


_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
"""The end of an Arrow stream (format \"IPC streaming format\": a continuation, and a message of no bytes)."""


class OpenArrow(OpenParquet):
    """An open local Arrow stream. Arguments and errors as in `OpenParquet`."""

    _what, _where = "an Arrow stream", "its schema"

    def _open(self) -> Any:
        if is_remote(self._url):
            raise ShardError(
                f"shard '{self._url}': expected a file of this machine\n  Copy it, or write it as parquet."
            )
        self._own_schema = import_pyarrow().ipc.open_stream(self.file).schema
        return self._own_schema

    def groups(self, columns: Sequence[str] | None = None) -> list[GroupFacts]:
        """The record batches that have rows."""
        pyarrow, found = import_pyarrow(), list[GroupFacts]()
        # Of the map only headers are read, and here alone: a file cut short would end the process.
        with self.damage("its batches"), pyarrow.memory_map(local_path(self._url)) as stream:
            reader = pyarrow.ipc.MessageReader.open_stream(stream)
            reader.read_next_message()
            begin = stream.tell()
            for message in reader:
                num_rows, end = pyarrow.ipc.read_record_batch(message, self._own_schema).num_rows, stream.tell()
                if num_rows:
                    found.append(GroupFacts(len(found), num_rows, end - begin, [(begin, end)]))
                begin = end
            # HF writes it always; without it batches may be missing, and the reader takes the file's end for theirs.
            stream.seek(begin)
            if stream.read(len(_END)) != _END:
                raise ShardError(
                    f"shard '{self._url}': expected the mark of its end after {len(found)} record batches, got none\n"
                    "  The file is incomplete: copy or write it again."
                )
        return found

    def runs(self, facts: GroupFacts, columns: Sequence[str] | None, num_rows: int) -> Iterator[Any]:
        """Yield the rows of a batch, so many at a time."""
        read, (begin, end) = import_pyarrow().ipc.read_record_batch, facts.spans[0]
        with self.damage(f"batch {facts.group}"):
            whole = read(import_pyarrow().py_buffer(self.file.bytes_at(begin, end - begin)), self._own_schema)
            whole.validate(full=True)  # pyarrow follows offsets wherever they lead
            if whole.num_rows != facts.num_rows:
                raise ValueError(f"expected {facts.num_rows} rows, got {whole.num_rows}")
            for first in range(0, whole.num_rows, num_rows):
                part = whole.slice(first, num_rows).select(columns or self.schema.names)
                # Copied, since what is kept of a batch would hold all of it.
                yield part if part.nbytes == whole.nbytes else read(part.serialize(), part.schema)


def open_file(url: str, source: ByteSource) -> OpenParquet:
    """Open a file as an Arrow stream or parquet, by its name."""
    return (OpenArrow if url.endswith(ARROW_SUFFIX) else OpenParquet)(url, source)


def saved_files(folder: str) -> list[str]:
    """The files that `save_to_disk` wrote to a local folder; empty for other folders.

    Raises:
        ValueError: The folder has several splits, or rows that are chosen by a file of indices.
    """
    if splits := _notes(folder, "dataset_dict.json").get("splits"):
        named = ", ".join(os.path.join(folder, str(split)) for split in splits)
        raise ValueError(f"shards: '{folder}': expected one split, got a folder of several\n  Name one: {named}.")
    state = _notes(folder, "state.json")
    if state.get("_indices_data_files"):
        raise ValueError(
            f"shards: '{folder}': expected all rows, got indices of some\n  Save it after flatten_indices()."
        )
    # By the last part of their names: nothing that lies elsewhere.
    return [os.path.join(folder, Path(file["filename"]).name) for file in state.get("_data_files") or ()]


def _notes(folder: str, name: str) -> dict[str, Any]:
    with suppress(FileNotFoundError, orjson.JSONDecodeError):  # of something else
        notes = None if is_remote(folder) else orjson.loads(Path(local_path(folder), name).read_bytes())
        return notes if isinstance(notes, dict) else {}
    return {}


def read_footer(url: str, stamp: FileStamp, columns: Sequence[str] | None) -> tuple[Any, list[GroupFacts]]:
    """The schema of the columns of a file, and facts of its row groups.

    Raises:
        ShardError: The file is damaged, lacks a column, or has one with the name of a field that streamdata sets.
    """
    file = open_file(url, byte_source(url, stamp))
    for name in columns or ():
        if name not in file.schema.names:
            guess = did_you_mean(name, file.schema.names)
            raise ShardError(
                f"shard '{url}': expected the column {shown(name)}, got none of this name{guess}\n"
                f"  It has: {listing(file.schema.names)}."
            )
    names = list(columns or file.schema.names)
    if taken := sorted(SET_HERE.intersection(names)):
        raise ShardError(
            f"shard '{url}': expected columns beside the fields that streamdata sets, got {taken}\n"
            "  Name the others in `columns`, or rename these where the file is written."
        )
    schema = import_pyarrow().schema([file.schema.field(name) for name in names])
    return schema, file.groups(columns)


def common_schema(files: Sequence[str], schemas: Sequence[Any]) -> Any:
    """The columns of the first of some files, of types that hold the values of all files.

    Raises:
        ShardError: A file has other columns than the first one, or one of a type whose values are others in Python.
    """
    pyarrow, different = import_pyarrow(), [schemas[0]]
    shapes = {field.name: shape_of(field.type) for field in schemas[0]}
    for url, schema in zip(files, schemas, strict=True):
        if any(map(schema.equals, different)):
            continue
        different.append(schema)
        if differing := sorted(set(schema.names) ^ set(shapes)):
            raise ShardError(
                f"shard '{url}': expected the columns of '{files[0]}', got a file of which these are in one of the two "
                f"alone: {differing}\n  Name those that all files have in `columns`."
            )
        for name, shape in ((field.name, shape_of(field.type)) for field in schema):
            # A column of nulls alone has no type of its own in many writers: it goes with any.
            if shape != shapes[name] and "null" not in (shape, shapes[name]):
                expected, got = schemas[0].field(name).type, schema.field(name).type
                raise ShardError(
                    f"shard '{url}': column {shown(name)}: expected {expected}, as in '{files[0]}', got {got}\n"
                    "  Give files of another schema a source of their own."
                )
            shapes[name] = shapes[name] if shape == "null" else shape
    return pyarrow.unify_schemas(different, promote_options="permissive").remove_metadata()
