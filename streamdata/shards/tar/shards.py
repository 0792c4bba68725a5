"""Tar shards, any record of which can be read: `runs of records → TarWindow → positioned reads → records`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import numpy as np

from streamdata.fields import KEY, URL
from streamdata.io.remote.addresses import CacheSettings
from streamdata.io.storage import Int64s
from streamdata.recipe.limits import DEFAULT_LIMITS, ShardLimits
from streamdata.run.per_process import ReadBuffer
from streamdata.shards.ahead.spans import FileSpans, read_spans
from streamdata.shards.ahead.windows import Chunk
from streamdata.shards.index.indexing import sidecar_kind
from streamdata.shards.index.manifest import NOTHING_KNOWN, Known
from streamdata.shards.indexed import IndexedFiles, RecordBytes, Runs, check_inside, complete
from streamdata.shards.jsonl.lines import line_too_long
from streamdata.shards.jsonl.rows import doubtful_integers
from streamdata.shards.readers import NO_FIELDS, Record
from streamdata.shards.tar.headers import BLOCK, damaged, members_of
from streamdata.shards.tar.records import plain_record, records
from streamdata.shards.tar.sidecar import join

_MAX_LOOK_AHEAD = 128
_LOOK_AHEAD_BYTES = 8 << 20
_KEPT_LINES_BYTES = 8 << 20
_Line = tuple[bytes, bool]
"""A line of a sidecar, and whether it may hold an integer beyond 64 bits."""


class TarShards(IndexedFiles):
    """Uncompressed tar shards in the webdataset convention.

    Args:
        urls: The shards; one that is named n times counts as n shards.
        meta_names: Fields of the sidecars that join the records.
        sidecar_key: What the keys of sidecars are (see `sidecar`).
        max_kept_bytes: Of a window with remote shards, which is fetched at once; a larger one is fetched take by take.
        known: What is known of them already.
        limits: What a member, and a line of a sidecar, may be.
        mapped: Copy members out of maps of the shards, all of which are local; they are checked once for each take.

    Raises:
        ShardError: A shard is damaged, or has no sidecar that fits it though meta_names are asked for.
        FileNotFoundError: A shard does not exist.
    """

    def __init__(
        self,
        urls: list[str],
        meta_names: Sequence[str] = (),
        sidecar_key: str | None = None,
        max_kept_bytes: int = 128 << 20,
        known: Known = NOTHING_KNOWN,
        limits: ShardLimits = DEFAULT_LIMITS,
        *,
        mapped: bool = False,
    ) -> None:
        self.mapped = mapped
        self.meta_names, self.sidecar_key = tuple(meta_names), sidecar_key
        super().__init__(urls, "tar", known, limits=limits)
        self.sidecars: IndexedFiles | None = None
        if meta_names:
            stamps = {**known.stamps, **{job.url: job.stamp for job in self.jobs.values()}}
            known = known._replace(stamps=stamps)
            kind = sidecar_kind(sidecar_key)
            self.sidecars = IndexedFiles(urls, kind, known, has_sidecars=True, limits=limits)
        complete(*filter(None, (self, self.sidecars)))
        self.max_kept_bytes = max_kept_bytes
        self.buffer = ReadBuffer()

    def use_cache(self, cache: CacheSettings | None) -> None:
        """Set where pages of shards and sidecars are cached; None leaves it to the environment."""
        super().use_cache(cache)
        if self.sidecars is not None:
            self.sidecars.use_cache(cache)

    def window(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> "TarWindow":
        """The window of the runs [first, first + count) of the shards."""
        return TarWindow(self, self.runs(shards, firsts, counts))

    def prefetch_rows(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> list[Future[None]]:
        """Request the remote index rows of a window without waiting; return the requests."""
        asked = super().prefetch_rows(shards, firsts, counts)
        if self.sidecars is not None:
            asked += self.sidecars.prefetch_rows(shards, firsts, counts)
        return asked

    def anomalies(self) -> dict[str, int]:
        """Counts of members outside records, of records without a sidecar line, and of lines without a record."""
        found = {"members without key and field": int(self.skipped.sum())}
        if self.sidecars is not None:
            found["records without a sidecar line"] = int(self.sidecars.skipped.sum())
            found["sidecar lines without a record"] = int(self.sidecars.noted.sum())
        return found


class TarWindow:
    """Runs of records of tar shards."""

    def __init__(self, shards: TarShards, runs: Runs) -> None:
        self._shards, self._urls = shards, shards.names
        rows, own = shards.rows(runs)
        offsets = rows["block"].astype(np.int64) * BLOCK
        self._bytes = RecordBytes(shards, runs, offsets[own], offsets[own + 1], shards.buffer)
        self._crcs, size = rows["crc"][own], self._bytes.num_bytes
        # The index may have been built under other limits, or come with the shard.
        if size > (most := shards.limits.member_bytes):
            for position in np.flatnonzero(self._bytes.sizes > most).tolist():
                url, archive = self._urls[int(self._bytes.shards[position])], self._bytes.bytes_of_shard(position)
                span = int(self._bytes.begins[position]), int(self._bytes.ends[position])
                for _ in members_of(archive, url, *span, most):  # which raises if one is too large
                    pass
        self.look_ahead = max(1, min(_MAX_LOOK_AHEAD, _LOOK_AHEAD_BYTES * len(own) // (size or 1)))
        # A request takes about as long for all records of a window as for some of them.
        has_remote = any(map(shards.is_remote.__getitem__, set(runs.shards.tolist())))
        self._is_kept = has_remote and size <= shards.max_kept_bytes
        self._lines = _SidecarLines(shards.sidecars, runs, own) if shards.sidecars is not None else None

    def __len__(self) -> int:
        return len(self._crcs)

    def spans(self, positions: Int64s) -> tuple[list[FileSpans], Int64s]:
        """The byte spans of the window's records, and of their sidecar lines; and which are used, in order."""
        return [self._bytes.file_spans, *([self._lines.file_spans] if self._lines else [])], positions

    def take(
        self,
        positions: Sequence[int] | Int64s,
        common: Mapping[str, Any] = NO_FIELDS,
        chunk: Chunk | None = None,
    ) -> Iterator[Record]:
        """The records at these positions, in this order, each with the fields `common` beside its own.

        Raises:
            ShardError: A shard is not what was indexed.
        """
        starts = range(0, len(positions), _MAX_LOOK_AHEAD)  # so that few files are open at once
        found = chain.from_iterable(map(partial(self._records, positions, common, chunk), starts))
        return self._with_lines(found, self._lines, positions, chunk) if self._lines else found

    def _records(
        self, positions: Sequence[int] | Int64s, common: Mapping[str, Any], chunk: Chunk | None, start: int
    ) -> Iterator[Record]:
        chosen = np.asarray(positions[start : start + _MAX_LOOK_AHEAD], np.int64)
        urls, located, spans = self._urls, self._bytes, self._bytes.file_spans.spans[chosen].tolist()
        places: Iterable[tuple[Any, int]]
        if chunk is not None:
            places = chunk.located(0, chosen)
        elif self._shards.mapped:
            places = zip(located.maps(spans), [begin for _, begin, _ in spans], strict=True)
        else:
            view, offsets = located.read(chosen, keep=self._is_kept)
            places = zip(repeat(view.obj), offsets.tolist())  # its slices are bytes, the view's would be views
        rows, begun = zip(places, spans, self._crcs[chosen].tolist(), strict=False), {KEY: None, URL: None, **common}
        for (memory, begin), (shard, offset, stop), crc in rows:
            end = begin + stop - offset
            record = plain_record(memory, begin, end, crc, urls[shard], begun)
            yield record or self._reread(bytes(memory[begin:end]), urls[shard], offset, crc, common)

    def _reread(self, buffer: bytes, url: str, begin: int, crc: int, common: Mapping[str, Any]) -> Record:
        """The record in `buffer`, whatever its headers are like, or the error that says why it is not one."""
        archive: Any = SimpleNamespace(size=begin + len(buffer), read=lambda n, at: buffer[at - begin : at - begin + n])
        record = next(records(archive, url, start=begin, stop=begin + len(buffer), max_bytes=len(buffer)), None)
        if record is None or record.crc() != crc:
            got = f"headers with CRC32 {record.crc():08x}" if record else "none"
            remedy = "The shard has changed: copy it again, delete its index, and start the run again."
            raise damaged(url, begin, None, f"a record whose headers have CRC32 {crc:08x}", got, remedy=remedy)
        return {KEY: record.key, URL: url, **common, **record.fields}

    def _with_lines(
        self, found: Iterator[Record], lines: "_SidecarLines", positions: Sequence[int] | Int64s, chunk: Chunk | None
    ) -> Iterator[Record]:
        """The records, each joined with its line of its shard's sidecar."""
        meta_names, by, urls = self._shards.meta_names, self._shards.sidecar_key, lines.file_spans.urls
        chosen = np.asarray(positions, np.int64)
        own = lines.read(chosen, chunk)
        spans = lines.file_spans.spans[chosen].tolist()
        for record, (line, is_doubtful), (shard, offset, _) in zip(found, own, spans, strict=True):
            join(record, line or None, meta_names, by, urls[shard], offset, doubtful=is_doubtful)
            yield record


