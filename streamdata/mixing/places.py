"""Which record each worker is at, in memory that it shares with its trainer: one that is killed cannot say it."""

import os
import struct
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from streamdata.errors import printable
from streamdata.fields import INDEX, KEY, URL
from streamdata.run import MAX_WORKERS
from streamdata.run.trainer import has_ended
from streamdata.sources.source import Record

_PID: Final = struct.Struct("<q")
_TEXT: Final = struct.Struct("504s")  # cut or filled up with zeros
_BYTES: Final = _PID.size + _TEXT.size


class WorkerPlace:
    """Where one worker notes it.

    Args:
        memory: Its part of what is shared: the number of its process, and a text.
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        _TEXT.pack_into(memory, _PID.size, b"")
        _PID.pack_into(memory, 0, os.getpid())

    def noting(self, source: str) -> Callable[[Record], None]:
        """What notes a record of a source that a function is about to be given."""
        memory, at, pack = self._memory, _PID.size, _TEXT.pack_into

        def note(record: Record) -> None:
            # As little as possible: this is done for each record, and hardly ever read. What a terminal would obey is
            # escaped where it is.
            url = record.get(URL)
            name = f"index {record.get(INDEX)}" if url is None else f"{url}, key {record.get(KEY)}"
            pack(memory, at, f"source '{source}', {name}".encode(errors="replace"))

        return note

    def clear(self) -> None:
        """Note that this worker has come to its end."""
        _PID.pack_into(self._memory, 0, 0)


class WorkerPlaces:
    """Those of all workers of a rank."""

    def __init__(self) -> None:
        # New shared memory, as torch makes it for batches: zeros of which no page is there yet. To fill or copy as much
        # is work for torch's threads, for which a process that was forked from one that had them waits without end.
        shared = torch.UntypedStorage._new_shared(MAX_WORKERS * _BYTES)  # type: ignore[no-untyped-call] # noqa: SLF001
        # Not in the queue with a batch: what a worker was at when it was killed never came to that.
        self._memory = torch.empty(0, dtype=torch.uint8).set_(shared).view(MAX_WORKERS, _BYTES)

    def of(self, worker: int) -> WorkerPlace:
        """Where a worker of the DataLoader notes it; called by that."""
        return WorkerPlace(self._rows()[worker].data)

    def clear(self) -> None:
        """Forget the workers of an earlier iteration."""
        self._rows()[:] = 0

    def _rows(self) -> "np.ndarray[Any, np.dtype[np.uint8]]":
        return self._memory.numpy()

    def of_dead(self) -> dict[int, str]:
        """By process: the record that a worker was last at, "" for none, of those that ended before their stream."""
        found, rows = {}, self._rows()
        for row in rows[rows[:, : _PID.size].any(1)]:
            (pid,), (text,) = _PID.unpack_from(row), _TEXT.unpack_from(row, _PID.size)
            if has_ended(pid):
                found[pid] = printable(text.rstrip(b"\0").decode(errors="replace"))
        return found
