"""The members of a tar archive, one header after another: `bytes at offsets → members → end-of-archive marker`.

Formats: POSIX.1-1988 ustar and POSIX.1-2001 pax (IEEE Std 1003.1, "pax", sections "ustar Interchange Format" and "pax
Extended Header"), and of GNU tar long names and base-256 sizes (GNU tar manual, "Basic Tar Format"). Unlike
the standard library's, this reader never takes damage for the end of the archive: every checksum must match, and the
archive must end with two blocks of zeros and nothing but zeros after them.
"""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from streamdata.errors import ShardError, shown
from streamdata.recipe.limits import DEFAULT_LIMITS
from streamdata.shards.one_pass import ByteSource
from streamdata.shards.signatures import TAR, refuse_foreign

BLOCK = 512
SHORT_PAX = 2 * BLOCK  # bytes of a pax header whose records fit into one block
MAX_EXTENSIONS = 100  # headers before a member's own
MAX_EXTENSION_BYTES = 1 << 20  # of all long names and pax records of a member
MAX_END_BYTES = 64 << 20  # of zeros after the end-of-archive marker: tar fills up its last write, most often to 10 KiB
ANY_SIZE = 1 << 63  # of archives whose members were looked at before
MAX_MEMBER_BYTES = DEFAULT_LIMITS.member_bytes
_ZEROS = bytes(BLOCK)
_BASE_256 = 0x80
_MAX_DIGITS = 19
_ZERO_STEP = 1 << 20
_OCTAL = re.compile(rb" *([0-7]+)[ \0]*")
_FILES, _DIRECTORY = (b"0", b"\0", b"7"), b"5"
_EXTENSIONS = _LONG_NAME, _PAX, _PAX_GLOBAL = b"L", b"x", b"g"
_UNREADABLE = {
    b"1": "hard link", b"2": "symbolic link", b"3": "character device", b"4": "block device", b"6": "fifo",
    b"K": "GNU long link name", b"S": "GNU sparse file", b"V": "GNU volume label", b"M": "GNU multi-volume member",
    b"D": "GNU directory listing", b"N": "old GNU long name", b"X": "Solaris extended header",
}  # fmt: skip


class Member(NamedTuple):
    """One member: a file, or a directory (`is_file` False), which has no data."""

    name: bytes
    is_file: bool
    offset: int  # of its first header, extension headers included
    data: int  # offset of its bytes
    size: int  # number of its bytes
    end: int  # offset of what follows
    raw: bytes  # its headers, with the payload of extension headers
    plain: bool  # its header says name and size in the simplest way


def damaged(url: str, offset: int, member: bytes | None, expected: str, got: str, *, remedy: str = "") -> ShardError:
    """The error for an archive that is not as the format says."""
    name = f", member {shown(member.decode('utf-8', 'backslashreplace'))}" if member is not None else ""
    return ShardError(
        f"shard '{url}': offset {offset}{name}: expected {expected}, got {got}\n"
        f"  {remedy or 'The archive is damaged or incomplete: copy or write it again.'}"
    )


def members_of(
    source: ByteSource, url: str, start: int = 0, stop: int | None = None, max_bytes: int = MAX_MEMBER_BYTES
) -> Iterator[Member]:
    """The members from offset `start` to the end-of-archive marker, or up to offset `stop`, of `max_bytes` at most.

    Headers are asked of `source` in order of offset, so that one that only reads forward will do; whoever wants a
    member's bytes reads them before asking for the next one.

    Raises:
        ShardError: A checksum does not match, the archive ends early or not at all, or a member is no
            file or too large.
    """
    offset = start
    while stop is None or offset < stop:
        header = _header(source, url, offset, None)
        if header == _ZEROS:
            _check_end(source, url, offset)
            return
        member = _member(source, url, offset, header)
        if source.size is not None and member.end > source.size:
            _truncated(url, member, source.size - member.data)
        if member.size > max_bytes:  # before any of it is read
            _too_large(url, member, max_bytes)
        yield member
        offset = member.end


def data_of(source: ByteSource, url: str, member: Member) -> bytes:
    """The bytes of a member."""
    data = source.read(member.size, member.data)
    if len(data) < member.size:
        _truncated(url, member, len(data))
    return data


def _too_large(url: str, member: Member, max_bytes: int) -> NoReturn:
    expected = f"a member of at most {max_bytes} bytes"
    remedy = f"Split it, or allow more in the source: limits: {{member_bytes: {member.size}}}."
    raise damaged(url, member.offset, member.name, expected, f"{member.size}", remedy=remedy)


