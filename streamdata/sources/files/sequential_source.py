"""Shards that can only be read from their start, as a source: each is a block, shuffled in groups."""

import copy
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from itertools import chain, count, groupby, islice, repeat, takewhile

import numpy as np
import numpy.typing as npt

from streamdata.errors import SourceError, shown
from streamdata.fields import RECORD, SEED
from streamdata.io.storage import Int64s
from streamdata.run import shuffled, stable_seed
from streamdata.shards.ahead.read_ahead import Upcoming
from streamdata.shards.ahead.windows import ChunkBytes, PlannedWindow
from streamdata.shards.readers import DamagedRecordError, SequentialShards
from streamdata.sources.order.blocks import BlockOrder, Part, describe_content, shard_seeds
from streamdata.sources.source import OrderAt, ReadTask, Record, Source, check_position, walk
from streamdata.states.cursor import Position

RECORD_BITS = 40
"""Records of earlier shards are not counted: a record is numbered from its shard's number, shifted by so many bits."""
_RECORDS_AT_ONCE = 256
"""Records of a shard, read from its start, of which it is computed at once whether they are of the part."""


class SequentialSource(Source):
    """Shards that can only be read from their start; each is one block, shuffled in groups held in memory.

    A resume reads the shard in which it stood again from its start. Where one shard of a source is such, all of its
    shards are read this way. It has no anomalies: what the reader counts is what this process has seen so far, which is
    not the same in each.

    Args:
        kind: What the shards are, for descriptions.
        shards: The shards.
        shuffle_buffer: Records in a group; 0 keeps their order.
    """

    def __init__(self, kind: str, shards: SequentialShards, shuffle_buffer: int) -> None:
        self.shards, self._kind = shards, kind
        self.records_per_group = shuffle_buffer
        """How many records are held in memory at once, where they are shuffled."""
        self.num_blocks = len(shards.urls)

    @cached_property
    def counted(self) -> "CountedSource":
        """Return a copy whose records are counted; lanes read the original, so that counts never affect the deal.

        Raises:
            ValueError: A shard is a pipe.
            ShardError: A shard is damaged, or has changed.
        """
        return CountedSource(self._kind, self.shards, self.records_per_group)

    def describe(self, shuffle: bool) -> str:
        group = self.records_per_group if shuffle else 0
        shards = f"{self.num_blocks} shards {describe_content(self.shards)} from their start"
        return f"{self._kind}, {shards}, shuffle {shuffle}, groups of {group}"

    def fetch(self, numbers: Sequence[int], part: Part | None = None) -> Iterator[Record | DamagedRecordError | None]:
        for shard, some in groupby(numbers, lambda number: number >> RECORD_BITS):
            stream = self.shards.stream(shard) if shard < self.num_blocks else iter(())
            record, taken = None, 0
            for before in (number - (shard << RECORD_BITS) for number in some):
                if before >= taken:  # else it comes once more
                    record, taken = next(islice(stream, before - taken, None), None), before + 1
                is_there = part is None or part.holds(np.array([before]), self._shard_seeds[shard]).all()
                yield copy.deepcopy(record) if is_there else None

    def read(self, task: ReadTask, position: Position) -> Iterator[tuple[Record, Position]]:
        without_records: set[int] = set()

        def next_epoch(epoch: int) -> int | None:
            following = task.next_epoch(epoch)
            # It would look on without end, or train on nothing; one lane of several may have nothing.
            if (following is not None or task.lane.count == 1) and len(without_records) == self.num_blocks:
                what = "" if task.part is None else f" of the {task.part}"
                raise SourceError(
                    f"source {shown(task.name)}: expected records{what}, got none in its {self.num_blocks} "
                    "shards, of which "
                    f"the first is {self.shards.urls[0]}\n  Remove the source, or give it records."
                )
            return following

        for start, blocks in walk(partial(_windows, task.order), position, next_epoch):
            epoch, window, found, _ = start
            task.fields[SEED] = task.order.seed(epoch)
            seed = stable_seed(task.order.seed(epoch), task.order.number(epoch, window))
            for record, found in self._read_shard(task, int(blocks[0]), start, seed):
                yield record, (epoch, window, found, 0)
            if not found:  # only now: how many records a shard has shows at its end
                without_records.add(int(blocks[0]))

    def _read_shard(self, task: ReadTask, shard: int, start: Position, seed: int) -> Iterator[tuple[Record, int]]:
        """Its records from the one that comes after those taken, each with how many are taken after it."""
        taken = start[2]
        # Groups begin at the shard's start, whatever was taken: a resume shuffles the same records together.
        size, total = self._group_size(task.order), 0
        stream, of_part = self._stream(task, shard, start), self._of_part(task.part, shard)
        for group, records in enumerate(iter(lambda: list(islice(stream, size)), [])):
            total += len(records)
            done = min(len(records), max(0, taken - group * size))
            order = _order_inside(len(records), size, stable_seed(seed, group))
            holds = list(islice(of_part, len(records)))
            for after, index in enumerate(order[done:].tolist(), group * size + done + 1):
                if not holds[index]:
                    continue
                task.num_found += 1
                record = task.sound_or_damaged(records[index])
                record.update(task.fields)
                record[RECORD] = (task.number, start[0], (shard << RECORD_BITS) + group * size + index, 0)
                yield record, after
        check_position(task.name, f"at record {taken} of {self.shards.urls[shard]}", taken, total)

    def _group_size(self, order: BlockOrder) -> int:
        return self.records_per_group if order.shuffle and self.records_per_group else 1

    def _stream(self, task: ReadTask, shard: int, start: Position) -> Iterator[Record | DamagedRecordError]:
        upcoming = task.upcoming
        if upcoming is None or not self.shards.has_remote:
            return self.shards.stream(shard)
        if not upcoming.is_on:
            upcoming.begin(self._planned(task.orders(start)))
        has_chunks = upcoming.enter(start[:2]).files
        return self.shards.stream(shard, ChunkBytes(upcoming.chunks()) if has_chunks else None)

    def begin_ahead(self, task: ReadTask, upcoming: Upcoming) -> None:
        """Queue what comes later in a task that has begun nothing."""
        upcoming.begin(self._planned(task.later()))

    def _planned(self, orders: Iterator[OrderAt]) -> Iterator[PlannedWindow]:
        """All shards from here on, by their chunks."""
        for order, position in orders:
            for start, blocks in walk(partial(_windows, order), position, order.next_epoch):
                chunks = self.shards.chunks(int(blocks[0]))
                files = [] if chunks is None else [chunks]
                order_inside = np.arange(0 if chunks is None else len(chunks.spans))
                yield PlannedWindow(start[:2], None, files, order_inside)

    def _of_part(self, part: Part | None, shard: int) -> Iterator[bool]:
        """Yields for each record of a shard whether it is of the part."""
        if part is None:
            return repeat(True)
        seed = self._shard_seeds[shard]
        chunks = (part.holds(np.arange(first, first + _RECORDS_AT_ONCE), seed) for first in count(0, _RECORDS_AT_ONCE))
        return chain.from_iterable(chunk.tolist() for chunk in chunks)

    @cached_property
    def _shard_seeds(self) -> npt.NDArray[np.uint64]:
        return shard_seeds([name for name, _ in self.shards.identity()])


