"""Shards with an index as a source, cut into blocks and read in windows; and what a recipe names of all shards."""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import cached_property, partial
from itertools import chain, count, islice, repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.fields import RECORD, SEED
from streamdata.io.remote.addresses import CacheSettings
from streamdata.recipe.limits import DEFAULT_LIMITS, Limits, ShardLimits, read_limits
from streamdata.run import shuffled, stable_seed
from streamdata.shards.ahead.read_ahead import Upcoming
from streamdata.shards.ahead.windows import Chunk, PlannedWindow
from streamdata.shards.readers import DamagedRecordError, IndexedShards, Window, take_all
from streamdata.sources.alone import SourceAlone
from streamdata.sources.files.sequential_source import SequentialSource as SequentialSource  # noqa: PLC0414  for others
from streamdata.sources.functions.process_functions import PerRecordFn, StreamFns
from streamdata.sources.order.blocks import BlockOrder, Part, describe_content, describe_cut, shard_seeds
from streamdata.sources.source import OrderAt, ReadTask, Record, Source, check_position, walk
from streamdata.states.cursor import Position
from streamdata.states.headers import UNIT, BlockCut

Indices = npt.NDArray[np.int64]

_BLOCKS_AT_ONCE = 1024
"""Blocks whose positions in the epoch's order are computed at once."""

_ROWS_AHEAD = 32
"""Windows whose index rows are asked for at most, where these lie in a store."""

_Runs = tuple[Indices, Indices, Indices]
"""Shard, first record in the shard, and number of records of each run."""
Unopened = tuple[BlockOrder, Position, _Runs]
"""A window that comes: its order, where it begins, and its runs."""


class OpenedWindow(NamedTuple):
    """A window that a lane has opened, and which of its records it still reads."""

    window: Window
    positions: Indices
    """In it, of the records that are left, in the order in which they are read."""
    afters: Sequence[int]
    """How many of the window are taken after each of them."""
    starts: Indices
    """Number in the whole source of the first record of each of its runs."""
    counts: Indices
    """Number of records of each of its runs."""