class _SidecarLines:
    """The lines of sidecars that belong to a window's records; a line is empty for a record that has none.

    Args:
        sidecars: Of the window's shards.
        runs: The window's.
        own: Positions of the records' own index rows, among those of the runs.

    Raises:
        ShardError: A line is too large, or does not lie within its sidecar.
    """

    def __init__(self, sidecars: IndexedFiles, runs: Runs, own: Int64s) -> None:
        rows, shards = sidecars.rows(runs)[0][own], runs.per_record(runs.shards)
        begins = rows["offset"].astype(np.int64)
        ends = begins + rows["length"]
        urls, stamps = sidecars.sidecar_urls, sidecars.sidecar_stamps
        check_inside(sidecars, runs, begins, ends, stamps.sizes[shards], least=0)
        wrong = np.flatnonzero(rows["length"] > sidecars.limits.line_bytes)
        if len(wrong):
            where = f"{urls[int(shards[wrong[0]])]}, offset {begins[wrong[0]]}"
            raise line_too_long(where, int(rows["length"][wrong[0]]), sidecars.limits.line_bytes)
        self.file_spans = FileSpans(urls, stamps, np.array((shards, begins, ends)).T)
        self._sizes = stamps.sizes
        self._is_kept = int(rows["length"].sum(dtype=np.int64)) <= _KEPT_LINES_BYTES
        self._kept: list[_Line] = []

    def read(self, chosen: Int64s, chunk: Chunk | None) -> list[_Line]:
        """The lines of some records. Those of a window are read at once, unless they are too large."""
        spans = self.file_spans.spans
        if chunk is not None:
            located = zip(chunk.located(1, chosen), spans[chosen].tolist(), strict=False)
            return _doubted([bytes(memory[at : at + end - begin]) for (memory, at), (_, begin, end) in located])
        if not self._is_kept:
            return self._fetched(spans[chosen])
        self._kept = self._kept or self._fetched(spans)
        return list(map(self._kept.__getitem__, chosen.tolist()))

    def _fetched(self, lines: Int64s) -> list[_Line]:
        urls, stamps, _ = self.file_spans
        begins, sizes = np.zeros(len(lines), np.int64), lines[:, 2] - lines[:, 1]
        # With the end of each line, so that lines side by side are one span.
        spans = lines[sizes > 0]
        spans[:, 2] = np.minimum(spans[:, 2] + len(b"\r\n"), self._sizes[spans[:, 0]])
        memory, begins[sizes > 0] = read_spans(urls, stamps, spans)
        located = zip(begins.tolist(), (begins + sizes).tolist(), strict=True)
        return _doubted([bytes(memory[begin:end]) for begin, end in located])


def _doubted(lines: list[bytes]) -> list[_Line]:
    """The lines, each with whether it may hold an integer beyond 64 bits: searched for in all of them at once."""
    ends = np.cumsum([len(line) + 1 for line in lines])
    doubtful = set(np.searchsorted(ends, doubtful_integers(b"\n".join(lines)), side="right").tolist())
    return [(line, number in doubtful) for number, line in enumerate(lines)]
