"""The records of one shard, or some of a dataset, as far as they can be read: each fault on the way is noted."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from streamdata.errors import StreamdataError, shown
from streamdata.fields import CURSOR, INDEX, KEY, SET_HERE, URL
from streamdata.plan.data_faults import Kind
from streamdata.plan.json_keys import twice_given
from streamdata.shards.json_lines import numbered_lines
from streamdata.shards.json_rows import Flaw, reserved_flaw, row_or_flaw
from streamdata.shards.readers import IndexedShards, SequentialShards
from streamdata.shards.sequential import SequentialTar
from streamdata.shards.storage import NO_STAMP, is_pipe, stamp_of, told_url
from streamdata.shards.streams import open_stream
from streamdata.shards.tar import TarShards
from streamdata.sources.jsonl import JsonlIterableDataset
from streamdata.sources.shard_source import BlockSource, ShardDataset
from streamdata.sources.source import Record, fields_of

Note = Callable[[Kind, str], None]

_AT_ONCE: Final = 1000
"""Records of an indexed shard in a window."""


def shard_records(dataset: ShardDataset, note: Note) -> Iterator[Record]:
    """The records of a source of one shard or several, in the order of the file; each has its number in `CURSOR`."""
    found: Iterator[Record]
    if isinstance(dataset, JsonlIterableDataset):
        shards: Any = dataset.source.shards
        found = (record for url in shards.urls for record in _json_records(url, shards.limits.line_bytes, note))
    elif isinstance(dataset.source, BlockSource):
        found = _windowed(dataset.source.shards, note)
    else:
        found = _streamed(dataset.source.shards, note)
    for number, record in enumerate(found):
        record[CURSOR] = number
        yield record
    _look_at_sidecars(dataset.source.shards, note)


def map_style_records(dataset: Any, first: int, last: int, name: str, note: Note) -> Iterator[Record]:
    """The records [first, last) of a map-style dataset."""
    for index in range(first, last):
        try:
            record = dict(fields_of(dataset[index], name))
        except Exception as error:  # whatever its code raises
            note("damaged", f"index {index}: {type(error).__name__}: {error}")
            continue
        yield record | {INDEX: index}


def streamed_records(dataset: Any, name: str, note: Note) -> Iterator[Record]:
    """The records of an iterable dataset, until one cannot be read: nothing comes after it."""
    number = 0
    try:
        for item in dataset:
            yield dict(fields_of(item, name)) | {CURSOR: number}
            number += 1
    except Exception as error:  # whatever its code raises
        note("damaged", f"record {number}, and all after it: {type(error).__name__}: {error}")


def _json_records(url: str, max_bytes: int, note: Note) -> Iterator[Record]:
    """The rows of a file of lines; what is wrong with a line leaves the others as they are."""
    try:
        with open_stream(url, NO_STAMP if is_pipe(url) else stamp_of(url)) as stream:
            for number, _, line in numbered_lines(stream, url, max_bytes):
                row = _row(line, url, number, note)
                if row is not None:
                    yield row | {URL: told_url(url), KEY: str(number - 1)}
    except (StreamdataError, OSError) as error:  # of the file: what comes after it cannot be read
        note("damaged", str(error))


def _row(line: bytes, url: str, number: int, note: Note) -> Record | None:
    row = row_or_flaw(line)
    flaw = row if isinstance(row, Flaw) else reserved_flaw(row) if not SET_HERE.isdisjoint(row) else None
    if flaw is not None:
        note("damaged", str(flaw.error(url, number)))
        return None
    _note_keys(line, f"{url}:{number}", note)
    assert isinstance(row, dict), "what is no flaw is a row"
    return row


def _note_keys(line: bytes, place: str, note: Note) -> None:
    try:
        keys = twice_given(line)
    except RecursionError:
        note("key given twice", f"{place}: its keys were not compared: it is nested deeper than Python's parser reads")
        return
    if keys:
        note(
            "key given twice", f"{place}: {', '.join(map(shown, keys))} given twice in one object: the last one counts"
        )


def _windowed(shards: IndexedShards, note: Note) -> Iterator[Record]:
    for shard, total in enumerate(shards.num_records.tolist()):
        for first in range(0, total, _AT_ONCE):
            run = [np.array([number], np.int64) for number in (shard, first, min(_AT_ONCE, total - first))]
            yield from _taken(shards, run, note)


def _taken(shards: IndexedShards, run: list[Any], note: Note) -> Iterator[Record]:
    """The records of a window; where one cannot be read, those after it."""
    at, size = 0, int(run[2][0])
    while at < size:
        try:
            for record in shards.window(*run).take(np.arange(at, size)):
                at += 1
                yield dict(record)
        except (StreamdataError, OSError) as error:
            note("damaged", str(error))
            at += 1


def _streamed(shards: SequentialShards, note: Note) -> Iterator[Record]:
    for shard in range(len(shards.urls)):
        try:
            yield from shards.stream(shard)
        except (StreamdataError, OSError) as error:
            note("damaged", str(error))


def _look_at_sidecars(shards: Any, note: Note) -> None:
    """Note keys that lines of sidecars give twice, and lines and records that join nothing."""
    if isinstance(shards, TarShards):
        files = shards.sidecars.sidecar_urls if shards.sidecars is not None else []
    else:
        files = shards.sidecars if isinstance(shards, SequentialTar) else []
    for url in files:
        for _ in _json_records(url, shards.limits.line_bytes, note):
            pass
    for kind, number in shards.anomalies().items() if files else ():
        if number and "sidecar" in kind:
            note("sidecar", f"{', '.join(map(str, shards.urls))}: {number:,} {kind}")
