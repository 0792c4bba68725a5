"""Shared memory that a worker lends to the trainer for a batch, gets back, and lends again.

`pieces of a batch → lend (worker) → a loan, through the queue → borrow (trainer) → the batch's bytes`

New shared memory for every batch costs more than its data: the kernel finds and clears pages, a file descriptor is
handed over, and both processes map every page again. So each worker keeps a few segments. One is a file in memory:

    [ in use | retired | … 64 bytes ][ a batch ]

| byte | the worker writes | the trainer writes |
|---|---|---|
| 0, in use | 1, before it fills a segment, which it does only when it finds 0 | 0, when nothing views the batch |
| 1, retired | 1, when it will never fill the segment again | |

A segment's first loan carries the file; the trainer maps it, and keeps the map for later loans, which name the segment
only. No message is needed to return a segment, so none can be lost: a segment whose byte 0 stays 1, because the
trainer keeps the batch, or never received it, is retired when the worker has too many.

The trainer releases a map (what still views a batch keeps it alive) when its segment is retired, or when the `Process`
of its worker is garbage, as after the end of its loader.

Order of reads and writes: the queue's system calls order filling before reading. Back from the trainer, reading comes
before the 0 in program order, which x86 keeps. Other processors may let a store overtake a load that waits for memory,
but by nanoseconds, and after the worker sees the 0 it runs Python for microseconds before it fills the segment.
"""

import itertools
import multiprocessing
import multiprocessing.reduction
import os
import weakref
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from streamdata.run.per_process import PerProcess

Memory: TypeAlias = npt.NDArray[np.uint8]

HEADER_BYTES: Final = 64
"""A cache line, so that a batch begins aligned."""

MAX_SEGMENTS: Final = 16
"""Per worker. Only a trainer that collects batches has more of them on their way or in use."""

_IN_USE, _RETIRED = 0, 1
_MAX_FREED_BYTES: Final = 31 << 20
"""Just below the largest block that malloc learns from, see `_keep_freed_memory`."""
_PIECES_PER_CALL: Final = 1000
"""Below the 1,024 buffers that Linux takes in one writev (IOV_MAX)."""


def can_lend() -> bool:
    """Whether this system supports files in memory (`memfd_create`); Linux does."""
    return hasattr(os, "memfd_create")


class SharedSegment:
    """A segment of shared memory, as the worker that owns it sees it."""

    def __init__(self, number: int, capacity: int) -> None:
        self.number = number
        self.file = os.memfd_create("streamdata")
        weakref.finalize(self, os.close, self.file)
        os.ftruncate(self.file, HEADER_BYTES + capacity)
        self.memory = _mapped(self.file)
        self.capacity = capacity
        self.is_new = True

    def fill(self, pieces: list[memoryview]) -> None:
        """Copy a batch's pieces into the segment, which must be free."""
        self.memory[_IN_USE] = 1
        pieces = [piece.cast("B") for piece in pieces if piece.nbytes]
        if self.is_new:
            # The kernel fills pages that are not there yet faster than this process, which would be
            # interrupted for each of them.
            _write(self.file, pieces)
            return
        memory, end = self.memory.data, HEADER_BYTES
        for piece in pieces:
            begin, end = end, end + piece.nbytes
            memory[begin:end] = piece


class Loan:
    """A filled segment in transit to the trainer; unpickling it gives a view of the batch."""

    def __init__(self, lender: "_Lender", segment: SharedSegment, num_bytes: int) -> None:
        self._lender = lender
        self._segment = segment  # its file stays open until the queue's thread has pickled this
        self._num_bytes = num_bytes
        self._is_first = segment.is_new
        segment.is_new = False

    def __reduce__(self) -> tuple[Callable[..., memoryview], tuple[Any, ...]]:
        # Opened by the trainer through multiprocessing's own server of file descriptors.
        file = multiprocessing.reduction.DupFd(self._segment.file) if self._is_first else None
        return borrow, (self._lender.name, self._lender.pid, self._segment.number, self._num_bytes, file)


