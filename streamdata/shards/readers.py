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
    """One record is damaged; the records around it can be read.

    Attributes:
        url: The shard, as the record's `__url__` would be.
        key: What the record's `__key__` would be.
    """

    url: str = ""
    key: str = ""

    def of(self, url: str, key: str) -> "DamagedRecordError":
        """Set the shard and key of the damaged record; return the error."""
        self.url, self.key = url, key
        return self


class Window(Protocol):
    """Runs of consecutive records; positions count through all runs, in the order given."""

    look_ahead: int  # how many positions one `take` should get at most

    def __len__(self) -> int: ...

    def spans(self, positions: Int64s) -> tuple[list[FileSpans], Int64s]:
        """The byte spans that `take` reads, of records and of their lines in sidecars; and which are used, in order.

        Args:
            positions: Of the records that are read, in this order.
        """

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
    """The records at these positions, as `Window.take` gives them; a damaged one is replaced by its error."""
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

    def use_cache(self, cache: CacheSettings | None) -> None:
        """Set where pages of remote files are cached; None leaves it to the environment."""

    def identity(self) -> list[tuple[str, int]]:
        """The base name and size of each shard: records, or for sequential shards bytes (0 for a pipe)."""

    def anomalies(self) -> dict[str, int]:
        """Counts, by kind, of what is not a whole record; for sequential shards, as far as this process has read."""


class IndexedShards(_Shards, Protocol):
    """Shards in which any record can be read by its number."""

    num_records: Int64s  # per shard
    sizes: Int64s  # bytes per shard

    def is_slow(self) -> bool:
        """Whether the next window should be requested before it is needed; call it once per window."""

    def window(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> Window:
        """The window of the runs [first, first + count) of the shards, all three arrays of the same length."""

    def prefetch_rows(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> Sequence[Future[Any]]:
        """Request the remote data that `window` will read for these runs; return the requests."""


class SequentialShards(_Shards, Protocol):
    """Shards that can only be read from their start."""

    pipe: str  # the first that is a command, "" where none is

    @property
    def num_records(self) -> Int64s:
        """The number of records of each shard (no pipes); shards may be read whole for it, once per node."""

    def chunks(self, shard: int) -> FileSpans | None:
        """The spans of a shard to be requested ahead, in order; None if it needs no read-ahead."""

    def stream(self, shard: int, raw: ChunkBytes | None = None) -> Iterator[Record | DamagedRecordError]:
        """Yield the records of a shard in file order, reading from `raw` if given.

        In place of one that is damaged stands the error that says so.
        """
