"""JSONL shards, any row of which can be read: `runs of rows → JsonlWindow → records`."""

from collections.abc import Sequence

import numpy as np
import orjson

from streamdata.shards import jsonl_index
from streamdata.shards.indexed import IndexedFiles
from streamdata.shards.indexing import Job
from streamdata.shards.json_rows import check_integers, doubtful_integers, explain, reserved
from streamdata.shards.ranges import read_spans
from streamdata.shards.readers import Int64s, Record
from streamdata.shards.room import Room
from streamdata.shards.runs import Runs
from streamdata.shards.storage import check_shards

LOOK_AHEAD = 256
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
        self.room = Room()

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

    look_ahead = LOOK_AHEAD

    def __init__(self, shards: JsonlShards, runs: Runs) -> None:
        self._urls, self._stamps, self._remote = shards.urls, shards.files.stamps, shards.files.remote
        rows, following = shards.files.rows(runs, jsonl_index.DTYPE)
        begins, ends = rows["offset"].astype(np.int64), following["offset"].astype(np.int64)
        shards.files.check_spans(runs, begins, ends)
        self._spans = np.stack([runs.shards, begins, ends], axis=1)
        self._numbers = runs.numbers + rows["blanks"]
        self._counts, self._size = runs.counts, int((ends - begins).sum())
        self._kept: _Rows | None = None
        self._room = shards.room

    def __len__(self) -> int:
        return len(self._spans)

    def take(self, positions: Sequence[int] | Int64s) -> list[Record]:
        """The records at these positions, in this order.

        Raises:
            ShardError: A row is broken, or its shard is not what was indexed.
        """
        chosen = np.asarray(positions, np.int64)
        shards = self._spans[chosen, 0].tolist()
        if self._kept is None and self._size <= _MAX_KEPT_BYTES:
            self._kept = self._read_runs()
        if self._kept is None:
            spans = self._spans[chosen]
            rows, places = _Rows(*read_spans(self._urls, self._stamps, spans, b"".join), spans), np.arange(len(chosen))
        else:
            rows, places = self._kept, chosen
            check_shards(self._urls, self._stamps, {shard for shard in set(shards) if not self._remote[shard]})
        urls = self._urls
        return rows.parse(places, self._numbers[chosen].tolist(), [urls[shard] for shard in shards])

    def _joined(self, pieces: list[bytes]) -> memoryview:
        """The pieces, one after another, in the room for this window."""
        size = sum(map(len, pieces))
        memory, end = memoryview(self._room.lend(self, size)), 0
        for piece in pieces:
            begin, end = end, end + len(piece)
            memory[begin:end] = piece
        return memory[:size]

    def _read_runs(self) -> "_Rows":
        """All rows of the window, run by run."""
        lasts = np.cumsum(self._counts) - 1
        firsts = lasts - self._counts + 1
        runs = self._spans[firsts]
        runs[:, 2] = self._spans[lasts, 2]
        buffer, offsets = read_spans(self._urls, self._stamps, runs, self._joined)
        shift = np.repeat(offsets - runs[:, 1], self._counts)
        return _Rows(buffer, self._spans[:, 1] + shift, self._spans)


class _Rows:
    """The bytes of some rows, one after another, and which of them may hold integers that 64 bits cannot."""

    def __init__(self, buffer: bytes | memoryview, begins: Int64s, spans: Int64s) -> None:
        self._buffer = memoryview(buffer)
        self._begins, self._ends = begins, begins + spans[:, 2] - spans[:, 1]
        order = np.argsort(begins, kind="stable")
        doubtful = np.searchsorted(self._ends[order], doubtful_integers(buffer), side="right")
        self._doubtful = set(begins[order[doubtful]].tolist())

    def parse(self, places: Int64s, numbers: list[int], urls: list[str]) -> list[Record]:
        """The records at `places`, which are the lines `numbers` (from 0) of `urls`."""
        buffer, loads = self._buffer, orjson.loads
        begins, ends = self._begins[places].tolist(), self._ends[places].tolist()
        found: list[Record] = []
        for begin, end, key, url in zip(begins, ends, map(str, numbers), urls, strict=True):
            try:
                row = loads(buffer[begin:end])
                size = len(row)
                row["__url__"] = url
                row["__key__"] = key
            except (orjson.JSONDecodeError, TypeError):  # TypeError: it takes no fields, so it is no object
                raise explain(bytes(buffer[begin:end]), url, int(key) + 1) from None
            if len(row) != size + 2:
                raise reserved(orjson.loads(buffer[begin:end]), url, int(key) + 1)
            found.append(row)
        if self._doubtful:
            self._check_integers(places, numbers, urls)
        return found

    def _check_integers(self, places: Int64s, numbers: list[int], urls: list[str]) -> None:
        begins, ends = self._begins[places].tolist(), self._ends[places].tolist()
        for begin, end, number, url in zip(begins, ends, numbers, urls, strict=True):
            if begin in self._doubtful:
                check_integers(bytes(self._buffer[begin:end]), url, number + 1)
