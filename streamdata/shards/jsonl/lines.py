"""The lines of a JSON Lines file: `bytes at offsets → about a megabyte of whole lines at a time`.

Lines end with a line feed, as JSON Lines (jsonlines.org) asks; a carriage return before it is white space to JSON. The
last line may lack its end. A byte order mark at the beginning of the file belongs to no line. Of a file that is one
JSON array, known by its first byte, the elements stand for lines, over however many lines each goes.

The index of a shard has 12 bytes per row: where its line begins, and how many blank lines there are before it.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from streamdata.errors import ShardError, shown
from streamdata.io.one_pass import ByteSource, byte_source
from streamdata.io.signatures import JSONL, refuse_foreign
from streamdata.io.storage import FileStamp, Int64s
from streamdata.recipe.limits import DEFAULT_LIMITS
from streamdata.shards.index.index_file import Contents
from streamdata.shards.jsonl.rows import doubtful_integers, integer_flaw

BOM = b"\xef\xbb\xbf"
BLANK = b" \t\r\n"  # the white space of JSON
_MEAN_LINE = 16  # bytes; where lines are shorter, many may be empty
_CHUNK = 1 << 20
MAX_LINE_BYTES = DEFAULT_LIMITS.line_bytes
_LINE_FEED = 10
_STEPS = np.zeros(256, np.int8)
"""The change of depth by a byte outside of strings."""
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1
_IS_MARK = _STEPS != 0
_IS_MARK[list(b'",')] = True
# A row's line number is its own number plus the blank lines before it.
JSONL_ROW = np.dtype([("offset", "<u8"), ("blanks", "<u4")])
ELEMENT = 2**32 - 1
"""Stands for the blank lines of an element of an array, which ends a byte before the next one begins."""
_MAX_BLANKS = ELEMENT - 1


class Lines(NamedTuple):
    """Consecutive lines of a file in one buffer; blank lines are counted, and not listed.

    Attributes:
        offset: Of the buffer in the file.
        buffer: Whole lines; after the last one there may be the beginning of another.
        starts: Where in the buffer each begins.
        ends: Where it ends, its line end left out.
        numbers: The number of each in the file, from 0.
        first: The number of the first line, blank or not.
        stop: The number of the line after the last one.
        end: Where in the buffer that begins.
        are_elements: Whether they are those of an array: after each stands one byte that is none of its own.
    """

    offset: int
    buffer: bytes
    starts: Int64s
    ends: Int64s
    numbers: Int64s
    first: int
    stop: int
    end: int
    are_elements: bool = False

    def listed(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield the non-blank lines: number in the file from 0, offset in the buffer, bytes."""
        for number, start, end in zip(self.numbers.tolist(), self.starts.tolist(), self.ends.tolist(), strict=True):
            yield number, start, self.buffer[start:end]

    @property
    def num_blank(self) -> int:
        """The number of blank lines."""
        return self.stop - self.first - len(self.numbers)

    def first_blank(self) -> int:
        """The number of the first blank line; None if there is none."""
        is_after_blank = self.numbers != np.arange(self.first, self.first + len(self.numbers))
        return self.first + (int(is_after_blank.argmax()) if is_after_blank.any() else len(self.numbers))


