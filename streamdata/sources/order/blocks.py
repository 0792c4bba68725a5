"""Blocks of a source: how shards are cut into them, which of their records are read, and in which order.

`sizes and numbers of records → cut_shards → records in each block`
`holdout, part → Part → which records are read`, by a stable hash of each record's identity
`seeds, epoch, lane → BlockOrder → the lane's blocks`, and the inverse: who reads a block
"""

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.errors import shown
from streamdata.io.storage import Int64s
from streamdata.recipe.named_source import HOLDOUT_KEYS, VALID, PartRange, read_selection
from streamdata.run import Lane, Permutation, hashes_of, stable_seed
from streamdata.shards.readers import IndexedShards, SequentialShards

Seeds = np.uint64 | npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Part:
    """The held-out records of a source, or the others.

    A record's identity is the name of its shard and its number in that; of a map-style dataset the index, or of
    records that belong together the number of their block. Neither seed nor other shards count, nor what is in it, so
    that the part is known before the record is read, and both parts together are all records, each once.
    """

    holdout: float
    """The share of the records that is held out."""
    name: str
    """`train` or `valid`."""

    def __str__(self) -> str:
        return f"part {self.name} of holdout {self.holdout:g}"

    @property
    def share(self) -> float:
        """The expected fraction of records in the part."""
        return self.holdout if self.name == VALID else 1 - self.holdout

    def holds(self, numbers: npt.NDArray[np.int64], seeds: Seeds) -> npt.NDArray[np.bool_]:
        """A mask of the records that are in the part, bool (n,).

        Args:
            numbers: The records' numbers in their shards, int64 (n,).
            seeds: The seed of their shard, or of each record's shard (n,).
        """
        # What a smaller holdout holds out lies below its bound, and so below that of a larger one.
        is_held_out = hashes_of(numbers, seeds) < np.uint64(int(self.holdout * 2.0**64))
        return is_held_out if self.name == VALID else ~is_held_out


def selection_of(dataset: Any) -> Part | PartRange | None:
    """The part of a source chosen by its attributes `holdout` or `parts`, `parts_by`, and `part`; None for all.

    Raises:
        ValueError: The attributes are not valid.
    """
    read = read_selection(*(getattr(dataset, key, None) for key in HOLDOUT_KEYS))
    return Part(*read) if isinstance(read, tuple) else read


# Not with the source's name: training and validation may call the same data by two.
MAP_STYLE_SEED = np.uint64(stable_seed("holdout"))


def shard_seeds(names: Sequence[str]) -> npt.NDArray[np.uint64]:
    """A seed for each shard, from its base name, so that data may be moved."""
    return np.array([stable_seed("holdout", name) for name in names], np.uint64)


# A window of the default 1,000 records that is read at once (they have up to 130 KB each) then takes an object store at
# most 0.04 requests per sample; with larger blocks, fewer shards would be mixed in one of 100 KB records than in one of
# text.
_BLOCK_BYTES = 4 << 20
# So that a window of the default 1,000 mixes 15 blocks of records however small: by bytes alone it would be one block
# of 1 KB records, that is, one shard after the other. Who reads a larger window may give larger blocks.
_MAX_RECORDS = 64
# A source of as many records has as many blocks, however it is cut by default: many lanes find work even in a few small
# shards. Not more, so that 240 MB in a store are blocks of 400 KB and more, each of them a request.
_MIN_BLOCKS = 512
# What a source has at least, about, where `block_bytes` is given.
_MIN_BLOCKS_BY_BYTES = 2048


