"""JSONL shards, any row of which can be read: `runs of rows → JsonlWindow → records`."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import orjson

from streamdata.errors import ShardError
from streamdata.fields import INDEX, KEY, STATES, URL
from streamdata.io.storage import Int64s
from streamdata.recipe.limits import DEFAULT_LIMITS, ShardLimits
from streamdata.run.per_process import ReadBuffer
from streamdata.shards.ahead.spans import FileSpans
from streamdata.shards.ahead.windows import Chunk
from streamdata.shards.index.index_file import Rows
from streamdata.shards.index.manifest import NOTHING_KNOWN, Known
from streamdata.shards.indexed import IndexedFiles, RecordBytes, Runs, complete
from streamdata.shards.jsonl.lines import BLANK, ELEMENT, line_too_long, place_of
from streamdata.shards.jsonl.rows import Flaw, integer_flaw, reserved_flaw, syntax_flaw
from streamdata.shards.readers import NO_FIELDS, DamagedRecordError, Record

LOOK_AHEAD = 2048
_PARSED_AT_ONCE = 16  # rows, which are all in memory at once: few, since each may be large


class JsonlShards(IndexedFiles):
    """Uncompressed shards of one JSON object per line, or of one array of objects.

    Args:
        urls: The shards; one that is named n times counts as n shards.
        max_kept_bytes: Of a window; a larger one is read take by take.
        known: What is known of them already.
        limits: What a line may be.

    Raises:
        FileNotFoundError: A shard does not exist.
    """

    def __init__(
        self,
        urls: list[str],
        max_kept_bytes: int = 8 << 20,
        known: Known = NOTHING_KNOWN,
        limits: ShardLimits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(urls, "jsonl", known, limits=limits)
        complete(self)
        self.max_kept_bytes = max_kept_bytes
        self.buffer = ReadBuffer()

    def window(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> "JsonlWindow":
        """The window of the runs [first, first + count) of the shards."""
        return JsonlWindow(self, self.runs(shards, firsts, counts))

    def last_line(self, shard: int) -> int:
        """The line number of the shard's last record, which is its key; -1 if the shard is empty."""
        last = int(self.num_records[shard]) - 1
        if last < 0:
            return last
        rows, own = self.rows(self.runs(*(np.array([number], np.int64) for number in (shard, last, 1))))
        return last + int(_blanks(rows)[own][0])

    def anomalies(self) -> dict[str, int]:
        """The number of blank lines."""
        return {"blank lines": int(self.skipped.sum())}


