"""Records that a run leaves out: `a list or a JSONL file → checked against the sources → left out of their records`."""

import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias
from zlib import crc32

from streamdata.errors import did_you_mean
from streamdata.fields import INDEX, KEY, URL
from streamdata.progress import Position
from streamdata.shards.urls import expand_home
from streamdata.sources.shard_source import ShardDataset
from streamdata.sources.source import Record
from streamdata.sources.tally import Tally
from streamdata.stores.window_datasets import WindowDataset

SkipList: TypeAlias = str | os.PathLike[str] | Sequence[Mapping[str, Any]]
"""What the parameter `skip` is given: a list of `{source, index}` or `{source, url, key}`, or a JSONL file of them."""

_BY_INDEX: Final = {"source", "index"}
_BY_KEY: Final = {"source", "url", "key"}


class Skips:
    """The records of each source that are left out.

    Args:
        skip: Names them.
        sources: The datasets of the tree that have records, by path.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: An entry has other fields, names a source or a url that there is not, or an index that is out of
            range, or a record of a packed store. A key that no record has is not noticed: which there are is known when
            all have been read. What was left out is counted as `skipped` in the states.
    """

    def __init__(self, skip: SkipList | None, sources: Mapping[str, Any]) -> None:
        self._records: dict[str, set[int | tuple[str, str]]] = {}
        shards = {path: data for path, data in sources.items() if skip and isinstance(data, ShardDataset)}
        urls = {path: Counter(data.source.shards.urls) for path, data in shards.items()}
        for location, entry in _entries(skip):
            path, record = _checked(entry, f"MergedDataset, skip, {location}", sources, urls)
            self._records.setdefault(path, set()).add(record)
        self.num_records = sum(
            urls[path][record[0]] if isinstance(record, tuple) else 1
            for path, found in self._records.items()
            for record in found
        )
        """How many records are left out in an epoch of each source, at most: copies of a shard count."""

    def of(self, path: str) -> Callable[[Record], bool] | None:
        """Says of a record of the source whether it is left out; None where all are delivered."""
        records = self._records.get(path)
        if records is None:
            return None
        return lambda record: (record[INDEX] if INDEX in record else (record[URL], record[KEY])) in records

    def digest(self, path: str) -> int:
        """What tells the records that are left out below a mixture from others; 0 where all are delivered."""
        start = f"{path}." if path else ""
        records = self._records.items()
        below = sorted((name, sorted(map(repr, found))) for name, found in records if name.startswith(start))
        return crc32(repr(below).encode()) if below else 0


class Skipping:
    """Leaves records of one source out in one lane, and knows which since the open burst began.

    A burst that is fed again must be what it was, whatever is to be left out by now: so of a replay the records that
    were left out then are left out again, and no others. Which they are is in the cursor.

    Args:
        is_left_out: Says which, from the next burst on; None: all are delivered.
        tally: Counts them; says whether a burst is fed again.
        left_out: The positions after those that were left out of the open burst; None where there are no bursts.
    """

    def __init__(
        self, is_left_out: Callable[[Record], bool] | None, tally: Tally, left_out: Iterable[Sequence[int]] | None
    ) -> None:
        self._is_left_out, self._tally, self._has_bursts = is_left_out, tally, left_out is not None
        self._replayed = {tuple(position) for position in left_out or ()}  # lists where they come from JSON
        self._left_out: deque[Position] = deque()
        self.num_given = 0
        """Records that were not left out."""

    def filter(
        self, records: Iterable[tuple[Record, Position]], *, is_begun: bool = False
    ) -> Iterator[tuple[Record, Position]]:
        """The records that are not left out.

        Args:
            records: Each with the position after it.
            is_begun: Whether samples of the first one were delivered: then the rest of them are delivered, too.
        """
        for record, after in records:
            if not is_begun and self._is_out(record, after):
                self._tally.skip()
                if self._has_bursts:
                    self._left_out.append(after)
            else:
                is_begun = False
                self.num_given += 1
                yield record, after

    def since(self, start: Position) -> tuple[Position, ...]:
        """The positions after those that were left out beyond `start`, which never goes back."""
        while self._left_out and self._left_out[0] <= start:
            self._left_out.popleft()
        return tuple(self._left_out)

    def _is_out(self, record: Record, after: Position) -> bool:
        if self._tally.replaying:
            return after in self._replayed
        return self._is_left_out is not None and self._is_left_out(record)


def _entries(skip: SkipList | None) -> Iterator[tuple[str, object]]:
    """Each entry, with where it is."""
    if isinstance(skip, str | os.PathLike):
        path = Path(expand_home(os.fspath(skip)))
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"{path}:{number}", _parsed(line, f"{path}:{number}")
    elif skip is not None and (isinstance(skip, Mapping) or not isinstance(skip, Iterable)):
        raise ValueError(f"MergedDataset, skip: expected a list of records, or the path of a JSONL file, got {skip!r}")
    else:
        for number, entry in enumerate(skip or ()):
            yield f"entry {number}", entry


def _parsed(line: bytes, location: str) -> object:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ValueError(f"MergedDataset, skip, {location}: expected a JSON object, got {line[:80]!r}") from error


def _checked(
    entry: object, who: str, sources: Mapping[str, Any], urls: Mapping[str, Counter[str]]
) -> tuple[str, int | tuple[str, str]]:
    """The path of its source, and its index, or url and key."""
    if not isinstance(entry, Mapping) or entry.keys() not in (_BY_INDEX, _BY_KEY):
        got = sorted(map(str, entry)) if isinstance(entry, Mapping) else entry
        raise ValueError(
            f"{who}: expected the fields 'source' and 'index', or 'source', 'url' and 'key', got {got!r}\n"
            "  They are a sample's __datasetname__, and its __index__, or its __url__ and __key__."
        )
    path = entry["source"]
    if path not in sources:
        raise ValueError(
            f"{who}: expected the path of a source with records, got {path!r}{did_you_mean(str(path), list(sources))}\n"
            f"  These are {sorted(sources)}."
        )
    dataset, who = sources[path], f"{who}: source {path!r}"
    if isinstance(dataset, WindowDataset):
        raise ValueError(
            f"{who}: expected a source of single records, got a packed store, each of whose records is a slice of many "
            "documents\n  Remove the documents from its input, and run `streamdata prepare` again."
        )
    return path, _checked_key(entry, who, urls[path]) if path in urls else _checked_index(entry, who, len(dataset))


def _checked_index(entry: Mapping[str, Any], who: str, size: int) -> int:
    if "index" not in entry:
        raise ValueError(f"{who}: expected an index, got a url and a key\n  Its samples have an __index__.")
    index = entry["index"]
    # Not isinstance: True is an int, but not an index.
    if type(index) is not int or not 0 <= index < size:
        raise ValueError(f"{who}: expected an index from 0 to {size - 1}, got {index!r}")
    return index


def _checked_key(entry: Mapping[str, Any], who: str, urls: Counter[str]) -> tuple[str, str]:
    if "url" not in entry:
        raise ValueError(f"{who}: expected url and key, got an index\n  Its samples have a __url__ and a __key__.")
    url, key = entry["url"], entry["key"]
    if url not in urls:
        raise ValueError(
            f"{who}: expected the url of one of its {len(urls)} shards, got {url!r}{did_you_mean(str(url), urls)}\n"
            "  It is written as a sample's __url__ is."
        )
    if not isinstance(key, str):
        raise ValueError(f"{who}: expected a key as a sample's __key__, a str, got {key!r}")
    return url, key
