"""Rows in a file of the cache, any of which is read by its number: `batches → file → rows`.

Layout, little-endian: Arrow messages, a record batch of some rows each; a table of them; an Arrow schema; how long both
are, their CRC32, and a magic. The table has for each batch its first row, where it begins, and its CRC32, seeded with
its number, and an entry more for where the last one ends. Rows of JSON Lines, whose values need not have one type, stay
lines; the schema's metadata names their columns.
Format: https://arrow.apache.org/docs/format/Columnar.html.

All is read by positioned reads and checked when it is read: under a memory map, as Arrow files are read elsewhere, a
file cut short would end the process.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from streamdata.errors import SourceError, shown
from streamdata.io.file_cache import open_cached
from streamdata.shards.jsonl.rows import parse_row
from streamdata.shards.parquet.values import import_pyarrow, json_decoder

_TRAILER = struct.Struct("<QQI8s")
_MAGIC = b"sdrows2\n"
_ENTRY = np.dtype([("first", "<u8"), ("begin", "<u8"), ("crc", "<u4")])
_NAMES, _DIGEST = b"names", b"digest"  # in the metadata of a schema: the columns of rows of JSON; of the content
_BATCH_BYTES = 8 << 10  # about: all of a batch is read for one row. In less, what Arrow writes of each batch tells

Row = dict[str, Any]


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
        end = (self._file.size or 0) - _TRAILER.size
        trailer = self._file.read(_TRAILER.size, end) if end >= 0 else b""
        table_bytes, schema_bytes, crc, magic = _TRAILER.unpack(trailer or bytes(_TRAILER.size))
        begin = end - table_bytes - schema_bytes
        found = self._file.read(end - begin, begin) if magic == _MAGIC and begin >= 0 else b""
        if len(found) < end - begin or zlib.crc32(found) != crc or table_bytes % _ENTRY.itemsize or not table_bytes:
            raise self._damaged(f"{self._file.size} bytes that end in {shown(trailer)}")
        self._batches = np.frombuffer(found[:table_bytes], _ENTRY)
        self._firsts = self._batches["first"].astype(np.int64)  # apart: a search in a field of a table copies it
        self._schema = import_pyarrow().ipc.read_schema(import_pyarrow().py_buffer(found[table_bytes:]))
        names = self._schema.metadata.get(_NAMES)
        self.digest = self._schema.metadata[_DIGEST].decode("ascii")
        """The hash of the file whose rows these are."""
        self._is_json = names is not None
        self.names: list[str] = self._schema.names if names is None else orjson.loads(names)
        self._decoders = [json_decoder(field.type) for field in self._schema]
        self._last: tuple[int, list[Any]] = (-1, [])
        """The columns of the batch that was read last, after its number: rows are often read in order."""

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def row(self, number: int) -> Row:
        """Row `number`, in [0, len), as a dict of Python's own types.

        Raises:
            SourceError: It holds what these types cannot, or the file is not as it was written.
        """
        batch = int(self._firsts.searchsorted(number, side="right")) - 1
        last, columns = self._last
        if last != batch:
            columns = self._batch(batch).columns
            self._last = batch, columns
        place = number - int(self._firsts[batch])
        if self._is_json:
            parsed = parse_row(columns[0][place].as_py(), self._source, number, takes_nan=True)
            return {name: parsed.get(name) for name in self.names}
        row: Row = {}
        for name, column, decode in zip(self.names, columns, self._decoders, strict=True):
            try:
                value = column[place].as_py()
                row[name] = decode(value) if decode else value
            except (ValueError, OverflowError) as error:  # such as pyarrow's, of nanoseconds
                raise SourceError(
                    f"'{self._source}', row {number}, column {shown(name)}: expected a value that Python's own "
                    f"types can hold, got: {error}\n  Write the column in another type, such as times in "
                    "microseconds, or leave it out of the file."
                ) from error
        return row

    def _batch(self, number: int) -> Any:
        (_, begin, crc), (_, end, _) = self._batches[number : number + 2].tolist()
        content = self._file.read(end - begin, begin)
        if len(content) < end - begin or zlib.crc32(content, number) != crc:
            raise self._damaged(f"batch {number} with another CRC32")
        return import_pyarrow().ipc.read_record_batch(import_pyarrow().py_buffer(content), self._schema)

    def _damaged(self, got: str) -> SourceError:
        return SourceError(
            f"'{self._path}': expected rows as they were written, got {got}\n"
            "  Delete the file, and start again: that makes it again."
        )


def write_rows(path: Path, digest: str, schema: Any, batches: Iterable[Any]) -> None:
    """Write the rows of Arrow batches to a file, one batch in memory at a time, with a digest of their source."""
    entries, first, begin = list[tuple[int, int, int]](), 0, 0
    with path.open("wb") as file:
        for batch in (part for whole in batches for part in _parts(whole)):
            content = batch.serialize()
            entries.append((first, begin, zlib.crc32(content, len(entries))))
            file.write(content)
            first, begin = first + batch.num_rows, begin + len(content)
        table = np.array([*entries, (first, begin, 0)], _ENTRY).tobytes()
        head = bytes(schema.with_metadata({**(schema.metadata or {}), _DIGEST: digest}).serialize())
        file.write(table + head + _TRAILER.pack(len(table), len(head), zlib.crc32(table + head), _MAGIC))


def write_lines(path: Path, digest: str, names: Sequence[str], batches: Iterable[list[bytes]]) -> None:
    """Write lines of JSON as rows with the columns `names`; fields that one lacks become None. Else as `write_rows`."""
    pyarrow = import_pyarrow()
    schema = pyarrow.schema([("json", pyarrow.binary())], {_NAMES: orjson.dumps(names)})
    columns = (pyarrow.array(lines, pyarrow.binary()) for lines in batches)
    write_rows(path, digest, schema, (pyarrow.record_batch([column], schema=schema) for column in columns))


def _parts(batch: Any) -> Iterator[Any]:
    """The rows of a batch in batches of about as many bytes as are read at once."""
    num_rows = max(1, _BATCH_BYTES * batch.num_rows // max(1, batch.nbytes))
    return (batch.slice(first, num_rows) for first in range(0, batch.num_rows, num_rows))