def cut_shards(shards: IndexedShards, block_size: int | None, block_bytes: int | None) -> Int64s:
    """The number of records per block, for each shard; a shard's last block may have fewer.

    The cut depends only on facts of the shards, never on the topology or on where the shards lie.

    Args:
        shards: What is cut, by their numbers of records and their sizes in bytes.
        block_size: Records in a block, exactly.
        block_bytes: Bytes in a block at most, by the mean record of each shard, and at most 1/2,048 of the source.
            Where neither is given, a block has at most 4 MiB, 64 records and 1/512 of the source's records.

    Returns:
        Records in a block, at least 1, int64, one per shard.
    """
    records = shards.num_records
    if block_size is not None:
        return np.full_like(records, block_size)
    # In whole bytes, rounded up, so that blocks do not exceed their bytes. No floats: they may differ by machine.
    record_bytes = np.maximum(1, -(-shards.sizes // np.maximum(1, records)))
    limit, most = _BLOCK_BYTES, None
    if block_bytes is not None:
        limit = min(block_bytes, int(shards.sizes.sum()) // _MIN_BLOCKS_BY_BYTES)
    else:
        # By records, not by bytes: a few large records may have most of the bytes, and the others would be one block.
        most = max(1, min(_MAX_RECORDS, int(records.sum()) // _MIN_BLOCKS))
    sizes: Int64s = np.clip(limit // record_bytes, 1, most)
    return sizes


def describe_cut(records: Int64s, block_sizes: Int64s) -> str:
    """Describe what determines the cut into blocks, besides the shards' numbers of records."""
    # Not the shards' bytes, from which sizes may follow: other bytes that lead to this cut give this order.
    sizes = block_sizes[records > 0].astype("<i8")
    different = np.unique(sizes).tolist() or [1]
    if len(different) == 1:
        return f"blocks of {different[0]}"
    return f"blocks of {different[0]} to {different[-1]} {blake2b(sizes.tobytes(), digest_size=6).hexdigest()}"


def check_cut(block_size: int | None, block_bytes: int | None, shuffle_buffer: int) -> None:
    """Raise ValueError unless these settings of a source of shards are valid, alone and together."""
    if block_size is not None and block_bytes is not None:
        raise ValueError(
            f"expected block_size (records) or block_bytes, got both: {block_size} and {block_bytes}\n  Remove one."
        )
    given: dict[str, Any] = {"block_size": block_size, "block_bytes": block_bytes, "shuffle_buffer": shuffle_buffer}
    for name, value in given.items():
        if value is None and name != "shuffle_buffer":
            continue
        # A fraction would be cut by, and fail only where records are read.
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise ValueError(f"expected a whole number as {name}, got {shown(value)}")
        if value < (0 if name == "shuffle_buffer" else 1):
            raise ValueError(
                "expected block_size >= 1 and shuffle_buffer >= 0 (records), or block_bytes >= 1, "
                f"got {name}={value}\n  shuffle_buffer=0 keeps the order inside blocks."
            )


def describe_content(shards: IndexedShards | SequentialShards) -> str:
    """Describe a list of shards by a hash, to be compared on resume."""
    # Base names and sizes, not paths: a resume may find the shards in another directory.
    text = repr(list(map(tuple, shards.identity())))
    return blake2b(text.encode(), digest_size=6).hexdigest()


class Epochs(NamedTuple):
    """The epochs of a source that a stream reads: from `first` up to, but without, `end`."""

    first: int = 0
    end: float = math.inf


ALL_EPOCHS = Epochs()


class BlockOrder:
    """The blocks that one lane reads: every n-th number of the source's endless order.

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
        self._epoch_seed = 0
        self._permutation: Permutation | None = None

    def stretch(self, first: int, stride: int, num_blocks: int) -> "BlockOrder":
        """Return the order of only the numbers `first`, `first + stride` …, `num_blocks` of them."""
        # A copy: it shares nothing that changes but by being made anew.
        order = copy(self)
        order.first, order.stride, order.length = first, stride, num_blocks
        return order

    def seed(self, epoch: int) -> int:
        """The seed of the epoch's order, below 2**63."""
        # When it is asked for: of most sources of a large mixture only the share is, when a lane begins.
        if epoch != self._epoch:
            self._epoch, self._epoch_seed, self._permutation = epoch, stable_seed(*self._seeds, epoch), None
        return self._epoch_seed

    def share(self, epoch: int) -> int:
        """The number of this lane's blocks in the epoch: 0 outside `epochs`, or if lanes outnumber blocks."""
        if not self.epochs.first <= epoch < self.epochs.end:
            return 0
        return self._index(epoch + 1) - self._index(epoch)

    def is_whole(self, epoch: int) -> bool:
        """Whether no earlier size of the run began any of the epoch."""
        return epoch * self.num_blocks >= self.offset

    def blocks(self, epoch: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        """The lane's blocks `start` up to `stop` in the epoch, int64; at most to the end of its share."""
        numbers = np.arange(start, max(start, min(stop, self.share(epoch)))) * self.stride
        numbers += self.number(epoch, 0) - epoch * self.num_blocks
        if not self.shuffle:
            return numbers
        # One epoch is kept, since they are read one after another; making it anew is cheap, whatever the size.
        seed = self.seed(epoch)
        if self._permutation is None:
            self._permutation = Permutation(self.num_blocks, seed)
        return self._permutation(numbers)

    def number(self, epoch: int, index: int) -> int:
        """The number, in the endless order, of the lane's block `index` of the epoch."""
        return self.first + (self._index(epoch) + index) * self.stride

    def dealt(self, epoch: int, blocks: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The numbers of blocks in the endless order, for one epoch, and the lanes that read them; int64.

        The lane is -1 for what lies before the offset.
        """
        numbers = blocks
        if self.shuffle:
            numbers = _permutation(self.num_blocks, stable_seed(*self._seeds, epoch)).inverse(blocks)
        numbers = numbers + epoch * self.num_blocks
        return numbers, np.where(numbers >= self.offset, (numbers - self.offset) % self.stride, -1)

    def index_of(self, epoch: int, number: int) -> int | None:
        """The index, among the lane's blocks of the epoch, of number `number` in the endless order; else None."""
        index, rest = divmod(number - self.first, self.stride)
        is_own = not rest and 0 <= index < self.length
        return index - self._index(epoch) if is_own else None

    def ahead(self, epoch: int, index: int, blocks: int) -> tuple[int, int]:
        """The epoch and index of the lane's block that comes `blocks` blocks after block `index` of an epoch.

        Epochs that the order does not read count, too.
        """
        place = self._index(epoch) + index + blocks
        later = (self.first + place * self.stride) // self.num_blocks
        return later, place - self._index(later)

    def next_epoch(self, epoch: int) -> int | None:
        """The next epoch in which the lane has a share; None at the end of its stream."""
        index = self._index(epoch + 1)
        following = (self.first + index * self.stride) // self.num_blocks
        return following if index < self.length and following < self.epochs.end else None

    def window_at(self, number: int, size: int) -> tuple[int, int]:
        """The epoch, and number in it, of a window of `size` blocks given by its number from the order's start."""
        epoch = self.first // self.num_blocks
        while size > 1 and number >= (windows := -(-self.share(epoch) // size)):
            following = self.next_epoch(epoch)
            if following is None:
                break
            number, epoch = number - windows, following
        return (epoch, number) if size > 1 else self.ahead(epoch, 0, number)

    def windows_before(self, epoch: int, size: int) -> int:
        """The number of windows of `size` blocks before an epoch."""
        if size == 1:
            return self._index(epoch)
        windows, present = 0, self.first // self.num_blocks
        while present < epoch:
            windows += -(-self.share(present) // size)
            present = following if (following := self.next_epoch(present)) is not None else epoch
        return windows

    def _index(self, epoch: int) -> int:
        """How many of the lane's blocks come before an epoch."""
        index = max(0, -((self.first - epoch * self.num_blocks) // self.stride))
        return index if index < self.length else int(self.length)


@lru_cache(64)
def _permutation(num_blocks: int, seed: int) -> Permutation:
    return Permutation(num_blocks, seed)
