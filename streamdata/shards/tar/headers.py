"""The members of a tar archive, one header after another: `bytes at offsets → members → end-of-archive marker`.

Format: POSIX.1-1988 ustar (IEEE Std 1003.1, "pax", section "ustar Interchange Format"). A member's headers are found
here, and read if they are of the simplest kind, alone or behind a short pax header that says nothing of name and size;
others are read by the standard library's tarfile. Unlike that, this reader never takes damage for the end of the
archive: every checksum must match, and the archive must end with two blocks of zeros and nothing but zeros after them.
"""

import io
import re
import tarfile
import zlib
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from streamdata.errors import ShardError, shown
from streamdata.io.one_pass import ByteSource
from streamdata.io.signatures import TAR, refuse_foreign
from streamdata.recipe.limits import DEFAULT_LIMITS

BLOCK = 512
SHORT_PAX = 2 * BLOCK  # bytes of a pax header whose records fit into one block
MAX_EXTENSIONS = 100  # headers before a member's own
MAX_EXTENSION_BYTES = 1 << 20  # of all long names and pax records of a member
MAX_END_BYTES = 64 << 20  # of zeros after the end-of-archive marker: tar fills up its last write, most often to 10 KiB
ANY_SIZE = 1 << 63  # of archives whose members were looked at before
MAX_MEMBER_BYTES = DEFAULT_LIMITS.member_bytes
_ZEROS = bytes(BLOCK)
_ZERO_STEP = 1 << 20
_OCTAL = re.compile(rb" *([0-7]*)[ \0]*")
_PLAIN_SIZE = re.compile(rb"[0-7]{11}[ \0]")
_FILES, _PAX, _EXTENSIONS = (b"0", b"\0", b"7"), b"x", (b"x", b"X", b"g", b"L", b"K")
_SAYS_MORE = re.compile(rb" (?:path|size|GNU\.sparse\.[^=]*)=")  # in pax records


class Member(NamedTuple):
    """A member of a tar: a file, or a directory (`is_file` False), which has no data."""

    name: bytes
    is_file: bool
    offset: int  # of its first header, extension headers included
    data: int  # offset of its bytes
    size: int  # number of its bytes
    end: int  # offset of what follows
    raw: bytes  # its headers, with the payload of extension headers
    plain: bool  # its header says name and size in the simplest way


def damaged(url: str, offset: int, member: bytes | None, expected: str, got: str, *, remedy: str = "") -> ShardError:
    """Make the error for an archive that violates the tar format."""
    name = f", member {shown(member.decode('utf-8', 'backslashreplace'))}" if member is not None else ""
    return ShardError(
        f"shard '{url}': offset {offset}{name}: expected {expected}, got {got}\n"
        f"  {remedy or 'The archive is damaged or incomplete: copy or write it again.'}"
    )


def members_of(
    archive: ByteSource, url: str, start: int = 0, stop: int | None = None, max_bytes: int = MAX_MEMBER_BYTES
) -> Iterator[Member]:
    """Yield the members from offset `start` to the end-of-archive marker, or to `stop`; each of `max_bytes` at most.

    Headers are asked of `archive` in order of offset, so that one that only reads forward will do; whoever wants a
    member's bytes reads them before asking for the next one.

    Raises:
        ShardError: A checksum does not match, the archive ends early or not at all, or a member is no
            file or too large.
    """
    offset = start
    while stop is None or offset < stop:
        header = _header(archive, url, offset, may_end=True)
        if header == _ZEROS:
            _check_end(archive, url, offset)
            return
        member = _member(archive, url, offset, header)
        if archive.size is not None and member.end > archive.size:
            _truncated(url, member, archive.size - member.data)
        if member.size > max_bytes:  # before any of it is read
            expected = f"a member of at most {max_bytes} bytes"
            remedy = f"Split it, or allow more in the source: limits: {{member_bytes: {member.size}}}."
            raise damaged(url, member.offset, member.name, expected, f"{member.size}", remedy=remedy)
        yield member
        offset = member.end


def data_of(archive: ByteSource, url: str, member: Member) -> bytes:
    """The bytes of a member."""
    data = archive.read(member.size, member.data)
    if len(data) < member.size:
        _truncated(url, member, len(data))
    return data


def _truncated(url: str, member: Member, got: int) -> NoReturn:
    expected = f"{member.size} bytes of the member, padded to {member.end - member.data}"
    raise damaged(url, member.data, member.name, expected, f"{max(got, 0)}, where the file ends")


def _header(archive: ByteSource, url: str, offset: int, *, may_end: bool = False) -> bytes:
    """The header at `offset`, whose bytes add up to its checksum field, which counts itself as spaces.

    The lower half of an Adler-32 is 1 + the sum of the bytes modulo 65521, which 256 bytes cannot reach; it is ten
    times as fast as adding them up here.
    """
    header = archive.read(BLOCK, offset)
    if may_end and header == _ZEROS:
        return header
    blanked = header[:148] + b"        " + header[156:]
    got = (zlib.adler32(blanked[:256]) & 0xFFFF) + (zlib.adler32(blanked[256:]) & 0xFFFF) - 2
    field = _OCTAL.fullmatch(header[148:156])
    if len(header) == BLOCK and field is not None and int(field[1] or b"0", 8) == got:
        return header
    if offset == 0:  # what does begin with a header may be named like anything
        refuse_foreign(url, header, TAR)
    if len(header) < BLOCK:
        expected = f"a header or an end-of-archive marker of {2 * BLOCK} zeros"
        raise damaged(url, offset, None, expected, f"{len(header)} bytes, where the file ends")
    expected = f"a header whose checksum field {shown(header[148:156])} is its sum"
    raise damaged(url, offset, header[:100].split(b"\0", 1)[0], expected, f"the sum {got:o} (octal)")


