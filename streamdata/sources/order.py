"""The order in which a lane reads the blocks of a source."""

import numpy as np
import numpy.typing as npt

from streamdata.run import Lane, Permutation, stable_seed


class BlockOrder:
    """One lane's share of the endless sequence of a source's blocks.

    Block number g of the sequence is block `permutation(epoch)[g - epoch · num_blocks]` with `epoch = g //
    num_blocks`; lane l of L reads the numbers l, l + L, l + 2L … An epoch that does not divide by L simply rolls into
    the next.

    Args:
        num_blocks: Blocks in an epoch, at least 1.
        lane: Who reads.
        seeds: What the order depends on beside the epoch: the seeds and names on the path from the top, and the pass.
        shuffle: Permute the blocks of each epoch; otherwise they come as they lie.
        only_epoch: The one epoch to read, for a finite stream; None for all, one after another.
    """

    def __init__(
        self, num_blocks: int, lane: Lane, seeds: tuple[object, ...], shuffle: bool, only_epoch: int | None
    ) -> None:
        self.num_blocks = num_blocks
        self.shuffle = shuffle
        self.only_epoch = only_epoch
        self._lane, self._lanes = lane.index, lane.count
        self._seeds = seeds
        self._epoch = -1
        self._epoch_seed = 0
        self._permutation: Permutation | None = None

    def seed(self, epoch: int) -> int:
        """The seed of the epoch's order, below 2**63."""
        self._enter(epoch)
        return self._epoch_seed

    def share(self, epoch: int) -> int:
        """How many blocks of the epoch are this lane's: 0 past the only epoch, or where lanes outnumber blocks."""
        if self.only_epoch is not None and epoch != self.only_epoch:
            return 0
        # The numbers first, first + lanes … below num_blocks; first may lie beyond: many lanes, few blocks.
        return max(0, -(-(self.num_blocks - self._first(epoch)) // self._lanes))

    def blocks(self, epoch: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        """The lane's blocks number `start` up to `stop` of the epoch, int64, at most to the end of its share."""
        self._enter(epoch)
        numbers = self._first(epoch) + self._lanes * np.arange(start, max(start, min(stop, self.share(epoch))))
        return numbers if self._permutation is None else self._permutation(numbers)

    def number(self, epoch: int, index: int) -> int:
        """The number g, in the endless sequence, of the lane's block number `index` of the epoch."""
        return epoch * self.num_blocks + self._first(epoch) + index * self._lanes

    def next_epoch(self, epoch: int) -> int | None:
        """The next epoch of which the lane has a share, or None when its stream ends."""
        if self.only_epoch is not None:
            return None
        following = epoch + 1
        while not self.share(following):
            # The lane's next number lies in a later epoch: many lanes, few blocks.
            following += max(1, self._first(following) // self.num_blocks)
        return following

    def _first(self, epoch: int) -> int:
        # The lane's first number within the epoch, whose numbers begin at epoch * num_blocks.
        return (self._lane - epoch * self.num_blocks) % self._lanes

    def _enter(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch = epoch
            # One epoch is kept, since they are read one after another; making it anew is cheap, whatever the size.
            self._epoch_seed = stable_seed(*self._seeds, epoch)
            self._permutation = Permutation(self.num_blocks, self._epoch_seed) if self.shuffle else None
