"""The records of a tar archive: consecutive members that share a key (the convention of webdataset).

A member's key is its name up to the first dot of its base name, with its directory; its field is the lower-cased rest.
Names are keys, never paths.

`records` reads any archive, and makes of each record the CRC32 that its index keeps. `plain_record` is the fast way to
read one again: it reads headers of the simplest kind alone, and takes a record only if that CRC32 comes out. What each
of the two hashes is one contract, so both stand here.

The index of a tar has 8 bytes per record: where its headers begin, and that CRC32 (`TarRows`).
"""

import hashlib
import mmap
import struct
import zlib
from array import array
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from streamdata.errors import ShardError, shown
from streamdata.fields import KEY, URL, is_reserved
from streamdata.io.one_pass import ByteSource, byte_source
from streamdata.shards.index.index_file import Contents
from streamdata.shards.readers import Record
from streamdata.shards.tar.headers import (
    ANY_SIZE,
    BLOCK,
    MAX_MEMBER_BYTES,
    SHORT_PAX,
    Member,
    damaged,
    data_of,
    members_of,
)

MAX_MEMBERS: Final = 50_000
"""How many members there may be from one record's beginning to the next one's: all of a record is in memory."""
_MAX_PLAIN_FIELD = 24  # bytes of the field of a plain member
_MAX_FIELD_NAMES = 4096
_PAX = ord("x")  # the type of an extended header
_NO_NEGATIVES = (1 << 62) - BLOCK  # rounds down to blocks, and a negative size up to more than any record has
_NOT_PLAIN = zlib.crc32(b"not plain")
# Headers begin at multiples of 512, so 32 bits reach to 2 TiB.
TAR_ROW = np.dtype([("block", "<u4"), ("crc", "<u4")])


@dataclass(slots=True)
class TarRecord:
    """The members of a tar that share one key. `fields` holds the bytes of the wanted fields."""

    key: str
    offset: int
    end: int
    plain: bool = True
    raw: list[bytes] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    fields: dict[str, bytes] = field(default_factory=dict)

    def crc(self) -> int:
        """The CRC32 by which a later read checks that the record's headers are unchanged.

        Of plain records, whose members' own headers say all and all alike, it is over the key and over field and size
        of each member. Of others it is over all of the headers, from another initial value, so that the fast reader
        never takes them for plain.
        """
        if not self.plain or len({len(raw) > BLOCK for raw in self.raw}) > 1:
            return zlib.crc32(b"".join(self.raw), _NOT_PLAIN)
        key = self.key.encode("utf-8", "surrogateescape")
        unpack = _unpackers[len(key)]
        parts = [part for raw in self.raw for part in unpack(raw, len(raw) - BLOCK)]
        return zlib.crc32(b"".join([key, *parts]))


class _FieldNames(dict[bytes, str]):
    """The field of a member, by what follows the key in its header."""

    def __missing__(self, suffix: bytes) -> str:
        if len(self) >= _MAX_FIELD_NAMES:
            self.clear()  # an archive may have a field of its own in each record
        name = _field_name(suffix.split(b"\0", 1)[0])
        if is_reserved(name):  # no archive that was indexed here has one; an index may come with a shard from anywhere
            raise ValueError(f"field {name!r}")
        self[suffix] = name
        return name


class _Unpackers(dict[int, Callable[..., tuple[Any, ...]]]):
    """Functions that take field (padded with zeros) and size (in octal) out of a header, by the length of the key."""

    def __missing__(self, key_bytes: int) -> Callable[..., tuple[Any, ...]]:
        begin = max(0, min(key_bytes + 1, 100))  # the key and its dot; a header has 100 bytes for the name
        field_bytes = min(_MAX_PLAIN_FIELD, 100 - begin)
        layout = struct.Struct(f"{begin}x{field_bytes}s{124 - begin - field_bytes}x11s{BLOCK - 135}x")
        unpack = self[key_bytes] = layout.unpack_from
        return unpack


_field_names = _FieldNames()
_unpackers = _Unpackers()


def plain_record(memory: mmap.mmap, begin: int, end: int, crc: int, url: str, common: Record) -> Record | None:
    """The record whose members fill [begin, end); None if a header is not plain, or they are not those of the index.

    It begins as a copy of `common`, which has `KEY` and `URL`: a dict that grows is made anew.

    Whoever gets None reads the record by `records`. This is the hot loop of reading tars. It believes what it reads,
    because in the end the CRC32 of all names and sizes is compared with the index, which has one of this kind (see
    `TarRecord.crc`) of plain records alone.
    """
    at, skip = begin, 0
    # Either each member has a short pax header or none has: webdataset's writer puts one before each.
    if memory[at + 156] == _PAX:
        skip = SHORT_PAX
    name = memory[at + skip : at + skip + 100]
    dot = name.find(b".", name.rfind(b"/") + 1)
    key = name[:dot]
    record = common.copy()
    record[KEY] = key.decode("utf-8", "surrogateescape")
    record[URL] = url
    names, unpack, seen, to_data = _field_names, _unpackers[dot], [key], skip + BLOCK
    try:
        while at < end:
            header = suffix, digits = unpack(memory, at + skip)
            seen += header
            size = int(digits, 8)
            at += to_data
            record[names[suffix]] = memory[at : at + size]
            at += (size + 511) & _NO_NEGATIVES
    except (ValueError, struct.error):  # no octal number, no header: these are not the members of a plain record
        return None
    return record if at == end and zlib.crc32(b"".join(seen)) == crc else None


