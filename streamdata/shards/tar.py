"""Tar shards, any record of which can be read: `runs of records → TarWindow → positioned reads → records`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from streamdata.fields import KEY, URL
from streamdata.shards import tar_index
from streamdata.shards.indexed import IndexedFiles
from streamdata.shards.indexing import Job, sidecar_kind
from streamdata.shards.ranges import read_spans
from streamdata.shards.readers import NO_FIELDS, Int64s, Record
from streamdata.shards.recent import ReadBuffer
from streamdata.shards.runs import Runs
from streamdata.shards.sidecar import DTYPE as LINE_DTYPE
from streamdata.shards.sidecar import checked_names, checked_sidecar_key, find_sidecar, join
from streamdata.shards.storage import LocalShard, opened, short_read
from streamdata.shards.tar_headers import BLOCK, damaged
from streamdata.shards.tar_records import SkippedMembers, every_field, plain_record, records

_MAX_LOOK_AHEAD = 128
_LOOK_AHEAD_BYTES = 8 << 20
_MAX_KEPT_BYTES = 128 << 20  # of the remote part of a window; a larger one is fetched take by take


class Remote(NamedTuple):
    """Bytes of remote shards."""

    memory: memoryview
    starts: dict[tuple[int, ...], int]  # where in it a record begins, by shard and offset


class TarShards:
    """Uncompressed tar shards of the webdataset convention.

    Args:
        urls: The shards; one that is named n times counts as n shards.
        meta_names: Fields of the sidecars that join the records.
        sidecar_key: What the keys of sidecars are (see `sidecar`).

    Raises:
        ShardError: A shard is damaged, or has no sidecar that fits it though meta_names are asked for.
        FileNotFoundError: There is no such shard.
    """

    def __init__(self, urls: list[str], meta_names: Sequence[str] = (), sidecar_key: str | None = None) -> None:
        self.meta_names = checked_names(meta_names)
        self.sidecar_key = checked_sidecar_key(sidecar_key, meta_names)
        self.files = IndexedFiles(urls, lambda url: Job("tar", url))
        kind = sidecar_kind(sidecar_key)
        self.sidecars = IndexedFiles(urls, lambda url: Job(kind, url, find_sidecar(url))) if meta_names else None
        self.urls = urls
        self.num_records = self.files.num_records
        self.buffer = ReadBuffer()

    def window(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> "TarWindow":
        """The window of the runs [first, first + count) of the shards."""
        return TarWindow(self, self.files.runs(shards, firsts, counts))

    def identity(self) -> list[tuple[str, int]]:
        """Base name and number of records per shard."""
        return self.files.identity()

    def anomalies(self) -> dict[str, int]:
        """How many members belong to no record, how many records have no line in their sidecar, and the reverse."""
        found = {"members without key and field": self.files.skipped}
        if self.sidecars is not None:
            found["records without a sidecar line"] = self.sidecars.skipped
            found["sidecar lines without a record"] = int(self.sidecars.noted.sum())
        return found


class TarWindow:
    """Runs of records of tar shards."""

    def __init__(self, shards: TarShards, runs: Runs) -> None:
        self._shards = shards
        self._urls, self._is_remote = shards.urls, shards.files.remote
        rows, own = shards.files.rows(runs, tar_index.DTYPE)
        offsets = rows["block"].astype(np.int64) * BLOCK
        begins, ends = offsets[own], offsets[own + 1]
        shards.files.check_spans(runs, begins, ends)
        self._places = np.stack([runs.per_record(runs.shards), begins, ends - begins, rows["crc"][own]], axis=1)
        self.look_ahead = max(1, min(_MAX_LOOK_AHEAD, _LOOK_AHEAD_BYTES * len(own) // int((ends - begins).sum() or 1)))
        self._lines: Int64s | None = None
        if shards.sidecars is not None:
            lines, _ = shards.sidecars.rows(runs, LINE_DTYPE)
            self._lines = np.stack([lines["offset"][own], lines["length"][own]], axis=1).astype(np.int64)
        self._kept: Remote | None = None
        self._at_their_paths: set[int] = set()

    def __len__(self) -> int:
        return len(self._places)

    def take(self, positions: Sequence[int] | Int64s, common: Mapping[str, Any] = NO_FIELDS) -> Iterator[Record]:
        """The records at these positions, in this order, each with the fields `common` beside its own.

        Raises:
            ShardError: A shard is not what was indexed.
        """
        for first in range(0, len(positions), _MAX_LOOK_AHEAD):  # so that few files are open at once
            chosen = np.asarray(positions[first : first + _MAX_LOOK_AHEAD], np.int64)
            found = self._take(self._places[chosen].tolist(), common)
            yield from found if self._lines is None else self._with_lines(found, chosen, self._lines)

    def _take(self, places: list[list[int]], common: Mapping[str, Any]) -> Iterator[Record]:
        view = self._shards.buffer.lend(sum([size for _, _, size, _ in places]))
        self._read(places, view)
        memory: Any = view.obj
        urls, end = self._urls, 0
        for shard, offset, size, crc in places:
            begin, end = end, end + size
            record = plain_record(memory, begin, end, crc, urls[shard])
            record = record or self._reread(bytes(view[begin:end]), shard, offset, crc)
            record |= common
            yield record

    def _read(self, places: list[list[int]], memory: memoryview) -> None:
        """Fill the memory with these records, one after another, and see that their shards are what was indexed."""
        shards = {place[0] for place in places}
        local = {shard: opened(self._urls[shard]) for shard in shards if not self._is_remote[shard]}
        remote = self._remote(places) if len(local) < len(shards) else None
        end, short = 0, []
        for shard, offset, size in _touching(places):
            begin, end = end, end + size
            if remote is not None and shard not in local:
                start = remote.starts[shard, offset]
                memory[begin:end] = remote.memory[start : start + size]
            elif (got := local[shard].read_into(memory[begin:end], offset)) < size:
                short.append(short_read(self._urls[shard], offset, size, got))
        self._check(local)
        if short:
            raise short[0]

    def _remote(self, places: list[list[int]]) -> Remote:
        """The bytes of the remote records of all the window, or of this take if those are too many."""
        if self._kept is not None:
            return self._kept
        is_remote = np.array(self._is_remote, np.bool_)
        wanted = self._places[is_remote[self._places[:, 0]]]
        is_kept = int(wanted[:, 2].sum()) <= _MAX_KEPT_BYTES
        if not is_kept:
            wanted = np.array([place for place in places if is_remote[place[0]]])
        spans = np.stack([wanted[:, 0], wanted[:, 1], wanted[:, 1] + wanted[:, 2]], axis=1)
        memory, offsets = read_spans(self._urls, self._shards.files.stamps, spans)
        remote = Remote(memory, dict(zip(map(tuple, spans[:, :2].tolist()), offsets.tolist(), strict=True)))
        self._kept = remote if is_kept else None
        return remote

    def _check(self, local: dict[int, LocalShard]) -> None:
        """Raise ShardError unless these shards are still what was indexed; once per window, by their paths too."""
        for shard, file in local.items():
            stamp = self._shards.files.stamps[shard]
            if shard in self._at_their_paths:
                file.check(stamp)
            else:
                file.check_path(stamp)
                self._at_their_paths.add(shard)

    def _reread(self, buffer: bytes, shard: int, begin: int, crc: int) -> Record:
        """The record in `buffer`, whatever its headers are like, or the error that says why it is none."""
        url = self._urls[shard]
        source = _Buffer(buffer, begin)
        record = next(records(source, url, every_field, SkippedMembers(), begin, begin + len(buffer)), None)
        if record is None or record.crc() != crc:
            got = f"headers with CRC32 {record.crc():08x}" if record else "none"
            remedy = "The shard has changed: copy it again, delete its index, and start the run again."
            raise damaged(url, begin, None, f"a record whose headers have CRC32 {crc:08x}", got, remedy=remedy)
        return {KEY: record.key, URL: url, **record.fields}

    def _with_lines(self, found: Iterator[Record], chosen: Int64s, all_lines: Int64s) -> Iterator[Record]:
        """The records, each joined with its line of its shard's sidecar."""
        sidecars = self._shards.sidecars
        assert sidecars is not None, "there are sidecar lines, so there are sidecars"
        shards, lines = self._places[chosen, 0].tolist(), all_lines[chosen].tolist()
        spans = [(shard, begin, begin + length) for shard, (begin, length) in zip(shards, lines, strict=True) if length]
        wanted = np.array(spans, np.int64).reshape(-1, 3)
        memory, offsets = read_spans(sidecars.sidecars, sidecars.sidecar_stamps, wanted)
        starts = iter(offsets.tolist())
        for record, shard, (offset, length) in zip(found, shards, lines, strict=True):
            line = bytes(memory[(start := next(starts)) : start + length]) if length else None
            join(record, line, self._shards.meta_names, self._shards.sidecar_key, sidecars.sidecars[shard], offset)
            yield record


def _touching(places: list[list[int]]) -> Iterator[tuple[int, int, int]]:
    """Shard, offset and size of what can be read at once, of at least one: records that lie one after the other."""
    shard, begin, end = -1, 0, 0
    for next_shard, offset, size, _ in places:
        if next_shard != shard or offset != end:
            if end > begin:
                yield shard, begin, end - begin
            shard, begin, end = next_shard, offset, offset
        end += size
    yield shard, begin, end - begin


class _Buffer:
    """Some bytes of a shard, at their offsets in it."""

    def __init__(self, buffer: bytes, begin: int) -> None:
        self._buffer, self._begin = buffer, begin
        self.size = begin + len(buffer)

    def read(self, size: int, offset: int) -> bytes:
        return self._buffer[offset - self._begin : offset - self._begin + size]
