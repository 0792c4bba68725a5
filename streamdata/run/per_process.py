"""What each process has for itself: `make → the value of this process`, over forks."""

import os
import weakref
from collections.abc import Callable
from threading import Lock
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """A value that a process makes when it first asks for it.

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
        """Begin anew, in a process that was forked."""
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