def lines_of(
    source: ByteSource, url: str, *, is_whole: bool = True, max_bytes: int = MAX_LINE_BYTES
) -> Iterator[Lines]:
    """Yield all lines of a file in blocks, reading it forward only.

    Args:
        source: The file, or a later part of it that begins with a line.
        url: The file, for messages.
        is_whole: Whether it is read from its beginning.
        max_bytes: Of a line, without its end; and of blank lines in a row, since a file of nothing else has no end.

    Raises:
        ShardError: The file is of another format, a line is longer, or more lines in a row are blank; or it
            is an array that does not end where the file does.
    """
    number = 0
    offset = at = 0
    begun: list[bytes] = []  # the line that has not ended yet; joined once, since it may be long
    blank_from = 0, 0  # the offset and number of the first of the blank lines that come last of what was read
    while chunk := source.read(_CHUNK, at):
        if is_whole and not at and not chunk.startswith(b"{"):  # which no other format begins with
            refuse_foreign(url, chunk, JSONL)
            if begins_array(chunk):
                yield from _elements_of(source, url, chunk, max_bytes)
                return
        at += len(chunk)
        begun.append(chunk)
        if b"\n" in chunk:
            lines = _split(offset, b"".join(begun), number, may_have_bom=is_whole)
            if len(lines.buffer) > max_bytes:
                _check_lengths(url, lines, max_bytes)
            if lines.offset + lines.end - blank_from[0] > max_bytes:
                _check_blanks(url, lines, *blank_from, max_bytes)
            if len(lines.ends):
                blank_from = lines.offset + int(lines.ends[-1]) + 1, int(lines.numbers[-1]) + 1
            yield lines
            number = lines.stop
            begun = [lines.buffer[lines.end :]]
            offset += lines.end
        if at - offset > max_bytes:  # before more of it is kept; a carriage return at its end counts
            raise line_too_long(f"{url}:{number + 1}", at - offset, max_bytes)
    if at > offset:  # the last line has no line feed
        last = _split(offset, b"".join([*begun, b"\n"]), number, may_have_bom=is_whole)
        yield last._replace(buffer=last.buffer[:-1])


def _check_blanks(url: str, lines: Lines, begin: int, number: int, max_bytes: int) -> None:
    """Raise if too many lines in a row are blank; before these lines they are from line `number` at `begin` on."""
    begins = np.concatenate(([begin], lines.offset + lines.ends + 1))
    sizes = lines.offset + np.concatenate((lines.starts, [lines.end])) - begins
    if sizes.max() > max_bytes:
        first = int((sizes > max_bytes).argmax())
        number = int(lines.numbers[first - 1]) + 1 if first else number
        raise line_too_long(f"{url}:{number + 1}", int(sizes[first]), max_bytes, is_blank=True)


def _check_lengths(url: str, lines: Lines, max_bytes: int) -> None:
    """Raise if one of the lines is too long."""
    sizes = lines.ends - lines.starts
    if len(sizes) and sizes.max() > max_bytes:
        first = int((sizes > max_bytes).argmax())
        raise line_too_long(
            f"{url}:{place_of(int(lines.numbers[first]), lines.are_elements)}", int(sizes[first]), max_bytes
        )


def place_of(number: int, are_elements: bool) -> int | str:
    """Name a line of a file by its number, or an element of an array, for messages; both count from 1."""
    return f"element {number + 1}" if are_elements else number + 1


def line_too_long(where: str, size: int, max_bytes: int, *, is_blank: bool = False) -> ShardError:
    """Make the error for a line, or blank lines in a row, longer than allowed, `size` bytes of which were seen."""
    what, remedy = ("blank lines in a row", "Remove them") if is_blank else ("a line", "Split it")
    return ShardError(
        f"{where}: expected {what} of at most {max_bytes} bytes, got at least {size}\n"
        f"  {remedy}, or allow more in the source: limits: {{line_bytes: {max(size, 2 * max_bytes)}}}."
    )


def begins_array(head: bytes) -> bool:
    """Whether a file that begins with `head` is one JSON array of records."""
    line, _, rest = head.removeprefix(BOM).lstrip(BLANK).partition(b"\n")
    if not line.startswith(b"["):
        return False
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:  # it goes on in other lines
        return True
    return not rest.strip(BLANK) or (len(value) > 0 and isinstance(value[0], dict))


