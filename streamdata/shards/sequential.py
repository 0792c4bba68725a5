"""Shards that can only be read from their start (compressed, piped): `stream of bytes → records, in file order`.

Uncompressed shards can be read this way too.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from streamdata.shards.json_lines import lines_of
from streamdata.shards.json_rows import RESERVED, doubtful_integers, parse_row, reserved
from streamdata.shards.ranges import read_spans
from streamdata.shards.readers import Record
from streamdata.shards.sidecar import checked_names, join
from streamdata.shards.sidecar_index import SidecarKeys, find_sidecar, match_key
from streamdata.shards.storage import Stamp, base_name, is_pipe, stamps_of
from streamdata.shards.streams import SaidOnce, open_stream
from streamdata.shards.tar_headers import Entry
from streamdata.shards.tar_names import key_hash
from streamdata.shards.tar_records import TarRecord, every_field, interleaved, records

logger = logging.getLogger(__name__)
_NO_FIELD = "members without key and field"
_NO_LINE = "records without a sidecar line"
_BLANK = "blank lines"


class _Sequential:
    """What sequential shards of all formats have in common."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        files = [url for url in dict.fromkeys(urls) if not is_pipe(url)]
        stamps = dict(zip(files, stamps_of(files), strict=True))
        self._stamps = [stamps.get(url, Stamp(0, 0)) for url in urls]
        self._counts: Counter[str] = Counter()
        self._unchecked = SaidOnce()

    def identity(self) -> list[tuple[str, int]]:
        """Base name and size in bytes per shard (0 for a pipe)."""
        return [(base_name(url), stamp.size) for url, stamp in zip(self.urls, self._stamps, strict=True)]

    def anomalies(self) -> dict[str, int]:
        """What this process has seen so far that is no record, or less than one, by kind."""
        return dict(self._counts)


class _Notice:
    """Counts one kind of anomaly of one shard, and logs the first."""

    def __init__(self, counts: "Counter[str]", kind: str, url: str) -> None:
        self._counts, self._kind, self._url = counts, kind, url
        self._logged = False

    def __call__(self, count: int, first: str) -> None:
        self._counts[self._kind] += count
        if count and not self._logged:
            self._logged = True
            logger.warning("shard '%s': %s, the first %s", self._url, self._kind, first)


class SequentialTar(_Sequential):
    """Tar shards read from their start: .tar.gz, .tgz, .tar.zst, pipes, and uncompressed ones.

    Args:
        urls: The shards.
        meta_names: Fields of the sidecars (which are not compressed) that join the records.

    Raises:
        FileNotFoundError: There is no such shard.
        ShardError: A shard has no sidecar though meta_names are asked for.
    """

    def __init__(self, urls: list[str], meta_names: Sequence[str] = ()) -> None:
        super().__init__(urls)
        self.meta_names = checked_names(meta_names)
        self._sidecars = [find_sidecar(url) for url in urls] if meta_names else []
        self._sidecar_stamps = stamps_of(self._sidecars)

    def stream(self, shard: int) -> Iterator[Record]:
        """The records of one shard in their order in the file.

        Raises:
            ShardError: The shard or its sidecar is damaged, or has changed.
        """
        url = self.urls[shard]
        join_line = self._joiner(shard) if self.meta_names else None
        seen: set[int] = set()
        for found in self._tar_records(shard):
            if (known := key_hash(found.key)) in seen:
                raise interleaved(url, found.key, found.offset)
            seen.add(known)
            record: Record = {"__key__": found.key, "__url__": url, **found.fields}
            if join_line is not None:
                join_line(record)
            yield record

    def _tar_records(self, shard: int) -> Iterator[TarRecord]:
        url = self.urls[shard]
        notice = _Notice(self._counts, _NO_FIELD, url)

        def skipped(entry: Entry) -> None:
            notice(1, f"at offset {entry.offset}")

        with open_stream(url, self._stamps[shard], self._unchecked) as stream:
            yield from records(stream, url, every_field, skipped)

    def _joiner(self, shard: int) -> "_Joiner":
        notice = _Notice(self._counts, _NO_LINE, self.urls[shard])
        return _Joiner(self._sidecars[shard], self._sidecar_stamps[shard], self.meta_names, notice)


class _Joiner:
    """Joins lines of one sidecar to records as they come."""

    def __init__(self, sidecar: str, stamp: Stamp, meta_names: Sequence[str], notice: _Notice) -> None:
        self._sidecar, self._stamp, self._meta_names, self._notice = sidecar, stamp, meta_names, notice
        self._keys = SidecarKeys(sidecar)

    def __call__(self, record: Record) -> None:
        key = match_key(record["__key__"], record.get("id"), record["__url__"])
        offset, length = self._keys.find(np.array([key_hash(key)], np.uint64))[0].tolist()
        line = None
        if length:
            memory, _ = read_spans([self._sidecar], [self._stamp], np.array([[0, offset, offset + length]]))
            line = bytes(memory)
        else:
            self._notice(1, f"record '{record['__key__']}'")
        join(record, line, self._meta_names, self._sidecar, offset)


class SequentialJsonl(_Sequential):
    """JSONL shards read from their start: .jsonl.gz, .jsonl.zst, pipes, and uncompressed ones.

    Args:
        urls: The shards.

    Raises:
        FileNotFoundError: There is no such shard.
    """

    def stream(self, shard: int) -> Iterator[Record]:
        """The records of one shard in their order in the file.

        Raises:
            ShardError: A row is broken, or the shard is damaged or has changed.
        """
        url = self.urls[shard]
        notice = _Notice(self._counts, _BLANK, url)
        number = 0
        with open_stream(url, self._stamps[shard], self._unchecked) as stream:
            for lines in lines_of(stream, url):
                first = int(lines.is_blank.argmax()) + 1
                notice(int(lines.is_blank.sum()), f"line {number + first}")
                doubtful = set(np.searchsorted(lines.ends, doubtful_integers(lines.buffer)).tolist())
                for line in np.flatnonzero(~lines.is_blank).tolist():
                    yield self._record(lines.line(line), url, number + line, doubtful=line in doubtful)
                number += len(lines.starts)

    @staticmethod
    def _record(line: bytes, url: str, number: int, *, doubtful: bool) -> Record:
        row = parse_row(line, url, number + 1, doubtful=doubtful)
        if not RESERVED.isdisjoint(row):
            raise reserved(row, url, number + 1)
        row["__url__"] = url
        row["__key__"] = str(number)
        return row
