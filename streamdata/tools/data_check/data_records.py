"""The records of one shard, or some of a dataset, as far as they can be read: each fault on the way is noted.

Faults are of some kinds; of each kind the first ones are listed with their places, the others counted.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Self, get_args

import numpy as np

from streamdata.errors import StreamdataError, one_line, shown, text_of, without_secrets
from streamdata.fields import INDEX, KEY, RECORD, SET_HERE, URL
from streamdata.io.storage import NO_STAMP, is_pipe, stamp_of, told_url
from streamdata.io.streams import open_stream
from streamdata.shards.jsonl.lines import lines_of, place_of
from streamdata.shards.jsonl.rows import Flaw, reserved_flaw, row_or_flaw
from streamdata.shards.parquet.shards import ParquetShards
from streamdata.shards.readers import DamagedRecordError, IndexedShards, SequentialShards
from streamdata.shards.sequential import SequentialTar
from streamdata.shards.tar.records import key_hash
from streamdata.shards.tar.shards import TarShards
from streamdata.shards.tar.sidecar import line_key, names_of
from streamdata.sources.files.shard_datasets import JsonlIterableDataset
from streamdata.sources.files.shard_source import BlockSource, ShardDataset
from streamdata.sources.source import Record, fields_of, no_record

Kind = Literal["damaged", "key given twice", "sidecar", "image", "function", "cost", "process died"]
MAX_LISTED: Final = 100
"""Faults of one kind that are listed of each shard; the others are counted."""


_MAX_CHARS: Final = 100
"""Characters that are shown of an error of somebody else's code."""
_MAX_OUR_CHARS: Final = 1000
"""Characters of an error of our own classes, which has places and remedies; functions may raise these too."""


class Fault(NamedTuple):
    """Something that is wrong.

    Attributes:
        kind: What kind of thing.
        source: The dotted name of the source.
        message: Where it is, what was expected and what was found.
    """

    kind: Kind
    source: str
    message: str


@dataclass
class Findings:
    """Counts of what was read, and the faults found in it.

    Attributes:
        num_records: Records that could be read.
        num_dropped: Those of them of which a function made nothing.
        faults: Those that are listed.
        counts: How many there are of each kind, listed or not.
    """

    num_records: int = 0
    num_dropped: int = 0
    faults: list[Fault] = field(default_factory=list)
    counts: Counter[Kind] = field(default_factory=Counter)

    def add(self, kind: Kind, source: str, message: str) -> Fault | None:
        """Note a fault, and return it if it is listed."""
        self.counts[kind] += 1
        if self.counts[kind] > MAX_LISTED:
            return None
        self.faults.append(Fault(kind, source, without_secrets(message)))
        return self.faults[-1]

    def join(self, other: "Findings") -> None:
        """Add what was found elsewhere."""
        self.num_records += other.num_records
        self.num_dropped += other.num_dropped
        self.faults += other.faults
        self.counts += other.counts

    def mark(self, at: str) -> str:
        """Write the counts, and a place, as a text that may lose its end."""
        kinds = (self.counts.get(kind, 0) for kind in get_args(Kind))
        return " ".join(map(str, (self.num_records, self.num_dropped, *kinds, at)))

    @classmethod
    def from_mark(cls, text: str) -> tuple[Self, str]:
        """Read a mark; an empty one says that there is nothing yet."""
        if not text:
            return cls(), ""
        records, dropped, *counts, at = text.split(" ", 2 + len(get_args(Kind)))
        kinds = zip(get_args(Kind), map(int, counts), strict=True)
        return cls(int(records), int(dropped), counts=Counter({kind: count for kind, count in kinds if count})), at


