"""When a node reads a part of a shard again: `bytes → blocks → where they come in the orders of epochs → when`.

The inverse permutation says which number a block has in the order of an epoch, and so which lane reads it, and whether
that lies before or after what is read now. Nothing of it decides what is read: only what is kept.
"""

import numpy as np
import numpy.typing as npt

from streamdata.sources.order.blocks import BlockOrder

Indices = npt.NDArray[np.int64]

# Of eight nodes that read all of a source together, each reads two thirds of it again within so many epochs.
_EPOCHS_AHEAD = 8
_MAX_KNOWN = 1 << 16


class SourceOutlook:
    """What the order of a source says of its shards.

    Records are taken to be spread evenly over their shard: where exactly each lies is in its index, which may itself be
    remote.

    Args:
        sizes: Bytes of each shard, int64.
        block_ends: How many blocks the shards up to each have, int64.
        order: Of any lane.
        own: The lanes whose processes are on this node.
        reads_all: Whether these are all lanes.
    """

    def __init__(self, sizes: Indices, block_ends: Indices, order: BlockOrder, own: range, *, reads_all: bool) -> None:
        self._sizes, self._block_ends, self._order, self._own = sizes, block_ends, order, own
        self.reads_all = reads_all
        self._epoch, self._known = -1, dict[tuple[int, int, int], list[float]]()
        self.now = 0
        """The number of the block with which the present window of this process's lane begins."""

    def wanted(self, shard: int, begin: int, end: int) -> list[float]:
        """How many of these bytes the node reads yet in this epoch, and how many in each of the next ones."""
        epoch = self.now // self._order.num_blocks
        if epoch != self._epoch or len(self._known) > _MAX_KNOWN:
            self._epoch, self._known = epoch, {}
        # Of the next epochs it is the same until this one ends, and is asked for at each read of the page.
        later = self._known.get((shard, begin, end))
        blocks, sizes = self._blocks(shard, begin, end)
        if later is None:
            later = [self._read_in(epoch + 1 + ahead, blocks, sizes) for ahead in range(_EPOCHS_AHEAD)]
            self._known[shard, begin, end] = later
        return [self._read_in(epoch, blocks, sizes), *later]

    def _read_in(self, epoch: int, blocks: Indices, sizes: npt.NDArray[np.float64]) -> float:
        numbers, lanes = self._order.dealt(epoch, blocks)
        is_read = (lanes >= self._own.start) & (lanes < self._own.stop) & (numbers > self.now)
        return float(is_read @ sizes)

    def _blocks(self, shard: int, begin: int, end: int) -> tuple[Indices, npt.NDArray[np.float64]]:
        """The blocks that have some of the bytes, and how many of them each has."""
        first = int(self._block_ends[shard - 1]) if shard else 0
        count, size = int(self._block_ends[shard]) - first, max(1, int(self._sizes[shard]))
        end = min(end, size)
        blocks = np.arange(begin * count // size, max(begin * count // size + 1, -(-end * count // size)))
        # What a block has beyond the range, at either end, is not asked for.
        bounds = np.clip(np.append(blocks, blocks[-1] + 1) * (size / max(1, count)), begin, end)
        return blocks + first, np.diff(bounds)
