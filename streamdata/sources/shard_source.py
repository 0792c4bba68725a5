"""Shards as a source: cut into blocks, read in windows."""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from copy import copy
from functools import cached_property
from hashlib import blake2b
from itertools import chain, count, islice, repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.errors import SourceError
from streamdata.fields import CURSOR, SEED
from streamdata.progress import Position, check_position
from streamdata.remote.cache_settings import CacheSettings, named_cache, page_cache
from streamdata.run import Lane, shuffled, stable_seed
from streamdata.run.topology import ranks_of_node
from streamdata.shards.chunks import ChunkBytes
from streamdata.shards.coalesced import MAX_REQUEST_BYTES
from streamdata.shards.coming import Coming
from streamdata.shards.portion import Portion
from streamdata.shards.readers import IndexedShards, SequentialShards, Window
from streamdata.sources.alone import SourceAlone
from streamdata.sources.cut import describe_cut
from streamdata.sources.functions import PerRecordFn, StreamFns
from streamdata.sources.order import BlockOrder
from streamdata.sources.outlook import SourceOutlook
from streamdata.sources.part import Part, shard_seeds
from streamdata.sources.source import ReadTask, Record, Stretch

Indices = npt.NDArray[np.int64]

_BLOCKS_AT_ONCE = 1024
"""Blocks whose positions in the epoch's order are computed at once."""

_RECORDS_AT_ONCE = 256
"""Records of a shard, read from its start, of which it is computed at once whether they are of the part."""


_ROWS_AHEAD = 32
"""Windows whose index rows are asked for at most, where these lie in a store."""

_Runs = tuple[Indices, Indices, Indices]
"""Shard, first record in the shard, and number of records of each run."""


def _content(shards: IndexedShards | SequentialShards) -> str:
    # Base names and sizes, not paths: a resume may find the shards in another directory.
    text = repr([tuple(pair) for pair in shards.identity()])
    return blake2b(text.encode(), digest_size=6).hexdigest()


def _start_within_window(after: Position) -> Position:
    """The position before the record that `after` is the position after; each is counted within its window."""
    epoch, window, taken, _ = after
    return epoch, window, taken - 1, 0


class _Unopened(NamedTuple):
    """A window that comes."""

    order: BlockOrder
    start: Position
    runs: _Runs


class OpenedWindow(NamedTuple):
    """A window, and what of it is read."""

    window: Window
    positions: Indices
    """In it, of the records that are left, in the order in which they are read."""
    afters: Sequence[int]
    """How many of the window are taken after each of them."""
    starts: Indices
    """Of each of its runs: the number in the whole source of its first record."""
    counts: Indices
    """Of each of its runs: how many records it has."""