def described(error: BaseException) -> str:
    """Describe an error of somebody else's code: type, message in one line, cut where it is long, and notes.

    The notes say where it was: the image, or the file and row.
    """
    text, is_ours = text_of(error), isinstance(error, StreamdataError)
    most = _MAX_OUR_CHARS if is_ours else _MAX_CHARS
    cut = text[:most] + ("…" if len(text) > most else "")
    notes = "".join(f"; {one_line(str(note).strip())[:_MAX_OUR_CHARS]}" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {cut if is_ours else one_line(cut)}{notes}"


Note = Callable[[Kind, str], None]

_AT_ONCE: Final = 1000
"""Records of an indexed shard in a window."""
_MAX_NAMED: Final = 10
"""Lines, or records, that the message about all of their kind names."""
_NO_LINE: Final = "records without a sidecar line"
_NO_RECORD: Final = "sidecar lines without a record"
_NOT_READ: Final = "\n  What comes after it was not read."


def shard_records(dataset: ShardDataset, note: Note) -> Iterator[Record]:
    """The records of a source of one shard or several, in the order of the file; each has its number in `RECORD`."""
    found: Iterator[Record]
    if isinstance(dataset, JsonlIterableDataset):
        shards: Any = dataset.source.shards
        found = (record for url in shards.urls for record in _json_records(url, shards.limits.line_bytes, note))
    elif isinstance(dataset.source, BlockSource):
        indexed: IndexedShards = dataset.source.shards
        found = (record for shard in range(len(indexed.num_records)) for record in _windowed(indexed, shard, note))
    else:
        found = _streamed(dataset.source.shards, note)
    sidecars = _Sidecars(dataset.source.shards)
    for number, record in enumerate(found):
        record[RECORD] = (0, 0, number, 0)
        sidecars.add(record)
        yield record
    sidecars.check(note)


def tar_records(tar: SequentialTar, told: str, note: Note) -> Iterator[Record]:
    """The records of a tar of which no index can be made, up to what is wrong with it.

    Args:
        tar: The shard, without its sidecar.
        told: Why there is no index. If that lies in the tar and not in its sidecar, it is not noted again.
        note: Takes what is wrong.
    """
    is_told = told.startswith(f"shard '{tar.urls[0]}': offset ")
    for number, record in enumerate(_streamed(tar, (lambda *_: None) if is_told else note)):
        yield record | {RECORD: (0, 0, number, 0)}


def map_style_records(dataset: Any, first: int, last: int, name: str, note: Note) -> Iterator[Record]:
    """The records [first, last) of a map-style dataset."""
    for index in range(first, last):
        try:
            record = _record_of(dataset[index], dataset, name)
        except (Exception, SystemExit) as error:  # whatever its code raises
            note("damaged", f"index {index}: {described(error)}")
            continue
        yield record | {INDEX: index}


def streamed_records(dataset: Any, name: str, note: Note) -> Iterator[Record]:
    """The records of an iterable dataset, until one cannot be read: nothing comes after it."""
    number = 0
    try:
        for item in dataset:
            yield _record_of(item, dataset, name) | {RECORD: (0, 0, number, 0)}
            number += 1
    except (Exception, SystemExit) as error:  # whatever its code raises
        note("damaged", f"record {number}, and all after it: {described(error)}")


def _record_of(item: object, dataset: Any, name: str) -> Record:
    if item is None and getattr(dataset, "single_process_fn", None) is None:
        raise no_record(dataset, name)
    return dict(fields_of(item, name))


def _json_records(url: str, max_bytes: int, note: Note) -> Iterator[Record]:
    """The rows of a file of lines; what is wrong with a line leaves the others as they are."""
    try:
        with open_stream(url, NO_STAMP if is_pipe(url) else stamp_of(url)) as stream:
            for lines in lines_of(stream, url, max_bytes=max_bytes):
                for number, _, line in lines.listed():
                    row = _row(line, url, place_of(number, lines.are_elements), note)
                    if row is not None:
                        yield row | {URL: told_url(url), KEY: str(number)}
    except (StreamdataError, OSError) as error:  # of the file
        note("damaged", f"{error}{_NOT_READ}")


def _row(line: bytes, url: str, number: int | str, note: Note) -> Record | None:
    row = row_or_flaw(line)
    flaw = row if isinstance(row, Flaw) else reserved_flaw(row) if not SET_HERE.isdisjoint(row) else None
    if flaw is not None:
        note("damaged", str(flaw.error(url, number)))
        return None
    _note_keys(line, f"{url}:{number}", note)
    assert isinstance(row, dict), "what is no flaw is a row"
    return row


def _note_keys(line: bytes, place: str, note: Note) -> None:
    """Note keys that an object gives twice: RFC 8259 leaves open which counts, and parsers take the last."""
    twice: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        if len(pairs) > len({key for key, _ in pairs}):
            keys = [key for key, _ in pairs]
            twice.extend(sorted({key for key in keys if keys.count(key) > 1}))

    try:
        json.loads(line, object_pairs_hook=look)
    except RecursionError:
        note("key given twice", f"{place}: its keys were not compared: it is nested deeper than Python's parser reads")
        return
    if twice:
        named = ", ".join(map(shown, twice))
        note("key given twice", f"{place}: {named} given twice in one object: the last one counts")


def _windowed(shards: IndexedShards, shard: int, note: Note) -> Iterator[Record]:
    """The records of a shard, window by window; where one cannot be read, those after it.

    Of a row group those are left out that have no types of Python's; where it is damaged, no row is read after that.
    """
    size = int(shards.run_rows[shard]) if isinstance(shards, ParquetShards) else _AT_ONCE
    at, total = 0, int(shards.num_records[shard])
    while at < total:
        first = at // size * size
        end = min(first + size, total)
        window = shards.window(*(np.array([number], np.int64) for number in (shard, first, end - first)))
        while at < end:
            try:
                for record in window.take(np.arange(at, end) - first):
                    at += 1
                    yield dict(record)
            except (StreamdataError, OSError) as error:
                if isinstance(shards, ParquetShards) and not isinstance(error, DamagedRecordError):
                    # A page of it: rows after it are not decoded either, since a group has no index of them.
                    row = int(shards.first_rows[shard]) + at
                    place = f"{shards.url_of(shard)}: {total - at:,} records, from row {row} on"
                    note("damaged", f"{place}, were not read: {error}")
                    return
                note("damaged", str(error))
                at += 1
                if not isinstance(shards, ParquetShards):  # whose rows are decoded once in a window
                    break  # of others the next window begins here


def _streamed(shards: SequentialShards, note: Note) -> Iterator[Record]:
    for shard in range(len(shards.urls)):
        try:
            for record in shards.stream(shard):
                if isinstance(record, DamagedRecordError):
                    note("damaged", str(record))
                else:
                    yield record
        except (StreamdataError, OSError) as error:
            note("damaged", f"{error}{_NOT_READ}")


class _Sidecars:
    """Notes keys that lines of sidecars give twice, and lines and records that join nothing.

    Args:
        shards: What the records are read from.
    """

    def __init__(self, shards: Any) -> None:
        files: list[str] = []
        if isinstance(shards, TarShards) and shards.sidecars is not None:
            files = shards.sidecars.sidecar_urls
        elif isinstance(shards, SequentialTar):
            files = shards.sidecars
        self._shards = shards
        self._files = dict(zip(shards.urls, files, strict=True)) if files else {}
        self._records: dict[str, list[tuple[str, int, int]]] = defaultdict(list)

    def add(self, record: Record) -> None:
        """Note what the lines of a sidecar may call a record."""
        if not self._files:
            return
        identifier = record.get("id")
        identifier = identifier if isinstance(identifier, bytes) else None
        names = names_of(record[KEY], identifier, record[URL], self._shards.sidecar_key)
        self._records[record[URL]].append((record[KEY], key_hash(names.by_id), key_hash(names.by_key)))

    def check(self, note: Note) -> None:
        """Look at all lines, once all records were read."""
        unfit: dict[str, list[str]] = defaultdict(list)
        for url, file in self._files.items():
            lines = _lines_of(file, self._shards.limits.line_bytes, note)
            records = self._records[str(url)]
            by_id = {called for _, called, _ in records}
            column = 1 if not by_id.isdisjoint(lines) else 2  # as `sidecar` decides it
            names = by_id if column == 1 else {called for *_, called in records}
            unfit[_NO_RECORD] += [place for called, place in lines.items() if called not in names]
            unfit[_NO_LINE] += [f"key {shown(one[0])}" for one in records if one[column] not in lines]
        for kind, number in self._shards.anomalies().items() if self._files else ():
            if number and "sidecar" in kind:
                # Records that cannot be read leave it open which lines are theirs.
                places = unfit[kind] if len(unfit[kind]) == number else []
                more = ["…"] if len(places) > _MAX_NAMED else []
                which = f": {'; '.join(places[:_MAX_NAMED] + more)}" if places else ""
                note("sidecar", f"{', '.join(map(str, self._shards.urls))}: {number:,} {kind}{which}")


def _lines_of(file: str, max_bytes: int, note: Note) -> dict[int, str]:
    """The places of the lines of a sidecar, by the hashes of their keys."""
    lines: dict[int, str] = {}
    for row in _json_records(file, max_bytes, note):
        number = int(row[KEY]) + 1
        try:
            key = line_key(row, file, number)
        except StreamdataError:  # the shard's own error told it
            continue
        lines[key_hash(key)] = f"{file}:{number}, key {shown(key)}"
    return lines