def _check_end(archive: ByteSource, url: str, offset: int) -> None:
    """Raise unless a second block of zeros follows the one at `offset`, and nothing but zeros after it."""
    second = archive.read(BLOCK, offset + BLOCK)
    if second != _ZEROS:
        got = "other data" if len(second) == BLOCK else f"{len(second)} bytes, where the file ends"
        raise damaged(url, offset + BLOCK, None, "the second block of zeros of the end-of-archive marker", got)
    offset += 2 * BLOCK
    stop = offset + MAX_END_BYTES
    while piece := archive.read(_ZERO_STEP, offset):
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


def _member(archive: ByteSource, url: str, start: int, header: bytes) -> Member:
    """The member whose first header is `header`, or that of an extension before it.

    webdataset's writer puts a short pax header before each member, for the fraction of a second in its mtime.
    """
    held, raw, offset, num_extensions = b"", b"", start, 0
    while header[156:157] in _EXTENSIONS:
        digits, num_extensions = _OCTAL.fullmatch(header[124:136]), num_extensions + 1
        size = int(digits[1] or b"0", 8) if digits else MAX_EXTENSION_BYTES + 1
        if num_extensions > MAX_EXTENSIONS or len(raw) + size > MAX_EXTENSION_BYTES + MAX_EXTENSIONS * BLOCK:
            most = f"{MAX_EXTENSIONS} extension headers before a member, of at most {MAX_EXTENSION_BYTES} bytes"
            raise damaged(url, offset, None, f"at most {most}", "more of them")
        payload = archive.read(padded(size), offset + BLOCK)
        if len(payload) < padded(size):
            got = f"{len(payload)}, where the file ends"
            raise damaged(url, offset + BLOCK, None, f"{padded(size)} bytes of headers of a member", got)
        held, raw = held + header + payload, raw + header + payload[:size]
        offset += BLOCK + len(payload)
        header = _header(archive, url, offset)
    is_short = not held or (held[156:157] == _PAX and len(held) == SHORT_PAX and not _SAYS_MORE.search(held, BLOCK))
    held, raw, data = held + header, raw + header, offset + BLOCK
    name, digits = header[:100].rstrip(b"\0"), _PLAIN_SIZE.fullmatch(header[124:136])
    if not (is_short and digits and name) or header[156:157] not in _FILES or b"\0" in name or name.endswith(b"/"):
        return _other_member(url, start, held, raw, data)
    size = int(header[124:135], 8)
    # Only ustar has a prefix; GNU keeps other things in its place.
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""
    name = prefix + b"/" + name if prefix else name
    return Member(name, True, start, data, size, data + padded(size), raw, not prefix)


_KINDS = {b"1": "hard link", b"2": "symbolic link", b"3": "character device", b"4": "block device", b"6": "fifo"}


def _other_member(url: str, start: int, held: bytes, raw: bytes, data: int) -> Member:
    """The member of these headers, by the standard library."""
    try:
        file = io.BytesIO(held + b"0\n".ljust(BLOCK, b"\0"))  # the map of a sparse file would follow: here an empty one
        archive = tarfile.TarFile(fileobj=file, encoding="utf-8", errors="surrogateescape")
    except (tarfile.TarError, ValueError) as error:  # the latter of what is said of sparse files
        raise damaged(url, start, None, "a member with sound headers", str(error)) from error
    info = archive.next()
    assert info is not None, "the archive begins with a header"
    name = info.name.encode("utf-8", "surrogateescape")
    if said := sorted({"path", "size"} & archive.pax_headers.keys()):
        raise damaged(url, start, None, "a global pax header without path and size", said[0])
    is_sparse = info.issparse() or any(key.startswith("GNU.sparse.") for key in info.pax_headers)
    if is_sparse or not (info.isreg() or info.isdir()):
        kind = "sparse file" if is_sparse else _KINDS.get(info.type, "member of unknown type")
        remedy = "Write the archive anew, with files only."
        got = f"{kind} (type {shown(info.type)})"
        raise damaged(url, start, name, "a regular file or a directory", got, remedy=remedy)
    is_file = info.isreg() and not name.endswith(b"/")  # in archives older than ustar that is a directory
    size = info.size if is_file else 0
    if size < 0:
        raise damaged(url, start, name, "a size from 0 on", f"{size}")
    return Member(name, is_file, start, data, size, data + padded(size), raw, False)


def padded(size: int) -> int:
    """Round `size` up to whole blocks."""
    return -(-size // BLOCK) * BLOCK
