"""Shards that can only be read from their start (compressed, piped): `stream of bytes → records, in file order`.

Uncompressed shards can be read this way too.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from streamdata.errors import one_line, shown
from streamdata.fields import KEY, SET_HERE, URL
from streamdata.io.remote.addresses import CacheSettings, keep_in
from streamdata.io.storage import NO_STAMP, FileStamp, Int64s, base_name, close_unused, is_pipe, is_remote, told_url
from streamdata.io.streams import open_stream
from streamdata.recipe.limits import DEFAULT_LIMITS, ShardLimits
from streamdata.run.per_process import Recent
from streamdata.shards.ahead.spans import MAX_REQUEST_BYTES, FileSpans, read_spans
from streamdata.shards.ahead.windows import ChunkBytes
from streamdata.shards.index.indexing import IndexJob, csv_kind, headers_of
from streamdata.shards.index.manifest import NOTHING_KNOWN, Known, ListedFacts, stamps_for, stamps_known
from streamdata.shards.jsonl.csv_rows import csv_records
from streamdata.shards.jsonl.lines import lines_of, place_of
from streamdata.shards.jsonl.rows import doubtful_integers, parse_row, reserved_flaw
from streamdata.shards.listing import sidecars_of
from streamdata.shards.readers import DamagedRecordError, Record
from streamdata.shards.tar.records import interleaved, key_hash, records
from streamdata.shards.tar.sidecar import JoinedLines, SidecarKeys, find_sidecars, join

logger = logging.getLogger(__name__)
_CHUNK_BYTES, _MAX_CHUNKS = 1 << 20, 16
_NO_FIELD = "members without key and field"
_NO_LINE = "records without a sidecar line"
_NO_RECORD = "sidecar lines without a record"
_BLANK = "blank lines"


class SequentialFiles:
    """Base class of sequential shards, whatever their format."""

    count_kind: str
    """The kind of the index that says how many records a shard has."""

    def __init__(self, urls: list[str], known: Known = NOTHING_KNOWN, limits: ShardLimits = DEFAULT_LIMITS) -> None:
        self.urls, self.limits = urls, limits
        self.sidecars: list[str] = []
        self.sidecar_stamps: list[FileStamp] = []
        files = [url for url in dict.fromkeys(urls) if not is_pipe(url)]
        close_unused(files)
        stamps = stamps_for(files, known)
        self._stamps = [stamps.get(url, NO_STAMP) for url in urls]
        self.pipe = told_url(next(filter(is_pipe, urls), ""))
        listed = ListedFacts(urls, self.count_kind, known.manifests)
        is_listed = listed.manifest_of >= 0
        # Where a host has told of another version than the manifest, that count is not its own.
        is_listed &= [own == said for own, said in zip(self._stamps, listed.stamps, strict=True)]
        self._listed_counts = np.where(is_listed, listed.noted, -1)
        self.has_remote = any(map(is_remote, files))
        self._counts: Counter[str] = Counter()
        self._said: set[tuple[str, str]] = set()

    def use_cache(self, cache: CacheSettings | None) -> None:
        """Set where pages of remote files are cached; None leaves it to the environment."""
        keep_in(cache, [*self.urls, *self.sidecars])

    def identity(self) -> list[tuple[str, int]]:
        """The base name and size in bytes of each shard (0 for a pipe)."""
        return [(base_name(url), stamp.size) for url, stamp in zip(self.urls, self._stamps, strict=True)]

    @cached_property
    def num_records(self) -> Int64s:
        """The number of records of each shard; one without a manifest is read whole for it, once per node.

        Raises:
            ValueError: A shard is a pipe, which may give others each time.
            ShardError: A shard is damaged, or has changed.
        """
        if self.pipe:
            raise ValueError(
                f"num_records: expected files, whose records are counted once, got {shown(self.pipe)}\n"
                "  Write what the command gives to files; for check_length, set the source's `length`."
            )
        counts = self._listed_counts.copy()
        unlisted = np.flatnonzero(counts < 0)
        files = [(self.urls[shard], self._stamps[shard]) for shard in unlisted.tolist()]
        jobs = [IndexJob(self.count_kind, *file, limits=self.limits) for file in files]
        counts[unlisted] = [header.noted for header in headers_of(jobs)]
        return counts

    def chunks(self, shard: int) -> FileSpans | None:
        """The spans in which a remote shard is requested; None for a local one."""
        url, stamp = self.urls[shard], self._stamps[shard]
        if is_pipe(url) or not is_remote(url):  # the kernel reads ahead
            return None
        begins = np.arange(0, stamp.size, MAX_REQUEST_BYTES)
        ends = np.minimum(begins + MAX_REQUEST_BYTES, stamp.size)
        return FileSpans([url], [stamp], np.stack([np.zeros_like(begins), begins, ends], axis=1))

    def note(self, url: str, kind: str, count: int, which: str) -> None:
        """Count an anomaly of a shard by kind, and log the first of each kind."""
        self._counts[kind] += count
        if count and (url, kind) not in self._said:
            self._said.add((url, kind))
            logger.warning("shard '%s': %s, %s", one_line(url), kind, which)

    def anomalies(self) -> dict[str, int]:
        """Counts, by kind, of what is not a whole record, as far as this process has read."""
        return dict(self._counts)


class SequentialTar(SequentialFiles):
    """Tar shards read from their start: .tar.gz, .tgz, .tar.zst, pipes, and uncompressed ones.

    Args:
        urls: The shards.
        meta_names: Fields of the sidecars (which are not compressed) that join the records.
        sidecar_key: What the keys of sidecars are (see `sidecar`).
        known: What is known of them already.
        limits: What a member, and a line of a sidecar, may be.

    Raises:
        FileNotFoundError: There is no such shard.
        ShardError: A shard has no sidecar though meta_names are asked for.
    """

    count_kind = "n-tar"

    def __init__(
        self,
        urls: list[str],
        meta_names: Sequence[str] = (),
        sidecar_key: str | None = None,
        known: Known = NOTHING_KNOWN,
        limits: ShardLimits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(urls, known, limits)
        self.meta_names, self.sidecar_key = tuple(meta_names), sidecar_key
        wanted = urls if meta_names else []
        there = stamps_known([sidecar for url in wanted for sidecar in sidecars_of(url)], known)
        found = find_sidecars(wanted, there)
        self.sidecars = [found[url][0] for url in wanted]
        self.sidecar_stamps = [found[url][1] for url in wanted]
        close_unused(self.sidecars)

    def stream(self, shard: int, raw: ChunkBytes | None = None) -> Iterator[Record | DamagedRecordError]:
        """Yield the records of a shard in file order, reading from `raw` if given.

        In place of one whose line of the sidecar is damaged stands the error.

        Raises:
            ShardError: The shard or its sidecar is damaged, or has changed; or no line of it joins a record, which
                shows at the end, or it is in doubt which does, which shows at the first record of that kind.
        """
        url = self.urls[shard]
        joiner = _Joiner(self, shard) if self.meta_names else None
        begins: dict[int, int] = {}
        told = told_url(url)
        skipped = lambda member: self.note(url, _NO_FIELD, 1, f"the first at offset {member.offset}")  # noqa: E731
        with open_stream(url, self._stamps[shard], raw) as stream:
            for found in records(stream, url, None, skipped, max_bytes=self.limits.member_bytes):
                if (first := begins.setdefault(key_hash(found.key), found.offset)) != found.offset:
                    raise interleaved(url, found.key, found.offset, first)
                record: Record = {KEY: found.key, URL: told, **found.fields}
                try:
                    if joiner is not None:
                        joiner.join(record)
                except DamagedRecordError as error:
                    yield error
                else:
                    yield record
        if joiner is not None:
            joiner.finish()


class _Joiner:
    """Joins lines of one shard's sidecar to records as they come, by the rule of `sidecar`."""

    def __init__(self, shards: SequentialTar, shard: int) -> None:
        self._url, self._meta_names, self._by = shards.urls[shard], shards.meta_names, shards.sidecar_key
        self._sidecar, self._stamp = shards.sidecars[shard], shards.sidecar_stamps[shard]
        keys = SidecarKeys(self._sidecar, self._stamp, shards.limits.line_bytes)
        self._lines = JoinedLines(self._url, keys, self._by)
        self._note, self._is_remote = shards.note, is_remote(self._sidecar)
        self._chunks: Recent[int, bytes] = Recent(_MAX_CHUNKS)

    def join(self, record: Record) -> None:
        """Add the fields of the matching sidecar line to a record."""
        offset, length = self._lines.next(record[KEY], record.get("id"))
        line = self._read(offset, offset + length) if length else None
        if line is None:
            self._note(self._url, _NO_LINE, 1, f"the first record {shown(record[KEY])}")
        join(record, line, self._meta_names, self._by, self._sidecar, offset)

    def _read(self, begin: int, end: int) -> bytes:
        """Bytes of the sidecar; of a remote one in chunks, since each is a request and has many records' lines."""
        if not self._is_remote:
            return self._fetch(begin, end)
        first, last = begin // _CHUNK_BYTES, -(-end // _CHUNK_BYTES)
        starts = range(first * _CHUNK_BYTES, last * _CHUNK_BYTES, _CHUNK_BYTES)
        chunks = [self._chunks.get(at, lambda at: self._fetch(at, at + _CHUNK_BYTES)) for at in starts]
        return b"".join(chunks)[begin - starts.start : end - starts.start]

    def _fetch(self, begin: int, end: int) -> bytes:
        span = np.array([[0, begin, min(self._stamp.size, end)]])
        memory, _ = read_spans([self._sidecar], [self._stamp], span)
        return bytes(memory)

    def finish(self) -> None:
        """Count the sidecar lines that matched no record, after the last record."""
        num_unused = self._lines.num_unused()
        self._note(self._url, _NO_RECORD, num_unused, f"{num_unused} of them")


