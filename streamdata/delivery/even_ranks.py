"""Gives every rank as many batches of a finite stream, whose lanes have different shares of it.

1. states → `EvenRanks` → how many batches each rank is to deliver: `RestOfPass`
2. `drop`: batches → `dropped` → those that all ranks have; the last brings the states of what is left out
3. `pad`: samples → `filled` → full batches; batches → `padded` → as many as the rank with the most has, marked
"""

import copy
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from streamdata.errors import StateError
from streamdata.fields import CURSOR, DATASET_NAME, NO_RECORD, PADDING, RECORD, RECORD_IDS, SOURCE_IDS
from streamdata.mixing import MergedDataset
from streamdata.run import Lane
from streamdata.states.cursor import States, marked
from streamdata.states.progress import Progress

logger = logging.getLogger("streamdata")
MORE_PASSES: Final = 2
"""A rank may have no share of a pass, or of what was left of one; of one of the next two it has some."""


NUM_KEPT: Final = 256
"""Batches whose states are kept. A trainer asks for one that it has trained on, some batches behind what it pulled."""


class Received(NamedTuple):
    """A batch as the stream delivered it, with its states."""

    batch: Any
    """Without its states; None where only states came."""
    states: States
    """States of the batch."""
    left_out: Sequence[States] = ()
    """States of each batch that was left out after it."""
    is_filler: bool = False
    """Whether all of its samples only fill up."""


