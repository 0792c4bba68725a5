"""One lane's records of a source: its share of what earlier sizes left, then its share of all that follows.

`position → segments → records, each with the position after it`
"""

import math
from bisect import bisect_left
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from streamdata.errors import StateError, shown
from streamdata.run import Lane
from streamdata.sources.order.blocks import ALL_EPOCHS, BlockOrder, Epochs, Part
from streamdata.sources.order.deal import Deal, Stretches, num_windows
from streamdata.sources.source import OrderAt, ReadTask, Record, Source
from streamdata.states.cursor import FunctionState, Position
from streamdata.states.headers import Numbers

Records = Iterator[tuple[Record, Position]]

# Few at first: whether there is any shows soon.
_FIRST_BLOCKS, _BLOCKS_AT_ONCE = 64, 1 << 16


@dataclass(frozen=True, kw_only=True)
class DealtSource:
    """A source as it is dealt out: everything that determines a lane's records except its share."""

    name: str
    source: Source
    seeds: tuple[object, ...]
    """Seeds of its order: the seeds and names on the path from the top, and the pass."""
    shuffle: bool
    epochs: Epochs = ALL_EPOCHS
    part: Part | None = None
    """The part that is read; None for all records."""


class DealtStretch(NamedTuple):
    """A stretch of windows that another lane would have read, as the lane reads it that was dealt it."""

    number: int
    """Number of its first window, below 0, as cursors count it."""
    windows: int
    order: BlockOrder
    """Its blocks."""
    start: int
    """Records of the first window, in their shuffled order, that come before it."""
    outputs: int
    """Outputs of the next record that were delivered."""
    stop: int
    """Records of the last window up to its end; -1 for all."""

    def position(self, number: int, taken: int, outputs: int, size: int) -> Position:
        """The position in the stretch's order, given a window, the records taken of it, and outputs."""
        if number == self.number and not (taken or outputs):
            taken, outputs = self.start, self.outputs
        return (*self.order.window_at(number - self.number, size), taken, outputs)

    def end(self, size: int) -> Position:
        """The position in the stretch's order where it ends; `stop` is -1 for the end of its window."""
        return (*self.order.window_at(self.windows - 1, size), self.stop, 0)

    def window_number(self, epoch: int, window: int, size: int) -> int:
        """The cursor's number (below 0) for a window of the stretch's order."""
        return self.number + self.order.windows_before(epoch, size) + window

    def records(self, source: Source, task: ReadTask, start: Position, epoch: int) -> Records:
        """Yield the stretch's records from a position on, each with the position after it."""
        size, end = source.blocks_per_window, (self.number + self.windows - 1, self.stop)
        # Where the list was cut by a mean, it may begin after the last record of its window.
        blocks = self.order.blocks(start[0], start[1] * size, (start[1] + 1) * size)
        if start[2] and (there := source.count(blocks, None)) is not None:
            start = (*start[:2], min(start[2], there), start[3])
        for of_epoch, found in groupby(source.read(task.reading(self.order), start), lambda pair: pair[1][0]):
            number = self.window_number(of_epoch, 0, size)  # windows are numbered through, over epochs
            for record, after in found:
                # Not by the position after it: that of the last record of a block may stand in the next one.
                if self.stop >= 0:
                    _, window, taken, _ = source.start_of(after)
                    if (number + window, taken) >= end:
                        return
                yield record, (epoch, number + after[1], after[2], 0)


class Burst(NamedTuple):
    """An open burst of a stream function, taken over from an earlier lane."""

    number: int
    """Number of its window, below 0: a burst counts as one window."""
    stretches: tuple[DealtStretch, ...]
    """Its records."""
    given: int
    """Outputs that were delivered."""
    outputs: int
    """Outputs of the last record that belong to it; 0 for all."""
    function: FunctionState | None
    left_out: str
    """The code of what was left out of it."""

    @property
    def end(self) -> Position:
        """The position after the burst's last output, as `DealtLane.section` counts positions."""
        last = self.stretches[-1]
        return len(self.stretches) - 1, last.windows - 1, last.stop - 1, self.outputs