class SequentialJsonl(SequentialFiles):
    """JSONL shards read from their start: compressed ones, pipes, and uncompressed ones.

    Args:
        urls: The shards.
        known: What is known of them already.
        limits: What a line may be.

    Raises:
        FileNotFoundError: There is no such shard.
    """

    count_kind = "n-jsonl"

    def stream(self, shard: int, raw: ChunkBytes | None = None) -> Iterator[Record | DamagedRecordError]:
        """Yield the records of a shard in file order, reading from `raw` if given.

        In place of one whose line is broken stands the error.

        Raises:
            ShardError: The shard is damaged or has changed.
        """
        url = self.urls[shard]
        told = told_url(url)
        with open_stream(url, self._stamps[shard], raw) as stream:
            for lines in lines_of(stream, url, max_bytes=self.limits.line_bytes):
                if lines.num_blank:
                    self.note(url, _BLANK, lines.num_blank, f"the first line {lines.first_blank() + 1}")
                doubtful = set(np.searchsorted(lines.ends, doubtful_integers(lines.buffer)).tolist())
                for index, (number, _, line) in enumerate(lines.listed()):
                    place = place_of(number, lines.are_elements)
                    try:
                        row = parse_row(line, told, place, doubtful=index in doubtful)
                        if not SET_HERE.isdisjoint(row):
                            raise reserved_flaw(row).error(told, place)
                    except DamagedRecordError as error:
                        yield error.of(told, str(number))
                    else:
                        row[URL], row[KEY] = told, str(number)
                        yield row


