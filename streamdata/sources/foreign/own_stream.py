"""An iterable that streamdata knows nothing of, of torch or Grain, as a source: each lane reads a stream of its own.

`dataset, lane → its share (shard, itself, stride) → OpenStream → records, each with the position after it`

A block is what one lane reads in an epoch, so there are as many blocks as lanes, and none is ever dealt to another.
"""

import copy
import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset, IterableDataset

from streamdata.errors import SourceError, StateError, shown
from streamdata.fields import CURSOR, SEED
from streamdata.run import Lane
from streamdata.sources.foreign.map_style import is_of_grain
from streamdata.sources.foreign.open_stream import END, FailedPull, OpenStream
from streamdata.sources.order.blocks import BlockOrder
from streamdata.sources.order.part import Part
from streamdata.sources.source import ReadTask, Record, fields_of, no_record
from streamdata.states.cursor import Position
from streamdata.states.headers import BlockCut

SELF, STRIDE, _SHARD = "self", "stride", "shard"
LANES: Final = (SELF, STRIDE)
"""What the attribute `lanes` of such a source may be."""

_RANKS: Final = (("rank", "world_size"), ("dp_rank", "dp_size"), ("rank", "num_replicas"))
"""What those who know their rank call it, and how many there are."""


def is_own_stream(dataset: Any) -> bool:
    """Whether a dataset can only be iterated."""
    # Each of torch's datasets has a `__getitem__`, which raises unless it is another one; Hugging Face's gives columns.
    has_records = hasattr(dataset, "__len__") and type(dataset).__getitem__ is not Dataset.__getitem__
    return (isinstance(dataset, IterableDataset) and not has_records) or is_of_grain(dataset, "IterDataset")


