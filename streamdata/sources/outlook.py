"""When a node reads a part of a shard again: `bytes → blocks → their numbers in each epoch's order → lanes → when`.

The inverse permutation says which number a block has in the order of an epoch, and so which lane reads it, and whether
that lies before or after what is read now. Nothing of it decides what is read: only what is kept.
"""

import numpy as np
import numpy.typing as npt

from streamdata.run import Permutation, stable_seed
from streamdata.sources.rest import Rest

Indices = npt.NDArray[np.int64]

_EPOCHS_AHEAD = 8


class SourceOutlook:
    """What the order of a source says of its shards.

    Records are taken to be spread evenly over their shard: where exactly each lies is in its index, which may itself be
    remote.

    Args:
        sizes: Bytes of each shard, int64.
        block_ends: How many blocks the shards up to each have, int64.
        seeds: Of the order, see `BlockOrder`.
        shuffle: Whether the blocks of each epoch are permuted.
        rest: The numbers that are dealt out.
        lanes: How many lanes there are.
        own: Those whose processes are on this node.
    """

    def __init__(
        self,
        sizes: Indices,
        block_ends: Indices,
        seeds: tuple[object, ...],
        shuffle: bool,
        rest: Rest,
        lanes: int,
        own: range,
    ) -> None:
        self._sizes, self._block_ends = sizes, block_ends
        self._num_blocks = int(block_ends[-1])
        self._seeds, self._shuffle, self._rest, self._lanes, self._own = seeds, shuffle, rest, lanes, own
        self.reads_all = len(own) == lanes
        self.now = 0
        """The number of the block with which the present window of this process's lane begins."""
        self._permutations: dict[int, Permutation] = {}

    def wanted(self, shard: int, begin: int, end: int) -> list[float]:
        """How many of these bytes the node reads yet in this epoch, and how many in each of the next ones."""
        blocks, sizes = self._blocks(shard, begin, end)
        epoch = self.now // self._num_blocks
        numbers = np.concatenate([self._numbers(blocks, epoch + ahead) for ahead in range(_EPOCHS_AHEAD + 1)])
        indices = self._rest.rank(numbers)
        lanes = indices % self._lanes
        # A number that was begun under an earlier topology is not in the rest: then this is the next one's index.
        is_own = (lanes >= self._own.start) & (lanes < self._own.stop) & (self._rest.select(indices) == numbers)
        is_read = (is_own & (numbers > self.now)).reshape(_EPOCHS_AHEAD + 1, len(blocks))
        found: list[float] = (is_read @ sizes).tolist()
        return found

    def _blocks(self, shard: int, begin: int, end: int) -> tuple[Indices, npt.NDArray[np.float64]]:
        """The blocks that have some of the bytes, and how many of them each has."""
        first = int(self._block_ends[shard - 1]) if shard else 0
        count, size = int(self._block_ends[shard]) - first, max(1, int(self._sizes[shard]))
        end = min(end, size)
        blocks = np.arange(begin * count // size, max(begin * count // size + 1, -(-end * count // size)))
        bounds = np.clip(np.append(blocks, blocks[-1] + 1) * (size / max(1, count)), begin, end)
        return blocks + first, np.diff(bounds)

    def _numbers(self, blocks: Indices, epoch: int) -> Indices:
        """The numbers of blocks in the endless order, in this epoch."""
        if not self._shuffle:
            return blocks + epoch * self._num_blocks
        permutation = self._permutations.get(epoch)
        if permutation is None:
            self._permutations = {known: old for known, old in self._permutations.items() if known > epoch - 2}
            seed = stable_seed(*self._seeds, epoch)
            permutation = self._permutations[epoch] = Permutation(self._num_blocks, seed)
        return permutation.inverse(blocks) + epoch * self._num_blocks