class DealtLane:
    """One lane's view of a source: where it begins, and which records follow a position.

    Args:
        dealt: The source.
        deal: How it is dealt out.
        index: The number of the lane.
    """

    def __init__(self, dealt: DealtSource, deal: Deal, index: int) -> None:
        self.dealt, left = dealt, deal.left
        # As if each lane were a rank: the order knows lanes alone.
        lane = Lane(dp_size=deal.lanes, dp_rank=index, num_workers=1, worker=0)
        self.order = BlockOrder(dealt.source.num_blocks, lane, dealt.seeds, dealt.shuffle, dealt.epochs, left.offset)
        """Its blocks from the offset on."""
        self.leftovers: tuple[DealtStretch, ...] = ()
        """Its share of what earlier sizes left, in the sequence in which it is read."""
        self.bursts: tuple[Burst, ...] = ()
        """Its open bursts of earlier lanes, which it reads before these."""
        if len(deal.stretches) or len(left.bursts):  # most sources have none, and there may be thousands
            own = slice(*np.searchsorted(deal.of_stretches[0], [index, index + 1]))
            self.leftovers = self._leftovers(deal.stretches[own], *deal.of_stretches[1:, own])
            self.bursts = tuple(map(partial(self._burst, deal), np.flatnonzero(deal.of_bursts[0] == index).tolist()))
        self._epoch = int(min(left.offset // dealt.source.num_blocks, dealt.epochs.end - 1))
        first = min([0, *map(attrgetter("number"), (*self.bursts, *self.leftovers))])
        self.start: Position = (self._epoch, first, 0, 0)
        """Where the lane begins."""

    def _leftovers(self, stretches: Stretches, numbers: Numbers, windows: Numbers) -> tuple[DealtStretch, ...]:
        rows = zip(numbers.tolist(), windows.tolist(), stretches.tolist(), strict=True)
        return tuple(DealtStretch(number, some, self.order.stretch(*row[:3]), *row[3:]) for number, some, row in rows)

    def _burst(self, deal: Deal, row: int) -> Burst:
        counts = deal.left.bursts["stretches"]
        pulled = deal.left.pulled[counts[:row].sum() : counts[: row + 1].sum()]
        stretches = self._leftovers(pulled, np.zeros(len(pulled), np.int64), num_windows(pulled, deal.cut))
        _, given, outputs = deal.left.bursts[row].tolist()
        function = deal.left.functions.get(row, (None, ""))
        return Burst(int(deal.of_bursts[1, row]), stretches, given, outputs, *function)

    def has_records(self) -> bool:
        """Whether the lane has any record of the part that is read, as far as that can be known."""
        is_any = self.dealt.part is None and (self.has_blocks() or any(item.windows > 1 for item in self.leftovers))
        if self.bursts or is_any:
            return True
        counts = self.counts(self.start)  # of a leftover, too: it may begin after the last record of its window
        if counts is None:
            return self.has_blocks() or len(self.leftovers) > 0
        return any(counts)  # it looks no further than the first blocks that have one

    def has_blocks(self) -> bool:
        """Whether the lane has a share of the blocks that no earlier size had begun."""
        return self.order.next_epoch(self.order.epochs.first - 1) is not None

    def window_start(self, position: Position) -> Position:
        """The start of the window that contains the next record at a position."""
        if position[1] < 0:
            return (*position[:2], 0, 0)
        return self.dealt.source.window_start(self.order, position)

    def after_bursts(self, position: Position) -> Position:
        """The first position after all open bursts; a later position stays."""
        first = self.leftovers[0].number if self.leftovers else 0
        return position if position[1] >= first else (self._epoch, first, 0, 0)

    def check(self, position: Position) -> None:
        """Raise StateError if the lane has nothing at the position.

        Raises:
            StateError: The lane has nothing there.
        """
        epoch, window, _, _ = position
        epochs, first = self.order.epochs, self.start[1] if epoch == self._epoch else 0
        windows = -(-self.order.share(epoch) // self.dealt.source.blocks_per_window)
        if not epochs.first <= epoch < epochs.end:
            until = "" if epochs.end == epochs.first + 1 else f" up to, without, {epochs.end}"
            where, expected = f"epoch {epoch}", f"{epochs.first}{until}"
        elif not first <= window <= windows:
            where = f"window {window} of epoch {epoch}"
            expected = f"at least {first}" if window < first else f"at most {windows}"
        else:
            return
        raise StateError(
            f"source {shown(self.dealt.name)}: states in {where}, expected {expected}\n"
            "  Restore the states as they were saved."
        )

    def counts(self, position: Position) -> Iterator[int] | None:
        """Yield counts of the part's records after the position, a few blocks at a time, without open bursts.

        Returns None if only reading the records shows their number.
        """
        if self.dealt.source.count(np.zeros(1, np.int64), self.dealt.part) is None:
            return None
        return chain.from_iterable(self.counts_of(*each) for each in self.orders(position))

    def counts_of(self, leftover: DealtStretch | None, order: BlockOrder, start: Position) -> Iterator[int]:
        """How many records of the part one of `orders` has, a few blocks at a time."""
        source, part = self.dealt.source, self.dealt.part
        if leftover is None or leftover.stop < 0:
            return _counted(source, part, order, start)
        end = max(start, leftover.end(source.blocks_per_window))
        # What lies after its end is in one window, and counted at once.
        return iter([sum(_counted(source, part, order, start)) - next(_counted(source, part, order, end))])

    def segments(self, task: ReadTask, position: Position) -> Iterator[tuple[int, Records]]:
        """Yield runs of the lane's records from the position on, open bursts left out.

        Each comes with how many outputs of its first record were given before, and with the position after each record.
        """
        source = self.dealt.source
        try:
            for number, (leftover, _, start) in enumerate(self.orders(position)):
                task.later = partial(self.after, position, number)
                if leftover is not None:
                    yield start[3], leftover.records(source, task, start, self._epoch)
                else:
                    yield start[3], source.read(task, start)
        finally:  # also when whoever reads has dropped it
            if task.upcoming is not None:
                task.upcoming.close()

    def after(self, position: Position, number: int) -> Iterator[OrderAt]:
        """The orders after number `number`, counted from the position on, as copies."""
        # An order keeps the permutation of one epoch: two that read apart would make it anew each time.
        return ((copy(order), start) for _, order, start in islice(self.orders(position), number + 1, None))

    def section(self, task: ReadTask, burst: Burst) -> Iterator[tuple[int, Records]]:
        """Yield the records of an open burst, in the form of `segments`; the epoch is the number of the stretch."""
        source = self.dealt.source
        for number, stretch in enumerate(burst.stretches):
            reading = task.reading(stretch.order)
            reading.upcoming = None  # it is read as it comes: what lies after it is the lane's own, or another burst's
            start = stretch.position(0, 0, 0, source.blocks_per_window)
            yield start[3], stretch.records(source, reading, start, number)

    def orders(self, position: Position) -> Iterator[tuple[DealtStretch | None, BlockOrder, Position]]:
        """Leftovers from the position on, then the lane's own share (None): each with its blocks, and where in them."""
        epoch, window, taken, outputs = position
        # A window number of 0 or more comes after all of them.
        for leftover in self.leftovers:
            if leftover.number + leftover.windows > window:
                at = (window, taken, outputs) if window >= leftover.number else (leftover.number, 0, 0)
                yield leftover, leftover.order, leftover.position(*at, self.dealt.source.blocks_per_window)
        yield None, self.order, position if window >= 0 else (epoch, 0, 0, 0)


def _counted(source: Source, part: Part | None, order: BlockOrder, position: Position) -> Iterator[int]:
    """How many records of the part an order has from the position on: those of its window, then of many blocks."""
    epoch: int | None = position[0]
    first, several, size = position[1] * source.blocks_per_window, _FIRST_BLOCKS, source.blocks_per_window
    of_window = source.count(order.blocks(position[0], first, first + size), part)
    assert of_window is not None, "whoever counts one block counts all"
    yield max(0, of_window - source.count_taken(order, position, part))
    first += size
    of_block = source.records_per_block if part is None else None
    while epoch is not None:
        if of_block is not None:  # without the blocks' numbers, each of which takes as long as its record's
            yield max(0, order.share(epoch) - first) * of_block
        while of_block is None and len(blocks := order.blocks(epoch, first, first + several)):
            yield source.count(blocks, part) or 0
            first, several = first + several, _BLOCKS_AT_ONCE
        epoch, first = order.next_epoch(epoch), 0


def position_after(lane: DealtLane, position: Position, records: int) -> Position:
    """The position after `records` more records of the lane's part, starting between two records.

    The records must exist, and their blocks must be countable; leftovers count as in the lane's stream.
    """
    if not records:
        return position
    source, part = lane.dealt.source, lane.dealt.part
    for leftover, order, start in lane.orders(position):
        if leftover is not None and (there := sum(lane.counts_of(leftover, order, start))) < records:
            records -= there
            continue
        found = _Leap(source, part, order, records).go(start)
        if found is None:
            break
        epoch, window, taken, _ = found
        if leftover is not None:
            epoch, window = position[0], leftover.window_number(epoch, window, source.blocks_per_window)
        return epoch, window, taken, 0
    raise AssertionError(f"source {shown(lane.dealt.name)}: {records} records beyond the lane's end")


class _Leap:
    """Goes over blocks of one order; `left` is how many records are still to come."""

    def __init__(self, source: Source, part: Part | None, order: BlockOrder, records: int) -> None:
        self._source, self._part, self._order, self.left = source, part, order, records
        self._size = source.blocks_per_window

    def go(self, start: Position) -> Position | None:
        """The position after the last record; None if the order ends before it."""
        epoch, window, taken, _ = start
        of_block = self._source.records_per_block if self._part is None and self._size == 1 else None
        if of_block is not None:
            return self._by_blocks(of_block, epoch, window, taken)
        # From the beginning of the window: what was taken of it comes again, on paper.
        self.left += self._source.count_taken(self._order, start, self._part)
        following: int | None = epoch
        while following is not None:
            following = self._over_whole_epochs(following) if not window else following
            found = self._in_epoch(following, window)
            if found is not None:
                return found
            following, window = self._order.next_epoch(following), 0
        return None

    def _by_blocks(self, of_block: int, epoch: int, window: int, taken: int) -> Position | None:
        blocks, rest = divmod(taken + self.left, of_block)
        order = self._order
        if order.epochs.end == order.epochs.first + 1:  # one epoch alone: there it must end
            there = order.share(epoch) - window
            if blocks > there or (blocks == there and rest):
                self.left -= there * of_block - taken
                return None
            return epoch, window + blocks, rest, 0
        later, number = order.ahead(epoch, window, blocks)
        if later >= order.epochs.end:  # its last record was the last one of all
            later, number = int(order.epochs.end) - 1, order.share(int(order.epochs.end) - 1)
        return later, number, rest, 0

    def _over_whole_epochs(self, epoch: int) -> int:
        """Pass over epochs of which the lane reads everything: each has as many records."""
        total, order = getattr(self._source, "num_records", None), self._order
        # Of this epoch and all later ones the lane must read every block.
        if self._part is not None or total is None or order.stride > 1:
            return epoch
        if order.length < math.inf or not order.is_whole(epoch):
            return epoch
        epochs = (self.left - 1) // total  # the last record lies in the epoch after these
        epochs = min(epochs, self._order.epochs.end - 1 - epoch)
        self.left -= int(epochs) * total
        return epoch + int(epochs)

    def _in_epoch(self, epoch: int, window: int) -> Position | None:
        """The position after the last record, if it lies in this epoch, from the beginning of a window on."""
        size, several = self._size, max(1, _BLOCKS_AT_ONCE // self._size)
        while len(blocks := self._order.blocks(epoch, window * size, (window + several) * size)):
            count = self._source.count(blocks, self._part)
            assert count is not None, "whoever counts one block counts all"
            if count < self.left:
                self.left, window = self.left - count, window + several
            elif several > 1:  # it lies among these
                several = -(-several // 2)
            else:
                return epoch, window, self._taken(epoch, window), 0
        return None

    def _taken(self, epoch: int, window: int) -> int:
        """How many records of the window are done when so many of the part are."""
        if self._part is None:
            return self.left
        source, order = self._source, self._order
        num_records = source.count(order.blocks(epoch, window * self._size, (window + 1) * self._size), None)
        assert num_records is not None, "whoever counts one block counts all"

        def of_part(taken: int) -> int:
            return source.count_taken(order, (epoch, window, taken, 0), self._part)

        return bisect_left(range(num_records), self.left, key=of_part)
