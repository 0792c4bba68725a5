"""What one lane reads of a source: the pieces that it was dealt, and its share of the rest.

`position → segments → records, each with the position after it`
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from streamdata.errors import StateError, shown
from streamdata.progress import FunctionState, Position
from streamdata.sources.order import BlockOrder, Epochs
from streamdata.sources.part import Part
from streamdata.sources.source import ReadTask, Record, Source, Stretch

Records = Iterator[tuple[Record, Position]]

# Few at first: whether there is any shows soon.
_FIRST_BLOCKS, _BLOCKS_AT_ONCE = 64, 1 << 16


@dataclass(frozen=True, kw_only=True)
class DealtSource:
    """What determines how a source is dealt out, beside the lanes and what they had begun."""

    name: str
    source: Source
    seeds: tuple[object, ...]
    """Of its order: the seeds and names on the path from the top, and the pass."""
    shuffle: bool
    epochs: Epochs
    """Those that are read."""
    has_stream_fn: bool
    part: Part | None = None
    """Which of its records are read; None for all."""


class DealtPiece(NamedTuple):
    """What a lane goes on with, of a lane of an earlier topology."""

    epoch: int
    number: int
    """With the epoch, how a cursor says it; below 0."""
    order: BlockOrder
    """The blocks of the lane that began it."""
    begun_by: Callable[[], "DealtLane"]
    """That lane. Made when it is asked for: its own pieces lead to lanes of still earlier topologies, and so on."""
    start: Position
    end: Position | None
    """Of a burst. A tail ends with its window."""
    given: int
    function: FunctionState | None
    left_out: str
    """Of a burst, the code of what was left out of it."""


class DealtLane:
    """What one lane of a deal reads of a source: pieces, and its share of the rest.

    Args:
        dealt: The source.
        order: The lane's blocks of the rest, in the epochs that it reads.
        pieces: Its pieces of these epochs, in the order in which they are read.
        first_epoch: Of the deal.
    """

    def __init__(self, dealt: DealtSource, order: BlockOrder, pieces: tuple[DealtPiece, ...], first_epoch: int) -> None:
        self.dealt, self.order = dealt, order
        self.bursts = [piece for piece in pieces if piece.end is not None]
        self._tails = [piece for piece in pieces if piece.end is None]
        # A deal may begin in an epoch that is not read any more: in a finite stream there may be nothing left.
        epoch = int(min(first_epoch, order.epochs.end - 1))
        self.start: Position = (epoch, self._first_number(epoch, pieces), 0, 0)
        """Where the lane begins."""

    def has_records(self) -> bool:
        """Whether the lane has a share of these epochs: where it can be known, a record of the part that is read."""
        if self.bursts:
            return True
        if self.dealt.part is not None and (counts := self.counts(self.start)) is not None:
            return any(counts)  # it looks no further than the first blocks that have one
        if self.has_blocks():
            return True
        return any(not self._is_finished(tail) for tail in self._tails)

    def has_blocks(self) -> bool:
        """Whether the lane has a share of the rest in these epochs."""
        return self.order.next_epoch(self.order.epochs.first - 1) is not None

    def window_start(self, position: Position) -> Position:
        """The beginning of the window, or piece, in which the next record at the position lies."""
        if position[1] < 0:
            return (*position[:2], 0, 0)
        return self.dealt.source.window_start(self.order, position)

    def after_bursts(self, position: Position) -> Position:
        """Where the lane goes on with what is not an open burst."""
        epoch, window, _, _ = position
        if not any((burst.epoch, burst.number) == (epoch, window) for burst in self.bursts):
            return position
        return epoch, self._first_number(epoch, self._tails), 0, 0

    def tails_of(self, epoch: int) -> list[DealtPiece]:
        """The tails of windows that it reads as a part of an epoch."""
        return [tail for tail in self._tails if tail.epoch == epoch]

    def check(self, position: Position) -> None:
        """Refuse a position where the lane has nothing.

        Raises:
            StateError: It is one.
        """
        name, source = self.dealt.name, self.dealt.source
        epoch, window, _, _ = position
        if not self.order.epochs.first <= epoch < self.order.epochs.end:
            raise StateError(
                f"source {shown(name)}: states in epoch {epoch}, expected {_in_words(self.order.epochs)}\n"
                "  Restore the states as they were saved."
            )
        first = min((piece.number for piece in (*self.bursts, *self._tails) if piece.epoch == epoch), default=0)
        windows = -(-self.order.share(epoch) // source.blocks_per_window)
        if not first <= window <= windows:
            bound = f"at least {first}" if window < first else f"at most {windows}"
            raise StateError(
                f"source {shown(name)}: states in window {window} of epoch {epoch}, expected {bound}\n"
                "  Restore the states as they were saved."
            )

    def counts(self, position: Position) -> Iterator[int] | None:
        """How many records of the part are left from the position on, a few blocks at a time, open bursts left out.

        None where nobody knows before they are read.
        """
        source, part = self.dealt.source, self.dealt.part
        if source.count(np.zeros(1, np.int64), part) is None:
            return None
        stretches = (_counted(source, part, order, start) for _, order, start in self.stretches(position))
        return chain.from_iterable(stretches)

    def segments(self, task: ReadTask, position: Position) -> Iterator[tuple[int, Records]]:
        """Yield runs of the lane's records from the position on, open bursts left out.

        Each comes with how many outputs of its first record were given before, and with the position after each record.
        """
        source = self.dealt.source
        try:
            for number, (tail, order, start) in enumerate(self.stretches(position)):
                task.later = partial(self._after, position, number)
                if tail is not None:
                    yield start[3], self._read_tail(task, tail, order, start)
                else:
                    yield start[3], source.read(task if order is self.order else task.reading(order), start)
        finally:  # also when whoever reads has dropped it
            if task.upcoming is not None:
                task.upcoming.close()

    def _after(self, position: Position, number: int) -> Iterator[Stretch]:
        """What comes after stretch `number` from the position on."""
        return ((order, start) for _, order, start in islice(self.stretches(position), number + 1, None))

    def section(self, task: ReadTask, piece: DealtPiece) -> Iterator[tuple[int, Records]]:
        """The records from the start of an open burst on, as `segments`; its end is the caller's to find."""
        burst = task.reading(piece.order)
        # Where it ends shows only when it is read: what comes after it in that lane was not dealt to this one.
        burst.upcoming = task.upcoming and task.upcoming.alone()
        return piece.begun_by().segments(burst, piece.start)

    def stretches(self, position: Position) -> Iterator[tuple[DealtPiece | None, BlockOrder, Position]]:
        """What lies from the position on: blocks and a position in them, and of which tail they are."""
        order = self.order
        epoch: int | None = position[0]
        last = max((tail.epoch for tail in self._tails), default=-1)
        while epoch is not None and epoch <= last:
            _, window, taken, part = position
            for tail in self._tails:
                if tail.epoch == epoch and tail.number >= window:
                    # What a cursor says of a piece is counted as in its window; 0 stands for where the piece begins.
                    start = max(tail.start[2:], (taken, part) if tail.number == window else (0, 0))
                    tail_epoch, tail_window, _, _ = tail.start
                    blocks = tail.order.only(tail_epoch, (tail_window + 1) * self.dealt.source.blocks_per_window)
                    yield tail, blocks, (tail_epoch, tail_window, *start)
            if window < 0:
                position = epoch, 0, 0, 0
            # Epoch by epoch, as long as pieces lie between; then the source rolls from one to the next by itself.
            if order.share(epoch):
                yield None, order.only(epoch), position
            epoch = self._next_epoch(epoch)
            # Not window 0: the tails of a later epoch come before it, too.
            position = epoch or 0, self._first_number(epoch, self._tails) if epoch is not None else 0, 0, 0
        if epoch is not None:
            yield None, order, position

    def _read_tail(self, task: ReadTask, tail: DealtPiece, order: BlockOrder, start: Position) -> Records:
        for record, (_, after, taken, _) in self.dealt.source.read(task.reading(order), start):
            within = after == start[1]
            yield record, (tail.epoch, tail.number if within else tail.number + 1, taken if within else 0, 0)

    def _next_epoch(self, epoch: int) -> int | None:
        later = [tail.epoch for tail in self._tails if tail.epoch > epoch]
        following = self.order.next_epoch(epoch)
        return min([*later, *([] if following is None else [following])], default=None)

    def _is_finished(self, tail: DealtPiece) -> bool:
        return self.dealt.source.window_start(tail.order, tail.start)[1] > tail.start[1]

    @staticmethod
    def _first_number(epoch: int, pieces: Iterable[DealtPiece]) -> int:
        return min((piece.number for piece in pieces if piece.epoch == epoch), default=0)


def _counted(source: Source, part: Part | None, order: BlockOrder, position: Position) -> Iterator[int]:
    """How many records of the part an order has from the position on: those of its window, then of many blocks."""
    epoch: int | None = position[0]
    size, first = source.blocks_per_window, position[1] * source.blocks_per_window
    of_window = source.count(order.blocks(position[0], first, first + size), part)
    assert of_window is not None, "whoever counts one block counts all"
    yield of_window - source.count_taken(order, position, part)
    first += size
    several, of_block = _FIRST_BLOCKS, source.records_per_block if part is None else None
    while epoch is not None:
        if of_block is not None:  # without the blocks' numbers, each of which takes as long as its record's
            yield max(0, order.share(epoch) - first) * of_block
        while of_block is None and len(blocks := order.blocks(epoch, first, first + several)):
            yield source.count(blocks, part) or 0
            first, several = first + several, _BLOCKS_AT_ONCE
        epoch, first = order.next_epoch(epoch), 0


def _in_words(epochs: Epochs) -> str:
    return f"{epochs.first}" if epochs.end == epochs.first + 1 else f"{epochs.first} up to, without, {epochs.end}"