class BlockSource:
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
        self._window = max(1, shuffle_buffer // max(1, mean))
        self._shuffle_inside = shuffle_buffer > 0
        self.outlook: SourceOutlook | None = None
        """What the present order says of the pages in the cache; nothing of it decides what is read."""

    def describe(self, shuffle: bool) -> str:
        window = self._window if shuffle and self._shuffle_inside else 0
        return (
            f"{self._kind}, {self.num_records} records in {len(self._records)} shards {_content(self.shards)}, "
            f"{describe_cut(self._records, self._block_sizes)}, shuffle {shuffle}, windows of {window}"
        )

    def anomalies(self) -> dict[str, int]:
        return {kind: count for kind, count in self.shards.anomalies().items() if count}

    def start_of(self, after: Position) -> Position:
        return _start_within_window(after)

    @property
    def blocks_per_window(self) -> int:
        return self._window

    def window_start(self, order: BlockOrder, position: Position) -> Position:
        epoch, window, taken, _ = position
        blocks = order.blocks(epoch, window * self._window, (window + 1) * self._window)
        # After the last record of a window, the next record is in the next one; at the end of an epoch there is none.
        done = len(blocks) > 0 and taken >= int(self._runs(blocks)[2].sum())
        return (epoch, window + done, 0, 0)

    @property
    def records_per_block(self) -> None:
        return None  # the last block of a shard may have fewer

    def count(self, blocks: Indices, part: Part | None) -> int:
        shards, firsts, counts = self._runs(blocks)
        if part is None:
            return int(counts.sum())
        return int(np.count_nonzero(self._holds(part, np.arange(counts.sum()), shards, firsts, counts)))

    def count_taken(self, order: BlockOrder, position: Position, part: Part | None) -> int:
        epoch, window, taken, _ = position
        if part is None or not taken:
            return taken
        runs = self._runs(order.blocks(epoch, window * self._window, (window + 1) * self._window))
        taken_first = self._order_inside(order, epoch, window, int(runs[2].sum()))[:taken]
        return int(np.count_nonzero(self._holds(part, taken_first, *runs)))

    def block_of(self, shard: int, number: int) -> tuple[int, int]:
        """The block of a shard's record, and which of the block's records it is."""
        before = int(self._block_ends[shard - 1]) if shard else 0
        block, offset = divmod(number, int(self._block_sizes[shard]))
        return before + block, offset

    def place(self, order: BlockOrder, epoch: int, window: int, block: int, offset: int) -> int:
        """How many records of a window are read before one of its records, of a block of it."""
        blocks = order.blocks(epoch, window * self._window, (window + 1) * self._window)
        counts = self._runs(blocks)[2]
        number = int(counts[: int(np.flatnonzero(blocks == block)[0])].sum()) + offset
        return int(np.flatnonzero(self._order_inside(order, epoch, window, int(counts.sum())) == number)[0])

    def foresee(self, order: BlockOrder, lane: Lane) -> None:
        """Tell the cache, where there is one, what this node reads when."""
        keys = [] if named_cache(self.shards.cache) is None else self.shards.cache_keys()
        cache = page_cache(self.shards.cache) if keys else None
        if cache is None:
            return
        ranks = ranks_of_node(lane.dp_size)
        own = range(ranks.start * lane.num_workers, ranks.stop * lane.num_workers)
        all_lanes = len(own) == lane.count
        self.outlook = SourceOutlook(self.shards.sizes, self._block_ends, copy(order), own, reads_all=all_lanes)
        cache.expect(keys, self.outlook)

    def read(self, task: ReadTask, position: Position) -> Iterator[tuple[Record, Position]]:
        # Only what is C runs for each record here, and the generator in which the reader makes it.
        return chain.from_iterable(self._takes(task, position))

    def _takes(self, task: ReadTask, position: Position) -> Iterator[Iterator[tuple[Record, Position]]]:
        epoch: int | None = position[0]
        _, window, taken, _ = position
        while epoch is not None:
            task.fields[SEED] = task.order.seed(epoch)
            for blocks in self._windows(task.order, epoch, window):
                opened, portions = self._next(task, (epoch, window, taken, 0), blocks)
                if taken:  # only a resume begins within a window
                    where = f"at record {taken} of window {window} in epoch {epoch}"
                    check_position(task.name, where, taken, len(opened.window))
                for counts, records in self._read_window(task, opened, portions):
                    yield zip(records, zip(repeat(epoch), repeat(window), counts, repeat(0), strict=False), strict=True)
                if self.shards.has_remote:
                    self.shards.confirm(wait=False)
                window, taken = window + 1, 0
            if self.shards.has_remote:
                self.shards.confirm(wait=True)
            epoch, window = task.next_epoch(epoch), 0

    def _next(
        self, task: ReadTask, start: Position, blocks: Indices
    ) -> tuple["OpenedWindow", Iterable[Portion | None]]:
        """The window that begins there, and its portions; None is the whole of it, which was not asked for."""
        upcoming = task.upcoming
        if upcoming is None or not self.shards.is_slow():
            if upcoming is not None and upcoming.is_on:
                upcoming.close()  # a disk that is fast now, since all of it is in memory
            return self._open(task.order, task.part, start, self._runs(blocks)), (None,)
        if not upcoming.is_on:
            upcoming.begin(self._coming(task.stretches(start), task.part))
        return upcoming.enter(start[:2]).content, upcoming.portions()

    def _coming(self, stretches: Iterator[Stretch], part: Part | None) -> Iterator[Coming]:
        """All windows from here on, each opened when it is asked for."""
        windows = self._walk(stretches)
        for order, start, runs in self._asked_early(windows) if self.shards.has_remote else windows:
            opened = self._open(order, part, start, runs)
            is_advice = not self.shards.has_remote
            spans = [] if not is_advice and opened.window.take_cached() else opened.window.spans()
            yield Coming(start[:2], opened, spans, opened.positions, is_advice=is_advice)

    def _walk(self, stretches: Iterator[Stretch]) -> Iterator[_Unopened]:
        # The same walk as that of `_takes`, whose ends of epochs also judge what was read: that must not happen early.
        for order, (first, first_window, first_taken, _) in stretches:
            epoch: int | None = first
            window, taken = first_window, first_taken
            while epoch is not None:
                for blocks in self._windows(order, epoch, window):
                    yield _Unopened(order, (epoch, window, taken, 0), self._runs(blocks))
                    window, taken = window + 1, 0
                epoch, window = order.next_epoch(epoch), 0

    def _asked_early(self, windows: Iterator[_Unopened]) -> Iterator[_Unopened]:
        """The same windows; index rows of those that follow are asked for, of three times as many as were opened.

        Read-ahead opens at most that many more until it comes back: none of these then waits for its rows.
        """
        coming: deque[_Unopened] = deque()
        asked: list[Future[Any]] = []
        pid = os.getpid()
        try:
            for num_opened in count():
                asked = [one for one in asked if not one.done()]
                for window in islice(windows, min(3 * num_opened + 2, _ROWS_AHEAD) - len(coming)):
                    asked += self.shards.prefetch_rows(*window.runs)
                    coming.append(window)
                if not coming:
                    return
                yield coming.popleft()
        finally:  # also when whoever reads has dropped it
            for one in asked if pid == os.getpid() else ():  # what a parent asked for is its own
                one.cancel()

    def _windows(self, order: BlockOrder, epoch: int, window: int) -> Iterator[Indices]:
        """The blocks of each window from `window` on: asked for one window alone, so that it is not late, then many."""
        size = several = self._window
        first = window * size
        while len(blocks := order.blocks(epoch, first, first + several)):
            for start in range(0, len(blocks), size):
                yield blocks[start : start + size]
            first, several = first + several, max(1, _BLOCKS_AT_ONCE // size) * size

    def _open(self, order: BlockOrder, part: Part | None, start: Position, runs: _Runs) -> "OpenedWindow":
        """The window of these runs, of which so many records were taken as the position says."""
        epoch, window, taken, _ = start
        if self.outlook is not None:
            self.outlook.now = order.number(epoch, window * self._window)
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
        self, task: ReadTask, opened: "OpenedWindow", portions: Iterable[Portion | None]
    ) -> Iterator[tuple[Iterable[int], Iterator[Record]]]:
        """Read ahead: some records, and how many of the window are taken after each."""
        window, positions, afters, starts, counts = opened
        if task.part is not None:
            task.num_found += len(positions)
        for portion in portions:
            begin, stop = (0, len(positions)) if portion is None else (portion.begin, portion.end)
            held = None if portion is None or portion.is_advice else portion
            done = begin
            while done < stop:
                some = positions[done : min(stop, done + task.grow(window.look_ahead))]
                end = done + len(some)
                records = window.take(some, task.fields, held)
                records = _numbered(records, _numbers(starts, counts, some)) if task.with_indices else records
                if portion is not None:
                    portion.upcoming.used(done - begin)
                yield afters[done:end], records
                done = end

    def _order_inside(self, order: BlockOrder, epoch: int, window: int, size: int) -> Indices:
        """The positions of a window's records in it, in the order in which they are read."""
        if not (order.shuffle and self._shuffle_inside):
            return np.arange(size)
        return shuffled(size, stable_seed(order.seed(epoch), order.number(epoch, window * self._window)))

    def _holds(
        self, part: Part, positions: Indices, shards: Indices, firsts: Indices, counts: Indices
    ) -> npt.NDArray[np.bool_]:
        """Which positions of some runs are records of the part."""
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


def _numbers(starts: Indices, counts: Indices, positions: Indices) -> list[int]:
    """The number in the whole source of each position of a window."""
    ends = np.cumsum(counts)
    runs = np.searchsorted(ends, positions, side="right")
    numbers: list[int] = (starts[runs] + positions - (ends - counts)[runs]).tolist()
    return numbers


def _numbered(records: Iterator[Record], numbers: list[int]) -> Iterator[Record]:
    for record, number in zip(records, numbers, strict=True):
        record[CURSOR] = number  # from which record_rng seeds; a shard that is named twice has a number for each copy
        yield record


class SequentialSource:
    """Shards that can only be read from their start: each is one block, shuffled in groups held in memory.

    A resume reads the shard in which it stood again from its start. Where one shard of a source is such, all of its
    shards are read this way.

    Args:
        kind: What the shards are, for descriptions.
        shards: The shards.
        shuffle_buffer: Records in a group; 0 keeps their order.
    """

    def __init__(self, kind: str, shards: SequentialShards, shuffle_buffer: int) -> None:
        self.shards, self._kind, self._group = shards, kind, shuffle_buffer
        self.num_blocks = len(shards.urls)

    @property
    def records_per_group(self) -> int:
        """How many records are held in memory at once, where they are shuffled."""
        return self._group

    def describe(self, shuffle: bool) -> str:
        group = self._group if shuffle else 0
        shards = f"{self.num_blocks} shards {_content(self.shards)} from their start"
        return f"{self._kind}, {shards}, shuffle {shuffle}, groups of {group}"

    def anomalies(self) -> dict[str, int]:
        return {}  # what the reader counts is what this process has seen so far, which is not the same in each

    def start_of(self, after: Position) -> Position:
        return _start_within_window(after)

    @property
    def blocks_per_window(self) -> int:
        return 1

    def window_start(self, order: BlockOrder, position: Position) -> Position:
        return (*position[:2], 0, 0)

    @property
    def records_per_block(self) -> None:
        return None

    def count(self, blocks: Indices, part: Part | None) -> None:
        return None

    def count_taken(self, order: BlockOrder, position: Position, part: Part | None) -> int:
        raise AssertionError("nobody knows how many records there are")

    def read(self, task: ReadTask, position: Position) -> Iterator[tuple[Record, Position]]:
        epoch: int | None = position[0]
        _, window, taken, _ = position
        without_records: set[int] = set()
        while epoch is not None:
            task.fields[SEED] = task.order.seed(epoch)
            while len(blocks := task.order.blocks(epoch, window, window + 1)):
                seed = stable_seed(task.order.seed(epoch), task.order.number(epoch, window))
                found = taken
                for record, found in self._read_shard(task, int(blocks[0]), (epoch, window, taken, 0), seed):
                    yield record, (epoch, window, found, 0)
                if not found:  # only now: how many records a shard has shows at its end
                    without_records.add(int(blocks[0]))
                window, taken = window + 1, 0
            epoch, window = task.next_epoch(epoch), 0
            # It would look on without end, or train on nothing; one lane of several may have nothing.
            if (epoch is not None or task.lane.count == 1) and len(without_records) == self.num_blocks:
                what = "" if task.part is None else f" of the {task.part}"
                raise SourceError(
                    f"source {task.name!r}: expected records{what}, got none in its {self.num_blocks} shards, of which "
                    f"the first is {self.shards.urls[0]}\n  Remove the source, or give it records."
                )

    def _read_shard(self, task: ReadTask, shard: int, start: Position, seed: int) -> Iterator[tuple[Record, int]]:
        """Its records from the one that comes after those taken, each with how many are taken after it."""
        taken = start[2]
        # Groups begin at the shard's start, whatever was taken: a resume shuffles the same records together.
        size, total = self._group if task.order.shuffle and self._group else 1, 0
        stream, of_part = self._stream(task, shard, start), self._of_part(task.part, shard)
        for group, records in enumerate(iter(lambda: list(islice(stream, size)), [])):
            total += len(records)
            done = min(len(records), max(0, taken - group * size))
            order = np.arange(len(records)) if size == 1 else shuffled(len(records), stable_seed(seed, group))
            holds = list(islice(of_part, len(records)))
            for after, index in enumerate(order[done:].tolist(), group * size + done + 1):
                if not holds[index]:
                    continue
                task.num_found += 1
                record = records[index]
                record.update(task.fields)
                if task.with_indices:
                    # The records of the shards before it are not counted; no shard has 2**40 of them.
                    record[CURSOR] = (shard << 40) + group * size + index
                yield record, after
        check_position(task.name, f"at record {taken} of {self.shards.urls[shard]}", taken, total)

    def _stream(self, task: ReadTask, shard: int, start: Position) -> Iterator[Record]:
        upcoming = task.upcoming
        if upcoming is None or not self.shards.has_remote:
            return self.shards.stream(shard)
        if not upcoming.is_on:
            upcoming.begin(self._coming(task.stretches(start)))
        has_chunks = upcoming.enter(start[:2]).files
        return self.shards.stream(shard, ChunkBytes(upcoming.portions()) if has_chunks else None)

    def _coming(self, stretches: Iterator[Stretch]) -> Iterator[Coming]:
        """All shards from here on, by their chunks."""
        for order, (first, first_window, _, _) in stretches:
            epoch: int | None = first
            window = first_window
            while epoch is not None:
                while len(blocks := order.blocks(epoch, window, window + 1)):
                    chunks = self.shards.chunks(int(blocks[0]))
                    files = [] if chunks is None else [chunks]
                    order_inside = np.arange(0 if chunks is None else len(chunks.spans))
                    # Let go of one by one: the shard may be larger than any memory.
                    yield Coming((epoch, window), None, files, order_inside, MAX_REQUEST_BYTES)
                    window += 1
                epoch, window = order.next_epoch(epoch), 0

    def _of_part(self, part: Part | None, shard: int) -> Iterator[bool]:
        """Which records of a shard are of the part, one after the other."""
        if part is None:
            return repeat(True)
        seed = self._shard_seeds[shard]
        chunks = (part.holds(np.arange(first, first + _RECORDS_AT_ONCE), seed) for first in count(0, _RECORDS_AT_ONCE))
        return chain.from_iterable(chunk.tolist() for chunk in chunks)

    @cached_property
    def _shard_seeds(self) -> npt.NDArray[np.uint64]:
        return shard_seeds([name for name, _ in self.shards.identity()])


class ShardDataset(SourceAlone):
    """What a recipe names where records lie in shards."""

    source: BlockSource | SequentialSource
    process_fn: StreamFns | None
    single_process_fn: PerRecordFn | None

    @property
    def urls(self) -> list[str]:
        """Its shards, in the order in which they are read unless they are shuffled; one may be there several times."""
        return [str(url) for url in self.source.shards.urls]

    @property
    def num_records(self) -> int:
        """How many records its shards have, held-out ones included.

        Shards that can only be read from their start are read whole for it, once on a node; nothing else asks for that.

        Raises:
            ValueError: Such a shard is a pipe.
            ShardError: Such a shard is damaged.
        """
        return self.source.num_records if isinstance(self.source, BlockSource) else self._num_counted

    @cached_property
    def _num_counted(self) -> int:
        assert isinstance(self.source, SequentialSource), "others have an index"
        return self.source.shards.count_records()

    @property
    def cache(self) -> CacheSettings | None:
        """Where pages of its shards are kept, where they are remote."""
        return self.source.shards.cache

    @cache.setter
    def cache(self, settings: CacheSettings | None) -> None:
        self.source.shards.use_cache(settings)
