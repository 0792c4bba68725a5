"""What a trainer tells its DataLoader workers while they live, in shared memory."""

import multiprocessing
import os
import weakref
from functools import cache
from typing import Any

import torch
from torch.utils.data import get_worker_info

_PASS, _VERSION, _PIDS = 0, 1, 2
_SLOTS = 256


class Control:
    """The pass, the version of the states, and which workers iterate: int64 in memory that trainer and workers share.

    A copy that another trainer receives (through `torch.multiprocessing.spawn`, say) begins with the same values, and
    its own memory; one that arrives in a DataLoader worker goes on sharing its trainer's.
    """

    def __init__(self) -> None:
        self._memory = torch.zeros(_PIDS + _SLOTS, dtype=torch.int64)
        self._memory.share_memory_()  # type: ignore[no-untyped-call]

    @property
    def epoch_pass(self) -> int | None:
        """The pass that was set, None if none was."""
        return int(self._memory[_PASS]) - 1 if self._memory[_PASS] else None

    @epoch_pass.setter
    def epoch_pass(self, value: int) -> None:
        self.own()
        self._memory[_PASS] = value + 1

    @property
    def version(self) -> int:
        """How often states were set."""
        return int(self._memory[_VERSION])

    @version.setter
    def version(self, value: int) -> None:
        self.own()
        self._memory[_VERSION] = value

    def watch_version(self) -> memoryview:
        """The version as a view of one number, which costs less to look at for every sample."""
        return memoryview(self._memory.numpy())[_VERSION : _VERSION + 1]  # type: ignore[arg-type]

    def enlist(self, worker: int) -> None:
        """Note that this process iterates, as the DataLoader worker of that number."""
        self._memory[_PIDS + worker % _SLOTS] = os.getpid()

    def living_workers(self) -> int:
        """How many of this trainer's workers iterate or have iterated, and live."""
        return len({child.pid for child in multiprocessing.active_children()} & set(self._memory[_PIDS:].tolist()))

    def own(self) -> None:
        """Let go of the memory that came with a pickle, unless this is a DataLoader worker."""
        if self in _received and get_worker_info() is None:
            _received.discard(self)
            memory = self._memory.clone()
            memory.share_memory_()  # type: ignore[no-untyped-call]
            self._memory = memory

    def __getstate__(self) -> dict[str, Any]:
        self.own()
        return {"_memory": self._memory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # Whether this is a worker shows only later, when it iterates: torch tells it after unpickling.
        _received.add(self)
        _own_before_forks()


_received: "weakref.WeakSet[Control]" = weakref.WeakSet()


def _own_all() -> None:
    for control in list(_received):
        control.own()


@cache
def _own_before_forks() -> None:
    # Forked workers share what their trainer has at that moment.
    os.register_at_fork(before=_own_all)
