"""At which steps a record came, and when it comes next: `record → its place in the order → the draw → the step`.

The inverse of an epoch's permutation says which lane reads a record, and where in its window it comes. How many samples
the lane has given by then is found by halving: where a source stands after so many samples takes a seek.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any, cast

import numpy as np

from streamdata.fields import KEY, RECORD, RECORD_IDS, SAMPLES, SOURCE_IDS
from streamdata.mixing.tree import Node, source_names
from streamdata.shards.readers import DamagedRecordError, IndexedShards, take_all
from streamdata.sources import MapStyleSource
from streamdata.sources.files.sequential_source import RECORD_BITS, SequentialSource
from streamdata.sources.files.shard_source import BlockSource
from streamdata.sources.source import Record, Sample
from streamdata.tools.trace.era import Era, LaneBatches, Leg, OnProgress, RankStream

_FEW, _MANY = 64, 1 << 20
_MAX_PASSED_OVER = 4
"""Epochs in which a record does not come, until it is not looked for in later ones: each takes several seeks."""
_MAX_EPOCHS = 64
"""Epochs of a source that are looked through for a record which may be of another part in each."""
_AT_ONCE = 256

Block = tuple[int, int]
"""A block, and a record's number in it."""
Place = tuple[int, int, int]
"""Epoch, window, and how many records of the window come before it."""


@dataclass
class WantedRecord:
    """A record that is looked for: URL#KEY, or SOURCE#INDEX of a source without shards."""

    place: str
    """The url, or the source's path."""
    key: str
    """The key, or the index."""
    is_known: bool = False
    """Whether some source has it, as far as can be seen without reading."""
    _found: dict[str, list[tuple[int, Block | None]]] = field(default_factory=dict)

    def __str__(self) -> str:
        return repr(f"{self.place}#{self.key}")

    def sources(self, era: Era) -> Iterator[Node]:
        """Yield the sources that may have the record."""
        for node in era.top.leaves():
            urls = getattr(getattr(node.source, "shards", None), "urls", None)
            is_indexed = urls is None and node.path == self.place and self.key.isascii() and self.key.isdigit()
            if is_indexed or (urls is not None and self.place in map(str, urls)):
                self.is_known = True
                yield node

    def blocks(self, node: Node) -> list[Block]:
        """Where a source has the record, in each copy of its shard."""
        return [block for _, block in self._in(node) if block is not None]

    def ids(self, era: Era) -> set[tuple[int, int]]:
        """The record as `source_ids` and `record_ids` name it: its source, and its number there, of each copy."""
        names = source_names(era.top.dataset)
        return {(names.index(node.path), number) for node in self.sources(era) for number, _ in self._in(node)}

    def _in(self, node: Node) -> list[tuple[int, Block | None]]:
        if node.path not in self._found:
            self._found[node.path] = list(self._find(node.source))
        return self._found[node.path]

    def _find(self, source: Any) -> Iterator[tuple[int, Block | None]]:
        """The numbers of the record in a source, with its blocks, if these have numbered records."""
        if isinstance(source, MapStyleSource):
            yield int(self.key), source.block_of(int(self.key))
        elif isinstance(source, BlockSource | SequentialSource):
            for shard, url in enumerate(source.shards.urls):
                if str(url) != self.place:
                    continue
                if isinstance(source, SequentialSource):
                    keys = (_key_of(record) for record in source.shards.stream(shard))
                    found = next((number for number, key in enumerate(keys) if key == self.key), None)
                    yield from () if found is None else [((shard << RECORD_BITS) + found, None)]
                elif (number := self._number(source.shards, shard)) is not None:
                    first = int(source.shards.num_records[:shard].sum())
                    yield first + number, source.block_of(shard, number)

    def _number(self, shards: IndexedShards, shard: int) -> int | None:
        """The number of a record in its shard: the key of a line says it, other shards are looked through."""
        total = int(shards.num_records[shard])
        firsts = range(0, total, _AT_ONCE)
        guess = int(self.key) if self.key.isdecimal() else 0
        nearest = min(guess, max(0, total - 1)) // _AT_ONCE * _AT_ONCE
        for first in (nearest, *(first for first in firsts if first != nearest)):
            size = min(_AT_ONCE, total - first)
            window = shards.window(np.array([shard]), np.array([first]), np.array([size]))
            for number, record in enumerate(take_all(window, np.arange(size)), first):
                if _key_of(record) == self.key:
                    return number
        return None


def _key_of(record: Record | DamagedRecordError) -> str:
    return record.key if isinstance(record, DamagedRecordError) else str(record[KEY])


def _records_in(sample: Sample) -> set[tuple[int, int]]:
    """The records that a sample was made of: source, and number there."""
    if SAMPLES in sample:
        return set().union(*map(_records_in, sample[SAMPLES]))
    if SOURCE_IDS in sample:
        return set(zip(sample[SOURCE_IDS].tolist(), sample[RECORD_IDS][:, 1].tolist(), strict=True))
    return {(sample[RECORD][0], sample[RECORD][2])}


