"""Where a lane stands after so many more records of a source: by counting blocks, and reading none."""

from streamdata.errors import shown
from streamdata.sources.order.blocks import BlockOrder
from streamdata.sources.order.dealt_lane import DealtLane
from streamdata.sources.order.part import Part
from streamdata.sources.source import Source
from streamdata.states.cursor import Position

_BLOCKS_AT_ONCE = 1 << 16


def position_after(lane: DealtLane, position: Position, records: int) -> Position:
    """The position after so many records of the lane's part, from a position between two records on.

    They must be there, and their blocks must be countable; leftovers count as in the lane's stream.
    """
    if not records:
        return position
    source, part = lane.dealt.source, lane.dealt.part
    for leftover, order, start in lane.stretches(position):
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
        """The position after the last record; None where the order ends before."""
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
        total = getattr(self._source, "num_records", None)
        if self._part is not None or total is None or not self._order.is_all(epoch):
            return epoch
        epochs = (self.left - 1) // total  # the last record lies in the epoch after these
        epochs = min(epochs, self._order.epochs.end - 1 - epoch)
        self.left -= int(epochs) * total
        return epoch + int(epochs)

    def _in_epoch(self, epoch: int, window: int) -> Position | None:
        """The same within one epoch, from the beginning of a window on."""
        size, several = self._size, max(1, _BLOCKS_AT_ONCE // self._size)
        while len(blocks := self._order.blocks(epoch, window * size, (window + several) * size)):
            count = self._source.count(blocks, self._part)
            assert count is not None, "whoever counts one block counts all"
            if count < self.left:
                self.left, window = self.left - count, window + several
            elif several > 1:  # it lies among these
                several = -(-several // 2)
            else:
                return epoch, window, self._taken(epoch, window, count), 0
        return None

    def _taken(self, epoch: int, window: int, count: int) -> int:
        """How many records of the window are done when so many of the part are."""
        if self._part is None:
            return self.left
        least, most = self.left, max(1, count)
        while self._of_part(epoch, window, most) < self.left:
            least, most = most + 1, 2 * most
        while least < most:  # the smallest number of records of which enough are of the part
            middle = (least + most) // 2
            is_enough = self._of_part(epoch, window, middle) >= self.left
            least, most = (least, middle) if is_enough else (middle + 1, most)
        return least

    def _of_part(self, epoch: int, window: int, taken: int) -> int:
        return self._source.count_taken(self._order, (epoch, window, taken, 0), self._part)
