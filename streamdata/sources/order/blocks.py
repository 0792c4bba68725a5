"""The order in which a lane reads the blocks of a source."""

import math
from copy import copy
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.run import Lane, Permutation, stable_seed


class Epochs(NamedTuple):
    """Which epochs of a source a stream reads: `first` up to, and without, `end`."""

    first: int = 0
    end: float = math.inf


ALL_EPOCHS = Epochs()


class BlockOrder:
    """The blocks of a source that one lane reads: every so-many-th number of the source's endless sequence.

    Block number g of the sequence is block `permutation(epoch)[g - epoch · num_blocks]` with `epoch = g //
    num_blocks`. Lane l of L reads the numbers `offset + l`, `offset + l + L`, `offset + l + 2L` … An epoch that does
    not divide by L simply rolls into the next.

    Args:
        num_blocks: Blocks in an epoch, at least 1.
        lane: Who reads.
        seeds: What the order depends on beside the epoch: the seeds and names on the path from the top, and the pass.
        shuffle: Permute the blocks of each epoch; otherwise they come as they lie.
        epochs: Which are read, one after another.
        offset: The first number that is dealt out to the lanes; what lies before it, an earlier size had.
    """

    def __init__(
        self,
        num_blocks: int,
        lane: Lane,
        seeds: tuple[object, ...],
        shuffle: bool,
        epochs: Epochs = ALL_EPOCHS,
        offset: int = 0,
    ) -> None:
        self.num_blocks = num_blocks
        self.shuffle = shuffle
        self.epochs = epochs
        self.offset = offset
        self.first, self.stride, self.length = offset + lane.index, lane.count, math.inf
        self._seeds = seeds
        self._epoch = -1
        self._epoch_seed: int | None = None
        self._permutation: Permutation | None = None

    def stretch(self, first: int, stride: int, num_blocks: int) -> "BlockOrder":
        """The order of so many numbers `first`, `first + stride` … alone."""
        # A copy: it shares nothing that changes but by being made anew.
        order = copy(self)
        order.first, order.stride, order.length = first, stride, num_blocks
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
        return self._index(epoch + 1) - self._index(epoch)

    def is_whole(self, epoch: int) -> bool:
        """Whether nothing of the epoch was begun under an earlier size."""
        return epoch * self.num_blocks >= self.offset

    def blocks(self, epoch: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        """The lane's blocks number `start` up to `stop` of the epoch, int64, at most to the end of its share."""
        numbers = np.arange(start, max(start, min(stop, self.share(epoch)))) * self.stride
        numbers += self.number(epoch, 0) - epoch * self.num_blocks
        return self._permuted(epoch, numbers) if self.shuffle else numbers

    def number(self, epoch: int, index: int) -> int:
        """The number g, in the endless sequence, of the lane's block number `index` of the epoch."""
        return self.first + (self._index(epoch) + index) * self.stride

    def dealt(self, epoch: int, blocks: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where blocks come in an epoch: their numbers in the endless sequence, and the lanes that read them; int64.

        The lane is -1 for what lies before the offset.
        """
        numbers = blocks
        if self.shuffle:
            numbers = _permutation(self.num_blocks, stable_seed(*self._seeds, epoch)).inverse(blocks)
        numbers = numbers + epoch * self.num_blocks
        return numbers, np.where(numbers >= self.offset, (numbers - self.offset) % self.stride, -1)

    def index_of(self, epoch: int, number: int) -> int | None:
        """Which of the lane's blocks of an epoch has a number of the endless sequence; None where none has."""
        index, rest = divmod(number - self.first, self.stride)
        is_own = not rest and 0 <= index < self.length
        return index - self._index(epoch) if is_own else None

    def ahead(self, epoch: int, index: int, blocks: int) -> tuple[int, int]:
        """Where the lane's block lies that comes so many after number `index` of an epoch: its epoch, its number in it.

        Epochs that the order does not read count, too.
        """
        place = self._index(epoch) + index + blocks
        later = (self.first + place * self.stride) // self.num_blocks
        return later, place - self._index(later)

    def is_all(self, epoch: int) -> bool:
        """Whether the lane reads every block of the epoch, and of all later ones."""
        return self.stride == 1 and self.is_whole(epoch) and math.isinf(self.length)

    def next_epoch(self, epoch: int) -> int | None:
        """The next epoch of which the lane has a share, or None when its stream ends."""
        index = self._index(epoch + 1)
        following = (self.first + index * self.stride) // self.num_blocks
        return following if index < self.length and following < self.epochs.end else None

    def window_at(self, number: int, size: int) -> tuple[int, int]:
        """The epoch of a window of `size` blocks, counted from the order's start, and its number in that epoch."""
        epoch = self.first // self.num_blocks
        while size > 1 and number >= (windows := -(-self.share(epoch) // size)):
            following = self.next_epoch(epoch)
            if following is None:
                break
            number, epoch = number - windows, following
        return (epoch, number) if size > 1 else self.ahead(epoch, 0, number)

    def windows_before(self, epoch: int, size: int) -> int:
        """How many windows of `size` blocks come before an epoch."""
        if size == 1:
            return self._index(epoch)
        windows, present = 0, self.first // self.num_blocks
        while present < epoch:
            windows += -(-self.share(present) // size)
            present = following if (following := self.next_epoch(present)) is not None else epoch
        return windows

    def _permuted(self, epoch: int, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        # One epoch is kept, since they are read one after another; making it anew is cheap, whatever the size.
        self._enter(epoch)
        if self._permutation is None:
            self._permutation = Permutation(self.num_blocks, self.seed(epoch))
        return self._permutation(numbers)

    def _index(self, epoch: int) -> int:
        """How many of the lane's blocks come before an epoch."""
        index = max(0, -((self.first - epoch * self.num_blocks) // self.stride))
        return index if index < self.length else int(self.length)

    def _enter(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch, self._epoch_seed, self._permutation = epoch, None, None


@lru_cache(64)
def _permutation(num_blocks: int, seed: int) -> Permutation:
    return Permutation(num_blocks, seed)
