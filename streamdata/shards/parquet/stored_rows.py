"""Rows in a file of the cache, each readable by its number without the others: `batches → file → rows`.

Layout, little-endian: a header (magic, number of rows, CRC32 of both); an entry per record (where it begins, how many
bytes of it are JSON, its CRC32, seeded with its number plus that of its JSON bytes) and one more for where the last
ends; the records. The first record is the JSON list of the columns' names, each other one a row: the JSON list of its
values, then, where JSON would change a column's values (bytes, times, NaN), null instead of them and an Arrow stream of
one row with these columns. NaN in a row of JSON Lines stands there as Python writes it.
Formats: https://www.rfc-editor.org/rfc/rfc8259, https://arrow.apache.org/docs/format/Columnar.html.

Everything is read by positioned reads and checked when it is read: under a memory map, as Arrow files are read
elsewhere, a file cut short would end the process.
"""

import json
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import orjson

from streamdata.errors import SourceError, shown
from streamdata.io.file_cache import open_cached

_MAGIC = b"sdrows1\n"
_HEADER = struct.Struct("<8sQ")
_CRC = struct.Struct("<I")
_ENTRY = struct.Struct("<QII")
_ENTRY_AND_END = struct.Struct("<QIIQ")
_ENTRIES_AT = _HEADER.size + _CRC.size

Row = dict[str, Any]


def import_pyarrow() -> Any:
    """Import pyarrow with its parts for IPC, parquet and compute.

    Raises:
        ImportError: It is missing; a note says how to install it.
    """
    try:
        import pyarrow as pa
        import pyarrow.compute
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        error.add_note("  Reading parquet needs pyarrow: pip install 'torch-streamdata[parquet]'")
        raise
    return pa


def is_list(kind: Any) -> bool:
    """Whether an Arrow type is a list type of any kind."""
    types = import_pyarrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


class JsonObject(dict[str, Any]):
    """A dict from a JSON column: its None values were written as null, not filled in by Arrow."""


Decoder = Callable[[Any], Any]


@lru_cache(maxsize=256)
def json_decoder(kind: Any) -> Decoder | None:
    """Make a function that decodes JSON (`arrow.json`, HF's `Json()`) in values of an Arrow type, also nested."""
    types = import_pyarrow().types
    if getattr(kind, "extension_name", None) == "arrow.json":
        return _decoded
    if types.is_struct(kind):
        fields = {field.name: decode for field in kind if (decode := json_decoder(field.type))}
        of_fields = lambda row: row and {name: fields.get(name, _same)(value) for name, value in row.items()}  # noqa: E731
        return of_fields if fields else None
    of_item = json_decoder(kind.value_type) if is_list(kind) else None
    return of_item and (lambda items: items and [of_item(item) for item in items])


def _same(value: Any) -> Any:
    return value


def _decoded(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text, object_hook=JsonObject)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{shown(text)} in a column of JSON: {error}") from error


class StoredRows:
    """The rows of a file that `convert` wrote. It stays open; forked processes may share it.

    Args:
        path: Of the file.
        source: Of the parquet file whose rows these are, for messages.

    Raises:
        FileNotFoundError: The cache was deleted.
        SourceError: The file is damaged.
    """

    def __init__(self, path: Path, source: str) -> None:
        self._path, self._source = path, source
        self._file = open_cached(path)
        head = self._file.read(_ENTRIES_AT, 0)
        if len(head) < _ENTRIES_AT or zlib.crc32(head[: _HEADER.size]) != _CRC.unpack_from(head, _HEADER.size)[0]:
            raise self._damaged(f"{self._file.size} bytes with the header {shown(head)}")
        magic, self._num_rows = _HEADER.unpack_from(head)
        end = self._file.read(8, _ENTRIES_AT + (self._num_rows + 1) * _ENTRY.size)
        if magic != _MAGIC or self._file.size != int.from_bytes(end, "little"):
            raise self._damaged(f"{self._file.size} bytes with the header {shown(head)}")
        self.names: list[str] = orjson.loads(self._record(0)[0])

    def __len__(self) -> int:
        return int(self._num_rows)

    def row(self, number: int) -> Row:
        """Row `number`, in [0, len), as a dict of Python's own types.

        Raises:
            SourceError: It holds what these types cannot, or the file is not as it was written.
        """
        values, arrow = self._record(number + 1)
        try:
            found = orjson.loads(values)
        except orjson.JSONDecodeError:
            found = json.loads(bytes(values))
        row: Row = dict(zip(self.names, found, strict=True))
        if arrow:  # columns whose values JSON would change
            batch = import_pyarrow().ipc.open_stream(arrow).read_next_batch()
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                try:
                    row[name] = (json_decoder(column.type) or _same)(column[0].as_py())
                except (ValueError, OverflowError) as error:  # such as pyarrow's, of nanoseconds
                    raise SourceError(
                        f"'{self._source}', row {number}, column {shown(name)}: expected a value that Python's own "
                        f"types can hold, got: {error}\n  Write the column in another type, such as times in "
                        "microseconds, or leave it out of the file."
                    ) from error
        return row

    def _record(self, number: int) -> tuple[memoryview, memoryview]:
        """The JSON of a record, and its Arrow stream, empty for none."""
        entry = self._file.read(_ENTRY_AND_END.size, _ENTRIES_AT + number * _ENTRY.size)
        if len(entry) < _ENTRY_AND_END.size:
            raise self._damaged(f"one that ends before entry {number}")
        begin, json_bytes, crc, end = _ENTRY_AND_END.unpack(entry)
        content = self._file.read(end - begin, begin) if begin < end <= self._file.size else b""
        # The seed covers what stands in the entry and not in the record: another record's entry does not fit either.
        if zlib.crc32(content, number + json_bytes) != crc:
            raise self._damaged(f"record {number} with another CRC32")
        view = memoryview(content)
        return view[:json_bytes], view[json_bytes:]

    def _damaged(self, got: str) -> SourceError:
        return SourceError(
            f"'{self._path}': expected rows as they were written, got {got}\n"
            "  Delete the file, and start again: that makes it again."
        )


