"""Records that a run leaves out: `a list or a JSONL file → checked against the sources → left out of their records`."""

import json
import math
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import crc32

from streamdata.errors import StateError, did_you_mean, shown
from streamdata.fields import INDEX, KEY, URL
from streamdata.io.storage import base_name, told_url
from streamdata.recipe.limits import open_regular
from streamdata.shards.jsonl.shards import JsonlShards
from streamdata.shards.parquet.shards import ParquetShards
from streamdata.shards.urls import expand_home
from streamdata.sources.files.shard_source import ShardDataset
from streamdata.sources.foreign.named import is_own_stream
from streamdata.sources.functions.tally import Tally
from streamdata.sources.source import Record
from streamdata.states.cursor import Position

SkipList: TypeAlias = str | os.PathLike[str] | Sequence[Mapping[str, Any]]
"""The value of the parameter `skip`: a list of `{source, index}` or `{source, url, key}`, or a JSONL file of them."""

_BY_INDEX: Final = {"source", "index"}
_BY_KEY: Final = {"source", "url", "key"}
_MAX_CODE: Final = 44
"""Characters that a cursor spends on which records were left out of an open burst."""


class Skips:
    """The records of each source that are skipped.

    Args:
        skip: Names them.
        sources: The datasets of the tree that have records, by path.

    Raises:
        FileNotFoundError: The file of records to skip does not exist.
        ValueError: An entry has other fields, names a source or a url that there is not, or an index that is out of
            range, a line beyond a JSONL shard's last record, or a record of a packed store. A key that no record of
            another shard has is not noticed: no index has keys. The states count what was left out as `skipped`.
    """

    def __init__(self, skip: SkipList | None, sources: Mapping[str, Any]) -> None:
        self._records: dict[str, set[int | tuple[str, str]]] = {}
        self._digests: dict[str, int] = {}
        self.num_records = 0
        """How many records are left out in an epoch of each source, at most: copies of a shard count."""
        if skip is None:
            return
        shards = {path: data for path, data in sources.items() if isinstance(data, ShardDataset)}
        urls = _Urls(shards)
        last_lines: dict[tuple[ShardDataset, str], int] = {}
        for location, entry in _entries(skip):
            path, record = _checked(entry, f"MergedDataset, skip, {location}", sources, urls)
            if isinstance(record, tuple):
                _check_line(shards[path], *record, f"MergedDataset, skip, {location}: source {shown(path)}", last_lines)
            self._records.setdefault(path, set()).add(record)
        self.num_records = sum(
            urls[path][record[0]] if isinstance(record, tuple) else 1
            for path, found in self._records.items()
            for record in found
        )

    def of(self, path: str) -> Callable[[Record], bool] | None:
        """A predicate for skipped records of a source; None if none is skipped."""
        records = self._records.get(path)
        if records is None:
            return None
        return lambda record: (record[INDEX] if INDEX in record else (record[URL], record[KEY])) in records

    def digest(self, path: str) -> int:
        """A digest of the records skipped in a source, or below a mixture; 0 for none.

        Shards may lie in another folder by now, and are told by their base names.
        """
        if path not in self._digests:  # there may be many records, and it is asked for in each epoch
            start = f"{path}." if path else ""
            names = [name for name in self._records if name == path or name.startswith(start)]
            below = sorted((name, sorted(map(_identity, self._records[name]))) for name in names)
            self._digests[path] = crc32(repr(below).encode()) if below else 0
        return self._digests[path]


class _Urls(dict[str, Counter[str]]):
    """How often each url is there, by the path of a source of shards; looked up where it is asked for."""

    def __init__(self, shards: Mapping[str, ShardDataset]) -> None:
        self._shards = shards

    def __missing__(self, path: str) -> Counter[str]:
        self[path] = found = Counter(map(told_url, self._shards[path].source.shards.urls))
        return found


