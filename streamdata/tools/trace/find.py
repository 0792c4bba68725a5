"""At which steps a record came, and when it comes next: `record → its place in the order → the draw → the step`.

The inverse of an epoch's permutation says which lane reads a record, and where in its window it comes. How many samples
the lane has given by then is found by halving: where a source stands after so many samples takes a seek.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from streamdata.fields import KEY
from streamdata.mixing.leaf import Run
from streamdata.mixing.tree import Node
from streamdata.shards.readers import DamagedRecordError, IndexedShards, take_all
from streamdata.sources import DealtLane, MapStyleSource
from streamdata.sources.files.shard_source import BlockSource
from streamdata.sources.source import Sample
from streamdata.tools.trace.course import Stretch
from streamdata.tools.trace.era import Era, OnProgress, RankStream, record_of

_FEW, _MANY = 64, 1 << 20
_MAX_PASSED_OVER = 4
"""Epochs in which a record does not come, until it is not looked for in later ones: each takes several seeks."""
_MAX_EPOCHS = 64
"""Epochs of a source that are looked through for a record which may be of another part in each."""
_AT_ONCE = 256

Place = tuple[int, int, int]
"""Epoch, window, and how many records of the window come before it."""


@dataclass
class WantedRecord:
    """A record that is looked for."""

    source: str | None
    url: str | None = None
    key: str | None = None
    index: int | None = None
    is_known: bool = False
    """Whether some source has it, as far as can be seen without reading."""
    _blocks: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def __str__(self) -> str:
        name = f"{self.url}#{self.key}" if self.url is not None else f"{self.source}#{self.index}"
        return repr(name)

    def is_of(self, sample: Sample) -> bool:
        """Whether a sample was made of it."""
        record = record_of(sample)
        if self.source not in (None, record["source"]):
            return False
        if self.url is None:
            return bool(record.get("index") == self.index)
        return record.get("url") == self.url and record.get("key") == self.key

    def sources(self, era: Era) -> Iterator[Node]:
        """Yield the sources that may have the record."""
        for node in era.top.leaves():
            urls = getattr(getattr(node.source, "shards", None), "urls", None)
            has_url = urls is not None and self.url is not None and self.url in map(str, urls)
            is_indexed = urls is None and self.index is not None and node.path == self.source
            if self.source in (None, node.path) and (has_url or is_indexed):
                self.is_known = True
                yield node

    def blocks(self, node: Node) -> list[tuple[int, int]]:
        """The record's block and its number in that, in each copy of its shard."""
        if node.path not in self._blocks:
            self._blocks[node.path] = list(self._find(node.source))
        return self._blocks[node.path]

    def _find(self, source: Any) -> Iterator[tuple[int, int]]:
        if isinstance(source, MapStyleSource) and self.index is not None:
            if (found := source.block_of(self.index)) is not None:
                yield found
        elif isinstance(source, BlockSource):
            for shard, url in enumerate(source.shards.urls):
                if str(url) == self.url and (number := self._number(source.shards, shard)) is not None:
                    yield source.block_of(shard, number)

    def _number(self, shards: IndexedShards, shard: int) -> int | None:
        """The number of a record in its shard: the key of a line says it, other shards are looked through."""
        total = int(shards.num_records[shard])
        firsts = range(0, total, _AT_ONCE)
        guess = int(self.key) if self.key is not None and self.key.isdecimal() else 0
        nearest = min(guess, max(0, total - 1)) // _AT_ONCE * _AT_ONCE
        for first in (nearest, *(first for first in firsts if first != nearest)):
            size = min(_AT_ONCE, total - first)
            window = shards.window(np.array([shard]), np.array([first]), np.array([size]))
            for number, record in enumerate(take_all(window, np.arange(size)), first):
                key = record.key if isinstance(record, DamagedRecordError) else record[KEY]
                if str(key) == self.key:
                    return number
        return None


