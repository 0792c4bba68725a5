"""The fast way to read a record of a tar shard: one whose headers say name and size in the simplest way."""

import mmap
import struct
import zlib
from collections.abc import Callable
from typing import Any

from streamdata.fields import KEY, URL
from streamdata.shards.readers import Record
from streamdata.shards.tar_headers import BLOCK, SHORT_PAX
from streamdata.shards.tar_names import field_name

MAX_PLAIN_FIELD = 24  # bytes of the field of a plain member
_MAX_FIELD_NAMES = 4096
_PAX = ord("x")  # the type of an extended header
_NO_NEGATIVES = (1 << 62) - BLOCK  # rounds down to blocks, and a negative size up to more than any record has


def plain_layout(key_bytes: int) -> struct.Struct:
    """What takes field (padded with zeros) and size (in octal) out of a header whose name begins with key and dot."""
    begin = max(0, min(key_bytes + 1, 100))
    field_bytes = min(MAX_PLAIN_FIELD, 100 - begin)
    return struct.Struct(f"{begin}x{field_bytes}s{124 - begin - field_bytes}x11s{512 - 135}x")


class _FieldNames(dict[bytes, str]):
    """The field of a member, by what follows the key in its header."""

    def __missing__(self, suffix: bytes) -> str:
        if len(self) >= _MAX_FIELD_NAMES:
            self.clear()
        name = self[suffix] = field_name(suffix.split(b"\0", 1)[0])
        return name


class _Layouts(dict[int, Callable[[mmap.mmap, int], tuple[Any, ...]]]):
    """What takes field and size out of a header, by the length of the key."""

    def __missing__(self, key_bytes: int) -> Callable[[mmap.mmap, int], tuple[Any, ...]]:
        layout = self[key_bytes] = plain_layout(key_bytes).unpack_from
        return layout


_field_names = _FieldNames()
_layouts = _Layouts()


def plain_record(memory: mmap.mmap, begin: int, end: int, crc: int, url: str) -> Record | None:
    """The record whose members, with plain headers, fill [begin, end); None if they are not those that were indexed.

    This is the loop that reading tar shards lives in. It believes what it reads, because in the end the CRC32
    of all names and sizes is compared with the index, where only records that it reads rightly have such a one (see
    `TarRecord.crc`).
    """
    at, skip = begin, 0
    if memory[at + 156] == _PAX:
        skip = SHORT_PAX
        at += skip
    name = memory[at : at + 100]
    dot = name.find(b".", name.rfind(b"/") + 1)
    key = name[:dot]
    record: Record = {KEY: key.decode("utf-8", "surrogateescape"), URL: url}
    names, unpack, seen = _field_names, _layouts[dot], [key]
    try:
        while True:
            header = field, digits = unpack(memory, at)
            seen += header
            size = int(digits, 8)
            at += BLOCK
            record[names[field]] = memory[at : at + size]
            at += (size + 511) & _NO_NEGATIVES
            if at >= end:
                break
            at += skip
    except (ValueError, struct.error):  # no octal number, no header: these are not the members of a plain record
        return None
    return record if at == end and zlib.crc32(b"".join(seen)) == crc else None
