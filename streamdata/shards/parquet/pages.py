"""A parquet file as it is looked at beside pyarrow: its bytes, and how long the values of a dictionary's page are.

Formats: https://github.com/apache/parquet-format, https://github.com/apache/thrift (compact protocol).
"""

import io
from collections.abc import Iterator
from typing import Any, NamedTuple

from streamdata.io.one_pass import ByteSource

HEADER_BYTES = 256  # that are enough for a header without statistics
_DICTIONARY = 2  # the kind of page, field 1 of its header
_KIND, _OF_DICTIONARY = 1, 7  # numbers of fields; 2 and 3 are its sizes
_LENGTH_BYTES = 4  # before each value
_GOES_ON = 0x80  # the bit of a number's byte
_TRUE, _FALSE, _INTEGER, _STRUCT = 1, 2, 5, 12  # types of fields; all numbers of such a header have 32 bits


class RangedFile(io.RawIOBase):
    """A file object for pyarrow that reads from pieces held in memory, else from its source."""

    def __init__(self, source: ByteSource) -> None:
        assert source.size is not None, "a file of row groups has a size"
        self.held: list[tuple[int, memoryview]] = []
        """Pieces that are held: where each begins in the file, and its bytes."""
        self._source, self._size, self._at = source, source.size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        """The file's size in bytes."""
        return self._size

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        data = self.bytes_at(self._at, wanted)
        self._at += len(data)
        return data

    def bytes_at(self, begin: int, size: int) -> bytes:
        """Read `size` bytes from `begin`, fewer at the end of the file."""
        for first, piece in self.held:
            if first <= begin and begin + size <= first + len(piece):
                return bytes(piece[begin - first : begin - first + size])
        return self._source.read(size, begin) if size > 0 else b""


class DictionaryPage(NamedTuple):
    """The header of a dictionary page."""

    begin: int
    """Bytes of the header."""
    stored: int
    """Bytes of the page as it lies in the file."""
    size: int
    """Bytes when it is decompressed."""
    num_values: int


def dictionary_page(data: bytes) -> DictionaryPage | None:
    """Parse the header of a column's first page; None if it is not a dictionary page.

    Raises:
        ValueError: These bytes are no header, or no whole one of a dictionary's page.
    """
    found: dict[int, Any] = {}
    for number, value, end in _fields(data, 0):
        found[number] = value
        if list(found) == [_KIND] and isinstance(value, int) and value != _DICTIONARY:
            return None
        if number == _OF_DICTIONARY and data[end : end + 1] == b"\0":  # it is the last one
            match found:
                case {2: int(size), 3: int(stored), 7: {1: int(count)}} if min(size, stored, count) >= 0:
                    return DictionaryPage(end + 1, stored, size, count)
            break
    raise ValueError("no header of a dictionary's page")


def longest_value(page: bytes, num_values: int) -> int | None:
    """The length of the longest value in a decompressed page; None if `num_values` values do not fill it."""
    at = longest = 0
    for _ in range(num_values):
        length = int.from_bytes(page[at : at + _LENGTH_BYTES], "little")
        at, longest = at + _LENGTH_BYTES + length, max(longest, length)
        if at > len(page):
            break
    return longest if at == len(page) else None


def _fields(data: bytes, at: int) -> Iterator[tuple[int, Any, int]]:
    """The number of each field of a struct, its value, and where it ends."""
    number = 0
    while at < len(data) and data[at]:
        kind, more = data[at] & 15, data[at] >> 4
        at += 1
        if more:
            number += more
        else:
            number, at = _integer(data, at)
        value: Any
        if kind in (_TRUE, _FALSE):
            value = kind == _TRUE
        elif kind == _INTEGER:
            value, at = _integer(data, at)
        elif kind == _STRUCT:
            inner = list(_fields(data, at))
            value, at = {of: found for of, found, _ in inner}, (inner[-1][2] if inner else at) + 1
        else:
            return  # nothing that comes before what is looked for
        yield number, value, at


def _integer(data: bytes, at: int) -> tuple[int, int]:
    """A number, its sign in the last bit, and where it ends: at the first byte without the bit that it goes on."""
    end = at
    while end < len(data) and data[end] & _GOES_ON:
        end += 1
    if end >= len(data):
        raise ValueError("no header of a dictionary's page: it has no end in these bytes")
    number = sum((byte & ~_GOES_ON) << 7 * place for place, byte in enumerate(data[at : end + 1]))
    return (number >> 1) ^ -(number & 1), end + 1