class RestOfPass:
    """The remainder of a pass on this rank, and the number of batches to deliver from it.

    Args:
        own: How many samples each of its lanes has left, int64 (num_workers,).
        num_batches: How many batches it is to deliver, as every other rank does.
        batch_size: Samples per batch.
    """

    def __init__(self, own: npt.NDArray[np.int64], num_batches: int, batch_size: int) -> None:
        self.num_batches, self.batch_size = num_batches, batch_size
        self._left: list[int] = own.tolist()
        self._counted: deque[dict[int, int]] = deque(maxlen=NUM_KEPT)
        """Samples of each of the last batches, by worker."""

    @property
    def samples(self) -> int:
        """The number of samples left in the pass on this rank."""
        return sum(self._left)

    @property
    def own_batches(self) -> int:
        """The number of batches that this rank's remaining samples fill."""
        return sum(-(-left // self.batch_size) for left in self._left)

    def samples_of(self, states: Mapping[str, Any]) -> dict[int, int]:
        """The number of real samples in the next batch, by the worker that `states` names; empty for padding."""
        workers: list[int] = [worker for key, worker in states.items() if key.startswith("worker/")]
        return {worker: min(self.batch_size, self._left[worker]) for worker in workers}

    def count(self, states: Mapping[str, Any]) -> None:
        """Note that a batch was delivered."""
        self.num_batches -= 1
        self._counted.append(self.samples_of(states))
        for worker, samples in self._counted[-1].items():
            self._left[worker] -= samples

    def go_back(self, count: int) -> None:
        """Undo `count` for the last batches: they were not delivered."""
        for _ in range(count):
            self.num_batches += 1
            for worker, samples in self._counted.pop().items():
                self._left[worker] += samples


class EvenRanks:
    """Computes how many batches of a pass each rank delivers.

    Args:
        dataset: The stream.
        batch_size: Samples per batch.
        num_workers: Of each rank.
        uneven: `error`, `drop` or `pad`; or `steps` where it does not matter what a pass has.
    """

    def __init__(self, dataset: MergedDataset, batch_size: int, num_workers: int, uneven: str) -> None:
        self._dataset, self._batch_size, self._num_workers = dataset, batch_size, num_workers
        self._uneven = uneven
        self.rest: RestOfPass | None = None
        """Rest of the pass, where ranks are evened out or compared."""
        self._is_checked = False
        """Whether each rank is known to have a share."""

    def next_pass(self, progress: Progress) -> int:
        """The pass that a finite stream reads next; under `pad`, one that some rank has not ended comes first."""
        found = self._dataset.next_pass(self._num_workers)
        passes = progress.passes if progress and progress.is_under(self._lane()) else []
        if self._uneven != "pad" or not passes or passes[-1] >= found:
            return found
        self._dataset.set_epoch(passes[-1])
        if self._dataset.samples_left(self._num_workers).any():
            return passes[-1]
        self._dataset.set_epoch(None)
        return found

    def begin(self, epoch_pass: int | None, progress: Progress) -> None:
        """Compute what is left of a pass that is about to be read, unless it is known already.

        Raises:
            ValueError: Ranks have different numbers of batches, under `error`; or how many is not known; or one has
                nothing that it could repeat, under `pad`, or no share of any pass, under `steps`.
            StateError: The states are not those of all ranks at one step.
        """
        # Where a pass is read again after an error, states say of this rank alone what was delivered since.
        if self.rest is not None or (self._uneven == "error" and epoch_pass is None):
            return
        lane = self._lane()
        if self._uneven == "error" and lane.dp_size == 1:
            return
        if self._uneven == "steps":
            self._check_all_have_shares(epoch_pass)
            return
        left = self._dataset.samples_left(self._num_workers)
        if epoch_pass is not None and progress and progress.is_under(lane):
            _check_step(progress, epoch_pass, left)
        if self._uneven == "pad":
            self._check_all_can_pad(left)
        batches = (-(-left // self._batch_size)).sum(axis=1)
        least, most = int(batches.min()), int(batches.max())
        if self._uneven == "error" and least < most:
            raise ValueError(
                f"StreamLoader: of this pass rank {batches.argmin()} has {least} batches left and rank "
                f"{batches.argmax()} has {most}, expected as many on each rank: those that have more would wait for "
                "the others\n  Give uneven='drop', uneven='pad', or steps_per_epoch."
            )
        self.rest = RestOfPass(left[lane.dp_rank], least if self._uneven == "drop" else most, self._batch_size)

    def has_share(self, epoch_pass: int, progress: Progress) -> bool:
        """Whether this rank has a share of a pass that nobody has begun; functions may still drop all of it."""
        # Ranks go through passes by themselves, so that of several others may have had what would be this one's.
        if epoch_pass in {*progress.passes, *progress.before.finished} or progress.base(epoch_pass).left:
            return False
        return self._dataset.idle_rank(self._num_workers, [epoch_pass], [self._lane().dp_rank]) is None

    def _check_all_have_shares(self, epoch_pass: int | None) -> None:
        # Of the first passes, whichever this rank reads: ranks whose shares are smaller are further, and all must find
        # the same.
        if epoch_pass is None or self._is_checked:
            return
        lane = self._lane()
        idle = self._dataset.idle_rank(self._num_workers, range(1 + MORE_PASSES), range(lane.dp_size))
        if idle is not None:
            raise ValueError(
                f"StreamLoader: steps_per_epoch reads the share of each rank again and again: expected that each of "
                f"{lane.dp_size} ranks has one, got none for rank {idle}\n"
                "  Give the sources more records, or the run fewer ranks."
            )
        self._is_checked = True

    def _check_all_can_pad(self, left: npt.NDArray[np.int64]) -> None:
        # By all ranks alike: if one alone failed, the others would wait for it.
        idle = ~left.any(axis=1)
        if not idle.any() or idle.all():
            return
        idle &= ~self._dataset.samples_left(self._num_workers, whole_pass=True).any(axis=1)
        if idle.any():
            raise ValueError(
                f"StreamLoader: uneven='pad' repeats what a rank has: expected that each of {len(left)} ranks has a "
                f"share of the pass, got none for rank {idle.argmax()}\n"
                "  Give the sources more records, or the run fewer ranks."
            )

    def _lane(self) -> Lane:
        return self._dataset.lane(self._num_workers)


def _check_step(progress: Progress, epoch_pass: int, left: npt.NDArray[np.int64]) -> None:
    """Refuse states of which some rank's are older: it would count as having more left than it has."""
    by_rank = progress.last(epoch_pass, "")["batches"].reshape(left.shape).sum(axis=1)
    for (_, of_pass, rank), counts in progress.uneven.items():
        by_rank[rank] += counts["batches"] if of_pass == epoch_pass else 0
    behind = np.flatnonzero((by_rank < by_rank.max()) & left.any(axis=1))
    if len(behind):
        raise StateError(
            f"states: rank {behind[0]} has delivered {by_rank[behind[0]]} batches of pass {epoch_pass} and another "
            f"{by_rank.max()}, expected those of one step, from which follows how many each has left\n"
            "  Join the states of all ranks: merge_states, gather_states or save_states."
        )


def dropped(received: Iterator[Received], rest: RestOfPass) -> Iterator[Received]:
    """Yield as many batches as the shortest rank has; the last one also carries the states of all that are left out.

    The others are read so that states mark the pass as ended: else they would come after a change of topology.
    """
    while rest.num_batches > 1:  # whoever takes one counts it
        yield next(received)
    last = next(received) if rest.num_batches else Received(None, {})
    if number := rest.samples - sum(rest.samples_of(last.states).values()):
        logger.warning("StreamLoader: uneven='drop' leaves out %d samples of this rank", number)
    left_out = [each.states for each in received]
    if last.states or left_out:
        yield Received(last.batch, last.states, left_out)


def padded(received: Iterator[Received], rest: RestOfPass, last: Any) -> Iterator[Received]:
    """Yield as many batches as the longest rank has, each with the field that marks padding.

    Args:
        received: The rank's own batches, all of them full.
        rest: Of the pass.
        last: One of this rank's batches, to be repeated where none is received.
    """
    for batch, states, *_ in received:
        if rest.own_batches == 1:  # a copy: what the trainer does to its tensors does not change those to come
            last = copy.deepcopy(batch)
        yield Received(_marked(batch, sum(rest.samples_of(states).values()), rest.batch_size), states)
    while rest.num_batches:
        yield Received(_marked(copy.deepcopy(last), 0, rest.batch_size), {}, is_filler=True)


def _marked(batch: Any, num_real: int, batch_size: int) -> Any:
    """The batch with the field that says of each sample whether it only fills up, bool (B,)."""
    is_padding = torch.arange(batch_size) >= num_real
    if isinstance(batch, dict):
        return {**(batch if num_real else _of_no_record(batch)), PADDING: is_padding}
    marks = zip(batch, is_padding.tolist(), strict=True)
    return [{**(_of_no_record(sample) if fills else sample), PADDING: fills} for sample, fills in marks]


def _of_no_record(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A sample, or a batch that is a dict, as one of no source: losses of what only fills up are of none."""
    ids = {name: torch.full_like(batch[name], -1) for name in (SOURCE_IDS, RECORD_IDS) if name in batch}
    return {**batch, **dict.fromkeys({RECORD} & batch.keys(), NO_RECORD), **ids}


def filled(collate: Callable[[list[Any]], Any], batch_size: int, samples: list[Any]) -> Any:
    """Collate a full batch by repeating the last sample; its state records how often."""
    missing, last = batch_size - len(samples), samples[-1]
    if missing:
        last = {**_of_no_record(last), CURSOR: marked(last[CURSOR], padded={last[DATASET_NAME]: missing})}
    return collate([*samples, *([last] * missing)])
