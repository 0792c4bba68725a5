"""An iterable that streamdata knows nothing of, of torch or Grain, as a source: each lane reads a stream of its own.

`dataset, lane → its share (shard, itself, stride) → OpenStream → records, each with the position after it`

A block is what one lane reads in an epoch, so there are as many blocks as lanes, and none is ever dealt to another.
"""

import copy
import json
import logging
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from torch.utils.data._utils import worker as torch_worker

from streamdata.errors import SourceError, StateError, shown, text_of
from streamdata.fields import RECORD, SEED
from streamdata.run import Lane, stable_seed
from streamdata.sources.foreign.named import is_of_grain
from streamdata.sources.functions.starts import is_stateful
from streamdata.sources.functions.tally import raise_noted
from streamdata.sources.order.blocks import BlockOrder
from streamdata.sources.source import ReadTask, Record, Source, fields_of, no_record
from streamdata.states.cursor import Position

logger = logging.getLogger("streamdata")

END: Final = object()
"""The value that `pull` returns at the end."""

_said_that_it_skips: list[str] = []
"""The source of which this process said so."""


class FailedPull(NamedTuple):
    """Stands for a record that a dataset's iterator failed to give."""

    error: Exception | SystemExit


class OpenStream:
    """An iterator of a foreign dataset, which sees its lane's DataLoader worker, or none.

    Args:
        task: The task that reads.
        dataset: A copy of its own, which is told the epoch and its state.
        epoch: The epoch to read.
        state: The state to resume from, None for the start; ignored without a `load_state_dict`.
        hides_worker: Whether the dataset is to see no DataLoader worker.
    """

    def __init__(self, task: ReadTask, dataset: Any, epoch: int, state: list[Any] | None, hides_worker: bool) -> None:
        assert task.stream is not None, "whoever reads an iterable keeps its states"
        self._name, self._type = task.name, type(dataset).__name__
        self._info: Any = None
        if not hides_worker and task.lane.num_workers > 1:
            # After a resume another process may read the lane: then torch's own note is not the lane's.
            seed = stable_seed(task.order.seed(epoch), task.lane.index)
            self._info = torch_worker.WorkerInfo(
                id=task.lane.worker, num_workers=task.lane.num_workers, seed=seed, dataset=dataset
            )
        if callable(getattr(dataset, "set_epoch", None)):
            dataset.set_epoch(task.stream.epoch_pass + epoch)
        self.is_loaded = False
        self._iterator, self._stateful = self._begun(dataset, state)
        self._failed: Exception | SystemExit | None = None
        self.num_pulled = 0
        # Of a rank's workers by the first alone, all of which have the same sources.
        if self._stateful is None and not task.lane.worker and not _said_that_it_skips:
            _said_that_it_skips.append(self._name)
            logger.warning(
                "source %r (%s): it has no state_dict and load_state_dict, nor has its iterator: a resume finds its "
                "place by reading all records before it in the epoch again, and dropping them. This is said once per "
                "process, of the first such source",
                self._name,
                self._type,
            )

    def _begun(self, dataset: Any, state: list[Any] | None) -> tuple[Iterator[Any], Any]:
        """The iterator, and who says where it is: itself, else the dataset, else nobody."""
        has_state = is_stateful(dataset)
        # The iterator's state comes first, as in torchdata's StatefulDataLoader.
        stateful = iterator = self._as_in_lane(iter, dataset)
        if is_of_grain(iterator, "DatasetIterator"):  # which has other names for it than torch
            stateful = SimpleNamespace(state_dict=iterator.get_state, load_state_dict=iterator.set_state)
        if is_stateful(stateful):
            if state is not None:
                stateful.load_state_dict(state[0])
        else:
            stateful = dataset if has_state else None
            if stateful is not None and state is not None:
                stateful.load_state_dict(state[0])
                iterator = self._as_in_lane(iter, dataset)  # what is loaded applies to the next one
        self.is_loaded = stateful is not None and state is not None
        return iterator, stateful

    def _as_in_lane(self, function: Any, argument: Any) -> Any:
        # There is no public way to set what get_worker_info() gives.
        before = torch_worker._worker_info  # noqa: SLF001
        torch_worker._worker_info = self._info  # noqa: SLF001
        try:
            return function(argument)
        finally:
            torch_worker._worker_info = before  # noqa: SLF001

    def pull(self) -> Any:
        """Pull the next item: a record, `FailedPull`, or `END`.

        Raises:
            Exception: The error of the last pull, if the iterator ends after it: a generator that raised has ended.
        """
        try:
            item = self._as_in_lane(next, self._iterator)
        except StopIteration:
            item = END
        except (Exception, SystemExit) as error:  # a user's dataset may raise anything; the tally decides
            self._failed = error
            self.num_pulled += 1
            return FailedPull(error)
        if item is END:
            # A generator that raised ends next: taken for the end of the epoch, what is left would be lost in silence.
            if self._failed is not None:
                raise_noted(
                    self._failed,
                    f"source {shown(self._name)}: its iterator gave nothing after this: it may have ended with it, as "
                    "a generator does, so max_bad does not pass over it\n  Handle it where it is raised.",
                )
            return END
        self._failed = None
        self.num_pulled += 1
        return item

    def skip(self, number: int) -> int:
        """Pull up to `number` items; return how many there were."""
        return next((found for found in range(number) if self.pull() is END), number)

    def state(self) -> list[Any] | None:
        """The dataset's `state_dict()` as plain JSON, in a list so that it is never None; None if it has none.

        Raises:
            ValueError: The state is not plain JSON.
        """
        if self._stateful is None:
            return None
        state = self._stateful.state_dict()
        why = "read again it is something else"
        try:
            plain = json.loads(json.dumps(state, allow_nan=False))  # a copy: it may go on changing what it said
            if plain == state:  # keys that are no texts, and tuples, would come back as others
                return [plain]
        except (TypeError, ValueError) as error:
            why = text_of(error)
        raise ValueError(
            f"source {shown(self._name)} ({self._type}): expected plain JSON from its state_dict(), which goes into "
            f"the checkpoint, got {str(state)[:200]} ({why})\n"
            "  Return dicts with texts as keys, lists, texts and numbers; or have no state_dict, and a resume skips by "
            "reading."
        )