class BlockSource(Source):
    """Indexed shards, cut into blocks; a lane shuffles windows of its blocks by index.

    Args:
        kind: What the shards are, for descriptions.
        shards: The shards.
        block_sizes: Records in a block of each shard, int64; a shard's last block may have fewer.
        shuffle_buffer: Records in a window, about; 0 keeps the order inside blocks.
    """

    def __init__(self, kind: str, shards: IndexedShards, block_sizes: Indices, shuffle_buffer: int) -> None:
        self.shards, self._kind = shards, kind
        self._records, self._block_sizes = shards.num_records, block_sizes
        blocks = -(-self._records // block_sizes)
        self._record_ends, self._block_ends = np.cumsum(self._records), np.cumsum(blocks)
        self.num_records, self.num_blocks = int(self._records.sum()), int(blocks.sum())
        # One number of blocks for all windows, so that the blocks of any window are known without those before it. What
        # last blocks lack does not count: where all blocks have one size, that is the mean.
        mean = int((block_sizes * blocks).sum()) // max(1, self.num_blocks)
        self.blocks_per_window = max(1, shuffle_buffer // max(1, mean))
        self._shuffle_inside = shuffle_buffer > 0

    def describe(self, shuffle: bool) -> str:
        window = self.blocks_per_window if shuffle and self._shuffle_inside else 0
        return (
            f"{self._kind}, {self.num_records} records in {len(self._records)} shards {describe_content(self.shards)}, "
            f"{describe_cut(self._records, self._block_sizes)}, shuffle {shuffle}, windows of {window}"
        )

    def anomalies(self) -> dict[str, int]:
        return {kind: number for kind, number in self.shards.anomalies().items() if number}

    def window_start(self, order: BlockOrder, position: Position) -> Position:
        epoch, window, taken, _ = position
        blocks = order.blocks(epoch, window * self.blocks_per_window, (window + 1) * self.blocks_per_window)
        # After the last record of a window, the next record is in the next one; at the end of an epoch there is none.
        done = len(blocks) > 0 and taken >= int(self._runs(blocks)[2].sum())
        return (epoch, window + done, 0, 0)

    @property
    def cut(self) -> BlockCut:
        mean = self.num_records * UNIT // max(1, self.num_blocks)
        return BlockCut(self.num_blocks, self.blocks_per_window, max(1, mean), divides=1, epochs=0)

    def count(self, blocks: Indices, part: Part | None) -> int:
        shards, firsts, counts = self._runs(blocks)
        if part is None:
            return int(counts.sum())
        return int(np.count_nonzero(self._holds(part, np.arange(counts.sum()), shards, firsts, counts)))

    def count_taken(self, order: BlockOrder, position: Position, part: Part | None) -> int:
        epoch, window, taken, _ = position
        if part is None or not taken:
            return taken
        runs = self._runs(order.blocks(epoch, window * self.blocks_per_window, (window + 1) * self.blocks_per_window))
        taken_first = self._order_inside(order, epoch, window, int(runs[2].sum()))[:taken]
        return int(np.count_nonzero(self._holds(part, taken_first, *runs)))

    def fetch(self, numbers: Sequence[int], part: Part | None = None) -> Iterator[Record | DamagedRecordError | None]:
        wanted = np.array(numbers, np.int64)
        is_there = wanted < self.num_records
        known = wanted[is_there]
        shards = np.searchsorted(self._record_ends, known, side="right")
        firsts = known - self._record_ends[shards] + self._records[shards]
        if part is not None:
            kept = self._holds(part, np.arange(len(known)), shards, firsts, np.ones_like(known))
            is_there[is_there], shards, firsts = kept, shards[kept], firsts[kept]
        window = self.shards.window(shards, firsts, np.ones_like(firsts))  # runs of one record each
        steps = (range(first, len(window))[: window.look_ahead] for first in range(0, len(window), window.look_ahead))
        records = chain.from_iterable(take_all(window, np.array(step)) for step in steps)
        return (next(records) if there else None for there in is_there.tolist())

    def block_of(self, shard: int, number: int) -> tuple[int, int]:
        """The block of a shard's record, and the record's number in the block."""
        before = int(self._block_ends[shard - 1]) if shard else 0
        block, offset = divmod(number, int(self._block_sizes[shard]))
        return before + block, offset

    def place(self, order: BlockOrder, epoch: int, window: int, block: int, offset: int) -> int:
        """The position, in a window's shuffled order, of a record given by its block and offset."""
        blocks = order.blocks(epoch, window * self.blocks_per_window, (window + 1) * self.blocks_per_window)
        counts = self._runs(blocks)[2]
        number = int(counts[: int(np.flatnonzero(blocks == block)[0])].sum()) + offset
        return int(np.flatnonzero(self._order_inside(order, epoch, window, int(counts.sum())) == number)[0])

    def read(self, task: ReadTask, position: Position) -> Iterator[tuple[Record, Position]]:
        # Only what is C runs for each record here, and the generator in which the reader makes it.
        return chain.from_iterable(self._takes(task, position))

    def _takes(self, task: ReadTask, position: Position) -> Iterator[Iterator[tuple[Record, Position]]]:
        for start, blocks in walk(partial(self._windows, task.order), position, task.next_epoch):
            epoch, window, taken, _ = start
            task.fields[SEED] = task.order.seed(epoch)
            opened, chunks = self._next(task, start, blocks)
            if taken:  # only a resume begins within a window
                where = f"at record {taken} of window {window} in epoch {epoch}"
                check_position(task.name, where, taken, len(opened.window))
            for counts, records in self._read_window(task, epoch, opened, chunks):
                yield zip(records, zip(repeat(epoch), repeat(window), counts, repeat(0), strict=False), strict=True)

    def _next(self, task: ReadTask, start: Position, blocks: Indices) -> tuple["OpenedWindow", Iterable[Chunk | None]]:
        """The window that begins there, and its chunks; None is the whole of it, which was not asked for."""
        upcoming = task.upcoming
        if upcoming is None or not self.shards.is_slow():
            if upcoming is not None and upcoming.is_on:
                upcoming.close()  # a disk that is fast now, since all of it is in memory
            return self._open(task.order, task.part, start, self._runs(blocks)), (None,)
        if not upcoming.is_on:
            upcoming.begin(self._planned(self._walk(task.orders(start)), task.part))
        return upcoming.enter(start[:2]).content, upcoming.chunks()

    def begin_ahead(self, task: ReadTask, upcoming: Upcoming) -> None:
        """Queue what comes later in a task that has begun nothing, and ask for the index rows of its first window."""
        windows = self._walk(task.later())
        first = list(islice(windows, 1))
        upcoming.begin(self._planned(chain(first, windows), task.part))

    def _planned(self, windows: Iterator[Unopened], part: Part | None) -> Iterator[PlannedWindow]:
        """All windows from here on, each opened when it is asked for."""
        for order, start, runs in windows:
            opened = self._open(order, part, start, runs)
            yield PlannedWindow(start[:2], opened, *opened.window.spans(opened.positions))

    def _walk(self, orders: Iterator[OrderAt]) -> Iterator[Unopened]:
        walks = ((order, walk(partial(self._windows, order), start, order.next_epoch)) for order, start in orders)
        windows = ((order, start, self._runs(blocks)) for order, found in walks for start, blocks in found)
        return self._asked_early(windows) if self.shards.has_remote else windows

    def _asked_early(self, windows: Iterator[Unopened]) -> Iterator[Unopened]:
        """Yields the windows, and asks for index rows of those that follow, of three times as many as were opened.

        Read-ahead opens at most that many more until it comes back: none of these then waits for its rows.
        """
        coming: deque[Unopened] = deque()
        asked: list[Future[Any]] = []
        pid = os.getpid()
        try:
            for num_opened in count():
                asked = [one for one in asked if not one.done()]
                for window in islice(windows, min(3 * num_opened + 2, _ROWS_AHEAD) - len(coming)):
                    asked += self.shards.prefetch_rows(*window[2])
                    coming.append(window)
                if not coming:
                    return
                yield coming.popleft()
        finally:  # also when whoever reads has dropped it
            for one in asked if pid == os.getpid() else ():  # what a parent asked for is its own
                one.cancel()

    def _windows(self, order: BlockOrder, epoch: int, window: int) -> Iterator[Indices]:
        """The blocks of each window from `window` on: asked for one window alone, so that it is not late, then many."""
        size = several = self.blocks_per_window
        first = window * size
        while len(blocks := order.blocks(epoch, first, first + several)):
            for start in range(0, len(blocks), size):
                yield blocks[start : start + size]
            first, several = first + several, max(1, _BLOCKS_AT_ONCE // size) * size

    def _open(self, order: BlockOrder, part: Part | None, start: Position, runs: _Runs) -> "OpenedWindow":
        """The window of these runs, of which so many records were taken as the position says."""
        epoch, window, taken, _ = start
        shards, firsts, counts = runs
        opened = self.shards.window(shards, firsts, counts)
        # The positions are a function of the window's seed, so that a resume goes on with any of them, and reads none.
        positions = self._order_inside(order, epoch, window, len(opened))[taken:]
        afters: Sequence[int] = range(taken + 1, taken + 1 + len(positions))
        if part is not None:
            kept = np.flatnonzero(self._holds(part, positions, shards, firsts, counts))
            positions, afters = positions[kept], (kept + taken + 1).tolist()
        starts = self._record_ends[shards] - self._records[shards] + firsts
        return OpenedWindow(opened, positions, afters, starts, counts)

    def _read_window(
        self, task: ReadTask, epoch: int, opened: "OpenedWindow", chunks: Iterable[Chunk | None]
    ) -> Iterator[tuple[Iterable[int], Iterator[Record]]]:
        """Read ahead: some records, and how many of the window are taken after each."""
        window, positions, afters, starts, counts = opened
        if task.part is not None:
            task.num_found += len(positions)
        source, ends = task.number, np.cumsum(counts)
        firsts = starts - ends + counts  # a record's position in the window is added to get its number in the source
        for chunk in chunks:
            done, stop = (0, len(positions)) if chunk is None else (chunk.begin, chunk.end)
            while done < stop:
                some = positions[done : min(stop, done + task.grow(window.look_ahead))]
                end = done + len(some)
                records: Iterator[Record]
                if task.keeps_damaged:
                    records = map(task.sound_or_damaged, take_all(window, some, task.fields, chunk))
                else:
                    records = window.take(some, task.fields, chunk)
                numbers = (firsts[np.searchsorted(ends, some, side="right")] + some).tolist()
                yield afters[done:end], _numbered(records, source, epoch, numbers)
                done = end

    def _order_inside(self, order: BlockOrder, epoch: int, window: int, size: int) -> Indices:
        """The positions of a window's records in it, in the order in which they are read."""
        if not (order.shuffle and self._shuffle_inside):
            return np.arange(size)
        return shuffled(size, stable_seed(order.seed(epoch), order.number(epoch, window * self.blocks_per_window)))

    def _holds(
        self, part: Part, positions: Indices, shards: Indices, firsts: Indices, counts: Indices
    ) -> npt.NDArray[np.bool_]:
        """A mask of the positions in some runs that are records of the part."""
        ends = np.cumsum(counts)
        runs = np.searchsorted(ends, positions, side="right")
        return part.holds((firsts - ends + counts)[runs] + positions, self._shard_seeds[shards][runs])

    @cached_property
    def _shard_seeds(self) -> npt.NDArray[np.uint64]:
        return shard_seeds([name for name, _ in self.shards.identity()])

    def _runs(self, blocks: Indices) -> _Runs:
        """The blocks as runs of records: shard, first record in the shard, count; int64 each."""
        shards = np.searchsorted(self._block_ends, blocks, side="right")
        records, sizes = self._records[shards], self._block_sizes[shards]
        blocks_before = self._block_ends[shards] - -(-records // sizes)
        firsts = (blocks - blocks_before) * sizes
        return shards, firsts, np.minimum(sizes, records - firsts)


def _numbered(records: Iterator[Record], source: int, epoch: int, numbers: list[int]) -> Iterator[Record]:
    """The records, each with what names it; one of a shard that is listed twice has a number for each copy."""
    for record, number in zip(records, numbers, strict=True):
        record[RECORD] = (source, epoch, number, 0)
        yield record


class ShardDataset(SourceAlone):
    """Base of datasets whose records lie in shards."""

    source: BlockSource | SequentialSource
    process_fn: StreamFns | None
    single_process_fn: PerRecordFn | None
    _cache: CacheSettings | None

    def _read_limits(self, limits: Limits) -> ShardLimits:
        """How large its records may be: most say nothing of it."""
        return DEFAULT_LIMITS if limits is None else read_limits(limits, ShardLimits, type(self).__name__)

    @property
    def urls(self) -> list[str]:
        """The urls of the shards, in reading order before shuffling; a shard may occur several times."""
        return [str(url) for url in self.source.shards.urls]

    @property
    def num_records(self) -> int:
        """The number of records in all shards, held-out ones included.

        Shards that can only be read from their start are read whole for it, once on a node, where no manifest has it.

        Raises:
            ValueError: Such a shard is a pipe.
            ShardError: Such a shard is damaged.
        """
        return int(self.source.shards.num_records.sum())

    @property
    def cache(self) -> CacheSettings | None:
        """The settings of the cache that keeps pages of remote shards; None without one."""
        return self._cache

    @cache.setter
    def cache(self, settings: CacheSettings | None) -> None:
        self._cache = settings
        self.source.shards.use_cache(settings)