class Skipping:
    """Skips records of one source in one lane, and remembers which since the start of the open burst.

    A burst that is fed again must be what it was, whatever is to be left out by now: so of a replay the records that
    were left out then are left out again, and no others. Which they are is in the cursor.

    Args:
        is_left_out: Says which, from the next burst on; None: all are delivered.
        digest: Of the list that this follows from.
        tally: Counts them; says whether a burst is fed again.
        left_out: The code of those that were left out of the open burst; None where there are no bursts.

    Raises:
        StateError: The code does not tell all of them, and the list is not the one that does.
    """

    def __init__(
        self, is_left_out: Callable[[Record], bool] | None, digest: int, tally: Tally, left_out: str | None
    ) -> None:
        self._is_left_out, self._digest, self._tally = is_left_out, digest, tally
        self._has_bursts = left_out is not None
        try:
            gaps, *listed = (left_out or "").split("~")
            self._numbers = frozenset(accumulate(map(int, gaps.split())))
            listed_from, of_list = map(int, listed) if listed else (math.inf, digest)
        except ValueError as error:
            raise StateError(
                f"source {shown(tally.name)}: states with 'left_out' {shown(left_out)}, which no run writes\n"
                "  Restore the states as they were saved."
            ) from error
        self._listed_from = listed_from
        """The record of a replay from which on all of the list were left out; inf where the code tells all."""
        if of_list != digest:
            raise StateError(
                f"source {shown(tally.name)}: expected the `skip` with which the states were written, got "
                "another one; more "
                "records were left out of what its process_fn has begun than the states can tell\n"
                "  Resume with the former list, and change it when less is left out of a burst, or in the next pass."
            )
        self._num_replayed = 0
        self._read: deque[_Read] = deque()
        self._codes: tuple[int, int, str] = (0, 0, "")
        self._num_read = 0
        self.num_given = 0
        """Records that were not left out."""

    def filter(
        self, records: Iterable[tuple[Record, Position]], *, is_begun: bool = False
    ) -> Iterator[tuple[Record, Position]]:
        """Yield the records that are not skipped.

        Args:
            records: Each with the position after it.
            is_begun: Whether samples of the first one were delivered: then the rest of them are delivered, too.
        """
        for record, after in records:
            is_out = is_listed = self._is_left_out is not None and self._is_left_out(record)
            if self._tally.replaying:
                if self._num_replayed < self._listed_from:
                    is_out = self._num_replayed in self._numbers
                self._num_replayed += 1
            is_out, is_begun = is_out and not is_begun, False
            if self._has_bursts:
                self._num_read += 1
                self._read.append(_Read(after, is_out, is_listed))
            if is_out:
                self._tally.skip()
            else:
                self.num_given += 1
                yield record, after

    def code_since(self, start: Position) -> str:
        """Encode which records were skipped after `start`, for the cursor; `start` never goes back."""
        while self._read and self._read[0].after <= start:
            self._read.popleft()
        of = self._num_read, len(self._read)
        if of == self._codes[:2]:  # all outputs of a burst have the same
            return self._codes[2]
        left_out = [number for number, read in enumerate(self._read) if read.is_out]
        if len(code := _gaps(left_out)) > _MAX_CODE:
            # What the list does not tell fits: it came from a code, or all fitted once, and gaps do not grow while a
            # burst's start moves on.
            others = [number for number, read in enumerate(self._read) if read.is_out != read.is_listed]
            listed_from = others[-1] + 1 if others else 0
            code = f"{_gaps([number for number in left_out if number < listed_from])}~{listed_from}~{self._digest}"
        self._codes = (*of, code)
        return code


def _gaps(numbers: Sequence[int]) -> str:
    """Ascending numbers as the differences between them."""
    return " ".join(str(number - before) for before, number in pairwise([0, *numbers]))


class _Read(NamedTuple):
    after: Position
    is_out: bool
    is_listed: bool
    """Whether it is one of the list: then it is out, unless the burst began under another list."""


def _identity(record: int | tuple[str, str]) -> str:
    return repr(record if isinstance(record, int) else (base_name(record[0]), record[1]))