def _elements_of(source: ByteSource, url: str, chunk: bytes, max_bytes: int) -> Iterator[Lines]:
    """The elements of an array, of which a chunk was read already, each as one line: its line feeds are spaces."""
    at, number, offset = len(chunk), 0, chunk.index(b"[") + 1
    text, is_closed = chunk[offset:].replace(b"\n", b" "), False
    while not is_closed:
        ends, is_closed = _ends_of_elements(text)
        if is_closed and text[int(ends[-1])] != ord("]"):
            raise _broken_array(url, number + len(ends), "',' or ']'", "'}'")
        size = int(ends[-1]) + 1 if len(ends) else 0
        if is_closed and not number and not text[: ends[0]].strip(BLANK):
            ends = ends[1:]  # the array is empty
        starts, stop = np.append(0, ends + 1)[: len(ends)], number + len(ends)
        found = Lines(offset, text, starts, ends, np.arange(number, stop), number, stop, size, are_elements=True)
        for index, _, element in found.listed():
            if not element.strip(BLANK):
                raise _broken_array(url, index, "another one", "none")
        _check_lengths(url, found, max_bytes)
        if not is_closed and len(text) - size > max_bytes:
            raise line_too_long(f"{url}:{place_of(stop, True)}", len(text) - size, max_bytes)
        yield found
        number, offset, text = stop, offset + size, text[size:]
        if not is_closed:
            # As much again as there is, so that a long element is not searched through again and again.
            if not (chunk := source.read(max(_CHUNK, len(text)), at)):
                raise _broken_array(url, number, "',' or ']'", "the end of the file")
            text, at = text + chunk.replace(b"\n", b" "), at + len(chunk)
    _check_array_end(source, url, number, text, at)


def _check_array_end(source: ByteSource, url: str, number: int, text: bytes, at: int) -> None:
    """Refuse anything but white space behind an array of so many elements."""
    while not (rest := text.strip(BLANK)):
        if not (text := source.read(_CHUNK, at)):
            return
        at += len(text)
    raise _broken_array(url, number, "the end of the file", shown(rest[:16]))


def _broken_array(url: str, number: int, expected: str, got: str) -> ShardError:
    return ShardError(
        f"shard '{url}': after element {number} of its array: expected {expected}, got {got}\n"
        "  Correct it; if it is incomplete, copy or write it again."
    )


def _ends_of_elements(text: bytes) -> tuple[Int64s, bool]:
    """Where the elements end that are whole in `text`, which begins with one; and whether the array ends there, too."""
    # Escapes are pairs of bytes from left to right: of the quotes that are left each begins or ends a string.
    codes = np.frombuffer(text.replace(rb"\\", b"  ").replace(rb"\"", b"  "), np.uint8)
    places = np.flatnonzero(_IS_MARK[codes])
    places = places[np.cumsum(codes[places] == ord('"')) % 2 == 0]
    marks = codes[places]
    depths = np.cumsum(_STEPS[marks], dtype=np.int64)
    closing = places[depths < 0][:1]
    ends = places[(depths == 0) & (marks == ord(","))]
    return np.append(ends[ends < closing[0]], closing) if len(closing) else ends, len(closing) > 0


def _split(offset: int, buffer: bytes, first: int, *, may_have_bom: bool) -> Lines:
    """The lines of a buffer, what follows the last line feed left out; `first` is the number of the first."""
    size = buffer.rfind(b"\n") + 1
    text = np.frombuffer(buffer, np.uint8, size)
    if buffer[0] in BLANK and _is_blank(text).all():  # in no time, however many lines there are
        none = np.zeros(0, np.int64)
        return Lines(offset, buffer, none, none, none, first, first + int(np.count_nonzero(text == _LINE_FEED)), size)
    starts, ends, numbers = _with_bytes(text)
    stop = first + int(numbers[-1]) + size - int(ends[-1])
    if may_have_bom and offset == 0 and buffer.startswith(BOM):
        starts[0] = len(BOM)
    numbers += first
    maybe_blank = np.flatnonzero(_is_blank(text[starts]))  # a line of a byte order mark alone begins with its line feed
    if len(maybe_blank):
        is_blank = _is_blank(text)
        others = np.flatnonzero(is_blank[:-1] & ~is_blank[1:]) + 1  # the first of each run of other bytes
        others = np.append(others, len(text))
        blank = maybe_blank[others[np.searchsorted(others, starts[maybe_blank])] >= ends[maybe_blank]]
        starts, ends, numbers = (np.delete(column, blank) for column in (starts, ends, numbers))
    return Lines(offset, buffer, starts, ends, numbers, first, stop, size)


