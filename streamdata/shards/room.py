"""Memory that one window after another uses again."""

import threading
import weakref


class Room(threading.local):
    """Holds the bytes of one window at a time.

    Fresh memory of this size comes from the kernel each time, with a page fault for every 4 KiB, and goes back with the
    window; that took longer than to read the file. Each thread has its own; a copy in another process begins empty.
    """

    def __init__(self) -> None:
        self._memory = bytearray()
        self._user: weakref.ref[object] | None = None

    def lend(self, user: object, size: int) -> bytearray:
        """At least `size` bytes for as long as `user` lives; the same as before if the last user does not."""
        is_free = self._user is None or self._user() is None
        if not is_free or len(self._memory) < size:
            self._memory = bytearray(size)
        self._user = weakref.ref(user)
        return self._memory

    def __reduce__(self) -> tuple[type["Room"], tuple[()]]:
        return Room, ()
