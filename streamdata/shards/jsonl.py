"""JSONL shards, any row of which can be read: `runs of rows → JsonlWindow → records`."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import orjson

from streamdata.fields import INDEX, KEY, STATES, URL
from streamdata.shards import jsonl_index
from streamdata.shards.indexed import IndexedFiles
from streamdata.shards.indexing import Job
from streamdata.shards.json_rows import integer_flaw, reserved_flaw, syntax_flaw
from streamdata.shards.ranges import read_spans
from streamdata.shards.readers import NO_FIELDS, Int64s, Record
from streamdata.shards.recent import ReadBuffer
from streamdata.shards.runs import Runs
from streamdata.shards.storage import check_shards

LOOK_AHEAD = 2048
_PARSED_AT_ONCE = 16
_MAX_KEPT_BYTES = 8 << 20  # of a window; a larger one is read take by take


class JsonlShards:
    """Uncompressed shards of one JSON object per line.

    Args:
        urls: The shards; one that is named n times counts as n shards.

    Raises:
        FileNotFoundError: There is no such shard.
    """

    def __init__(self, urls: list[str]) -> None:
        self.files = IndexedFiles(urls, lambda url: Job("jsonl", url))
        self.urls = urls
        self.num_records = self.files.num_records
        self.buffer = ReadBuffer()

    def window(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> "JsonlWindow":
        """The window of the runs [first, first + count) of the shards."""
        return JsonlWindow(self, self.files.runs(shards, firsts, counts))

    def identity(self) -> list[tuple[str, int]]:
        """Base name and number of records per shard."""
        return self.files.identity()

    def anomalies(self) -> dict[str, int]:
        """How many lines are blank."""
        return {"blank lines": self.files.skipped}


class JsonlWindow:
    """Runs of rows of JSONL shards. Their bytes are read once, at the first `take`, unless they are too many."""

    def __init__(self, shards: JsonlShards, runs: Runs) -> None:
        self._files, self._buffer, self._runs = shards.files, shards.buffer, runs
        rows, own = shards.files.rows(runs, jsonl_index.DTYPE)
        offsets = rows["offset"].astype(np.int64)
        self._begins, self._ends = offsets[own], offsets[own + 1]
        shards.files.check_spans(runs, self._begins, self._ends)
        self._numbers = runs.numbers() + rows["blanks"][own]
        self._shards = runs.per_record(runs.shards)
        self._doubtful = bool(shards.files.noted[runs.shards].any())
        self._size = int((self._ends - self._begins).sum())
        self.look_ahead = max(1, min(LOOK_AHEAD, _MAX_KEPT_BYTES * len(own) // max(self._size, 1)))
        self._kept: tuple[memoryview, Int64s] | None = None

    def __len__(self) -> int:
        return len(self._begins)

    def take(self, positions: Sequence[int] | Int64s, common: Mapping[str, Any] = NO_FIELDS) -> Iterator[Record]:
        """The records at these positions, in this order, each with the fields `common` beside its own.

        Raises:
            ShardError: A row is broken, or its shard is not what was indexed.
        """
        chosen = np.asarray(positions, np.int64)
        memory, begins = self._read(chosen)
        ends = begins + (self._ends - self._begins)[chosen]
        spans = zip(begins.tolist(), ends.tolist(), strict=True)
        urls = map(self._files.urls.__getitem__, self._shards[chosen].tolist())
        keys = map(str, self._numbers[chosen].tolist())
        own, is_doubtful = 2 + len(common), self._doubtful
        while lines := [memory[begin:end] for begin, end in islice(spans, _PARSED_AT_ONCE)]:
            for row, line, key, url in zip(_parsed(lines), lines, keys, urls, strict=False):
                try:
                    size = len(row)
                    row[URL] = url
                    row[KEY] = key
                except TypeError:  # it takes no fields, so it is no object
                    raise syntax_flaw(bytes(line)).error(url, int(key) + 1) from None
                row.update(common)
                if len(row) != size + own or INDEX in row or STATES in row:
                    raise reserved_flaw(orjson.loads(line)).error(url, int(key) + 1)
                if is_doubtful and (flaw := integer_flaw(bytes(line))):
                    raise flaw.error(url, int(key) + 1)
                yield row

    def _read(self, chosen: Int64s) -> tuple[memoryview, Int64s]:
        """Memory that holds these rows, and where each begins in it."""
        files = self._files
        if self._size > _MAX_KEPT_BYTES:
            spans = np.stack([self._shards[chosen], self._begins[chosen], self._ends[chosen]], axis=1)
            return read_spans(files.urls, files.stamps, spans)
        if self._kept is None:
            self._kept = self._read_runs()
        else:
            shards = set(self._shards[chosen].tolist())
            check_shards(files.urls, files.stamps, {shard for shard in shards if not files.remote[shard]})
        memory, begins = self._kept
        return memory, begins[chosen]

    def _read_runs(self) -> tuple[memoryview, Int64s]:
        """Memory that holds all rows of the window, run by run, and where each row begins in it."""
        lasts = np.cumsum(self._runs.counts) - 1
        firsts = lasts - self._runs.counts + 1
        spans = np.stack([self._runs.shards, self._begins[firsts], self._ends[lasts]], axis=1)
        memory, offsets = read_spans(self._files.urls, self._files.stamps, spans, self._buffer.lend)
        return memory, self._begins + self._runs.per_record(offsets - spans[:, 1])


def _parsed(lines: Sequence[memoryview]) -> list[Any]:
    """The values of some lines, None for one that is broken.

    Several at once: the parser runs faster when the interpreter does not come between.
    """
    try:
        return list(map(orjson.loads, lines))
    except orjson.JSONDecodeError:
        return [_parsed_or_none(line) for line in lines]


def _parsed_or_none(line: memoryview) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
