"""Reads inputs: `patterns → files → tasks of a fixed size → batches of raw records`.

A task is a range of bytes of one file. The lines that start in it are its records, and of a parquet file the row
groups; a compressed file is one task, and so are a JSON array and a text file, which is one record.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from streamdata.errors import PrepareError
from streamdata.io.one_pass import ByteSource, byte_source
from streamdata.io.remote.once import fetch_once
from streamdata.io.storage import (
    FileStamp,
    check_stamp,
    checked_answer,
    is_pipe,
    is_remote,
    stamps_of,
    version_of_stamp,
)
from streamdata.io.streams import open_stream
from streamdata.shards.jsonl.lines import begins_array, lines_of
from streamdata.shards.jsonl.rows import Flaw, row_or_flaw
from streamdata.shards.listing import JSONL_SUFFIXES, is_sequential
from streamdata.shards.parquet.file import PARQUET_SUFFIXES, GroupFacts, OpenParquet
from streamdata.shards.parquet.values import import_pyarrow, json_decoder
from streamdata.shards.urls import expand
from streamdata.text.messages import without_nulls

TEXT_SUFFIX: Final = ".txt"
_SUFFIXES = (*JSONL_SUFFIXES, *PARQUET_SUFFIXES, TEXT_SUFFIX)
_SCANNED_BYTES = 1 << 16  # at once, in search of the end of a line
_COUNTED_BYTES = 1 << 22  # at once, where lines are counted or files hashed
_MAX_DECODED_ROWS = 256  # of parquet, at once
_MAX_REQUESTS = 16  # at the same time, of what files begin with
MAX_RECORD_BYTES = 1 << 26
"""A longer record is refused: it has to be in memory as a whole, and tokenizers take 0.1 to 0.2 KB per character."""
MAX_BATCH_BYTES = 1 << 20
"""Bytes of a batch of parquet's rows, but for those of one row."""


class BadRecordError(Exception):
    """One record cannot become tokens; it ends the run, or is quarantined and counted.

    Args:
        reason: What `quarantine.jsonl` and the manifest count it under, such as "missing field".
        field: The path of the field, empty where it is the record as a whole.
        message: What was expected, and what was found.
    """

    def __init__(self, reason: str, field: str, message: str) -> None:
        super().__init__(reason, field, message)  # its arguments: exceptions are pickled with these
        self.reason, self.field, self.message = reason, field, message


