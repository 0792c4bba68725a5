"""The lines of a JSON Lines file: `bytes at offsets → about a megabyte of whole lines at a time`.

Lines end with a line feed, as JSON Lines (jsonlines.org) asks; a carriage return before it is white space to JSON. The
last line may lack its end. A byte order mark at the beginning of the file belongs to no line.
"""

import shlex
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from streamdata.errors import ShardError
from streamdata.recipe.limits import DEFAULT_LIMITS
from streamdata.shards.one_pass import ByteSource
from streamdata.shards.readers import Int64s
from streamdata.shards.signatures import JSONL, refuse_foreign

BOM = b"\xef\xbb\xbf"
BLANK = b" \t\r\n"  # the white space of JSON
_BLANK_CODES = np.frombuffer(BLANK, np.uint8)
_CHUNK = 1 << 20
MAX_LINE_BYTES = DEFAULT_LIMITS.line_bytes
_LINE_FEED = 10
_UNPACK = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bzip2", ".xz": "xz"}


class Lines(NamedTuple):
    """Consecutive lines: `buffer[start:end]` is one, its line end left out."""

    offset: int  # of the buffer in the file
    buffer: bytes
    starts: Int64s
    ends: Int64s
    is_blank: npt.NDArray[np.bool_]

    def line(self, number: int) -> bytes:
        """The bytes of one of the lines."""
        return self.buffer[int(self.starts[number]) : int(self.ends[number])]


def lines_of(
    source: ByteSource, url: str, *, is_whole: bool = True, max_bytes: int = MAX_LINE_BYTES
) -> Iterator[Lines]:
    """All lines of a file, which is read forward only.

    Args:
        source: The file, or a later part of it that begins with a line.
        url: The file, for messages.
        is_whole: Whether it is read from its beginning.
        max_bytes: Of a line, without its end.

    Raises:
        ShardError: It begins as files of another format do, or a line is longer.
    """
    number = 0
    offset = at = 0
    begun: list[bytes] = []  # the line that has not ended yet; joined once, since it may be long
    while chunk := source.read(_CHUNK, at):
        if is_whole and not at and not chunk.startswith(b"{"):  # which no other format begins with
            refuse_foreign(url, chunk, JSONL)
            _refuse_array(url, chunk)
        at += len(chunk)
        begun.append(chunk)
        if b"\n" in chunk:
            lines = _split(offset, b"".join(begun), may_have_bom=is_whole)
            if len(lines.buffer) > max_bytes:
                _check_lengths(url, number, lines, max_bytes)
            yield lines
            number += len(lines.ends)
            rest = int(lines.ends[-1]) + 1
            begun = [lines.buffer[rest:]]
            offset += rest
        if at - offset > max_bytes:  # before more of it is kept; a carriage return at its end counts
            raise line_too_long(f"{url}:{number + 1}", at - offset, max_bytes)
    if at > offset:  # the last line has no line feed
        last = _split(offset, b"".join([*begun, b"\n"]), may_have_bom=is_whole)
        yield last._replace(buffer=last.buffer[:-1])


def _check_lengths(url: str, number: int, lines: Lines, max_bytes: int) -> None:
    """Raise if one of the lines, of which the first comes after `number` others, is too long."""
    sizes = lines.ends - lines.starts
    if sizes.max() > max_bytes:
        first = int((sizes > max_bytes).argmax())
        raise line_too_long(f"{url}:{number + first + 1}", int(sizes[first]), max_bytes)


def line_too_long(where: str, size: int, max_bytes: int) -> ShardError:
    """The error for a line of which so many bytes have been seen."""
    return ShardError(
        f"{where}: expected a line of at most {max_bytes} bytes, got at least {size}\n"
        f"  Split it, or allow more in the source: limits: {{line_bytes: {max(size, 2 * max_bytes)}}}."
    )


def _refuse_array(url: str, chunk: bytes) -> None:
    """Raise ShardError if a file is one JSON array of all records; a line that is a list is an error of its own."""
    line, end, _ = chunk.removeprefix(BOM).lstrip(BLANK).partition(b"\n")
    if not line.startswith(b"["):
        return
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        value = [{}]  # it goes on in other lines
    if not end or (value and isinstance(value[0], dict)):
        file = shlex.quote(url)
        unpack = next((f"{tool} -dc {file} | " for suffix, tool in _UNPACK.items() if url.endswith(suffix)), "")
        source = "" if unpack else f" {file}"
        raise ShardError(
            f"shard '{url}': expected JSON Lines, got a JSON array of all records, of which none can be read alone\n"
            f"  Convert it: {unpack}jq -c '.[]'{source} > converted.jsonl"
        )


def _split(offset: int, buffer: bytes, *, may_have_bom: bool) -> Lines:
    """The lines of a buffer, what follows the last line feed left out."""
    text = np.frombuffer(buffer, np.uint8)
    ends = np.flatnonzero(text == _LINE_FEED)
    starts = np.concatenate(([0], ends[:-1] + 1))
    starts[0] = len(BOM) if may_have_bom and offset == 0 and buffer.startswith(BOM) else 0
    return Lines(offset, buffer, starts, ends, _blank_lines(buffer, text, starts, ends))


def numbered_lines(source: ByteSource, url: str, max_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, int, bytes]]:
    """The lines that are not blank: number from 1, offset in the file, bytes. Raises as `lines_of`."""
    number = 0
    for lines in lines_of(source, url, max_bytes=max_bytes):
        for line in np.flatnonzero(~lines.is_blank).tolist():
            yield number + line + 1, lines.offset + int(lines.starts[line]), lines.line(line)
        number += len(lines.starts)


def _blank_lines(buffer: bytes, text: npt.NDArray[np.uint8], starts: Int64s, ends: Int64s) -> npt.NDArray[np.bool_]:
    """Which lines hold nothing but white space. Few lines begin with any, and only those are read."""
    is_blank: npt.NDArray[np.bool_] = np.isin(text[starts], _BLANK_CODES)  # an empty line begins with its line feed
    for line in np.flatnonzero(is_blank).tolist():
        is_blank[line] = not buffer[int(starts[line]) : int(ends[line])].strip(BLANK)
    return is_blank