def write_rows(path: Path, names: Sequence[str], num_rows: int, batches: Iterable[Any]) -> None:
    """Write the rows of Arrow batches to a file, one batch in memory at a time.

    Raises:
        ValueError: There are more or fewer rows than `num_rows`.
    """
    _write(path, names, num_rows, map(_records, batches))


def write_objects(path: Path, names: Sequence[str], num_rows: int, batches: Iterable[Iterable[Row]]) -> None:
    """Write JSON objects as rows; missing fields become None. Raises as `write_rows`."""

    def record(row: Row) -> tuple[bytes, bytes]:
        values = [row.get(name) for name in names]
        text = orjson.dumps(values)
        # Some may be NaN, which orjson writes so.
        return json.dumps(values, ensure_ascii=False).encode() if b"null" in text else text, b""

    _write(path, names, num_rows, (map(record, rows) for rows in batches))


def _write(path: Path, names: Sequence[str], num_rows: int, batches: Iterable[Iterable[tuple[bytes, bytes]]]) -> None:
    """Write records, each as JSON and an Arrow stream."""
    head = _HEADER.pack(_MAGIC, num_rows)
    with path.open("wb") as file:
        file.write(head + _CRC.pack(zlib.crc32(head)))
        number, end = 0, _ENTRIES_AT + (num_rows + 1) * _ENTRY.size + 8
        for records in chain([[(orjson.dumps(names), b"")]], batches):
            entries, contents, first = [], [], number
            for values, arrow in records:
                content = values + arrow
                entries.append(_ENTRY.pack(end, len(values), zlib.crc32(content, number + len(values))))
                contents.append(content)
                number, end = number + 1, end + len(content)
            if number > num_rows + 1:  # their entries would be written over the first record
                break
            file.seek(_ENTRIES_AT + first * _ENTRY.size)
            file.write(b"".join(entries) + end.to_bytes(8, "little"))
            file.seek(end - sum(map(len, contents)))
            file.writelines(contents)
    if number != num_rows + 1:
        raise ValueError(f"expected {num_rows} rows, got {number - 1} or more")


def _records(batch: Any) -> Iterator[tuple[bytes, bytes]]:
    """Each row of a batch: as JSON, and what JSON does not hold as an Arrow stream."""
    columns = [_as_json(column) for column in batch.columns]
    apart = batch.select([number for number, values in enumerate(columns) if values is None])
    nulls = [None] * len(batch)
    rows = zip(*(nulls if values is None else values for values in columns), strict=True)
    for number, row in enumerate(rows):
        yield orjson.dumps(row), _stream(apart.slice(number, 1)) if apart.num_columns else b""


def _stream(batch: Any) -> bytes:
    pyarrow = import_pyarrow()
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _as_json(array: Any) -> list[Any] | None:
    """The values of an array; None where JSON would change them."""
    compute = import_pyarrow().compute
    if not _has_json(array.type):
        return None
    if any(compute.all(compute.is_finite(floats)).as_py() is False for floats in _floats(array)):
        return None
    try:
        values: list[Any] = array.to_pylist()
    except ValueError:  # a text that is not valid UTF-8
        return None
    return values


def _has_json(kind: Any) -> bool:
    """Whether JSON keeps values of this type, and their type; floats must be finite too."""
    types = import_pyarrow().types
    if types.is_struct(kind):
        return len({field.name for field in kind}) == kind.num_fields and all(_has_json(field.type) for field in kind)
    if is_list(kind):
        return _has_json(kind.value_type)
    is_text = types.is_string(kind) or types.is_large_string(kind)
    is_number = types.is_integer(kind) or types.is_float32(kind) or types.is_float64(kind)
    return bool(is_text or is_number or types.is_boolean(kind) or types.is_null(kind))


def _floats(array: Any) -> Iterator[Any]:
    """The floats within an array, and perhaps some that its own nulls hide."""
    types, kind = import_pyarrow().types, array.type
    if types.is_struct(kind):
        for number in range(kind.num_fields):
            yield from _floats(array.field(number))
    elif types.is_nested(kind):
        yield from _floats(array.values)
    elif types.is_floating(kind):
        yield array