def batches_with(wanted: WantedRecord, leg: Leg, most: int, on_progress: OnProgress) -> Iterator[int]:
    """The batches of a rank's leg that have a record, by number; of what is to come, the first one of each lane.

    Args:
        wanted: The record.
        leg: The leg.
        most: So many batches of what is to come are read where it has to be.
        on_progress: Told how many batches were read, of how many at most; or which lane is sought, of how many.
    """
    nodes = list(wanted.sources(leg.era))
    if not nodes or not (leg.own or leg.end is None):
        return
    stream, ids = RankStream(leg, on_progress), wanted.ids(leg.era)
    if stream.is_read:
        at_most = most if leg.end is None else leg.own
        for number, batch in zip(range(at_most), stream.batches(), strict=False):
            on_progress(number, at_most)
            if any(ids & _records_in(sample) for sample in batch):
                yield leg.first + number
                if leg.end is None:
                    return
        return
    for lane, node in product(stream.lanes, nodes):
        places = _Sought(wanted, stream, lane, node).batches()
        if leg.end is not None:
            yield from (number for number in places if number is not None and number < leg.first + leg.own)
        else:
            come = (number for number in islice(places, 1 + _MAX_PASSED_OVER) if number is not None)
            yield from islice(come, 1)


class _Sought:
    """Looks for a record of a source in what a lane reads in a leg, without reading what comes before it."""

    def __init__(self, wanted: WantedRecord, stream: RankStream, lane: LaneBatches, node: Node) -> None:
        self._wanted, self._stream, self._lane, self._node = wanted, stream, lane, node
        self._era, self._source = stream.leg.era, cast("Any", node.source)
        self._dealt = lane.run.deals.lane(node, lane.run.lane.index)

    def batches(self) -> Iterator[int | None]:
        """Yield for each place in the lane's order that has the record its batch; None if it is left out there."""
        start = self._position(0)
        if self._stream.leg.end is not None:
            most = self._lane.samples_in(int(self._lane.total))
            there, last = float(most), self._position(most)[0]
        else:
            most, there, last = _FEW, self._era.left(self._lane.run), start[0] + _MAX_EPOCHS
        least, reached = 1, start
        for place in self._places(start[0], last):
            if place < start:
                continue
            while (now := self._position(int(min(most, there)))) <= place:
                # Or its share is 0, perhaps for ever.
                if most >= there or (most > _MANY and now == reached):
                    return
                most, reached = 2 * most, now
            end = int(min(most, there))
            least += bisect_left(range(least, end), True, key=lambda samples: self._position(samples) > place)
            # It may be of another part than is read.
            sample = next(self._era.samples(self._lane.run, least - 1, bare=True), None)
            is_there = sample is not None and bool(self._wanted.ids(self._era) & _records_in(sample))
            yield self._stream.number_of(self._lane, least - 1) if is_there else None

    def _position(self, samples: int) -> Place:
        """Where the source stands after so many samples of the lane."""
        self._stream.on_progress(self._stream.lanes.index(self._lane), len(self._stream.lanes))
        state = self._era.after(self._lane.run, samples).entries.node_state(self._node.path)
        return (self._dealt.start if state is None else state.cursor.position)[:3]

    def _places(self, first: int, last_epoch: int) -> Iterator[Place]:
        """Where the lane reads the record, from one epoch to another, in this sequence."""
        order, size, left_over = self._dealt.order, self._source.blocks_per_window, list[Place]()
        for leftover in self._dealt.leftovers if first <= self._dealt.start[0] else ():
            begin, last = (leftover.order.window_at(at, size) for at in (0, leftover.windows - 1))
            for epoch in range(begin[0], last[0] + 1):
                for window, place in self._places_in(leftover.order, epoch, size):
                    number = leftover.window_number(epoch, window, size)
                    is_behind = number == leftover.number and place < leftover.start
                    if not is_behind and not ((epoch, window) == last and 0 <= leftover.stop <= place):
                        left_over.append((self._dealt.start[0], number, place))
        yield from sorted(left_over)
        for epoch in range(first, int(min(last_epoch + 1, self._node.epochs.end))):
            yield from sorted((epoch, window, place) for window, place in self._places_in(order, epoch, size))

    def _places_in(self, order: Any, epoch: int, size: int) -> Iterator[tuple[int, int]]:
        """The windows of an epoch that have the record, and how many records come before it there."""
        for block, offset in self._wanted.blocks(self._node):
            (number,), _ = order.dealt(epoch, np.array([block]))
            if (index := order.index_of(epoch, int(number))) is not None:
                window = index // size
                yield window, self._source.place(order, epoch, window, block, offset)