def _entries(skip: SkipList) -> Iterator[tuple[str, object]]:
    """Each entry, with where it is."""
    if isinstance(skip, str | os.PathLike):
        path = Path(expand_home(os.fspath(skip)))
        with open_regular(path, ValueError) as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                location = f"{path}:{number}"
                try:
                    entry = json.loads(line)
                except ValueError as error:
                    got = shown(line[:80])
                    raise ValueError(f"MergedDataset, skip, {location}: expected a JSON object, got {got}") from error
                yield location, entry
    elif isinstance(skip, Mapping) or not isinstance(skip, Iterable):
        raise ValueError(
            f"MergedDataset, skip: expected a list of records, or the path of a JSONL file, got {shown(skip)}"
        )
    else:
        for number, entry in enumerate(skip):
            yield f"entry {number}", entry


def _checked(
    entry: object, who: str, sources: Mapping[str, Any], urls: Mapping[str, Counter[str]]
) -> tuple[str, int | tuple[str, str]]:
    """The path of its source, and its index, or url and key."""
    if not isinstance(entry, Mapping) or entry.keys() not in (_BY_INDEX, _BY_KEY):
        got = sorted(map(str, entry)) if isinstance(entry, Mapping) else entry
        raise ValueError(
            f"{who}: expected the fields 'source' and 'index', or 'source', 'url' and 'key', got {shown(got)}\n"
            "  They are a sample's __datasetname__, and its __index__, or its __url__ and __key__."
        )
    path = entry["source"]
    if path not in sources:
        raise ValueError(
            f"{who}: expected the path of a source with records, got "
            f"{shown(path)}{did_you_mean(str(path), list(sources))}\n"
            f"  These are {sorted(sources)}."
        )
    dataset, who = sources[path], f"{who}: source {shown(path)}"
    if is_own_stream(dataset) and not isinstance(dataset, ShardDataset):
        raise ValueError(
            f"{who}: expected a source whose records have numbers or keys, got an iterable\n"
            "  Leave them out in its process function."
        )
    if getattr(dataset, "slices_documents", False):
        raise ValueError(
            f"{who}: expected a source of single records, got a packed store, each of whose records is a slice of many "
            "documents\n  Remove the documents from its input, and run `streamdata prepare` again."
        )
    if isinstance(dataset, ShardDataset):
        return path, _checked_key(entry, who, urls[path])
    if "index" not in entry:
        raise ValueError(f"{who}: expected an index, got a url and a key\n  Its samples have an __index__.")
    index = entry["index"]
    # Not isinstance: True is an int, but not an index.
    if type(index) is not int or not 0 <= index < len(dataset):
        raise ValueError(f"{who}: expected an index from 0 to {len(dataset) - 1}, got {shown(index)}")
    return path, index


def _checked_key(entry: Mapping[str, Any], who: str, urls: Counter[str]) -> tuple[str, str]:
    if "url" not in entry:
        raise ValueError(f"{who}: expected url and key, got an index\n  Its samples have a __url__ and a __key__.")
    url, key = entry["url"], entry["key"]
    if url not in urls:
        raise ValueError(
            f"{who}: expected the url of one of its {len(urls)} shards, got "
            f"{shown(url)}{did_you_mean(str(url), urls)}\n"
            "  It is written as a sample's __url__ is."
        )
    if not isinstance(key, str):
        raise ValueError(f"{who}: expected a key as a sample's __key__, a str, got {shown(key)}")
    return url, key


def _check_line(
    dataset: ShardDataset, url: str, key: str, who: str, last_lines: dict[tuple[ShardDataset, str], int]
) -> None:
    """Refuse the key of a JSONL or parquet shard that is the number of none of its lines or rows."""
    shards = dataset.source.shards
    if not isinstance(shards, JsonlShards | ParquetShards):
        return
    if (dataset, url) not in last_lines:  # looked up in the index once per shard
        last_lines[dataset, url] = shards.last_line(shards.urls.index(url))
    last = last_lines[dataset, url]
    if not (key.isdecimal() and str(int(key)) == key and int(key) <= last):
        raise ValueError(
            f"{who}: expected the number of one of the lines 0 to {last} of {shown(url)} as key, got {shown(key)}"
        )