class JsonlWindow:
    """Runs of rows of JSONL shards; their bytes are read once, at the first `take`, unless they are too many."""

    def __init__(self, shards: JsonlShards, runs: Runs) -> None:
        rows, own = shards.rows(runs)
        self._shards, self._urls = shards, shards.names
        offsets, are_elements = rows["offset"].astype(np.int64), rows["blanks"][own] == ELEMENT
        self._bytes = RecordBytes(shards, runs, offsets[own], offsets[own + 1] - are_elements, shards.buffer)
        self._is_kept = self._bytes.num_bytes <= shards.max_kept_bytes
        self._numbers = runs.numbers() + _blanks(rows)[own]
        self._arrays = {self._urls[shard] for shard in np.unique(self._bytes.shards[are_elements]).tolist()}
        self._check_lengths(shards.limits.line_bytes)
        self._doubtful = bool(shards.noted[runs.shards].any())
        self.look_ahead = max(1, min(LOOK_AHEAD, shards.max_kept_bytes * len(own) // max(self._bytes.num_bytes, 1)))

    def __len__(self) -> int:
        return len(self._numbers)

    def _check_lengths(self, max_bytes: int) -> None:
        """Raise if a line is too long: the index may have been built under other limits, or come with the shard."""
        if self._bytes.num_bytes <= max_bytes:
            return
        # With a line, blank lines that follow are counted: so where its bytes are too many, it is looked at.
        for position in np.flatnonzero(self._bytes.sizes > max_bytes).tolist():
            start = self._bytes.bytes_of_shard(position).read(max_bytes + 1, int(self._bytes.begins[position]))
            url = self._urls[int(self._bytes.shards[position])]
            where = f"{url}:{place_of(int(self._numbers[position]), url in self._arrays)}"
            line, end, rest = (start, b"", b"") if url in self._arrays else start.partition(b"\n")
            if len(line) > max_bytes:
                raise line_too_long(where, len(line), max_bytes)
            num_blank = int(self._bytes.sizes[position]) - len(line) - 1
            if end and num_blank > max_bytes and not rest.strip(BLANK):
                raise line_too_long(f"{where}, behind it", num_blank, max_bytes, is_blank=True)

    def spans(self, positions: Int64s) -> tuple[list[FileSpans], Int64s]:
        """The byte spans of the window's rows, and which are used, in order."""
        return [self._bytes.file_spans], positions

    def take(
        self,
        positions: Sequence[int] | Int64s,
        common: Mapping[str, Any] = NO_FIELDS,
        chunk: Chunk | None = None,
    ) -> Iterator[Record]:
        """The records at these positions, in this order, each with the fields `common` beside its own.

        Raises:
            DamagedRecordError: The next row is broken.
            ShardError: The shard is not what was indexed.
        """
        return chain.from_iterable(self._lists(np.asarray(positions, np.int64), common, chunk))

    def _lists(self, chosen: Int64s, common: Mapping[str, Any], chunk: Chunk | None) -> Iterator[list[Record]]:
        """Some records at a time: lists, so that no generator runs for each record."""
        errors: list[Exception] = []
        if chunk is not None:
            found = _lines_of(chunk, chosen, self._bytes.sizes[chosen].tolist(), errors)
        else:
            memory, begins = self._bytes.read(chosen, keep=self._is_kept)
            spans = zip(begins.tolist(), (begins + self._bytes.sizes[chosen]).tolist(), strict=True)
            found = (memory[begin:end] for begin, end in spans)
        urls = map(self._urls.__getitem__, self._bytes.shards[chosen].tolist())
        keys = map(str, self._numbers[chosen].tolist())
        own, is_doubtful = 2 + len(common), self._doubtful
        while lines := list(islice(found, _PARSED_AT_ONCE)):
            rows = _parsed(lines)
            try:
                # `zip` stops where the rows end, before it takes a key and a url, which are for the next lines.
                for row, line, key, url in zip(rows, lines, keys, urls, strict=False):
                    try:
                        size = len(row)
                        row[URL] = url
                        row[KEY] = key
                    except TypeError:  # it takes no fields, so it is no object
                        text = bytes(line).replace(b"\n", b" ") if url in self._arrays else bytes(line)
                        raise self._error(syntax_flaw(text), url, key) from None
                    row.update(common)
                    # A field that was there already was written over, which the number of fields tells.
                    if len(row) != size + own or INDEX in row or STATES in row:
                        raise self._error(reserved_flaw(orjson.loads(line)), url, key)
                    if is_doubtful and (flaw := integer_flaw(bytes(line))):
                        raise self._error(flaw, url, key)
            except ShardError:
                yield rows[: next(number for number, one in enumerate(rows) if one is row)]
                raise
            yield rows
        if errors:
            raise errors[0]

    def _error(self, flaw: Flaw, url: str, key: str) -> ShardError:
        error = flaw.error(url, place_of(int(key), url in self._arrays))
        return error.of(url, key) if isinstance(error, DamagedRecordError) else error


def _blanks(rows: Rows) -> Int64s:
    """How many blank lines there are before each row."""
    return np.where(rows["blanks"] == ELEMENT, 0, rows["blanks"]).astype(np.int64)


def _lines_of(chunk: Chunk, chosen: Int64s, sizes: list[int], errors: list[Exception]) -> Iterator[memoryview]:
    """The lines of a chunk, up to the first one whose bytes do not come; the error is for after those before it."""
    try:
        for (memory, begin), size in zip(chunk.located(0, chosen), sizes, strict=True):
            yield memoryview(memory)[begin : begin + size]
    except Exception as error:  # whatever whoever fetches raises
        errors.append(error)


def _parsed(lines: Sequence[memoryview]) -> list[Any]:
    """The values of some lines, None for one that is broken.

    Several at once: the parser runs faster when the interpreter does not come between.
    """
    try:
        return list(map(orjson.loads, lines))
    except orjson.JSONDecodeError:
        return [row for line in lines for row in _parsed([line])] if len(lines) > 1 else [None]