def _truncated(url: str, member: Member, got: int) -> NoReturn:
    expected = f"{member.size} bytes of the member, padded to {member.end - member.data}"
    raise damaged(url, member.data, member.name, expected, f"{max(got, 0)}, where the file ends")


def _header(source: ByteSource, url: str, offset: int, member: bytes | None) -> bytes:
    header = source.read(BLOCK, offset)
    if len(header) < BLOCK:
        _refuse_foreign(url, offset, header)
        expected = f"a header or an end-of-archive marker of {2 * BLOCK} zeros"
        raise damaged(url, offset, member, expected, f"{len(header)} bytes, where the file ends")
    return header


def _check_end(source: ByteSource, url: str, offset: int) -> None:
    """Raise unless a second block of zeros follows the one at `offset`, and nothing but zeros after it."""
    second = source.read(BLOCK, offset + BLOCK)
    if second != _ZEROS:
        got = "other data" if len(second) == BLOCK else f"{len(second)} bytes, where the file ends"
        raise damaged(url, offset + BLOCK, None, "the second block of zeros of the end-of-archive marker", got)
    offset += 2 * BLOCK
    stop = offset + MAX_END_BYTES
    while piece := source.read(_ZERO_STEP, offset):
        if offset >= stop:
            remedy = "It was cut short and filled up, or is no archive at all: copy or write it again."
            expected = f"at most {MAX_END_BYTES} bytes after the end-of-archive marker"
            raise damaged(url, offset, None, expected, "more zeros", remedy=remedy)
        if piece.count(0) != len(piece):
            remedy = "Archives that were joined with cat must be split again; anything else is damage."
            at = offset + len(piece) - len(piece.lstrip(b"\0"))
            raise damaged(
                url, at, None, "nothing but zeros after the end-of-archive marker", "other data", remedy=remedy
            )
        offset += len(piece)


@dataclass(slots=True)
class _Overrides:
    """What extension headers say of the next member in place of its own header, and how many there were."""

    name: bytes | None = None
    size: int | None = None
    count: int = 0


def _member(source: ByteSource, url: str, start: int, header: bytes) -> Member:
    """The member whose first header is `header`: extension headers, if any, then its own."""
    raw, offset, left = header, start, MAX_EXTENSION_BYTES
    overrides = _Overrides()
    _check_sum(url, offset, header)
    while (kind := header[156:157]) in _EXTENSIONS:
        if overrides.count == MAX_EXTENSIONS:
            expected = f"at most {MAX_EXTENSIONS} extension headers before a member"
            raise damaged(url, offset, overrides.name, expected, "more of them")
        payload = _extension(source, url, offset, header, left)
        left -= len(payload)
        _override(overrides, url, offset, kind, payload)
        offset += BLOCK + padded(len(payload))
        header = _header(source, url, offset, overrides.name)
        raw += payload + header
        if header == _ZEROS:
            raise damaged(url, offset, overrides.name, "the member that an extension header speaks of", "zeros")
        _check_sum(url, offset, header)
    name = overrides.name or _short_name(header)
    is_file = _is_file(url, offset, header, name)
    size = 0 if not is_file else _number(url, offset, header[124:136]) if overrides.size is None else overrides.size
    data = offset + BLOCK
    return Member(name, is_file, start, data, size, data + padded(size), raw, _is_plain(raw, overrides))


def _override(overrides: _Overrides, url: str, offset: int, kind: bytes, payload: bytes) -> None:
    """Take in the payload of an extension header."""
    overrides.count += 1
    if kind == _LONG_NAME:
        overrides.name = payload.split(b"\0", 1)[0]
        return
    name, size = _pax_fields(url, offset, payload, is_global=kind == _PAX_GLOBAL)
    overrides.name = name or overrides.name
    overrides.size = overrides.size if size is None else size


