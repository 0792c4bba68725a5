"""A source as one size of a run deals it out: `Leftovers, number of lanes → Deal → DealtLane → records`."""

import numpy as np

from streamdata.progress import Leftovers
from streamdata.run import Lane
from streamdata.sources.dealing import Dealing
from streamdata.sources.dealt_lane import Burst, DealtLane, DealtSource, Leftover
from streamdata.sources.order import BlockOrder
from streamdata.sources.stretches import num_windows


class Deal(Dealing):
    """A source under one size, in one pass, to be read.

    Args:
        dealt: The source.
        epoch_pass: The pass.
        lanes: How many lanes there are.
        left: What earlier sizes left.
    """

    def __init__(self, dealt: DealtSource, epoch_pass: int, lanes: int, left: Leftovers) -> None:
        super().__init__(dealt.name, dealt.cut, epoch_pass, lanes, left)
        self.dealt = dealt

    def lane(self, index: int) -> DealtLane:
        """What one of the lanes reads."""
        order = self.order(index)
        # As plain numbers: a few for each lane, which are asked for one by one.
        own = slice(*np.searchsorted(self.of_stretches.lanes, [index, index + 1]))
        numbers = [*self.of_stretches.numbers[own].tolist(), 0]
        leftovers = tuple(
            Leftover(number, following - number, order.stretch(first, stride, blocks), start, outputs, stop)
            for number, following, (first, stride, blocks, start, outputs, stop) in zip(
                numbers, numbers[1:], self.stretches[own].tolist(), strict=False
            )
        )
        bursts = tuple(self._burst(row, order) for row in np.flatnonzero(self.of_bursts.lanes == index).tolist())
        return DealtLane(self.dealt, order, leftovers, bursts)

    def order(self, index: int) -> BlockOrder:
        """The blocks from the offset on that one of the lanes reads."""
        dealt = self.dealt
        # As if each lane were a rank: the order knows lanes alone.
        lane = Lane(dp_size=self.lanes, dp_rank=index, num_workers=1, worker=0)
        return BlockOrder(self.cut.blocks, lane, dealt.seeds, dealt.shuffle, dealt.epochs, self.left.offset)

    def _burst(self, row: int, order: BlockOrder) -> Burst:
        _, given, outputs = self.left.bursts[row].tolist()
        pulled = self.pulled[row]
        stretches = tuple(
            Leftover(0, windows, order.stretch(first, stride, blocks), *rest)
            for windows, (first, stride, blocks, *rest) in zip(
                num_windows(pulled, self.cut).tolist(), pulled.tolist(), strict=True
            )
        )
        function = self.left.functions.get(row, (None, ""))
        return Burst(int(self.of_bursts.numbers[row]), stretches, given, outputs, *function)
