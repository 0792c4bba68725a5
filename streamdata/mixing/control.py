"""Shared memory of a trainer and its DataLoader workers.

1. `Control`: the pass, the version of the states, and what each lane has begun and ended
2. `WorkerPlaces`: the record that each worker is at, since one that is killed cannot say it
"""

import os
import struct
import uuid
import weakref
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import get_worker_info

from streamdata.errors import printable
from streamdata.fields import INDEX, KEY, URL
from streamdata.run import MAX_WORKERS, Lane
from streamdata.run.lane_link import Beginning
from streamdata.run.per_process import shared_numbers
from streamdata.run.trainer import has_ended
from streamdata.sources.source import Record
from streamdata.states.lane_state import LaneState

_PID: Final = struct.Struct("<q")
_TEXT: Final = struct.Struct("504s")  # cut or filled up with zeros
_BYTES: Final = _PID.size + _TEXT.size


class WorkerPlace:
    """A slot of shared memory in which one worker notes the record that it is processing.

    Args:
        memory: Its part of what is shared: the number of its process, and a text.
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        _TEXT.pack_into(memory, _PID.size, b"")
        _PID.pack_into(memory, 0, os.getpid())

    def noting(self, source: str) -> Callable[[Record], None]:
        """Returns a function that notes a record of a source before a process function is given it."""
        memory, at, pack = self._memory, _PID.size, _TEXT.pack_into

        def note(record: Record) -> None:
            # As little as possible: this is done for each record, and hardly ever read. What a terminal would obey is
            # escaped where it is.
            url = record.get(URL)
            name = f"index {record.get(INDEX)}" if url is None else f"{url}, key {record.get(KEY)}"
            pack(memory, at, f"source '{source}', {name}".encode(errors="replace"))

        return note

    def clear(self) -> None:
        """Clear the slot: the worker has reached the end of its stream."""
        _PID.pack_into(self._memory, 0, 0)


class WorkerPlaces:
    """The slots of all workers of a rank, in shared memory."""

    def __init__(self) -> None:
        # Not in the queue with a batch: what a worker was at when it was killed never came to that.
        self._memory = shared_numbers(MAX_WORKERS * _BYTES // 8).view(torch.uint8).view(MAX_WORKERS, _BYTES)

    def of(self, worker: int) -> WorkerPlace:
        """The slot of a DataLoader worker; called in that worker."""
        return WorkerPlace(self._memory.numpy()[worker].data)

    def clear(self) -> None:
        """Clear the slots of the workers of an earlier iteration."""
        self._memory.numpy()[:] = 0

    def of_dead(self) -> dict[int, str]:
        """The last record ("" for none) of each worker process that died before the end of its stream, by pid."""
        found, rows = {}, self._memory.numpy()
        for row in rows[rows[:, : _PID.size].any(1)]:
            (pid,), (text,) = _PID.unpack_from(row), _TEXT.unpack_from(row, _PID.size)
            if has_ended(pid):
                found[pid] = printable(text.rstrip(b"\0").decode(errors="replace"))
        return found


_PASS, _PASSES_SET, _VERSION, _WEIGHTS_SET = range(4)
_NUMBERS, _RUNS = 8, 16
_OF_VERSION, _OF_PASSES_SET, _BEGUN, _ENDED, _ITERATIONS, _BATCHES, _RESUMED, _GAVE = range(_NUMBERS)
# Runs of passes that a lane has ended come last. Where passes follow one another they are few: a lane that has no share
# of what an earlier size left of one begins another run, and so does `set_epoch`. Of more than fit the oldest is lost.
_LANES, _FIELDS = 4, _NUMBERS + 2 * _RUNS


class Control:
    """Shared memory of a rank: the pass, the version of the states, and what each lane has begun and ended.

    The memory is int64, shared by trainer and workers. Each number is written by one process only: the trainer, or
    the worker that reads the lane. A lane's notes name the version of the states that they are of, so that setting
    states makes all of them void at once.

    A copy that another trainer receives (through `torch.multiprocessing.spawn`, say) begins with the same values, and
    its own memory; one that arrives in a DataLoader worker goes on sharing its trainer's.
    """

    def __init__(self) -> None:
        self._memory = shared_numbers(_LANES + MAX_WORKERS * _FIELDS)
        self.places = WorkerPlaces()
        self.name = uuid.uuid4().hex
        """Unlike that of any other dataset."""

    @property
    def epoch_pass(self) -> int | None:
        """The pass that `set_epoch` chose; None if it was not called."""
        return int(self._memory[_PASS]) - 1 if self._memory[_PASS] else None

    @epoch_pass.setter
    def epoch_pass(self, value: int | None) -> None:
        self.own()
        self._memory[_PASS] = 0 if value is None else value + 1
        self._memory[_PASSES_SET] += 1

    @property
    def version(self) -> int:
        """The number of times that states were set."""
        return int(self._memory.numpy()[_VERSION])  # asked for each batch, in a tenth of torch's time

    @version.setter
    def version(self, value: int) -> None:
        self.own()
        self._memory[_VERSION] = value

    @property
    def weights_set(self) -> int:
        """The number of times that weights were set on the dataset itself."""
        return int(self._memory.numpy()[_WEIGHTS_SET])

    @weights_set.setter
    def weights_set(self, value: int) -> None:
        self.own()
        self._memory[_WEIGHTS_SET] = value

    def first_unended(self, version: int, num_workers: int) -> int:
        """The first pass that not all lanes have ended since states of this version were set."""
        lanes = self._lanes[:num_workers]
        return int(np.where(lanes[:, _OF_VERSION] == version + 1, lanes[:, _ENDED], 0).min())

    def resume(self, version: int, loaded: LaneState, *, has_ended: bool, is_empty: bool) -> None:
        """Record that a lane resumes a pass from an iterator's state; earlier notes of the lane are overwritten.

        Where it has ended that pass, it has given its last sample, or, of one that is empty, none.
        """
        self.own()
        notes = self._lanes[loaded.lane.worker]
        notes[_BEGUN] = notes[_BATCHES] = 0
        notes[_ENDED], notes[_RESUMED] = loaded.epoch_pass + has_ended, loaded.epoch_pass
        runs = _runs(notes)
        runs[:] = 0
        runs[_RUNS - len(loaded.ended) :] = np.array(loaded.ended, np.int64).reshape(-1, 2)
        if has_ended and not is_empty:
            _add(runs, loaded.epoch_pass)
        notes[_OF_VERSION] = version + 1

    def resumed_pass(self, version: int, num_workers: int) -> int:
        """The pass in which the lanes resume: the latest that any of them knows."""
        lanes = self._lanes[:num_workers]
        return int(lanes[lanes[:, _OF_VERSION] == version + 1, _RESUMED].max())

    def ended(self, version: int, lane: Lane) -> list[list[int]]:
        """The passes of which a lane has given the last sample, in the form of `LaneState.ended`."""
        notes = self._lanes[lane.worker]
        runs = _runs(notes)
        return runs[runs[:, 0] < runs[:, 1]].tolist() if notes[_OF_VERSION] == version + 1 else []

    def begin(self, version: int, lane: Lane, epoch_pass: int) -> Beginning | None:
        """Record that a lane begins a pass; return how it begins, or None if newer states have been set."""
        self.own()
        notes = self._lanes[lane.worker]
        if version != self.version:
            return None
        if notes[_OF_VERSION] != version + 1:
            notes[_BEGUN] = notes[_ENDED] = notes[_BATCHES] = notes[_RESUMED] = notes[_NUMBERS:] = 0
        notes[_ITERATIONS] += 1
        beginning = Beginning(
            rank=f"{self.name}/{lane.dp_rank}",
            version=version,
            worker=lane.worker,
            iteration=int(notes[_ITERATIONS]),
            # Whoever calls set_epoch after an iteration left it on purpose, and needs no warning.
            was_left=bool(notes[_BEGUN] == epoch_pass + 1 and notes[_OF_PASSES_SET] == self._memory[_PASSES_SET]),
            batches_before=0 if notes[_BEGUN] or self.epoch_pass is not None else int(notes[_BATCHES]),
            epoch_pass=epoch_pass,
        )
        notes[_OF_PASSES_SET], notes[_BEGUN], notes[_BATCHES] = self._memory[_PASSES_SET], epoch_pass + 1, 0
        notes[_OF_VERSION] = version + 1  # last: until then the notes of an earlier version do not count
        return beginning

    def note_sample(self, worker: int) -> None:
        """Record that a lane has given a sample; setting states does not clear this."""
        self._lanes[worker][_GAVE] = 1

    @property
    def has_given(self) -> bool:
        """Whether any lane has given a sample."""
        return bool(self._lanes[:, _GAVE].any())

    def note_batches(self, version: int, worker: int, number: int) -> None:
        """Record the number of batches that a lane has made in its iteration."""
        if version == self.version:
            self._lanes[worker][_BATCHES] = number

    def end(self, version: int, lane: Lane, epoch_pass: int, *, is_empty: bool) -> None:
        """Record that a lane has ended a pass; `is_empty` if it gave no sample of it."""
        if version != self.version:
            return
        notes = self._lanes[lane.worker]
        if not is_empty:  # of one that is, samples say nothing, either
            _add(_runs(notes), epoch_pass)
        notes[_ENDED] = max(int(notes[_ENDED]), epoch_pass + 1)
        notes[_BEGUN] = 0
        if self.first_unended(version, lane.num_workers) > epoch_pass:
            # The pass has ended for as many workers as there may be another time.
            others = self._lanes[lane.num_workers :]
            others[:, _ENDED], others[:, _OF_VERSION] = epoch_pass + 1, version + 1
            others[:, _NUMBERS:] = notes[_NUMBERS:]

    def own(self) -> None:
        """Replace memory that came with a pickle by a copy of its own, unless this is a DataLoader worker."""
        if self in _received and get_worker_info() is None:
            _received.discard(self)
            memory = shared_numbers(len(self._memory))
            memory.numpy()[:] = self._memory.numpy()  # torch's own copy would be work for its threads
            self._memory, self.places = memory, WorkerPlaces()
            self.name = uuid.uuid4().hex  # the one that it is a copy of may live in this process too

    @property
    def _lanes(self) -> npt.NDArray[np.int64]:
        """The notes of each lane, int64 (MAX_WORKERS, _FIELDS)."""
        lanes: npt.NDArray[np.int64] = self._memory.numpy()[_LANES:].reshape(MAX_WORKERS, _FIELDS)
        return lanes

    def __getstate__(self) -> dict[str, Any]:
        self.own()
        return {"_memory": self._memory, "places": self.places, "name": self.name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # Whether this is a worker shows only later, when it iterates: torch tells it after unpickling.
        _received.add(self)


def _runs(notes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The runs of passes that a lane has ended, int64 (_RUNS, 2), the newest last; empty ones come first."""
    return notes[_NUMBERS:].reshape(-1, 2)


def _add(runs: npt.NDArray[np.int64], epoch_pass: int) -> None:
    """Add a pass to the last run, where it is not in it, or as a new one."""
    if not epoch_pass <= runs[-1, 1] <= epoch_pass + 1:
        runs[:-1] = runs[1:]
        runs[-1, 0] = epoch_pass
    runs[-1, 1] = epoch_pass + 1


_received: "weakref.WeakSet[Control]" = weakref.WeakSet()


def _own_all() -> None:
    for control in list(_received):
        control.own()


os.register_at_fork(before=_own_all)  # workers that are forked share what their trainer has at that moment
