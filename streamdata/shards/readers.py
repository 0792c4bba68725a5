"""The contract of readers: `urls → shards of numbered records → windows of runs → records`.

A record is a fresh dict with `__url__`, `__key__` and its fields. Readers are picklable; they open files lazily, in
the process that reads.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any, Final, Protocol

from streamdata.errors import ShardError
from streamdata.io.remote.addresses import CacheSettings
from streamdata.io.storage import Int64s
from streamdata.shards.ahead.spans import FileSpans
from streamdata.shards.ahead.windows import Chunk, ChunkBytes

Record = dict[str, Any]
NO_FIELDS: Final[Mapping[str, Any]] = MappingProxyType({})


class DamagedRecordError(ShardError):
    """A record is damaged; those around it can be read.

    Attributes:
        url: The shard, as the record's `__url__` would be.
        key: What the record's `__key__` would be.
    """

    url: str = ""
    key: str = ""

    def of(self, url: str, key: str) -> "DamagedRecordError":
        """Note which record is damaged; return the error."""
        self.url, self.key = url, key
        return self


class Window(Protocol):
    """Some runs of consecutive records; positions count through the runs in the order in which they were given."""

    look_ahead: int  # how many positions one `take` should get at most

    def __len__(self) -> int: ...

    def spans(self) -> list[FileSpans]:
        """The spans of its records, and of their lines in other files: which bytes `take` reads."""

    def take_cached(self) -> bool:
        """Make `take` read from the page cache, if all of it that is remote is there; whether it is."""

    def take(
        self,
        positions: Sequence[int] | Int64s,
        common: Mapping[str, Any] = NO_FIELDS,
        chunk: Chunk | None = None,
    ) -> Iterator[Record]:
        """The records at these positions, in this order, each with the fields `common` beside its own.

        A record is made when it is asked for. Their bytes are read at the first one; those of a chunk, which was
        asked for before, are waited for one by one.

        Raises:
            DamagedRecordError: The next one is damaged; whoever goes on takes those after it.
        """


def take_all(
    window: Window,
    positions: Int64s,
    common: Mapping[str, Any] = NO_FIELDS,
    chunk: Chunk | None = None,
) -> Iterator[Record | DamagedRecordError]:
    """The records at these positions, as `Window.take`; in place of one that is damaged stands the error."""
    done = 0
    while done < len(positions):
        try:
            for record in window.take(positions[done:], common, chunk):
                done += 1
                yield record
        except DamagedRecordError as error:
            done += 1
            yield error


class _Shards(Protocol):
    """The part of the contract that all shards fulfil."""

    urls: list[str]
    has_remote: bool
    cache: CacheSettings | None
    """The cache in which pages of them are kept, where they are remote."""

    def use_cache(self, cache: CacheSettings | None) -> None:
        """Set `cache`."""

    def identity(self) -> list[tuple[str, int]]:
        """Base name per shard, and its number of records, or of a sequential one its bytes (0 for a pipe)."""

    def anomalies(self) -> dict[str, int]:
        """How much is no record, or less than one, by kind; of sequential shards, what this process has seen so far."""


class IndexedShards(_Shards, Protocol):
    """Shards of which any record can be read by its number."""

    num_records: Int64s  # per shard
    sizes: Int64s  # bytes per shard

    def cache_keys(self) -> list[str]:
        """The name of each in the page cache, "" where no version is known; nothing where no shard is remote."""

    def is_slow(self) -> bool:
        """Whether the next window is better asked for before it is needed; asked once for each."""

    def confirm(self, *, wait: bool) -> None:
        """Raise ShardError where what the cache had is not what the shards are now; `wait` for all answers."""

    def window(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> Window:
        """The window of the runs [first, first + count) of the shards, all three arrays of the same length."""

    def prefetch_rows(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> Sequence[Future[Any]]:
        """Ask for what `window` will read for these runs, where that lies on a host; what was asked for."""


class SequentialShards(_Shards, Protocol):
    """Shards that are read from their start."""

    pipe: str  # the first that is a command, "" where none is

    @property
    def num_records(self) -> Int64s:
        """How many records each shard has, none of which is a pipe; for it each may be read whole, once on a node."""

    def chunks(self, shard: int) -> FileSpans | None:
        """The spans of a shard that is better asked for before it is needed, in their order; None for others."""

    def stream(self, shard: int, raw: ChunkBytes | None = None) -> Iterator[Record | DamagedRecordError]:
        """The records of one shard in their order in the file, which is opened, or read from `raw`.

        In place of one that is damaged stands the error that says so.
        """
