"""The file that an index is kept in: a header, and rows of a fixed size in chunks, each with a CRC32 after it.

Layout, little-endian: a header (`_HEADER`: magic, kind, format version, bytes per row, size and version of the shard
and of its sidecar, number of records, how much was passed over and where first, how much is noteworthy otherwise), the
header's CRC32; then the rows, one per record and one more that tells where the last record ends, in chunks of 512.

The CRC32 of a chunk goes on from the header's. So whoever knows that one, as a manifest does, needs no header: a chunk
that fits is of this version of the shard, wherever it was read. The file is the same beside a shard on a disk, beside
one in a store, and in the cache. Of one in a store the cache has a copy with holes, for all processes of the node: what
lacks is fetched in pages when it is needed, or before.
"""

import os
import struct
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.errors import ShardError, shown
from streamdata.io.remote.network import network
from streamdata.io.remote.requests import Answer, then
from streamdata.io.storage import FileStamp, LocalShard
from streamdata.run.per_process import PerProcess

_MAGIC = b"sdindex\n"
_FORMAT = 3
_END_OF_COUNTS = 1 << 63  # of what is counted in int64
_HEADER = struct.Struct("<8s8sIIQqQqQQQQ")
_CRC = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CRC.size
CHUNK_ROWS = 512
_PAGE_BYTES = 96 << 10
"""How much of an index in a store is asked for where a row is wanted, at most: whole chunks, of the same places for all
processes of the node."""

Rows = npt.NDArray[np.void]
RowRuns = Sequence[tuple[int, int]]
"""Runs of records: the first, and how many."""


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

    def encode(self) -> bytes:
        """The bytes of the header, before its CRC32."""
        shard, sidecar = self.stamps
        return _HEADER.pack(_MAGIC, self.kind.encode(), _FORMAT, self.row_bytes, *shard, *sidecar, *self[3:])

    @property
    def check(self) -> int:
        """The CRC32 of the header, from which those of the rows go on."""
        return zlib.crc32(self.encode())


def encode(header: IndexHeader, rows: Rows) -> list[bytes]:
    """Encode an index file, in parts; `rows` has one more row than there are records."""
    assert len(rows) == header.num_records + 1, f"{len(rows)} rows for {header.num_records} records"
    body, step, check = rows.tobytes(), CHUNK_ROWS * header.row_bytes, header.check
    chunks = (body[at : at + step] for at in range(0, len(body), step))
    crcs = ((chunk, _CRC.pack(zlib.crc32(chunk, check))) for chunk in chunks)
    return [header.encode(), _CRC.pack(check), *chain.from_iterable(crcs)]