class SequentialCsv(SequentialFiles):
    """CSV shards; the first line of each names its fields.

    Args:
        urls: The shards.
        known: What is known of them already.
        limits: What a line may be.
        delimiter: What stands between values; None as the files' names say.

    Raises:
        FileNotFoundError: There is no such shard.
        ValueError: The delimiter is not one character that may be one.
    """

    def __init__(
        self,
        urls: list[str],
        known: Known = NOTHING_KNOWN,
        limits: ShardLimits = DEFAULT_LIMITS,
        delimiter: str | None = None,
    ) -> None:
        is_text = isinstance(delimiter, str)
        if delimiter is not None and (
            not is_text or len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0'
        ):
            got = shown(delimiter)
            raise ValueError(f"CsvDataset, delimiter: expected one ASCII character, got {got}\n  Write such as ';'.")
        self._delimiter, self.count_kind = delimiter or "", csv_kind(delimiter or "")
        super().__init__(urls, known, limits)

    def stream(self, shard: int, raw: ChunkBytes | None = None) -> Iterator[Record | DamagedRecordError]:
        """Yield the records of a shard in file order, reading from `raw` if given.

        In place of one that is no CSV, or has another number of fields than the header, stands the error.

        Raises:
            ShardError: The header or the shard is damaged, or it has changed.
        """
        url = self.urls[shard]
        with open_stream(url, self._stamps[shard], raw) as stream:
            yield from csv_records(stream, url, self.limits.line_bytes, self._delimiter)
