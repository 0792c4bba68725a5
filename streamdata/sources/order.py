"""The order in which a lane reads the blocks of a source."""

import math
from copy import copy
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.run import Lane, Permutation, stable_seed
from streamdata.sources.rest import AllBlocks, Rest


class Epochs(NamedTuple):
    """Which epochs of a source a stream reads: `first` up to, and without, `end`."""

    first: int = 0
    end: float = math.inf


ALL_EPOCHS = Epochs()


class BlockOrder:
    """One lane's share of the endless sequence of a source's blocks.

    Block number g of the sequence is block `permutation(epoch)[g - epoch · num_blocks]` with `epoch = g //
    num_blocks`. Of the numbers in `rest`, lane l of L reads those at the indices l, l + L, l + 2L … An epoch that does
    not divide by L simply rolls into the next.

    Args:
        num_blocks: Blocks in an epoch, at least 1.
        lane: Who reads.
        seeds: What the order depends on beside the epoch: the seeds and names on the path from the top, and the pass.
        shuffle: Permute the blocks of each epoch; otherwise they come as they lie.
        epochs: Which are read, one after another.
        rest: The numbers that are dealt out to the lanes; by default all.
    """

    def __init__(
        self,
        num_blocks: int,
        lane: Lane,
        seeds: tuple[object, ...],
        shuffle: bool,
        epochs: Epochs = ALL_EPOCHS,
        rest: Rest | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.shuffle = shuffle
        self.epochs = epochs
        self._lane, self._lanes = lane.index, lane.count
        self._seeds = seeds
        self._rest = rest or AllBlocks()
        self._epoch = -1
        self._epoch_seed: int | None = None
        self._permutation: Permutation | None = None
        self._begin = self._end = 0  # the indices of the present epoch, in the rest
        self.max_share: float = math.inf
        """How many of the lane's blocks of an epoch are read at most."""

    def only(self, epoch: int, num_blocks: float = math.inf) -> "BlockOrder":
        """The same order, as if it ended with the epoch, or with so many of the lane's blocks of it."""
        order = copy(self)
        order.epochs, order.max_share = Epochs(epoch, epoch + 1), num_blocks
        return order

    def seed(self, epoch: int) -> int:
        """The seed of the epoch's order, below 2**63."""
        self._enter(epoch)
        # When it is asked for: of most sources of a large mixture only the share is, when a lane begins.
        if self._epoch_seed is None:
            self._epoch_seed = stable_seed(*self._seeds, epoch)
        return self._epoch_seed

    def share(self, epoch: int) -> int:
        """How many blocks of the epoch are this lane's: 0 outside `epochs`, or where lanes outnumber blocks."""
        if not self.epochs.first <= epoch < self.epochs.end:
            return 0
        # The indices first, first + lanes … below the epoch's end; first may lie beyond: many lanes, few blocks.
        first = self._first(epoch)
        return int(min(self.max_share, max(0, -(-(self._end - first) // self._lanes))))

    def is_whole(self, epoch: int) -> bool:
        """Whether nothing of the epoch was begun under an earlier topology."""
        self._enter(epoch)
        return self._end - self._begin == self.num_blocks

    def blocks(self, epoch: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        """The lane's blocks number `start` up to `stop` of the epoch, int64, at most to the end of its share."""
        share = self.share(epoch)
        indices = self._first(epoch) + self._lanes * np.arange(start, max(start, min(stop, share)))
        numbers = self._rest.select(indices) - epoch * self.num_blocks
        return self._permuted(epoch, numbers) if self.shuffle else numbers

    def number(self, epoch: int, index: int) -> int:
        """The number g, in the endless sequence, of the lane's block number `index` of the epoch."""
        return self._rest.number(self._first(epoch) + index * self._lanes)

    def dealt(self, epoch: int, blocks: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where blocks come in an epoch: their numbers in the endless sequence, and the lanes that read them; int64.

        The lane is -1 for what was begun under an earlier topology.
        """
        numbers = blocks
        if self.shuffle:
            numbers = _permutation(self.num_blocks, stable_seed(*self._seeds, epoch)).inverse(blocks)
        numbers = numbers + epoch * self.num_blocks
        indices = self._rest.rank(numbers)
        # Of a number that is not in the rest, this is the index of the next one.
        return numbers, np.where(self._rest.select(indices) == numbers, indices % self._lanes, -1)

    def index_of(self, epoch: int, number: int) -> int:
        """Which of the lane's blocks of an epoch has a number of the endless sequence: the inverse of `number`."""
        return (self._rest.index(number) - self._first(epoch)) // self._lanes

    def ahead(self, epoch: int, index: int, blocks: int) -> tuple[int, int]:
        """Where the lane's block lies that comes so many after number `index` of an epoch: its epoch, its number in it.

        Epochs that the order does not read count, too.
        """
        place = self._first(epoch) + (index + blocks) * self._lanes
        later = self._rest.number(place) // self.num_blocks
        return later, (place - self._first(later)) // self._lanes

    def is_all(self, epoch: int) -> bool:
        """Whether the lane reads every block of the epoch, and of all later ones."""
        return self._lanes == 1 and self.is_whole(epoch)

    def next_epoch(self, epoch: int) -> int | None:
        """The next epoch of which the lane has a share, or None when its stream ends."""
        following = self._rest.number(self._first(epoch + 1)) // self.num_blocks
        return following if following < self.epochs.end else None

    def _permuted(self, epoch: int, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        # One epoch is kept, since they are read one after another; making it anew is cheap, whatever the size.
        if self._permutation is None:
            self._permutation = Permutation(self.num_blocks, self.seed(epoch))
        return self._permutation(numbers)

    def _first(self, epoch: int) -> int:
        """The lane's first index that is not below the epoch's."""
        self._enter(epoch)
        return self._begin + (self._lane - self._begin) % self._lanes

    def _enter(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch = epoch
            self._begin = self._rest.index(epoch * self.num_blocks)
            self._end = self._rest.index((epoch + 1) * self.num_blocks)
            self._epoch_seed = self._permutation = None


@lru_cache(64)
def _permutation(num_blocks: int, seed: int) -> Permutation:
    return Permutation(num_blocks, seed)