class Search:
    """Looks for a record in a stretch.

    Args:
        stretch: The stretch.
        wanted: The record.
        opened: Gives the rank's batches from the stretch's start on.
        on_progress: Called with how many batches were read, of how many at most; or which lane is sought, of how many.
    """

    def __init__(
        self,
        stretch: Stretch,
        wanted: WantedRecord,
        opened: Callable[[Stretch], RankStream],
        on_progress: OnProgress | None = None,
    ) -> None:
        self._stretch, self._wanted, self._open, self._on_progress = stretch, wanted, opened, on_progress
        self._nodes = list(wanted.sources(stretch.era))

    @cached_property
    def _stream(self) -> RankStream:
        return self._open(self._stretch)

    def past_steps(self) -> Iterator[int]:
        """The batches that were delivered, by number."""
        end, done = self._stretch.points[-1], self._stretch.own
        if not self._nodes or not done:
            return
        if self._stream.is_read:
            yield from self._read(done, first_only=False)
            return
        for lane, run in enumerate(self._stream.runs):
            samples = end.samples[run.lane.worker] - self._stretch.points[0].samples[run.lane.worker]
            for node in self._nodes:
                first, last = self._position(run, node, 0), self._position(run, node, samples)
                for place in self._places(run, node, first[0], last[0]):
                    steps = self._step(lane, run, node, place, samples) if first <= place < last else ()
                    yield from (step for step in steps if step < self._stretch.first + done)

    def comes(self, most: int) -> Iterator[int]:
        """The first batch from the beginning of the stretch on; where it has to be read, of at most so many."""
        if not self._nodes:
            return
        if self._stream.is_read:
            yield from self._read(most, first_only=True)
            return
        for lane, run in enumerate(self._stream.runs):
            for node in self._nodes:
                yield from self._next_in_lane(lane, run, node)

    def _read(self, most: int, *, first_only: bool) -> Iterator[int]:
        for step, batch in zip(range(most), self._stream.batches(), strict=False):
            if self._on_progress is not None:
                self._on_progress(step, most)
            if any(map(self._wanted.is_of, batch)):
                yield self._stretch.first + step
                if first_only:
                    return

    def _next_in_lane(self, lane: int, run: Run, node: Node) -> Iterator[int]:
        start, left = self._position(run, node, 0), self._stretch.era.left(run)
        samples, reached, passed_over = _FEW, start, 0
        for place in self._places(run, node, start[0], start[0] + _MAX_EPOCHS):
            if place < start:
                continue
            while samples < left and (now := self._position(run, node, samples)) <= place:
                # Its share is 0, perhaps for ever.
                if samples > _MANY and now == reached:
                    return
                samples, reached = 2 * samples, now
            samples = int(min(samples, left))
            if not samples or self._position(run, node, samples) <= place:
                return
            steps = list(self._step(lane, run, node, place, samples))
            yield from steps
            passed_over += 1
            if steps or passed_over > _MAX_PASSED_OVER:
                return

    def _position(self, run: Run, node: Node, samples: int) -> Place:
        """Where a source stands after so many samples of the lane."""
        if self._on_progress is not None:
            self._on_progress(self._stream.runs.index(run), len(self._stream.runs))
        state = self._stretch.era.after(run, samples).entries.node_state(node.path)
        if state is None:
            return run.deals.lane(node, run.lane.index).start[:3]
        return state.cursor.position[:3]

    def _step(self, lane: int, run: Run, node: Node, place: Place, samples: int) -> Iterator[int]:
        """The step of the batch in which a place comes that so many samples pass; none if its record is left out."""
        least, most = 1, samples
        while least < most:
            middle = (least + most) // 2
            is_reached = self._position(run, node, middle) > place
            least, most = (least, middle) if is_reached else (middle + 1, most)
        # It may be of another part than is read.
        era = self._stretch.era
        sample = next(era.records(era.after(run, least - 1)), None)
        if sample is not None and self._wanted.is_of(sample):
            yield self._stretch.first + self._stream.step_of(lane, least - 1)

    def _places(self, run: Run, node: Node, first: int, last: int) -> Iterator[Place]:
        """Where a lane reads the record, from one epoch to another, in this sequence."""
        source: Any = node.source
        lane = run.deals.lane(node, run.lane.index)
        size, order = source.blocks_per_window, lane.order
        if first <= lane.start[0]:
            yield from sorted(self._places_in_leftovers(lane, node))
        for epoch in range(first, int(min(last + 1, node.epochs.end))):
            for block, offset in self._wanted.blocks(node):
                (number,), _ = order.dealt(epoch, np.array([block]))
                if (index := order.index_of(epoch, int(number))) is not None:
                    yield epoch, index // size, source.place(order, epoch, index // size, block, offset)

    def _places_in_leftovers(self, lane: DealtLane, node: Node) -> Iterator[Place]:
        """Where a lane reads the record in what earlier sizes left."""
        source: Any = node.source
        size = source.blocks_per_window
        for leftover in lane.leftovers:
            order, last = leftover.order, leftover.order.window_at(leftover.windows - 1, size)
            for epoch in range(order.window_at(0, size)[0], last[0] + 1):
                for block, offset in self._wanted.blocks(node):
                    (number,), _ = order.dealt(epoch, np.array([block]))
                    if (index := order.index_of(epoch, int(number))) is None:
                        continue
                    window = index // size
                    place, number = (
                        source.place(order, epoch, window, block, offset),
                        leftover.window_number(epoch, window, size),
                    )
                    is_behind = number == leftover.number and place < leftover.start
                    if not is_behind and not ((epoch, window) == last and 0 <= leftover.stop <= place):
                        yield lane.start[0], number, place
