"""The most recently used of a kind of object, bounded, one set per thread."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(threading.local, Generic[Key, Value]):
    """Keeps the last `capacity` values that were asked for.

    A value that falls out is only dropped, not closed: whoever is still using it keeps it alive, and it closes itself
    with its last reference. One set per thread needs no lock, which a fork could leave locked for ever.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: dict[Key, Value] = {}

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key, make: Callable[[Key], Value]) -> Value:
        """The value of `key`, made by `make` where it is not among the recent ones."""
        values = self._values
        value = values.pop(key, None)
        if value is None:
            value = make(key)
            while len(values) >= self._capacity:
                del values[next(iter(values))]
        values[key] = value
        return value

    def forget(self, key: Key) -> None:
        """Drop `key`, so that the next `get` makes it afresh."""
        self._values.pop(key, None)