class CountedSource(SequentialSource):
    """A sequential source with counted records, for computing what is left of it; no lane reads it."""

    def __init__(self, kind: str, shards: SequentialShards, shuffle_buffer: int) -> None:
        super().__init__(kind, shards, shuffle_buffer)
        self._records = shards.num_records

    def count(self, blocks: Int64s, part: Part | None) -> int:
        if part is None:
            return int(self._records[blocks].sum())
        return sum(self._num_held(part, shard, np.arange(self._records[shard])) for shard in blocks.tolist())

    def count_taken(self, order: BlockOrder, position: Position, part: Part | None) -> int:
        epoch, window, taken, _ = position
        if part is None or not taken:
            return taken
        (shard,) = order.blocks(epoch, window, window + 1).tolist()
        size = self._group_size(order)
        first = taken // size * size
        last = min(size, int(self._records[shard]) - first)
        seed = stable_seed(stable_seed(order.seed(epoch), order.number(epoch, window)), taken // size)
        of_group = first + _order_inside(last, size, seed)[: taken - first]
        return self._num_held(part, shard, np.concatenate([np.arange(first), of_group]))

    def _num_held(self, part: Part, shard: int, numbers: Int64s) -> int:
        return int(np.count_nonzero(part.holds(numbers, self._shard_seeds[shard])))


def _order_inside(count: int, size: int, seed: int) -> Int64s:
    """The order in which the records of a group are read, which has up to `size`."""
    return np.arange(count) if size == 1 else shuffled(count, seed)


def _windows(order: BlockOrder, epoch: int, window: int) -> Iterator[Int64s]:
    """The windows of an epoch from one of a number on: each is a block, which is a shard."""
    return takewhile(len, (order.blocks(epoch, number, number + 1) for number in count(window)))