def records(
    archive: ByteSource,
    url: str,
    fields: Collection[str] | None = None,
    skipped: Callable[[Member], object] | None = None,
    start: int = 0,
    stop: int | None = None,
    max_bytes: int = MAX_MEMBER_BYTES,
) -> Iterator[TarRecord]:
    """Yield the records of an archive, or of a part of it.

    Args:
        archive: Its bytes.
        url: The same, for messages.
        fields: Whose bytes are wanted; None: all.
        skipped: Called with the files whose names have no key and field. Directories are passed over.
        start: Offset of the first record.
        stop: Offset of what follows the last one; None: the archive's end.
        max_bytes: Of a member.

    Raises:
        ShardError: See `members_of`; or a record has a field twice or one of a reserved name, or too many members.
    """
    record: TarRecord | None = None
    num_members = 0  # since it began, those between it and the next one too
    for member in members_of(archive, url, start, stop, max_bytes):
        base = member.name.rfind(b"/") + 1
        dot = member.name.find(b".", base)
        key = _as_text(member.name[:dot]) if member.is_file and dot > base else None
        if key is not None and (record is None or record.key != key):
            if record is not None:
                yield record
            record, num_members = TarRecord(key, member.offset, member.end), 0
        num_members += 1
        if num_members > MAX_MEMBERS:
            where = f"of record {shown(record.key)} and up to the next one" if record else "before the first record"
            raise damaged(
                url, member.offset, member.name, f"at most {MAX_MEMBERS} members {where}", "more of them",
                remedy="A key is a member's name up to the first dot of its base name: give each record its own.",
            )  # fmt: skip
        if record is not None:
            is_plain = key is not None and member.plain and len(member.name) - dot <= _MAX_PLAIN_FIELD + 1
            record.end, record.plain = member.end, record.plain and is_plain
            record.raw.append(member.raw)
        if record is not None and key is not None:
            name = _checked_field(url, record, member, member.name[dot + 1 :])
            if fields is None or name in fields:
                record.fields[name] = data_of(archive, url, member)
        elif member.is_file and skipped is not None:
            skipped(member)
    if record is not None:
        yield record


def _checked_field(url: str, record: TarRecord, member: Member, suffix: bytes) -> str:
    name = _field_name(suffix)
    if name in record.names:
        raise damaged(
            url, member.offset, member.name, f"each field of record {shown(record.key)} once", f"{shown(name)} twice",
            remedy="Names differ by more than case within a record; rename one of the two.",
        )  # fmt: skip
    if is_reserved(name):
        remedy = "Names with two underscores at both ends are streamdata's own; rename the member."
        raise damaged(url, member.offset, member.name, "another field name", shown(name), remedy=remedy)
    record.names.add(name)
    return name


def _as_text(name: bytes) -> str:
    """A name as text; bytes that are not UTF-8 become lone surrogates, as in the standard library's tarfile."""
    return name.decode("utf-8", "surrogateescape")


def _field_name(suffix: bytes) -> str:
    """The field of a member whose name goes on with `suffix` after its key."""
    return _as_text(suffix).lower()


def key_hash(key: str) -> int:
    """A 64-bit hash of a key, for comparing keys."""
    return int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "little")


def interleaved(url: str, key: str, offset: int, first: int) -> ShardError:
    """Make the error for a key whose members are separated by another record's."""
    return ShardError(
        f"shard '{url}': offset {offset}: expected the members of record {shown(key)}, which began at offset {first}, "
        "side by side, got them apart, with another record's between them\n"
        "  Write the archive sorted by name (tar --sort=name), and give each record a key of its own."
    )


class TarRows:
    """Collects the index rows of a tar's records, one record after another.

    Args:
        url: The tar.
    """

    def __init__(self, url: str) -> None:
        self._url, self._end = url, 0
        self._offsets, self._crcs, self._hashes, self._skipped = array("Q"), array("I"), array("Q"), array("Q")

    def skip(self, member: Member) -> None:
        """Note a member that belongs to no record."""
        self._skipped.append(member.offset)

    def add(self, record: TarRecord) -> None:
        """Append the row of the next record."""
        self._offsets.append(record.offset)
        self._crcs.append(record.crc())
        self._hashes.append(key_hash(record.key))
        self._end = record.end

    def contents(self) -> Contents:
        """The finished index: rows, number of skipped members, and the offset of the first of those.

        Raises:
            ShardError: Two records have one key, or the archive is larger than 2 TiB.
        """
        url, end, offsets, skipped = self._url, self._end, self._offsets, self._skipped
        hashes = np.array(self._hashes, np.uint64)
        order = np.argsort(hashes, kind="stable")
        for twin in np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]]).tolist():
            begins = [offsets[int(order[index])] for index in (twin, twin + 1)]
            archive = byte_source(url)  # equal hashes may be chance
            keys = {next(records(archive, url, (), None, begin, max_bytes=ANY_SIZE)).key for begin in begins}
            if len(keys) == 1:
                raise interleaved(url, keys.pop(), begins[1], begins[0])
        if end >= BLOCK << 32:
            raise ShardError(f"shard '{url}': expected at most 2 TiB, got {end} bytes\n  Split it into several shards.")
        rows = np.zeros(len(offsets) + 1, TAR_ROW)
        rows["block"][:-1] = np.array(offsets, np.uint64) // BLOCK
        rows["block"][-1] = end // BLOCK
        rows["crc"][:-1] = self._crcs
        return Contents(rows, len(skipped), skipped[0] if skipped else 0)