class DroppedRecordError(Exception):
    """One record is left out as the config asks; its reason is counted.

    Args:
        reason: What the manifest counts it under, such as "fewer than min_chars".
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Task(NamedTuple):
    """A part of the input: bytes `begin` to `end` of a file of version `stamp`; `number` counts over all inputs."""

    number: int
    url: str
    stamp: FileStamp
    begin: int
    end: int


class RawBatch(NamedTuple):
    """Consecutive records: lines of JSON, or rows that are parsed already. `first` counts them within the task.

    Attributes:
        first: The number of the first, from 0. Blank lines count, so that lines can be named.
        records: A line, a row, or None for a blank line.
        size_bytes: How much of the file this was: of parquet by the number of rows, of a compressed file all at its
            end, with no records.
    """

    first: int
    records: Sequence[bytes | dict[str, Any] | None]
    size_bytes: int


def plan_tasks(patterns: str | Sequence[str], task_bytes: int) -> list[Task]:
    """The tasks of all inputs, in the order of their sorted names: the same for the same sizes, on any machine.

    Raises:
        FileNotFoundError: A pattern matches nothing.
        PrepareError: A file is named twice, or is the output of a command.
    """
    try:
        urls = expand(patterns, _SUFFIXES)
    except ValueError as error:
        raise PrepareError(f"inputs: {error}") from error
    for url in filter(is_pipe, urls):
        raise PrepareError(f"inputs: expected files, got '{url}', which cannot be read again\n  Write it to a file.")
    stamps = stamps_of(urls)
    with ThreadPoolExecutor(_MAX_REQUESTS) as pool:
        are_whole = pool.map(partial(_is_whole, task_bytes), urls, stamps)
    tasks: list[Task] = []
    for url, stamp, is_whole in zip(urls, stamps, are_whole, strict=True):
        step = max(stamp.size, 1) if is_whole else task_bytes
        for begin in range(0, max(stamp.size, 1), step):
            tasks.append(Task(len(tasks), url, stamp, begin, min(begin + step, stamp.size)))
    return tasks


def _is_whole(task_bytes: int, url: str, stamp: FileStamp) -> bool:
    """Whether a file is one task, whatever its size."""
    if stamp.size <= task_bytes or is_sequential(url) or url.endswith(TEXT_SUFFIX):
        return True
    if url.endswith(PARQUET_SUFFIXES):
        return False
    # By what it begins with, whatever its name: the elements of an array are found from its start alone.
    if not is_remote(url):
        return begins_array(byte_source(url, stamp).read(_SCANNED_BYTES, 0))
    # A remote byte source would fetch megabytes.
    answer = fetch_once(url, 0, _SCANNED_BYTES, version_of_stamp(url, stamp))
    return begins_array(checked_answer(url, stamp, answer))


def parse(raw: bytes | dict[str, Any], url: str, *, exact: bool = False) -> dict[str, Any]:
    """Reads a line of JSON, or a text file, which is `{"text": …}`; a row of parquet is a record already.

    Args:
        raw: The line as it is in the file, or all of the file.
        url: The file, whose name says which.
        exact: Whether to refuse an integer beyond 64 bits, which would become a float.

    Raises:
        BadRecordError: It is no JSON object, or has such an integer; or it is a text that is not UTF-8.
    """
    if isinstance(raw, dict):
        return raw
    if url.endswith(TEXT_SUFFIX):
        try:
            return {"text": raw.decode("utf-8-sig")}  # an editor's byte order mark is no part of the document
        except UnicodeDecodeError as error:
            detail = f"expected UTF-8, got the byte 0x{raw[error.start]:02x} at offset {error.start}"
            raise BadRecordError("not UTF-8", "text", detail) from error
    record = row_or_flaw(raw, doubtful=exact, takes_nan=True)
    if isinstance(record, Flaw):
        detail = f"column {record.column}: expected {record.expected}, got {record.got}"
        raise BadRecordError("broken line", "", detail)
    return record


class TaskInput:
    """The records of one task, read forward once.

    Args:
        task: Which part of which file.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._hash = hashlib.blake2b(digest_size=16)
        self._lines_before: int | None = None

    def batches(self) -> Iterator[RawBatch]:
        """All records, about a megabyte at a time.

        Raises:
            PrepareError: A record is too long.
            ShardError: The file is damaged, or was changed.
        """
        task = self._task
        if is_sequential(task.url):
            with open_stream(task.url, task.stamp) as stream:
                for batch in self._lines(stream, 0, stream.size):
                    yield batch._replace(size_bytes=0)
            yield RawBatch(0, [], task.end - task.begin)
            return
        check_stamp(task.url, task.stamp)
        source = byte_source(task.url, ahead=1)
        if task.url.endswith(PARQUET_SUFFIXES):
            yield from self._parquet(source)
        elif task.url.endswith(TEXT_SUFFIX):
            yield self._text(source)
        else:
            begin, end = self._line_start(source, task.begin), self._line_start(source, task.end)
            yield from self._lines(source, begin, end - begin)
        check_stamp(task.url, task.stamp)

    def records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The numbers and contents of the records that can be read; a task that meets others says what is wrong."""
        for batch in self.batches():
            for number, raw in enumerate(batch.records, batch.first):
                with suppress(BadRecordError):
                    if raw is not None:
                        yield number, parse(raw, self._task.url)

    def digest(self) -> str:
        """BLAKE2b of what was read, once all was: of the lines (uncompressed), or of the parquet file's bytes."""
        return self._hash.hexdigest()

    def location(self, number: int) -> str:
        """`file:line` of a record, or `file:row`; of a text its file.

        The lines before the task are counted when it is first asked for.
        """
        task = self._task
        if task.url.endswith(TEXT_SUFFIX):
            return task.url
        if self._lines_before is None:
            self._lines_before = 0
            if task.url.endswith(PARQUET_SUFFIXES):
                groups = OpenParquet(task.url, byte_source(task.url, task.stamp)).groups()
                self._lines_before = sum(facts.num_rows for facts in groups if _begin(facts) < task.begin)
            elif task.begin:
                source = byte_source(task.url)
                before = _pieces(source, 0, self._line_start(source, task.begin))
                self._lines_before = sum(piece.count(b"\n") for piece in before)
        return f"{task.url}:{self._lines_before + number + 1}"

    def _text(self, source: ByteSource) -> RawBatch:
        task = self._task
        if task.end > MAX_RECORD_BYTES:
            raise PrepareError(
                f"{task.url}: expected a text of at most {MAX_RECORD_BYTES} bytes, got {task.end}: a text file "
                "is one document\n  Split it, or write its documents as lines of JSON."
            )
        content = b"".join(_pieces(source, 0, task.end))
        self._hash.update(content)
        return RawBatch(0, [content if content.strip() else None], task.end)

    def _lines(self, source: ByteSource, begin: int, size: int | None) -> Iterator[RawBatch]:
        url, part = self._task.url, _TaskBytes(source, begin, size, self._hash, self._check_line)
        for lines in lines_of(part, url, is_whole=self._task.begin == 0, max_bytes=MAX_RECORD_BYTES):
            # From the first line to the last that are not blank: of others there may be a million.
            first, stop = (int(lines.numbers[0]), int(lines.numbers[-1]) + 1) if len(lines.numbers) else (0, 0)
            records: list[bytes | None] = [None] * (stop - first)
            for number, _, line in lines.listed():
                records[number - first] = line
            yield RawBatch(first, records, min(lines.end, len(lines.buffer)))

    def _parquet(self, source: ByteSource) -> Iterator[RawBatch]:
        task, number = self._task, 0
        for piece in _pieces(source, task.begin, task.end):
            self._hash.update(piece)
        file = OpenParquet(task.url, byte_source(task.url, task.stamp))
        groups = [facts for facts in file.groups() if task.begin <= _begin(facts) < task.end]
        num_rows = sum(facts.num_rows for facts in groups)
        for batch in (batch for facts in groups for batch in file.batches(facts, _MAX_DECODED_ROWS)):
            for portion in _portions(batch):
                if portion.nbytes > MAX_RECORD_BYTES:
                    raise self._too_large(self.location(number))
                try:
                    rows = portion.to_pylist()
                    if decode := json_decoder(import_pyarrow().struct(list(portion.schema))):
                        rows = [decode(row) for row in rows]
                except (ValueError, OverflowError) as error:  # such as pyarrow's, of nanoseconds
                    raise PrepareError(
                        f"{self.location(number)}: expected values that Python's types can hold, here and in "
                        f"{len(portion) - 1} rows after it, got: {error}\n"
                        "  Write the column in another type, such as times in microseconds, or leave it out."
                    ) from error
                # Arrow pads dicts with nulls, since those of a column have the same keys. A column's own null is the
                # record's.
                records = [{name: without_nulls(value) for name, value in row.items()} for row in rows]
                yield RawBatch(number, records, (task.end - task.begin) * len(rows) // num_rows)
                number += len(rows)

    def _line_start(self, source: ByteSource, offset: int) -> int:
        """The offset of the first line that starts at `offset` or later; the end of the file without one."""
        assert source.size is not None, "a file that is cut into tasks has a size"
        if offset == 0 or offset >= source.size:
            return min(offset, source.size)
        position = offset - 1  # the byte before may end a line, which then starts at `offset`
        while piece := source.read(_SCANNED_BYTES, position):
            if (found := piece.find(b"\n")) >= 0:
                return position + found + 1
            position += len(piece)
            self._check_line(position - offset, offset)
        return source.size

    def _check_line(self, length: int, offset: int) -> None:
        if length > MAX_RECORD_BYTES:
            raise self._too_large(f"input '{self._task.url}': the line at offset {offset}")

    def _too_large(self, location: str) -> PrepareError:
        return PrepareError(
            f"{location}: expected a record of at most {MAX_RECORD_BYTES} bytes, got more\n"
            "  Is this JSON Lines, with one record per line? Split the record."
        )


def _pieces(source: ByteSource, begin: int, end: int) -> Iterator[bytes]:
    for offset in range(begin, end, _COUNTED_BYTES):
        yield source.read(min(_COUNTED_BYTES, end - offset), offset)


def _begin(facts: GroupFacts) -> int:
    """The offset of a row group's first byte; 0 without columns."""
    return facts.spans[0][0] if facts.spans else 0


def _portions(rows: Any) -> Iterator[Any]:
    """Rows a bounded number of bytes at a time: those of one batch may have any length."""
    if rows.num_rows <= 1 or rows.nbytes <= MAX_BATCH_BYTES:
        yield rows
        return
    half = rows.num_rows // 2
    yield from _portions(rows.slice(0, half))
    yield from _portions(rows.slice(half))


class _TaskBytes:
    """A part of a file, read forward once like a file of its own: hashed on the way, its lines of bounded length."""

    def __init__(
        self,
        source: ByteSource,
        begin: int,
        size: int | None,
        hash_: "hashlib.blake2b",
        check_line: Callable[[int, int], None],
    ) -> None:
        self.size = size
        self._source, self._begin, self._hash, self._check_line = source, begin, hash_, check_line
        self._line_start = 0

    def read(self, size: int, offset: int) -> bytes:
        if self.size is not None:
            size = min(size, self.size - offset)
        piece = self._source.read(size, self._begin + offset) if size > 0 else b""
        self._hash.update(piece)
        if not offset and not self._begin and begins_array(piece):
            self._check_line = lambda *_: None  # a line has many elements, which are checked where they are found
        if (last := piece.rfind(b"\n")) >= 0:
            self._line_start = offset + last + 1
        self._check_line(offset + len(piece) - self._line_start, self._begin + self._line_start)
        return piece
