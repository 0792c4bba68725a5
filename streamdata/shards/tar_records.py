"""The records of a tar archive: consecutive members that share a key (the convention of webdataset)."""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from streamdata.errors import ShardError
from streamdata.fields import is_reserved
from streamdata.shards.storage import ByteSource
from streamdata.shards.tar_headers import BLOCK, Member, damaged, data_of, members_of
from streamdata.shards.tar_names import as_text, field_name, split_name
from streamdata.shards.tar_plain import MAX_PLAIN_FIELD, plain_layout

_NOT_PLAIN = zlib.crc32(b"not plain")


@dataclass(slots=True)
class TarRecord:
    """The members of one key. `fields` holds the bytes of the fields that were wanted."""

    key: str
    offset: int
    end: int
    plain: bool = True
    raw: list[bytes] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    fields: dict[str, bytes] = field(default_factory=dict)

    def crc(self) -> int:
        """CRC32 by which a read knows the headers again.

        Of plain records, whose members' own headers say all and all alike, it is over the key and over field and size
        of each member. Of others it is over all of the headers, from another initial value, so that the fast reader
        never takes them for plain.
        """
        if not self.plain or len({len(raw) > BLOCK for raw in self.raw}) > 1:
            return zlib.crc32(b"".join(self.raw), _NOT_PLAIN)
        key = self.key.encode("utf-8", "surrogateescape")
        layout = plain_layout(len(key))
        parts = [part for raw in self.raw for part in layout.unpack_from(raw, len(raw) - BLOCK)]
        return zlib.crc32(b"".join([key, *parts]))

    def add(self, member: Member, *, plain: bool) -> None:
        """Extend the record to the end of `member`."""
        self.end = member.end
        self.plain = self.plain and plain
        self.raw.append(member.raw)


def records(
    source: ByteSource,
    url: str,
    wanted: Callable[[str], bool],
    skipped: Callable[[Member], None],
    start: int = 0,
    stop: int | None = None,
) -> Iterator[TarRecord]:
    """The records from offset `start` on, with the bytes of the fields that are `wanted`.

    Files whose names give no key and field go to `skipped`. Directories are passed over.

    Raises:
        ShardError: As `members_of`, or a record has a field twice or one of a reserved name.
    """
    record: TarRecord | None = None
    for member in members_of(source, url, start, stop):
        parts = split_name(member.name) if member.is_file else None
        if parts is None:
            if member.is_file:
                skipped(member)
            if record is not None:
                record.add(member, plain=False)
            continue
        key = as_text(parts[0])
        if record is None or record.key != key:
            if record is not None:
                yield record
            record = TarRecord(key, member.offset, member.end)
        record.add(member, plain=member.plain and len(parts[1]) <= MAX_PLAIN_FIELD)
        name = _checked_field(url, record, member, parts[1])
        if wanted(name):
            record.fields[name] = data_of(source, url, member)
    if record is not None:
        yield record


def _checked_field(url: str, record: TarRecord, member: Member, suffix: bytes) -> str:
    name = field_name(suffix)
    if name in record.names:
        raise damaged(
            url, member.offset, member.name, f"each field of record '{record.key}' once", f"'{name}' twice",
            remedy="Names differ by more than case within a record; rename one of the two.",
        )  # fmt: skip
    if is_reserved(name):
        remedy = "Names with two underscores at both ends are streamdata's own; rename the member."
        raise damaged(url, member.offset, member.name, "another field name", f"'{name}'", remedy=remedy)
    record.names.add(name)
    return name


def interleaved(url: str, key: str, offset: int, first: int | None = None) -> ShardError:
    """The error for a key that comes again after another one."""
    before = f"which began at offset {first}, " if first is not None else ""
    return ShardError(
        f"shard '{url}': offset {offset}: expected the members of record '{key}', {before}side by side, "
        "got them apart, with another record's between them\n"
        "  Write the archive sorted by name (tar --sort=name), and give each record a key of its own."
    )


def no_field(name: str) -> bool:  # noqa: ARG001  # one answer for all names
    """Wants the bytes of no field."""
    return False


def every_field(name: str) -> bool:  # noqa: ARG001  # one answer for all names
    """Wants the bytes of every field."""
    return True


class SkippedMembers:
    """Counts members that belong to no record; says where the first one was."""

    def __init__(self) -> None:
        self.count = 0
        self.first = 0

    def __call__(self, member: Member) -> None:
        """Count `member`."""
        if not self.count:
            self.first = member.offset
        self.count += 1
