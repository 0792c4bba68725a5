"""The file that an index is kept in: a checked header, rows of a fixed size, and a CRC32 per 512 rows.

Layout, little-endian: a header (`_HEADER`: magic, kind, format version, bytes per row, size and version of the shard
and of its sidecar, number of records, how much was passed over and where first, how much is noteworthy otherwise, CRC32
of the header so far), one row per record and one more that tells where the last record ends, then the CRCs. The header
is checked whenever it is read, rows when they are first used, so that opening costs the same for 10^3 and for 10^9
records.
"""

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.errors import ShardError, shown
from streamdata.io.storage import FileStamp, LocalShard

_MAGIC = b"sdindex\n"
_FORMAT = 2
_END_OF_COUNTS = 1 << 63  # of what is counted in int64
_HEADER = struct.Struct("<8s8sIIQqQqQQQQ")
_CRC = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CRC.size
CHUNK_ROWS = 512

Rows = npt.NDArray[np.void]


class IndexDamageError(Exception):
    """An index file differs from what was published; it has to be rebuilt."""


class Contents(NamedTuple):
    """The content of an index, as found by indexing a shard."""

    rows: Rows  # one more than there are records
    skipped: int  # what was passed over: blank lines, members without a field, records without a sidecar line
    first_skipped: int  # where the first was: a line from 1, an offset, or a record from 0
    # rows of JSONL with an integer that 64 bits cannot hold; lines of a sidecar that join no record; where there are no
    # rows of records, how many records there are
    noted: int = 0


class IndexHeader(NamedTuple):
    """The header of an index: facts about its shard, without the rows."""

    kind: str
    row_bytes: int
    stamps: tuple[FileStamp, FileStamp]  # of the shard, of its sidecar
    num_records: int
    skipped: int  # this and what follows as in `Contents`
    first_skipped: int
    noted: int


def encode(header: IndexHeader, rows: Rows) -> list[bytes]:
    """Encode an index file, in parts; `rows` has one more row than there are records."""
    assert len(rows) == header.num_records + 1, f"{len(rows)} rows for {header.num_records} records"
    (shard, sidecar) = header.stamps
    head = _HEADER.pack(
        _MAGIC, header.kind.encode(), _FORMAT, header.row_bytes, *shard, *sidecar, header.num_records, header.skipped,
        header.first_skipped, header.noted,
    )  # fmt: skip
    body = rows.tobytes()
    step = CHUNK_ROWS * header.row_bytes
    crcs = np.array([zlib.crc32(body[at : at + step]) for at in range(0, len(body), step)], "<u4")
    return [head, _CRC.pack(zlib.crc32(head)), body, crcs.tobytes()]


def _decode(head: bytes, size: int) -> IndexHeader:
    if len(head) < HEADER_BYTES:
        raise IndexDamageError(f"it has {len(head)} bytes, expected at least {HEADER_BYTES}")
    magic, kind, version, row_bytes, *numbers = _HEADER.unpack_from(head)
    if (magic, version) != (_MAGIC, _FORMAT):
        raise IndexDamageError(f"it is of format {shown(magic)} {version}, expected {_MAGIC!r} {_FORMAT}")
    if zlib.crc32(head[: _HEADER.size]) != _CRC.unpack_from(head, _HEADER.size)[0]:
        raise IndexDamageError("its header does not match its CRC32")
    if max(numbers) >= _END_OF_COUNTS:
        raise IndexDamageError(f"its header counts {max(numbers)}, expected less than 2^63")
    count = numbers[4]
    expected = HEADER_BYTES + (count + 1) * row_bytes + 4 * (count // CHUNK_ROWS + 1)
    if size != expected:
        raise IndexDamageError(f"it has {size} bytes, expected {expected}")
    stamps = (FileStamp(*numbers[0:2]), FileStamp(*numbers[2:4]))
    return IndexHeader(kind.rstrip(b"\0").decode("ascii", "replace"), row_bytes, stamps, count, *numbers[5:8])


def read_header(path: str | Path) -> IndexHeader:
    """Read the header of an index file.

    Raises:
        FileNotFoundError: The file does not exist.
        IndexDamageError: The file is not as it was published, or of another format.
    """
    try:
        file = LocalShard(str(path))
    except ShardError as error:
        raise IndexDamageError("it is no regular file") from error
    return _decode(file.read(HEADER_BYTES, 0), file.size)


class IndexFile:
    """An open index file, read by positioned reads: with a memory map, truncation would kill the process."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self.path = path
        self._file = LocalShard(str(path))
        self.header = _decode(self._file.read(HEADER_BYTES, 0), self._file.size)
        # Another kind of index may lie at the path; its rows would be read at wrong offsets.
        if self.header.row_bytes != dtype.itemsize:
            raise IndexDamageError(f"its rows have {self.header.row_bytes} bytes, expected {dtype.itemsize}")
        self._checked = bytearray(self.header.num_records // CHUNK_ROWS + 1)

    def runs(self, runs: Sequence[tuple[int, int]]) -> list[bytes]:
        """The rows of each run (first, count), and the next row, which marks the end of the last record.

        Raises:
            IndexDamageError: A row is not as it was published.
        """
        row_bytes, checked, pieces = self.header.row_bytes, self._checked, []
        for first, count in runs:
            last = first + count
            if last > self.header.num_records:
                raise IndexDamageError(f"it has {self.header.num_records} records, expected {last} or more")
            # `find` of a zero byte: the chunks that were not compared yet, without a loop for those that were.
            chunk, stop = first // CHUNK_ROWS, last // CHUNK_ROWS + 1
            while (chunk := checked.find(0, chunk, stop)) >= 0:
                self._check(chunk)
            pieces.append(self._read((count + 1) * row_bytes, HEADER_BYTES + first * row_bytes))
        return pieces

    def _check(self, chunk: int) -> None:
        """Compare the rows that share a CRC32, the last of them fewer, when one of them is first used."""
        first, num_rows = chunk * CHUNK_ROWS, self.header.num_records + 1
        row_bytes = self.header.row_bytes
        rows = self._read(min(CHUNK_ROWS, num_rows - first) * row_bytes, HEADER_BYTES + first * row_bytes)
        crc = self._read(_CRC.size, HEADER_BYTES + num_rows * row_bytes + chunk * _CRC.size)
        if crc != _CRC.pack(zlib.crc32(rows)):
            raise IndexDamageError(f"rows from {first} on do not match their CRC32")
        self._checked[chunk] = 1

    def _read(self, size: int, offset: int) -> bytes:
        data = self._file.read(size, offset)
        if len(data) < size:
            raise IndexDamageError(f"it has {offset + len(data)} bytes, expected {offset + size} or more")
        return data