def index_bytes(num_records: int, row_bytes: int) -> int:
    """The size of an index file."""
    return HEADER_BYTES + (num_records + 1) * row_bytes + _CRC.size * (num_records // CHUNK_ROWS + 1)


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
    head = file.read(HEADER_BYTES, 0)
    if len(head) < HEADER_BYTES:
        raise IndexDamageError(f"it has {len(head)} bytes, expected at least {HEADER_BYTES}")
    magic, kind, version, row_bytes, *numbers = _HEADER.unpack_from(head)
    if (magic, version) != (_MAGIC, _FORMAT):
        raise IndexDamageError(f"it is of format {shown(magic)} {version}, expected {_MAGIC!r} {_FORMAT}")
    if zlib.crc32(head[: _HEADER.size]) != _CRC.unpack_from(head, _HEADER.size)[0]:
        raise IndexDamageError("its header does not match its CRC32")
    if max(numbers) >= _END_OF_COUNTS:
        raise IndexDamageError(f"its header counts {max(numbers)}, expected less than 2^63")
    if file.size != (expected := index_bytes(numbers[4], row_bytes)):
        raise IndexDamageError(f"it has {file.size} bytes, expected {expected}")
    stamps = (FileStamp(*numbers[0:2]), FileStamp(*numbers[2:4]))
    return IndexHeader(kind.rstrip(b"\0").decode("ascii", "replace"), row_bytes, stamps, *numbers[4:])


_under_way: PerProcess[dict[tuple[str, int], "Future[None]"]] = PerProcess(dict)
"""Requests to stores, by path and page, until they are answered; one that failed stays for whoever reads the page."""


class IndexFile:
    """An open index file, read by positioned reads: with a memory map, truncation would kill the process.

    Args:
        path: The file.
        row_bytes: Of its rows.
        num_records: How many records it has.
        check: The CRC32 of its header.
        origin: The index in a store of which this is a copy with holes; "" for a file that is whole.

    Raises:
        IndexDamageError: The file has another size.
    """

    def __init__(self, path: str, row_bytes: int, num_records: int, check: int, origin: str = "") -> None:
        if origin and not os.path.exists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            Path(path).touch()
        self._path, self._file, self._origin = path, LocalShard(path), origin
        if not origin and self._file.size != (expected := index_bytes(num_records, row_bytes)):
            raise IndexDamageError(f"it has {self._file.size} bytes, expected {expected}")
        self._row_bytes, self._num_records, self._check = row_bytes, num_records, check
        self._chunk_bytes = CHUNK_ROWS * row_bytes + _CRC.size
        self._page_chunks = max(1, _PAGE_BYTES // self._chunk_bytes)
        self._checked = bytearray(num_records // CHUNK_ROWS + 1)

    def runs(self, runs: RowRuns) -> list[bytes]:
        """The rows of each run, and the next row, which marks the end of the last record.

        Raises:
            IndexDamageError: A row is not as it was published.
            ShardError: The store does not give them.
        """
        wrong = self._unsound(runs) if 0 in self._checked else []
        if wrong and self._origin:
            wrong = self._brought(runs)
        if wrong:
            raise IndexDamageError(f"rows from {wrong[0] * CHUNK_ROWS} on do not match their CRC32")
        row_bytes, pieces = self._row_bytes, []
        for first, count in runs:
            chunk = first // CHUNK_ROWS
            crc_bytes = ((first + count) // CHUNK_ROWS - chunk) * _CRC.size  # between the rows
            size = (count + 1) * row_bytes + crc_bytes
            data = self._file.read(size, HEADER_BYTES + first * row_bytes + chunk * _CRC.size)
            if len(data) < size:
                raise IndexDamageError(f"it ends before row {first + count}")
            if crc_bytes:
                step, at = self._chunk_bytes, (chunk + 1) * CHUNK_ROWS * row_bytes - first * row_bytes
                chunks = (data[begin + _CRC.size : begin + step] for begin in range(at, size, step))
                data = data[:at] + b"".join(chunks)
            pieces.append(data)
        return pieces

    def _unsound(self, runs: RowRuns) -> list[int]:
        """The chunks of these runs that do not fit, or are not there; each is compared until it has fitted once."""
        found, checked = list[int](), self._checked
        for first, count in runs:
            last = first + count
            if last > self._num_records:
                raise IndexDamageError(f"it has {self._num_records} records, expected {last} or more")
            # `find` of a zero byte: the chunks that were not compared yet, without a loop for those that were.
            chunk, stop = first // CHUNK_ROWS, last // CHUNK_ROWS + 1
            while (chunk := checked.find(0, chunk, stop)) >= 0:
                size = min(CHUNK_ROWS, self._num_records + 1 - chunk * CHUNK_ROWS) * self._row_bytes
                if self._is_sound(self._file.read(size + _CRC.size, HEADER_BYTES + chunk * self._chunk_bytes)):
                    checked[chunk] = 1
                else:
                    found.append(chunk)
                chunk += 1
        return found

    def _is_sound(self, chunk: bytes) -> bool:
        return chunk[-_CRC.size :] == _CRC.pack(zlib.crc32(chunk[: -_CRC.size], self._check))

    def ask_for(self, runs: RowRuns) -> "list[Future[None]]":
        """Request the rows of these runs that are not there yet from the store, without waiting.

        Returns:
            What was asked for; it may be cancelled.
        """
        if not self._origin:
            return []
        # What was under way before the rows are looked at may come meanwhile, and is not to be asked for again.
        asked, under_way, before = list[Future[None]](), _under_way.get(), set(_under_way.get())
        pages = (page for page in self._pages(self._unsound(runs)) if (self._path, page) not in before)
        for _, group in groupby(enumerate(pages), lambda page: page[1] - page[0]):  # those side by side at once
            together = [page for _, page in group]
            step = self._page_chunks * self._chunk_bytes
            begin, end = HEADER_BYTES + together[0] * step, HEADER_BYTES + (together[-1] + 1) * step
            end = min(end, index_bytes(self._num_records, self._row_bytes))
            one = then(network().submit(self._origin, begin, end), partial(self._fill, begin))
            under_way.update(dict.fromkeys(((self._path, page) for page in together), one))
            one.add_done_callback(lambda done: _forget(done) if done.cancelled() or done.exception() is None else None)
            asked.append(one)
        return asked

    def _fill(self, offset: int, answer: Answer) -> None:
        """Fill a hole of the copy. Others may do the same, with the same bytes; those of another index are dropped.

        Another index may lie in the store by now, while others have compared the chunks that lie in this copy.
        """
        step, data = self._chunk_bytes, answer.data
        if not all(self._is_sound(data[at : at + step]) for at in range(0, len(data), step)):
            return
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.pwrite(fd, data, offset)
        finally:
            os.close(fd)

    def _pages(self, chunks: Iterable[int]) -> list[int]:
        return sorted({chunk // self._page_chunks for chunk in chunks})

    def _brought(self, runs: RowRuns) -> list[int]:
        """Wait for the rows of these runs; return the chunks that do not fit even then."""
        for _ in range(2):  # what was under way may have been cancelled by whoever asked for it
            self.ask_for(runs)
            for page in self._pages(self._unsound(runs)):
                if (there := _under_way.get().get((self._path, page))) is None:
                    continue
                try:
                    with network().waiting():
                        there.result()
                except CancelledError:
                    continue
                except BaseException:
                    _forget(there)  # it can be asked for again
                    raise
            # Another process may have put the whole index there, or a new copy, which lacks what was compared here.
            before, self._file = self._file, LocalShard(self._path)
            if not os.path.sameopenfile(before.fd, self._file.fd):
                self._checked = bytearray(len(self._checked))
        return self._unsound(runs)


def _forget(asked: "Future[None]") -> None:
    under_way = _under_way.get()
    for key in [key for key, one in list(under_way.items()) if one is asked]:
        under_way.pop(key, None)
