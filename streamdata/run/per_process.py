"""Values that each process, or each thread, has for itself: `make → PerProcess`, over forks; `key → Recent → value`.

And what processes share: numbers in shared memory.
"""

import mmap
import os
import resource
import threading
import weakref
from collections.abc import Callable, Iterator
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


class PerProcess(Generic[T]):
    """A value that each process makes when it first asks for it.

    A process that was forked makes its own: its parent's threads are not there, its locks may be held for ever, and
    what was asked for there does not come here. One that is pickled is empty where it arrives.

    Args:
        make: Makes the value.
        leave: Called in a forked process with the value of its parent, which is then kept: where to end it here would
            disturb what the parent waits for. By default it is dropped.
    """

    def __init__(self, make: Callable[[], T], leave: Callable[[T], object] | None = None) -> None:
        self._make, self._leave = make, leave
        self._of_parents: list[T] = []
        self._lock = Lock()
        self.made: T | None = None
        """The value, if this process has asked for it."""
        _all.add(self)

    def get(self) -> T:
        """The value of this process."""
        if self.made is None:
            with self._lock:
                if self.made is None:
                    self.made = self._make()
        return self.made

    def forked(self) -> None:
        """Drop the parent's value after a fork, so that this process makes its own."""
        self._lock = Lock()
        if self.made is not None:
            if self._leave is not None:
                self._of_parents.append(self.made)
                self._leave(self.made)
            self.made = None

    def __reduce__(self) -> tuple[Any, ...]:
        return PerProcess, (self._make, self._leave)


_all: "weakref.WeakSet[PerProcess[Any]]" = weakref.WeakSet()


def _all_forked() -> None:
    for one in list(_all):
        one.forked()


os.register_at_fork(after_in_child=_all_forked)


def shared_numbers(count: int) -> "torch.Tensor":
    """Make zeros in memory that the processes share to which torch sends them; int64 (count,)."""
    import torch  # only here: who indexes shards needs none of it

    # New shared memory, as torch makes it for batches. To copy more than 32 KiB into some is work for torch's threads,
    # for which a process that was forked from one that had them waits without end.
    shared = torch.UntypedStorage._new_shared(8 * count)  # type: ignore[no-untyped-call]  # noqa: SLF001
    return torch.empty(0, dtype=torch.int64).set_(shared)


Key = TypeVar("Key")
Value = TypeVar("Value")

MAX_OPEN_FILES = 256
_FEWEST_FILES = 8


class Recent(threading.local, Generic[Key, Value]):
    """Keeps the `capacity` values that were used last, in each thread.

    A value that falls out is only dropped, not closed: whoever is still using it keeps it alive, and it closes itself
    with its last reference. One set per thread needs no lock, which a fork could leave locked in the child.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: dict[Key, Value] = {}

    def __iter__(self) -> Iterator[Key]:
        return iter(self._values)

    def get(self, key: Key, make: Callable[[Key], Value]) -> Value:
        """The value of `key`; `make(key)` makes it if it is not kept."""
        values = self._values
        # It is inserted again below: the first in the dict is the least recently used.
        value = values.pop(key, None)
        if value is None:
            value = make(key)
            while len(values) >= self._most():
                del values[next(iter(values))]
        values[key] = value
        return value

    def _most(self) -> int:
        return self._capacity

    def forget(self, key: Key) -> None:
        """Drop `key`, so that the next `get` makes it afresh."""
        self._values.pop(key, None)


def most_open_files() -> int:
    """The number of files that a thread keeps open: a quarter of the process's limit, at most `MAX_OPEN_FILES`.

    The rest is of workers' pipes, shared memory, sockets, and of what others in the process open.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_OPEN_FILES if limit == resource.RLIM_INFINITY else max(_FEWEST_FILES, min(MAX_OPEN_FILES, limit // 4))


class OpenFiles(Recent[Key, Value]):
    """Keeps the files open that a thread used last; the keys tell kinds of files apart.

    Args:
        capacity: How many there are at most, where the process's limit allows as many.
    """

    is_helping = False
    """Whether the thread reads for another one, beside it: then it keeps a fourth as many."""

    def _most(self) -> int:
        most = most_open_files() // 4 if self.is_helping else most_open_files()
        return min(self._capacity, most)  # asked for each file that is opened: the limit may be set late


open_files: OpenFiles[Any, Any] = OpenFiles(MAX_OPEN_FILES)
"""Shards by their urls, indexes by what these were built for, arrays, pages of caches …: they share one number."""


class ReadBuffer(threading.local):
    """Memory to read into, lent to one reader at a time: for as long as that keeps the view it was given.

    Fresh memory comes from the kernel each time, with a page fault for every 4 KiB, and goes back when it is no longer
    used; that took longer than to read the file. Each thread has its own; a copy in another process begins empty.

    Args:
        max_kept_bytes: Larger memory is not kept: what one huge record took goes back.
    """

    def __init__(self, max_kept_bytes: int = 16 << 20) -> None:
        self._max_kept_bytes = max_kept_bytes
        self._memory: mmap.mmap | None = None
        self._lent: weakref.ref[memoryview] | None = None

    def lend(self, size: int) -> memoryview:
        """Lend at least `size` bytes of arbitrary content; memory is used again once no view of it is left.

        Slices of the map, which is the view's `obj`, are bytes; slices of the view are views.
        """
        is_kept, is_lent = size <= self._max_kept_bytes, self._lent is not None and self._lent() is not None
        memory = self._memory
        if not is_kept or is_lent or memory is None or len(memory) < size:
            # A power of two, of this process alone: by default a map is shared with forks.
            memory = mmap.mmap(-1, 1 << size.bit_length(), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        view = memoryview(memory)
        if is_kept:
            self._memory, self._lent = memory, weakref.ref(view)
        return view

    def __reduce__(self) -> tuple[type["ReadBuffer"], tuple[int]]:
        return ReadBuffer, (self._max_kept_bytes,)