class OwnStreamSource:
    """Reads a dataset by its iterator, once in each epoch.

    Args:
        dataset: A torch IterableDataset, or an IterDataset of Grain. `set_epoch`, where it has that, is called with the
            number of the pass and the epoch together; `state_dict` and `load_state_dict` of it or of its iterator, or
            what Grain's has in their place, make a resume exact without reading again what was read.
        num_lanes: How many lanes read it.
    """

    records_per_block = None
    blocks_per_window = 1

    def __init__(self, dataset: Any, num_lanes: int = 1) -> None:
        self._dataset, self.num_blocks = dataset, num_lanes
        self._mode: str = getattr(dataset, "lanes", None) or _SHARD

    def over(self, num_lanes: int) -> "OwnStreamSource":
        """The same, read by so many lanes."""
        return OwnStreamSource(self._dataset, num_lanes)

    def describe(self, shuffle: bool) -> str:
        identity = getattr(self._dataset, "source_identity", None)
        return f"iterable{'' if identity is None else f' of {identity}'}, lanes {self._mode}"

    def anomalies(self) -> dict[str, int]:
        return {}

    @property
    def cut(self) -> BlockCut:
        return BlockCut(self.num_blocks, 1, 0, divides=0, epochs=0)

    def count(self, blocks: npt.NDArray[np.int64], part: Part | None) -> None:
        return None

    def count_taken(self, order: BlockOrder, position: Position, part: Part | None) -> int:
        raise AssertionError("nobody knows how many records there are")

    def start_of(self, after: Position) -> Position:
        epoch, window, taken, _ = after
        return epoch, window, taken - 1, 0

    def window_start(self, order: BlockOrder, position: Position) -> Position:
        return (*position[:3], 0)  # there are no windows: what was read whole is not read again

    def read(self, task: ReadTask, position: Position) -> Iterator[tuple[Record, Position]]:
        epoch: int | None = position[0]
        _, window, taken, _ = position
        while epoch is not None:
            task.fields[SEED] = task.order.seed(epoch)
            if not window:
                for record, after in self._of_epoch(task, epoch, taken):
                    yield record, (epoch, 0, after, 0)
            epoch, window, taken = task.next_epoch(epoch), 0, 0

    def _of_epoch(self, task: ReadTask, epoch: int, taken: int) -> Iterator[tuple[Record, int]]:
        """The lane's records of an epoch after those taken, each with how many are taken after it."""
        lane, states = task.lane, task.stream
        assert states is not None, "whoever reads an iterable keeps its states"
        # At its first record and not before: of two lanes in one process, each tells its own copy the epoch.
        stream = OpenStream(task, self._share(task.name, lane), epoch, states.beginning((epoch, 0, taken)), self._hides)
        step, gap = (lane.count, lane.index) if self._mode == STRIDE else (1, 0)
        # Two stretches: in the first there must be as much as before; the second lies between two records of the lane,
        # and the stream may end in it.
        if taken and not stream.is_loaded:
            _pass_over_read(task.name, stream, taken, gap + (taken - 1) * step + 1)
        gap = step - 1 if taken else gap
        while stream.skip(gap) == gap and (item := stream.pull()) is not END:
            gap, number, taken = step - 1, taken, taken + 1
            if item is None and getattr(self._dataset, "single_process_fn", None) is None:
                item = FailedPull(no_record(self._dataset, task.name))
            if isinstance(item, FailedPull):
                task.tally.fail(item.error, f"record {number} of epoch {epoch}", "its iterator")
                continue
            # Each time, since any record may be the last that the trainer receives.
            states.note((epoch, 0, taken), stream.state())
            task.num_found += 1
            record = {**fields_of(item, task.name), **task.fields}
            if task.with_indices:
                record[CURSOR] = number * lane.count + lane.index  # as another lane has no record's
            yield record, taken
        if not taken:
            self._check_empty(task, epoch, stream.num_pulled)

    @property
    def _hides(self) -> bool:
        """Whether the dataset must not see which worker it is in, by which it would divide what is divided already."""
        return self._mode != SELF

    def _share(self, name: str, lane: Lane) -> Any:
        """The dataset as one lane reads it: another object for each start, since the dataset may note where it is."""
        self._check_ranks(name, lane)
        # Also of one lane: what Hugging Face's notes while it is iterated, its shallow copies share.
        shard = getattr(self._dataset, "shard", None)
        if self._mode != _SHARD or (lane.count == 1 and not callable(shard)):
            share = copy.copy(self._dataset)
            # In Hugging Face's, workers share this number, and are not all in the same epoch.
            if hasattr(share, "_epoch"):
                share._epoch = copy.deepcopy(share._epoch)  # noqa: SLF001
            return share
        if not callable(shard):
            raise ValueError(
                f"source {shown(name)} ({type(self._dataset).__name__}): expected `lanes` or `shard`, for it is "
                "read by "
                f"{lane.count} lanes ({lane.dp_size} ranks with {lane.num_workers} workers), got neither\n"
                "  Set its attribute `lanes` to self, where it asks get_worker_info() which worker it is in, or to "
                "stride, where each lane is to keep every so-many-th of its records; or give it a method "
                "shard(num_shards, index)."
            )
        # Asked before: what its own error says is about the index of a list.
        has = getattr(self._dataset, "num_shards", None)
        if isinstance(has, int) and has < lane.count:
            raise ValueError(
                f"source {shown(name)} ({type(self._dataset).__name__}): expected a shard for each of "
                f"{lane.count} lanes, "
                f"got num_shards={has}\n  Set its attribute `lanes` to stride, take fewer ranks or workers, or cut it "
                "into more shards."
            )
        return shard(num_shards=lane.count, index=lane.index)

    def _check_ranks(self, name: str, lane: Lane) -> None:
        known = _known_rank(self._dataset)
        who = f"source {shown(name)} ({type(self._dataset).__name__})"
        if self._mode == SELF and lane.dp_size > 1 and known != (lane.dp_rank, lane.dp_size):
            got = "does not know its rank" if known is None else f"takes itself for rank {known[0]} of {known[1]}"
            raise ValueError(
                f"{who}: lanes=self divides it among the workers of a rank alone, and it {got}, in a run in which this "
                f"is rank {lane.dp_rank} of {lane.dp_size}: ranks would read the same\n"
                "  Give it its rank (attributes `rank` and `world_size`, split_by_node, split_dataset_by_node), or set "
                "`lanes` to stride."
            )
        if self._mode != SELF and known is not None and known[1] > 1:
            raise ValueError(
                f"{who}: it is divided by rank already ({known[0]} of {known[1]}), and would be divided once more\n"
                "  Give it whole, or set its attribute `lanes` to self."
            )

    def _check_empty(self, task: ReadTask, epoch: int, num_pulled: int) -> None:
        """Refuse to look on without end in a stream that has nothing; one lane of several may have nothing once."""
        # Of a share nobody here knows whether other lanes have records.
        reads_all = task.lane.count == 1 or (self._mode == STRIDE and not num_pulled)
        if math.isinf(task.order.epochs.end) or reads_all:
            again = "" if not epoch else "; iterated once more it may be used up: then set max_epochs, or cyclic: false"
            raise SourceError(
                f"source {shown(task.name)} ({type(self._dataset).__name__}): expected records, got none from "
                "its iterator "
                f"in epoch {epoch}, in lane {task.lane.index} of {task.lane.count}{again}\n"
                "  Remove it, give it records, or take fewer ranks or workers."
            )


def _pass_over_read(name: str, stream: OpenStream, taken: int, num_read: int) -> None:
    if (found := stream.skip(num_read)) < num_read:
        raise StateError(
            f"source {shown(name)}: states after {taken} records of this lane, {num_read} of its iterator, "
            "which now gives "
            f"{found}\n  It must give the same records again: seed what it draws from, and keep its data."
        )


def _known_rank(dataset: Any) -> tuple[int, int] | None:
    """The rank that a dataset takes itself for, and of how many."""
    for holder in (getattr(dataset, "_distributed", None), dataset):
        for names in _RANKS:
            rank, size = (getattr(holder, name, None) for name in names)
            if isinstance(rank, int) and isinstance(size, int):
                return rank, size
    stages = getattr(dataset, "pipeline", None)
    if isinstance(stages, list) and any(getattr(stage, "__name__", "") == "split_by_node" for stage in stages):
        from webdataset.utils import pytorch_worker_info

        # By its own means, not by set_data_parallel: what it takes itself for is what it reads.
        rank, size, _, _ = pytorch_worker_info()
        return rank, size
    return None