class _Lender:
    """The segments of this process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.name = os.urandom(16)
        self.segments: list[SharedSegment] = []
        self._numbers = itertools.count()

    def take(self, num_bytes: int) -> SharedSegment:
        """Return the smallest free segment that is large enough; else make one, and retire another if needed."""
        free = [segment for segment in self.segments if not segment.memory[_IN_USE]]
        fitting = [segment for segment in free if segment.capacity >= num_bytes]
        if fitting:
            return min(fitting, key=lambda segment: segment.capacity)
        if free or len(self.segments) == MAX_SEGMENTS:
            retired = free[0] if free else self.segments[0]
            retired.memory[_RETIRED] = 1
            self.segments.remove(retired)
        # Spare capacity costs nothing: the kernel allocates a page when it is first written.
        segment = SharedSegment(next(self._numbers), 1 << (num_bytes - 1).bit_length())
        _keep_freed_memory(2 * num_bytes)
        self.segments.append(segment)
        return segment


_lender = PerProcess(_Lender)


def lend(pieces: list[memoryview], num_bytes: int) -> Loan:
    """Copies the pieces of a batch, one after another, into a segment of this process.

    Args:
        pieces: Contiguous memory of any item size.
        num_bytes: Of all pieces together.
    """
    lender = _lender.get()
    segment = lender.take(num_bytes)
    segment.fill(pieces)
    return Loan(lender, segment, num_bytes)


_maps: dict[bytes, dict[int, Memory]] = {}
"""By lender and number: the segments that this process has borrowed from its workers."""

_forks = 0


def borrow(lender: bytes, pid: int, number: int, num_bytes: int, file: Any) -> memoryview:
    """Map a lent segment in the trainer, and return a view; the segment is free again when no view is left.

    Args:
        lender: The unique name of the worker's set of segments.
        pid: Of the worker.
        number: Of the segment within the set.
        num_bytes: Of the batch.
        file: The segment's file as `multiprocessing.reduction.DupFd` sends it, None if the segment was lent before.

    Returns:
        Its bytes, writable.

    Raises:
        RuntimeError: The worker died after it sent the first loan of a segment.
    """
    maps = _maps.get(lender)
    if maps is None:
        maps = {}
        for process in multiprocessing.active_children():
            if process.pid == pid:  # they are kept as long as it; of a worker of another process not at all
                _maps[lender] = maps
                weakref.finalize(process, _maps.pop, lender, None).atexit = False
    if file is not None:
        for retired in [known for known, memory in maps.items() if memory[_RETIRED]]:
            del maps[retired]
        maps[number] = _received(file, pid)
        _keep_freed_memory(2 * num_bytes)
    assert number in maps, f"worker {pid} lent segment {number} again, which never arrived"
    memory = maps[number]
    # NumPy's views hold the first array in their chain of bases: if `batch` were a slice of `memory`, its own views
    # would hold `memory` instead, and `batch` would be finalized while they are in use. The tensor ends that chain.
    batch = torch.from_numpy(memory)[HEADER_BYTES : HEADER_BYTES + num_bytes].numpy()
    if lender in _maps:  # else no `Process` says when to release the map, so the segment must not be lent again
        weakref.finalize(batch, _give_back, memory, _forks).atexit = False
    return batch.data


def _give_back(memory: Memory, forks: int) -> None:
    # After a fork both processes may view the batch, and neither knows what the other does.
    if forks == _forks:
        memory[_IN_USE] = 0


def _count_fork() -> None:
    global _forks  # noqa: PLW0603  counts what happens to the process
    _forks += 1


os.register_at_fork(before=_count_fork, after_in_parent=_count_fork, after_in_child=_count_fork)
os.register_at_fork(after_in_child=_maps.clear)


def _received(file: Any, pid: int) -> Memory:
    try:
        descriptor: int = file.detach()
    except (OSError, EOFError) as error:
        raise RuntimeError(
            f"mixed_collate: expected the DataLoader worker {pid} to hand over its batch, got no answer\n"
            "  It was killed, perhaps for lack of memory: see the system's log."
        ) from error
    try:
        return _mapped(descriptor)
    finally:
        os.close(descriptor)


def _mapped(file: int) -> Memory:
    # Not `mmap.mmap`, which keeps a file descriptor open for each map.
    size_bytes = os.fstat(file).st_size
    memory: Memory = torch.from_file(f"/proc/self/fd/{file}", shared=True, size=size_bytes, dtype=torch.uint8).numpy()
    return memory


def _keep_freed_memory(size_bytes: int) -> None:
    """Lets this process keep that much freed memory, for the values of the next batch.

    The GNU C library returns free memory at the end of its heap to the kernel, so that every batch would need new
    pages. It keeps twice the size of the largest block that was ever mapped and freed, where that was up to 32 MiB (see
    `M_MMAP_THRESHOLD` in mallopt(3)); so mapping and freeing a block is enough. Other allocators are not affected.
    """
    np.empty(min(size_bytes, _MAX_FREED_BYTES), np.uint8)


def _write(file: int, pieces: list[memoryview]) -> None:
    """Writes all pieces after the header; one call takes a limited number of pieces and of bytes."""
    offset = HEADER_BYTES
    while pieces:
        written = os.pwritev(file, pieces[:_PIECES_PER_CALL], offset)
        offset += written
        done = 0
        while done < len(pieces) and written >= pieces[done].nbytes:
            written -= pieces[done].nbytes
            done += 1
        pieces = pieces[done:]
        if written:
            pieces[0] = pieces[0][written:]
