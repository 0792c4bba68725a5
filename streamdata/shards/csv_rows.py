"""CSV shards, read from their start: `stream of bytes → lines → rows → records whose values are texts`.

Format: RFC 4180, in UTF-8; a quoted value may go over several lines.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from streamdata.errors import ShardError, shown
from streamdata.fields import KEY, SET_HERE, URL
from streamdata.shards.chunks import ChunkBytes
from streamdata.shards.json_lines import line_too_long, too_many_blanks
from streamdata.shards.readers import DamagedRecordError, Record
from streamdata.shards.sequential import SequentialFiles
from streamdata.shards.signatures import HEAD_BYTES, refuse_foreign
from streamdata.shards.storage import told_url
from streamdata.shards.streams import ForwardStream, open_stream

CSV_SUFFIXES = tuple(f".csv{compressed}" for compressed in ("", ".gz", ".zst", ".zstd", ".bz2", ".xz"))
MAX_COLUMNS: Final = 100_000
"""How many fields a row may have: each is an object of 50 bytes and more, where two of the file may say it."""
_QUOTE_IT: Final = "Correct the row: a value with a comma, a quote or a line end stands in quotes."
_BUFFER_BYTES = 1 << 16  # all of it is copied to look ahead
_MANY_LINES = 16  # that are read one by one, before all that are like them are looked for ahead
_EMPTY = frozenset({b"\n", b"\r\n"})
_EMPTY_LINES = re.compile(rb"[\r\n]*\n")
_QUOTED = re.compile(rb'[^"]*+(?:""[^"]*+)*+')  # from behind the quote that opens a value to the one that closes it


class SequentialCsv(SequentialFiles):
    """CSV shards; the first line of each names its fields."""

    def stream(self, shard: int, raw: ChunkBytes | None = None) -> Iterator[Record | DamagedRecordError]:
        """The records of one shard in their order in the file, which is opened, or read from `raw`.

        In place of one that is no CSV, or has another number of fields than the header, stands the error.

        Raises:
            ShardError: The header or the shard is damaged, or it has changed.
        """
        url = self.urls[shard]
        told, max_bytes = told_url(url), self.limits.line_bytes
        # The library's bound is for all of the process: it may be raised, and is never lowered.
        csv.field_size_limit(max(csv.field_size_limit(), max_bytes))
        with open_stream(url, self._stamps[shard], self._unchecked, raw) as stream:
            lines = _CsvLines(stream, url, max_bytes)
            reader = csv.reader(lines, strict=True)
            names = _header(next(_rows(reader, lines), []), url)
            for number, row in enumerate(_rows(reader, lines)):
                flaw = row if isinstance(row, str) else ""
                if not flaw and len(row) != len(names):
                    flaw = f"expected {len(names)} fields, as the header has, got {len(row)}\n  {_QUOTE_IT}"
                if flaw:
                    yield DamagedRecordError(f"{url}:{lines.number}: {flaw}").of(told, str(number))
                else:
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
    """The lines of a file with their ends; of those within a quoted value, several at once where they are many.

    Those of one row may have as many bytes as a line, and so may empty ones in a row, which hardly any are given of.
    """

    def __init__(self, stream: ForwardStream, url: str, max_bytes: int) -> None:
        self._file = io.BufferedReader(_StreamFile(stream), _BUFFER_BYTES)
        self._url, self._max_bytes = url, max_bytes
        self._unchecked_bytes = min(max_bytes, MAX_COLUMNS)  # of a row, which cannot have too many fields
        self.number = 0
        """Of the last line, from 1."""
        self.row_bytes = 0
        """Of the row under way; whoever takes rows begins each at 0."""
        self.flaw = ""
        """What is wrong with its text; whoever takes rows begins each without."""
        self._row_begin = self._num_separators = 0  # the number of its first line
        self._empty_begin = self._empty_end = self._empty_bytes = 0  # of the last run of empty lines
        refuse_foreign(url, self._file.peek(HEAD_BYTES)[:HEAD_BYTES], "CSV")

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._file.readline(self._max_bytes + 1)
        if not line:
            raise StopIteration
        self.number += 1
        is_quoted = self.row_bytes > 0
        if not is_quoted:
            if line in _EMPTY:
                self._pass_empty(len(line))
                return "\n"
            self._row_begin, self._num_separators = self.number, 0
        elif self.number - self._row_begin > _MANY_LINES:
            line += self._quoted_lines(line)
        self.row_bytes += len(line)
        if self.row_bytes > self._unchecked_bytes:
            self._check_row(line, is_quoted=is_quoted)
        return self._decoded(line)

    def _pass_empty(self, size: int) -> None:
        """Pass over the lines that come after an empty one between rows, if they are, too."""
        if self.number > self._empty_end:
            self._empty_begin, self._empty_bytes = self.number, 0
        self._empty_bytes += size
        if self.number - self._empty_begin >= _MANY_LINES and (found := _EMPTY_LINES.match(self._file.peek())):
            lines = self._file.read(found.end())
            self.number += lines.count(b"\n")
            self._empty_bytes += len(lines)
        self._empty_end = self.number + 1
        if self._empty_bytes > self._max_bytes:
            raise too_many_blanks(f"{self._url}:{self._empty_begin}", self._empty_bytes, self._max_bytes)

    def _quoted_lines(self, line: bytes) -> bytes:
        """The lines after one that begins in a quoted value, as far as they lie within that."""
        if _quoted_end(line, 0) < len(line):
            return b""
        ahead = self._file.peek()
        lines = self._file.read(ahead.rfind(b"\n", 0, _quoted_end(ahead, 0)) + 1)
        self.number += lines.count(b"\n")
        return lines

    def _check_row(self, line: bytes, *, is_quoted: bool) -> None:
        """Raise if the row under way has too many bytes, or too many fields."""
        if self.row_bytes > self._max_bytes:
            raise line_too_long(f"{self._url}:{self.number}", self.row_bytes, self._max_bytes)
        self._num_separators += _num_separators(line, is_quoted=is_quoted)
        if self._num_separators >= MAX_COLUMNS:
            raise ShardError(
                f"{self._url}:{self.number}: expected a row of at most {MAX_COLUMNS} fields, got more\n  {_QUOTE_IT}"
            )

    def _decoded(self, line: bytes) -> str:
        try:
            return line.decode("utf-8-sig" if self.number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            got = f"{error.reason} {shown(line[error.start : error.start + 1])}"
            self.flaw = f"expected UTF-8, got {got}\n  Write the file as UTF-8."
            return line.decode("utf-8", "replace")


def _quoted_end(text: bytes, begin: int) -> int:
    """Where the quote stands that closes a value, of which something begins there; the end of the text without one."""
    found = _QUOTED.match(text, begin)
    return found.end() if found else begin


def _num_separators(line: bytes, *, is_quoted: bool) -> int:
    """How many commas of a line, which may begin in a quoted value, part fields; counting ends where there are many."""
    count, at = 0, 0
    if is_quoted or line.startswith(b'"'):
        at = _quoted_end(line, int(not is_quoted)) + 1
    while count < MAX_COLUMNS and (quote := line.find(b',"', at)) >= 0:
        count += line.count(b",", at, quote + 1)
        at = _quoted_end(line, quote + 2) + 1
    return count + line.count(b",", at)


def _rows(reader: Any, lines: _CsvLines) -> Iterator[list[str] | str]:
    """The rows that are not blank; in place of one that is no CSV, why it is none."""
    while True:
        lines.row_bytes, lines.flaw = 0, ""
        try:
            row = next(reader, None)
            row = lines.flaw or row
        except csv.Error as error:
            row = f"expected a row of CSV, got: {error}\n  {_QUOTE_IT}"
        if row is None:
            return
        if row:
            yield row


def _header(names: list[str] | str, url: str) -> list[str]:
    if isinstance(names, str):
        raise ShardError(f"{url}:1: {names}")
    twins = [name for name, count in Counter(names).items() if count > 1 or not name or name in SET_HERE]
    if not names or twins:
        raise ShardError(
            f"{url}:1: expected a header that names the fields, each once, and none as streamdata names its own, got "
            f"{shown(twins) if twins else 'an empty file'}\n  Write the names of the fields as the first line."
        )
    return names