def padded(size: int) -> int:
    """`size` rounded up to whole blocks."""
    return -(-size // BLOCK) * BLOCK


def _check_sum(url: str, offset: int, header: bytes) -> None:
    """Raise unless the header's bytes add up to its checksum field, which counts itself as spaces.

    The lower half of an Adler-32 is 1 + the sum of the bytes modulo 65521, which 256 bytes cannot reach; it is ten
    times as fast as adding them up here.
    """
    blanked = header[:148] + b"        " + header[156:]
    got = (zlib.adler32(blanked[:256]) & 0xFFFF) + (zlib.adler32(blanked[256:]) & 0xFFFF) - 2
    field = _OCTAL.fullmatch(header[148:156])
    if field is None or int(field[1], 8) != got:
        _refuse_foreign(url, offset, header)
        expected = f"a header whose checksum field {shown(header[148:156])} is its sum"
        raise damaged(url, offset, _short_name(header), expected, f"the sum {got:o} (octal)")


def _refuse_foreign(url: str, offset: int, header: bytes) -> None:
    """Say what a file is that does not begin with a header; one that does may be named like anything."""
    if offset == 0:
        refuse_foreign(url, header, TAR)


def _extension(source: ByteSource, url: str, offset: int, header: bytes, left: int) -> bytes:
    """The payload of an extension header."""
    size = _number(url, offset, header[124:136])
    if size > left:
        expected = f"long names and pax headers of at most {MAX_EXTENSION_BYTES} bytes before a member"
        raise damaged(url, offset, None, expected, f"{MAX_EXTENSION_BYTES - left + size}")
    payload = source.read(size, offset + BLOCK)
    if len(payload) < size:
        raise damaged(url, offset + BLOCK, None, f"{size} bytes of a long name or pax header", f"{len(payload)}")
    return payload


def _number(url: str, offset: int, field: bytes) -> int:
    """A size: octal digits, or (GNU) a byte 0x80 and a big-endian number."""
    if field[0] == _BASE_256:
        return int.from_bytes(field[1:], "big")
    digits = _OCTAL.fullmatch(field)
    if digits is None and field.strip(b" \0"):
        raise damaged(url, offset, None, "a size in octal digits or base 256", repr(field))
    return int(digits[1], 8) if digits else 0


def _short_name(header: bytes) -> bytes:
    """The name in the header itself. Only ustar has a prefix; GNU keeps other things in its place."""
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _is_file(url: str, offset: int, header: bytes, name: bytes) -> bool:
    kind = header[156:157]
    if kind == _DIRECTORY or (kind in (b"0", b"\0") and name.endswith(b"/")):  # the latter in archives older than ustar
        return False
    if kind in _FILES:
        return True
    got = _UNREADABLE.get(kind, "member of unknown type") + f" (type {shown(kind)})"
    raise damaged(
        url, offset, name, "a regular file or a directory", got, remedy="Write the archive anew, with files only."
    )


def _is_plain(raw: bytes, overrides: _Overrides) -> bool:
    """Whether name and size are where the fast reader looks for them (see streamdata.shards.tar).

    A pax header of one block before them will do if it gives neither: webdataset's writer puts one before each member,
    for the fraction of a second in its mtime.
    """
    header = raw[-BLOCK:]
    has_short_pax = overrides.count == 1 and raw[156:157] == _PAX and len(raw) <= 3 * BLOCK
    return (
        (not overrides.count or has_short_pax)
        and overrides == _Overrides(count=overrides.count)
        and b"\0" not in header[:100].rstrip(b"\0")
        and (header[257:263] != b"ustar\0" or header[345] == 0)
        and header[124:135].isdigit()
        and header[135] in b" \0"
    )


def _pax_fields(url: str, offset: int, payload: bytes, *, is_global: bool) -> tuple[bytes | None, int | None]:
    """The path and the size that pax records (`length key=value`, a line each) give to the next member, if any."""
    path: bytes | None = None
    size: int | None = None
    at = 0
    while at < len(payload):
        key, value, at = _pax_record(url, offset, payload, at)
        if key.startswith(b"GNU.sparse."):
            raise damaged(url, offset, path, "a regular file", "a sparse file", remedy="Write it without --sparse.")
        if is_global and key in (b"path", b"size"):
            raise damaged(url, offset, None, "a global pax header without path and size", shown(key))
        if key == b"path":
            path = value
        elif key == b"size":
            if not value.isdigit() or len(value) > _MAX_DIGITS:
                raise damaged(url, offset, path, "a pax size in decimal digits", repr(value[:40]))
            size = int(value)
    return path, size


def _pax_record(url: str, offset: int, payload: bytes, at: int) -> tuple[bytes, bytes, int]:
    """Key and value of the pax record at `at`, and where the next one begins."""
    length, space, _ = payload[at : at + 12].partition(b" ")
    end = at + int(length) if space and length.isdigit() else 0
    record = payload[at + len(length) + 1 : end]
    key, equals, value = record[:-1].partition(b"=")
    if end > len(payload) or record[-1:] != b"\n" or not equals:
        raise damaged(url, offset, None, "pax records 'length key=value'", repr(payload[at : at + 40]))
    return key, value, end