SELF, STRIDE, _SHARD = "self", "stride", "shard"
LANES: Final = (SELF, STRIDE)
"""Values of the attribute `lanes` of such a source."""

_RANKS: Final = (("rank", "world_size"), ("dp_rank", "dp_size"), ("rank", "num_replicas"))
"""Attributes in which datasets keep their rank, and the number of ranks."""


class OwnStreamSource(Source):
    """Reads a foreign dataset by its iterator, once per epoch.

    Args:
        dataset: A torch IterableDataset, or an IterDataset of Grain. `set_epoch`, where it has that, is called with the
            number of the pass and the epoch together; `state_dict` and `load_state_dict` of it or of its iterator, or
            what Grain's has in their place, make a resume exact without reading again what was read.
        num_lanes: How many lanes read it.
    """

    def __init__(self, dataset: Any, num_lanes: int = 1) -> None:
        self._dataset, self.num_blocks = dataset, num_lanes
        self._mode: str = getattr(dataset, "lanes", None) or _SHARD

    def over(self, num_lanes: int) -> "OwnStreamSource":
        """Return a copy of this source that is read by `num_lanes` lanes."""
        return OwnStreamSource(self._dataset, num_lanes)

    def describe(self, shuffle: bool) -> str:
        identity = getattr(self._dataset, "source_identity", None)
        return f"iterable{'' if identity is None else f' of {identity}'}, lanes {self._mode}"

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
        # Unless it divides itself, it must not see which worker it is in: it would divide what is divided already.
        share, state = self._share(task.name, lane), states.beginning((epoch, 0, taken))
        stream = OpenStream(task, share, epoch, state, hides_worker=self._mode != SELF)
        step, gap = (lane.count, lane.index) if self._mode == STRIDE else (1, 0)
        # Two stretches: in the first there must be as much as before; the second lies between two records of the lane,
        # and the stream may end in it.
        read = gap + (taken - 1) * step + 1 if taken and not stream.is_loaded else 0
        if (found := stream.skip(read)) < read:
            raise StateError(
                f"source {shown(task.name)}: states after {taken} records of this lane, {read} of its iterator, which "
                f"now gives {found}\n  It must give the same records again: seed what it draws from, and keep its data."
            )
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
            record[RECORD] = (task.number, epoch, number * lane.count + lane.index, 0)  # no other lane's is the same
            yield record, taken
        # One lane of several may have nothing once; of a share nobody here knows whether other lanes have records.
        reads_all = lane.count == 1 or (self._mode == STRIDE and not stream.num_pulled)
        if not taken and (math.isinf(task.order.epochs.end) or reads_all):
            again = "" if not epoch else "; iterated once more it may be used up: then set max_epochs, or cyclic: false"
            raise SourceError(
                f"source {shown(task.name)} ({type(self._dataset).__name__}): expected records, got none from "
                f"its iterator in epoch {epoch}, in lane {lane.index} of {lane.count}{again}\n"
                "  Remove it, give it records, or take fewer ranks or workers."
            )

    def _share(self, name: str, lane: Lane) -> Any:
        """The dataset as one lane reads it: another object for each start, since the dataset may note where it is."""
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
                f"{who}: expected `lanes` or `shard`, for it is "
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
                f"{who}: expected a shard for each of "
                f"{lane.count} lanes, "
                f"got num_shards={has}\n  Set its attribute `lanes` to stride, take fewer ranks or workers, or cut it "
                "into more shards."
            )
        return shard(num_shards=lane.count, index=lane.index)


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
