"""CSV shards, read from their start: `stream of bytes → lines → rows → records whose values are texts`.

Format: RFC 4180, in UTF-8; a quoted value may go over several lines.
"""

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from streamdata.errors import ShardError, shown
from streamdata.fields import KEY, SET_HERE, URL
from streamdata.shards.chunks import ChunkBytes
from streamdata.shards.json_lines import line_too_long
from streamdata.shards.readers import Record
from streamdata.shards.sequential import SequentialFiles
from streamdata.shards.signatures import HEAD_BYTES, refuse_foreign
from streamdata.shards.storage import told_url
from streamdata.shards.streams import ForwardStream, open_stream

CSV_SUFFIXES = tuple(f".csv{compressed}" for compressed in ("", ".gz", ".zst", ".zstd", ".bz2", ".xz"))
_BUFFER_BYTES = 1 << 20
OnFlaw = Callable[[ShardError], None]
"""Called with what is wrong with a row, to go on with the next one; None to raise it."""


class SequentialCsv(SequentialFiles):
    """CSV shards; the first line of each names its fields."""

    def stream(self, shard: int, raw: ChunkBytes | None = None, on_flaw: OnFlaw | None = None) -> Iterator[Record]:
        """The records of one shard in their order in the file, which is opened, or read from `raw`.

        Raises:
            ShardError: A row has another number of fields than the header, or the shard is damaged or has changed.
        """
        url = self.urls[shard]
        told, max_bytes = told_url(url), self.limits.line_bytes
        # The library's bound is for all of the process: it may be raised, and is never lowered.
        csv.field_size_limit(max(csv.field_size_limit(), max_bytes))
        with open_stream(url, self._stamps[shard], self._unchecked, raw) as stream:
            lines = _CsvLines(stream, url, max_bytes)
            reader = csv.reader(lines, strict=True)
            names = _header(next(_rows(reader, lines, url), []), url)
            for number, row in enumerate(_rows(reader, lines, url, on_flaw)):
                if len(row) != len(names):
                    flaw = ShardError(
                        f"{url}:{reader.line_num}: expected {len(names)} fields, as the header has, got {len(row)}\n"
                        "  Correct the row: a value with a comma, a quote or a line end stands in quotes."
                    )
                    if on_flaw is None:
                        raise flaw
                    on_flaw(flaw)
                    continue
                yield {**dict(zip(names, row, strict=True)), URL: told, KEY: str(number)}


class _StreamFile(io.RawIOBase):
    """A forward stream as a file of Python's."""

    def __init__(self, stream: ForwardStream) -> None:
        self._stream, self._at = stream, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._stream.read(len(buffer), self._at)
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


class _CsvLines:
    """The lines of a file with their ends. Those of one row may have as many bytes as a line."""

    def __init__(self, stream: ForwardStream, url: str, max_bytes: int) -> None:
        self._file = io.BufferedReader(_StreamFile(stream), _BUFFER_BYTES)
        self._url, self._max_bytes, self._number = url, max_bytes, 0
        self.row_bytes = 0
        """Of the row under way; whoever takes rows begins each at 0."""
        refuse_foreign(url, self._file.peek(HEAD_BYTES)[:HEAD_BYTES], "CSV")

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._file.readline(self._max_bytes + 1)
        if not line:
            raise StopIteration
        self._number += 1
        self.row_bytes += len(line)
        if self.row_bytes > self._max_bytes:
            raise line_too_long(f"{self._url}:{self._number}", self.row_bytes, self._max_bytes)
        try:
            return line.decode("utf-8-sig" if self._number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise ShardError(
                f"{self._url}:{self._number}: expected UTF-8, got {error}\n  Write the file as UTF-8."
            ) from error


def _rows(reader: Any, lines: _CsvLines, url: str, on_flaw: OnFlaw | None = None) -> Iterator[list[str]]:
    """The rows that are not blank."""
    while True:
        lines.row_bytes = 0
        try:
            row = next(reader, None)
        except csv.Error as error:
            flaw = ShardError(
                f"{url}:{reader.line_num}: expected a row of CSV, got: {error}\n"
                "  Correct the row: a value with a comma, a quote or a line end stands in quotes."
            )
            if on_flaw is None:
                raise flaw from error
            on_flaw(flaw)
            continue
        if row is None:
            return
        if row:
            yield row


def _header(names: list[str], url: str) -> list[str]:
    twins = [name for name, count in Counter(names).items() if count > 1 or not name or name in SET_HERE]
    if not names or twins:
        raise ShardError(
            f"{url}:1: expected a header that names the fields, each once, and none as streamdata names its own, got "
            f"{shown(twins) if twins else 'an empty file'}\n  Write the names of the fields as the first line."
        )
    return names
