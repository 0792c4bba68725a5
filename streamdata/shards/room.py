"""Memory that one reading after another uses again."""

import mmap
import threading
import weakref

_MAX_KEPT_BYTES = 16 << 20


def _fresh(size: int) -> mmap.mmap:
    """At least `size` bytes, a power of two, of this process alone (by default a map is shared with forks)."""
    return mmap.mmap(-1, 1 << size.bit_length(), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class Room(threading.local):
    """Lends memory to one reader at a time, for as long as that holds the view which it was given.

    Fresh memory comes from the kernel each time, with a page fault for every 4 KiB, and goes back when it is no longer
    used; that took longer than to read the file. Each thread has its own; a copy in another process begins empty.
    """

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._lent: weakref.ref[memoryview] | None = None

    def lend(self, size: int) -> memoryview:
        """At least `size` bytes, with anything in them; the same as before if nobody holds the last view.

        Slices of the map, which is the view's `obj`, are bytes; slices of the view are views.
        """
        if size > _MAX_KEPT_BYTES:
            return memoryview(_fresh(size))
        is_lent = self._lent is not None and self._lent() is not None
        if self._memory is None or is_lent or len(self._memory) < size:
            self._memory = _fresh(size)
        view = memoryview(self._memory)
        self._lent = weakref.ref(view)
        return view

    def __reduce__(self) -> tuple[type["Room"], tuple[()]]:
        return Room, ()
