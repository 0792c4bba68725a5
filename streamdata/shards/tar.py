"""Tar shards, any record of which can be read: `runs of records → TarWindow → one positioned read per record`."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from streamdata.shards import sidecar_index, tar_index
from streamdata.shards.indexed import IndexedFiles
from streamdata.shards.indexing import Job
from streamdata.shards.ranges import read_spans
from streamdata.shards.readers import Int64s, Record
from streamdata.shards.runs import Runs
from streamdata.shards.sidecar import checked_names, join
from streamdata.shards.sidecar_index import find_sidecar
from streamdata.shards.storage import LocalShard, check_shards, opened, short_read
from streamdata.shards.tar_headers import BLOCK, damaged
from streamdata.shards.tar_plain import plain_record
from streamdata.shards.tar_records import SkippedMembers, every_field, records

_MAX_LOOK_AHEAD = 64
_LOOK_AHEAD_BYTES = 8 << 20
_MAX_KEPT_BYTES = 128 << 20  # of the remote part of a window; a larger one is fetched take by take

Read = Callable[[int, int], bytes]  # (size, offset) → bytes


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


class TarWindow:
    """Runs of records of tar shards."""

    def __init__(self, shards: TarShards, runs: Runs) -> None:
        self._shards = shards
        self._urls, self._is_remote = shards.urls, shards.files.remote
        rows, following = shards.files.rows(runs, tar_index.DTYPE)
        begins, ends = rows["block"].astype(np.int64) * BLOCK, following["block"].astype(np.int64) * BLOCK
        shards.files.check_spans(runs, begins, ends)
        self._places = np.stack([runs.shards, begins, ends - begins, rows["crc"].astype(np.int64)], axis=1)
        self.look_ahead = max(1, min(_MAX_LOOK_AHEAD, _LOOK_AHEAD_BYTES * len(rows) // int((ends - begins).sum() or 1)))
        self._lines: Int64s | None = None
        if shards.sidecars is not None:
            lines, _ = shards.sidecars.rows(runs, sidecar_index.DTYPE)
            self._lines = np.stack([lines["offset"].astype(np.int64), lines["length"].astype(np.int64)], axis=1)
        self._kept: dict[int, Read] | None = None
        self._at_their_paths: set[int] = set()

    def __len__(self) -> int:
        return len(self._places)

    def take(self, positions: Sequence[int] | Int64s) -> list[Record]:
        """The records at these positions, in this order.

        Raises:
            ShardError: A shard is not what was indexed.
        """
        found: list[Record] = []
        for first in range(0, len(positions), _MAX_LOOK_AHEAD):  # so that few files are open at once
            found += self._take(np.asarray(positions[first : first + _MAX_LOOK_AHEAD], np.int64))
        return found

    def _take(self, positions: Int64s) -> list[Record]:
        places = self._places[positions].tolist()
        local, reads = self._open(places)
        found = []
        for shard, begin, span, crc in places:
            buffer = reads[shard](span, begin)
            record = plain_record(buffer, span, crc, self._urls[shard])
            found.append(record or self._reread(buffer, shard, begin, span, crc))
        self._check(local)
        if self._lines is not None:
            self._join(found, [place[0] for place in places], self._lines[positions].tolist())
        return found

    def _open(self, places: list[list[int]]) -> tuple[dict[int, LocalShard], dict[int, Read]]:
        """The local shards among those of `places`, held open by the answer, and how each shard is read."""
        shards = {place[0] for place in places}
        local = {shard: opened(self._urls[shard]) for shard in shards if not self._is_remote[shard]}
        reads: dict[int, Read] = {shard: file.pread for shard, file in local.items()}
        if len(local) < len(shards):
            reads |= self._remote_reads(places)
        return local, reads

    def _remote_reads(self, places: list[list[int]]) -> dict[int, Read]:
        """Reads of the remote shards, from the bytes of all the window, or of this take if those are too many."""
        if self._kept is not None:
            return self._kept
        remote = np.array(self._is_remote, np.bool_)[self._places[:, 0]]
        is_kept = int(self._places[remote, 2].sum()) <= _MAX_KEPT_BYTES
        wanted = self._places[remote] if is_kept else np.array([p for p in places if self._is_remote[p[0]]])
        spans = np.stack([wanted[:, 0], wanted[:, 1], wanted[:, 1] + wanted[:, 2]], axis=1)
        buffer, offsets = read_spans(self._urls, self._shards.files.stamps, spans, b"".join)
        starts = dict(zip(map(tuple, spans[:, :2].tolist()), offsets.tolist(), strict=True))
        reads: dict[int, Read] = {
            shard: partial(_fetched, buffer, starts, shard) for shard in set(spans[:, 0].tolist())
        }
        self._kept = reads if is_kept else None
        return reads

    def _check(self, local: dict[int, LocalShard]) -> None:
        """Raise ShardError unless these shards are still what was indexed; once per window, by their paths too."""
        for shard, file in local.items():
            stamp = self._shards.files.stamps[shard]
            if shard in self._at_their_paths:
                file.check(stamp)
            else:
                file.check_path(stamp)
                self._at_their_paths.add(shard)

    def _reread(self, buffer: bytes, shard: int, begin: int, span: int, crc: int) -> Record:
        """The record in `buffer`, whatever its headers are like, or the error that says why it is none."""
        url = self._urls[shard]
        check_shards(self._urls, self._shards.files.stamps, [shard])
        if len(buffer) < span and not self._is_remote[shard]:  # one call reads at most 2 GiB
            buffer = opened(url).read(span, begin)
        if len(buffer) < span:
            raise short_read(url, begin, span, len(buffer))
        source = _Buffer(buffer, begin)
        record = next(records(source, url, every_field, SkippedMembers(), begin, begin + span), None)
        if record is None or record.crc() != crc:
            got = f"headers with CRC32 {record.crc():08x}" if record else "none"
            remedy = "The shard has changed: copy it again, delete its index, and start the run again."
            raise damaged(url, begin, None, f"a record whose headers have CRC32 {crc:08x}", got, remedy=remedy)
        return {"__key__": record.key, "__url__": url, **record.fields}

    def _join(self, found: list[Record], shards: list[int], lines: list[list[int]]) -> None:
        sidecars = self._shards.sidecars
        assert sidecars is not None, "there are sidecar lines, so there are sidecars"
        spans = [(shard, begin, begin + length) for shard, (begin, length) in zip(shards, lines, strict=True) if length]
        wanted = np.array(spans, np.int64).reshape(-1, 3)
        buffer, offsets = read_spans(sidecars.sidecars, sidecars.sidecar_stamps, wanted, b"".join)
        starts = iter(offsets.tolist())
        for record, shard, (offset, length) in zip(found, shards, lines, strict=True):
            line = buffer[(start := next(starts)) : start + length] if length else None
            join(record, line, self._shards.meta_names, sidecars.sidecars[shard], offset)


def _fetched(buffer: bytes, starts: dict[tuple[int, ...], int], shard: int, size: int, offset: int) -> bytes:
    """A record of a remote shard, out of the bytes that were fetched."""
    start = starts[shard, offset]
    return buffer[start : start + size]


class _Buffer:
    """Some bytes of a shard, at their offsets in it."""

    def __init__(self, buffer: bytes, begin: int) -> None:
        self._buffer, self._begin = buffer, begin
        self.size = begin + len(buffer)

    def read(self, size: int, offset: int) -> bytes:
        return self._buffer[offset - self._begin : offset - self._begin + size]
