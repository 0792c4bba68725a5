"""Tar shards, any record of which can be read: `runs of records → TarWindow → one positioned read per record`."""

import struct
import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from streamdata.shards import sidecar_index, tar_index
from streamdata.shards.indexed import IndexedFiles
from streamdata.shards.indexing import Job, Runs
from streamdata.shards.readers import Int64s, Record
from streamdata.shards.sidecar import checked_names, join
from streamdata.shards.sidecar_index import find_sidecar
from streamdata.shards.storage import LocalShard, check_shards, opened, read_ranges, short_read
from streamdata.shards.tar_headers import BLOCK, SHORT_PAX, damaged
from streamdata.shards.tar_records import field_name, plain_layout, records

LOOK_AHEAD = 64
_MAX_KEPT_BYTES = 256 << 20  # of the remote part of a window; a larger one is fetched take by take
_MAX_FIELD_NAMES = 4096
_NO_NEGATIVES = (1 << 62) - BLOCK  # rounds down to blocks, and a negative size up to more than any record has
_Read = Callable[[int, int], bytes]  # (size, offset) → bytes


class TarShards:
    """Uncompressed tar shards of the webdataset convention.

    Args:
        urls: The shards; one that is named n times counts as n shards.
        meta_names: Fields of the sidecars that join the records.

    Raises:
        ShardError: A shard is damaged, or has no sidecar though meta_names are asked for.
        FileNotFoundError: There is no such shard.
    """

    def __init__(self, urls: list[str], meta_names: Sequence[str] = ()) -> None:
        self.meta_names = checked_names(meta_names)
        self.files = IndexedFiles(urls, lambda url: Job("tar", url))
        self.sidecars = IndexedFiles(urls, lambda url: Job("meta", url, find_sidecar(url))) if meta_names else None
        self.urls = urls
        self.num_records = self.files.num_records

    def window(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> "TarWindow":
        """The window of the runs [first, first + count) of the shards."""
        return TarWindow(self, self.files.runs(shards, firsts, counts))

    def identity(self) -> list[tuple[str, int]]:
        """Base name and number of records per shard."""
        return self.files.identity()

    def anomalies(self) -> dict[str, int]:
        """How many members belong to no record, and how many records have no line in their sidecar."""
        found = {"members without key and field": self.files.skipped}
        return found | ({"records without a sidecar line": self.sidecars.skipped} if self.sidecars else {})


class _FieldNames(dict[bytes, str]):
    """The field of a member, by what follows the key in its header."""

    def __missing__(self, suffix: bytes) -> str:
        if len(self) >= _MAX_FIELD_NAMES:
            self.clear()
        name = self[suffix] = field_name(suffix.split(b"\0", 1)[0])
        return name


class _Layouts(dict[int, Callable[[bytes, int], tuple[Any, ...]]]):
    """What takes field and size out of a header, by the length of the key."""

    def __missing__(self, key_bytes: int) -> Callable[[bytes, int], tuple[Any, ...]]:
        layout = self[key_bytes] = plain_layout(key_bytes).unpack_from
        return layout


_field_names = _FieldNames()
_layouts = _Layouts()


class TarWindow:
    """Runs of records of tar shards."""

    look_ahead = LOOK_AHEAD

    def __init__(self, shards: TarShards, runs: Runs) -> None:
        self._shards = shards
        self._urls, self._is_remote = shards.urls, shards.files.remote
        rows, following = shards.files.rows(runs, tar_index.DTYPE)
        begins, ends = rows["block"].astype(np.int64) * BLOCK, following["block"].astype(np.int64) * BLOCK
        shards.files.check_spans(runs, begins, ends)
        self._places = np.stack([runs.shards, begins, ends - begins, rows["crc"].astype(np.int64)], axis=1)
        self._lines: Int64s | None = None
        if shards.sidecars is not None:
            lines, _ = shards.sidecars.rows(runs, sidecar_index.DTYPE)
            self._lines = np.stack([lines["offset"].astype(np.int64), lines["length"].astype(np.int64)], axis=1)
        self._kept: dict[int, _Fetched] | None = None

    def __len__(self) -> int:
        return len(self._places)

    def take(self, positions: Sequence[int] | Int64s) -> list[Record]:
        """The records at these positions, in this order.

        Raises:
            ShardError: A shard is not what was indexed.
        """
        found: list[Record] = []
        for first in range(0, len(positions), LOOK_AHEAD):  # so that few files are open at once
            found += self._take(np.asarray(positions[first : first + LOOK_AHEAD], np.int64))
        return found

    def _take(self, positions: Int64s) -> list[Record]:
        places = self._places[positions].tolist()
        local, reads = self._open(places)
        found = []
        for shard, begin, span, crc in places:
            buffer = reads[shard](span, begin)
            record = plain_record(buffer, span, crc, self._urls[shard])
            found.append(record or self._reread(buffer, shard, begin, span, crc))
        for shard, file in local.items():
            file.check(self._shards.files.stamps[shard])
        if self._lines is not None:
            self._join(found, [place[0] for place in places], self._lines[positions].tolist())
        return found

    def _open(self, places: list[list[int]]) -> tuple[dict[int, LocalShard], dict[int, _Read]]:
        """The local shards among those of `places`, held open by the answer, and how each shard is read."""
        local: dict[int, LocalShard] = {}
        reads: dict[int, _Read] = {}
        for shard in {place[0] for place in places}:
            if self._is_remote[shard]:
                reads[shard] = self._fetch(places)[shard].read
            else:
                local[shard] = opened(self._urls[shard])
                reads[shard] = local[shard].pread
        return local, reads

    def _fetch(self, places: list[list[int]]) -> "dict[int, _Fetched]":
        """The bytes of the remote records of the window, fetched once, or of this take if they are too many."""
        if self._kept is not None:
            return self._kept
        remote = np.array(self._is_remote, np.bool_)[self._places[:, 0]]
        if int(self._places[remote, 2].sum()) > _MAX_KEPT_BYTES:
            return self._fetched([place for place in places if self._is_remote[place[0]]])
        self._kept = self._fetched(self._places[remote].tolist())
        return self._kept

    def _fetched(self, places: list[list[int]]) -> "dict[int, _Fetched]":
        ranges = _merged(sorted({(shard, begin, begin + span) for shard, begin, span, _ in places}))
        pieces = read_ranges(self._urls, self._shards.files.stamps, ranges)
        found: dict[int, _Fetched] = {}
        for (shard, begin, _), piece in zip(ranges, pieces, strict=True):
            found.setdefault(shard, _Fetched()).add(begin, piece)
        return found

    def _reread(self, buffer: bytes, shard: int, begin: int, span: int, crc: int) -> Record:
        """The record in `buffer`, whatever its headers are like, or the error that says why it is none."""
        url = self._urls[shard]
        check_shards(self._urls, self._shards.files.stamps, [shard])
        if len(buffer) < span and not self._is_remote[shard]:  # one call reads at most 2 GiB
            buffer = opened(url).read(span, begin)
        if len(buffer) < span:
            raise short_read(url, begin, span, len(buffer))
        source = _Buffer(buffer, begin)
        record = next(records(source, url, lambda name: True, lambda entry: None, begin, begin + span), None)
        if record is None or record.crc() != crc:
            got = f"headers with CRC32 {record.crc():08x}" if record else "none"
            remedy = "The shard has changed: copy it again, delete its index, and start the run again."
            raise damaged(url, begin, None, f"a record whose headers have CRC32 {crc:08x}", got, remedy)
        return {"__key__": record.key, "__url__": url, **record.fields}

    def _join(self, found: list[Record], shards: list[int], lines: list[list[int]]) -> None:
        sidecars = self._shards.sidecars
        assert sidecars is not None, "there are sidecar lines, so there are sidecars"
        numbers = [place for place, (_, length) in enumerate(lines) if length]
        ranges = [(shards[place], lines[place][0], sum(lines[place])) for place in numbers]
        lines_read = read_ranges(sidecars.sidecars, sidecars.sidecar_stamps, ranges)
        pieces = dict(zip(numbers, lines_read, strict=True))
        for place, record in enumerate(found):
            sidecar = sidecars.sidecars[shards[place]]
            join(record, pieces.get(place), self._shards.meta_names, sidecar, lines[place][0])


def plain_record(buffer: bytes, span: int, crc: int, url: str) -> Record | None:
    """The record whose members, with plain headers, fill `buffer`; None if they are not those that were indexed.

    This is the loop that reading tar shards lives in. It believes what it reads, because in the end the CRC32
    of all names and sizes is compared with the index, where only records that it reads rightly have such a one (see
    `TarRecord.crc`).
    """
    name = buffer[:100]
    at = skip = 0
    if buffer[156:157] == b"x":
        at = skip = SHORT_PAX
        name = buffer[at : at + 100]
    dot = name.find(b".", name.rfind(b"/") + 1)
    key = name[:dot]
    record: Record = {"__key__": key.decode("utf-8", "surrogateescape"), "__url__": url}
    names, unpack, seen = _field_names, _layouts[dot], [key]
    try:
        while True:
            header = field, digits = unpack(buffer, at)
            seen += header
            size = int(digits, 8)
            at += BLOCK
            record[names[field]] = buffer[at : at + size]
            at += (size + 511) & _NO_NEGATIVES
            if at >= span:
                break
            at += skip
    except (ValueError, struct.error):  # no octal number, no header: these are not the members of a plain record
        return None
    return record if at == span == len(buffer) and zlib.crc32(b"".join(seen)) == crc else None


class _Buffer:
    """Some bytes of a shard, at their offsets in it."""

    def __init__(self, buffer: bytes, begin: int) -> None:
        self._buffer, self._begin = buffer, begin
        self.size = begin + len(buffer)

    def read(self, size: int, offset: int) -> bytes:
        return self._buffer[offset - self._begin : offset - self._begin + size]


class _Fetched:
    """Ranges of one remote shard, added in the order of their offsets."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._pieces: list[bytes] = []

    def add(self, begin: int, piece: bytes) -> None:
        self._begins.append(begin)
        self._pieces.append(piece)

    def read(self, size: int, offset: int) -> bytes:
        place = bisect_right(self._begins, offset) - 1
        at = offset - self._begins[place]
        return self._pieces[place][at : at + size]


def _merged(ranges: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Sorted (shard, begin, end), those that touch joined to one."""
    merged: list[tuple[int, int, int]] = []
    for shard, begin, end in ranges:
        if merged and merged[-1][0] == shard and merged[-1][2] == begin:
            merged[-1] = (shard, merged[-1][1], end)
        else:
            merged.append((shard, begin, end))
    return merged
