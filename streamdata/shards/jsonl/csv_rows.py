"""CSV shards, read from their start: `stream of bytes → lines → rows → records whose values are texts`.

Format: RFC 4180, in UTF-8, with any delimiter; a quoted value may go over several lines.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterator
from typing import Final

from streamdata.errors import ShardError, shown
from streamdata.fields import KEY, SET_HERE, URL
from streamdata.io.one_pass import SourceFile
from streamdata.io.signatures import HEAD_BYTES, refuse_foreign
from streamdata.io.storage import told_url
from streamdata.io.streams import ForwardStream
from streamdata.shards.jsonl.lines import line_too_long
from streamdata.shards.listing import COMPRESSIONS
from streamdata.shards.readers import DamagedRecordError, Record

CSV_SUFFIXES = tuple(f".{end}{compressed}" for end in ("csv", "tsv") for compressed in COMPRESSIONS)
_TSV_SUFFIXES = CSV_SUFFIXES[len(COMPRESSIONS) :]
_BUFFER_BYTES: Final = 1 << 16
_QUOTE_IT: Final = "Correct the row: a value with a delimiter, a quote or a line end stands in quotes."


def csv_records(
    stream: ForwardStream, url: str, max_bytes: int, delimiter: str = ""
) -> Iterator[Record | DamagedRecordError]:
    """Yield the records of a CSV file, whose first line names the fields.

    In place of one that is no CSV, or has another number of fields than the header, stands the error.

    Args:
        stream: The file.
        url: The same, as messages and records have it.
        max_bytes: Of a line, and of a value over several.
        delimiter: What stands between values; by default a tab in files called .tsv, and a comma in others.

    Raises:
        ShardError: The header or the file is damaged, or a line too long.
    """
    told = told_url(url)
    # The library's bound is for all of the process: it may be raised, and is never lowered.
    csv.field_size_limit(max(csv.field_size_limit(), max_bytes))
    delimiter = delimiter or ("\t" if url.endswith(_TSV_SUFFIXES) else ",")
    lines = _CsvLines(stream, url, max_bytes)
    reader = csv.reader(lines, strict=True, delimiter=delimiter)
    names, number = list[str](), 0
    while True:
        lines.row_bytes, lines.flaw = 0, ""
        try:
            row: list[str] | None = next(reader, None)
        except csv.Error as error:
            row, lines.flaw = [], f"expected a row of CSV, got: {error}\n  {_QUOTE_IT}"
        if row is None:
            break
        if not (row or lines.flaw):  # a blank line
            continue
        if not names:
            names = _header(row, lines.flaw, url)
            continue
        if not lines.flaw and len(row) != len(names):
            lines.flaw = f"expected {len(names)} fields, as the header has, got {len(row)}\n  {_QUOTE_IT}"
        if lines.flaw:
            yield DamagedRecordError(f"{url}:{lines.number}: {lines.flaw}").of(told, str(number))
        else:
            yield {**dict(zip(names, row, strict=True)), URL: told, KEY: str(number)}
        number += 1
    if not names:
        _header([], "", url)


class _CsvLines(Iterator[str]):
    """The lines of a file, which know the row that they belong to; one may have as many bytes as a line."""

    def __init__(self, stream: ForwardStream, url: str, max_bytes: int) -> None:
        self._file = io.BufferedReader(SourceFile(stream), _BUFFER_BYTES)
        self._url, self._max_bytes = url, max_bytes
        self.number = 0
        """The number of the last line, from 1."""
        self.row_bytes = 0
        self.flaw = ""
        refuse_foreign(url, self._file.peek(HEAD_BYTES)[:HEAD_BYTES], "CSV")

    def __next__(self) -> str:
        line = self._file.readline(self._max_bytes + 1)
        if not line:
            raise StopIteration
        self.number += 1
        self.row_bytes += len(line)
        if self.row_bytes > self._max_bytes:
            raise line_too_long(f"{self._url}:{self.number}", self.row_bytes, self._max_bytes)
        try:
            return line.decode("utf-8-sig" if self.number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            got = f"{error.reason} {shown(line[error.start : error.start + 1])}"
            self.flaw = f"expected UTF-8, got {got}\n  Write the file as UTF-8."
            return line.decode("utf-8", "replace")


def _header(names: list[str], flaw: str, url: str) -> list[str]:
    if flaw:
        raise ShardError(f"{url}:1: {flaw}")
    twins = [name for name, count in Counter(names).items() if count > 1 or not name or name in SET_HERE]
    if not names or twins:
        raise ShardError(
            f"{url}:1: expected a header that names the fields, each once, and none as streamdata names its own, got "
            f"{shown(twins) if twins else 'an empty file'}\n  Write the names of the fields as the first line."
        )
    return names
