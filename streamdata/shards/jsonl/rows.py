"""One line of JSON Lines → a dict whose values are exactly those written, or what is wrong with it.

orjson rejects NaN, Infinity and broken text, but turns integers beyond 64 bits into floats. Those are searched for
over whole buffers at once, and only rows that may have one are looked at closely.
"""

import json
import re
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from streamdata.errors import ShardError, shown
from streamdata.fields import SET_HERE
from streamdata.io.storage import Int64s
from streamdata.shards.readers import DamagedRecordError, Record

_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**64 - 1
_LONG_DIGITS = re.compile(rb"[0-9]{19}")
_STRING_OR_LONG = re.compile(
    rb'"(?:[^"\\]|\\.)*"|(?<![0-9.eE+\-])(-?[0-9]{19,})(?![0-9.eE])', re.DOTALL
)  # the latter is an integer
_OF_INDEX = "Delete the index; it is then built again."
_MAX_DIGITS = 20
_SHOWN = 40  # characters of a value in a message
_WORD = 4
_HIGH_NIBBLES, _MAYBE_DIGITS = np.uint32(0xF0F0F0F0), np.uint32(0x30303030)  # "0" to "?"


class Flaw(NamedTuple):
    """A mistake in a line: its column, what was expected, what was found, and the remedy."""

    column: int  # in characters, from 1
    expected: str
    got: str
    remedy: str = "Correct or remove the line, or let the max_bad of its source pass over it."

    def error(self, url: str, number: int | str) -> ShardError:
        """Make the error for this flaw, in line `number` (from 1) or at another place of a file.

        The error is a DamagedRecordError if the line itself is wrong.
        """
        kind = ShardError if self.remedy == _OF_INDEX else DamagedRecordError
        return kind(f"{url}:{number}:{self.column}: expected {self.expected}, got {self.got}\n  {self.remedy}")


def parse_row(line: bytes, url: str, number: int | str, *, doubtful: bool = True, takes_nan: bool = False) -> Record:
    """Parse a line of a file into a dict; `number` (from 1), or another place, is for messages.

    Raises:
        DamagedRecordError: The line is not a JSON object, or holds an integer that 64 bits cannot.
    """
    row = row_or_flaw(line, doubtful=doubtful, takes_nan=takes_nan)
    if isinstance(row, Flaw):
        raise row.error(url, number)
    return row


def row_or_flaw(line: bytes, *, doubtful: bool = True, takes_nan: bool = False) -> Record | Flaw:
    """Parse one line; return its object, or what is wrong with it.

    Args:
        line: One physical line, with or without its line end.
        doubtful: Whether the line may hold an integer beyond 64 bits; if not, none is searched for.
        takes_nan: Whether numbers may be NaN and Infinity, which Python writes, or too large for a float, which are
            infinite: of a reader that looks at some fields alone, and tells where one of these is no number.
    """
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        row = None
        if takes_nan:
            with suppress(ValueError, TypeError, RecursionError):
                found = json.loads(line.decode())  # of bytes it would guess an encoding
                orjson.dumps(found)  # which refuses halves of surrogate pairs, and integers beyond 64 bits
                row = found
    if type(row) is not dict:
        return syntax_flaw(line)
    return (integer_flaw(line) if doubtful else None) or row


def syntax_flaw(line: bytes) -> Flaw:
    """Find why a line is not a JSON object."""
    line = line.partition(b"\n")[0].rstrip(b"\r")
    try:
        row = orjson.loads(line.decode("utf-8"))  # of a text, orjson says where it is wrong in characters, not bytes
    except UnicodeDecodeError as error:
        column = len(line[: error.start].decode("utf-8")) + 1
        return Flaw(column, "UTF-8", f"{error.reason} {shown(line[error.start : error.start + 1])}")
    except orjson.JSONDecodeError as error:
        return Flaw(error.pos + 1, "a JSON object on one line", error.msg.partition(": line ")[0])
    if type(row) is dict:  # an index may come with a shard from anywhere
        column = len(line.decode("utf-8")) + 1
        return Flaw(column, "the end of the line, by the index", "another line", _OF_INDEX)
    return Flaw(1, "a JSON object", "null" if row is None else type(row).__name__)


def reserved_flaw(row: Record) -> Flaw:
    """The flaw of a row with a field name that streamdata reserves; None if it has none."""
    names = " and ".join(repr(name) for name in sorted(SET_HERE & row.keys()))
    return Flaw(1, "other field names", f"{names}, which streamdata sets itself")


def integer_flaw(line: bytes) -> Flaw | None:
    """The flaw of a line with an integer below -2^63 or above 2^64 - 1; None if it has none."""
    if _LONG_DIGITS.search(line) is None:
        return None
    for token in _STRING_OR_LONG.finditer(line):
        if (digits := token[1]) and (len(digits) > _MAX_DIGITS or not _MIN_INTEGER <= int(digits) <= _MAX_INTEGER):
            column = len(line[: token.start()].decode("utf-8", "replace")) + 1
            got = digits.decode()
            return Flaw(column, "an integer from -2^63 to 2^64 - 1", got[:_SHOWN] + "…" * (len(got) > _SHOWN))
    return None


def doubtful_integers(buffer: bytes | memoryview) -> Int64s:
    """Find offsets inside all runs of digits long enough to exceed 64-bit integers (a few others may be included).

    Such an integer has 20 digits, or 19 after a minus sign: whatever it begins at, four aligned words of four bytes lie
    within it. Runs of such words are looked for first; what is found is looked at byte by byte, for all rows at once.
    """
    text = np.frombuffer(buffer, np.uint8)
    maybe = (text[: len(text) // _WORD * _WORD].view("<u4") & _HIGH_NIBBLES) == _MAYBE_DIGITS
    are_four = maybe[:-3] & maybe[1:-2] & maybe[2:-1] & maybe[3:]
    are_four[1:] &= ~are_four[:-1]  # the first ones of each run
    start = np.flatnonzero(are_four).astype(np.int64) * _WORD
    start += text[start] == ord(":")  # which is the one character like digits that may stand before a number
    for _ in range(_WORD - 1):
        start -= _is_digit_at(text, start - 1) & (start > 0)
    start = start[text.take(start - 1, mode="clip") != ord(".")]  # no fractions
    for further in range(_MAX_DIGITS - 1):
        start = start[_is_digit_at(text, start + further)]
    is_negative = text.take(start - 1, mode="clip") == ord("-")
    long: Int64s = start[_is_digit_at(text, start + _MAX_DIGITS - 1) | is_negative]
    return long


def _is_digit_at(text: npt.NDArray[np.uint8], offsets: Int64s) -> npt.NDArray[np.bool_]:
    """Whether there are digits at these offsets; beyond the ends, the outermost bytes count."""
    # Bytes below "0" wrap around to large ones, so that one comparison does for both ends.
    is_digit: npt.NDArray[np.bool_] = (text.take(offsets, mode="clip") - np.uint8(ord("0"))) <= np.uint8(9)
    return is_digit