def _with_bytes(text: npt.NDArray[np.uint8]) -> tuple[Int64s, Int64s, Int64s]:
    """Starts, ends and numbers of the lines that are not empty.

    Empty lines are line feeds side by side. They are never listed: between the end of a line and the next start there
    are as many line feeds as bytes.
    """
    is_feed = text == _LINE_FEED
    if np.count_nonzero(is_feed) * _MEAN_LINE < len(text):  # as in most files: none is empty
        ends = np.flatnonzero(is_feed)
        starts = np.concatenate(([0], ends[:-1] + 1))
        if (starts < ends).all():
            return starts, ends, np.arange(len(ends))
    is_start, is_end = ~is_feed, is_feed.copy()
    is_start[1:] &= is_feed[:-1]
    is_end[1:] &= ~is_feed[:-1]
    is_end[0] = False
    starts, ends = np.flatnonzero(is_start), np.flatnonzero(is_end)
    numbers = starts.copy()
    numbers[1:] -= ends[:-1]
    return starts, ends, np.cumsum(numbers)


def _is_blank(text: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Tell the bytes that are white space. Four comparisons: `isin`, or a table, takes ten times as long."""
    is_blank: npt.NDArray[np.bool_] = text == BLANK[0]
    for code in BLANK[1:]:
        is_blank |= text == code
    return is_blank


def numbered_lines(source: ByteSource, url: str, max_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, int, bytes]]:
    """Yield the non-blank lines: number from 1, offset in the file, bytes. Errors as in `lines_of`."""
    for lines in lines_of(source, url, max_bytes=max_bytes):
        for number, start, line in lines.listed():
            yield number + 1, lines.offset + start, line


def jsonl_rows(url: str, stamp: FileStamp | None = None, ahead: int = 0, max_bytes: int = MAX_LINE_BYTES) -> Contents:
    """Index a JSONL shard: one row per record and one for the end; blank lines are counted as skipped.

    Raises:
        ShardError: There are more blank lines than 32 bits count, a line of more than `max_bytes`, or the file is of
            another format.
    """
    source = byte_source(url, stamp, ahead)
    parts = [np.zeros(0, JSONL_ROW)]
    blanks = first_blank = num_rows = long_integers = 0
    stop = source.size
    for piece in lines_of(source, url, max_bytes=max_bytes):
        rows = np.zeros(len(piece.numbers), JSONL_ROW)
        rows["offset"] = piece.starts + piece.offset
        rows["blanks"] = piece.numbers - np.arange(num_rows, num_rows + len(rows))
        if piece.are_elements:
            rows["blanks"], stop = ELEMENT, piece.offset + piece.end
        parts.append(rows)
        if not blanks and piece.num_blank:
            first_blank = piece.first_blank() + 1
        blanks, num_rows = blanks + piece.num_blank, num_rows + len(rows)
        if blanks > _MAX_BLANKS:
            raise ShardError(f"shard '{url}': {blanks} blank lines, expected at most {_MAX_BLANKS}\n  Remove them.")
        for line in np.unique(np.searchsorted(piece.ends, doubtful_integers(piece.buffer))).tolist():
            if line < len(rows):  # after the last line there may be the beginning of another
                text = piece.buffer[int(piece.starts[line]) : int(piece.ends[line])]
                long_integers += integer_flaw(text) is not None
    end = np.zeros(1, JSONL_ROW)
    end["offset"], end["blanks"] = stop, blanks
    return Contents(np.concatenate([*parts, end]), blanks, first_blank, long_integers)
