"""What one rendering of a template may still take: `values → their size, printed in full → what is left`.

All is counted in bytes, about: of texts that are made, searched or compared, and for each object and operation so many
that a rendering which has spent its budget took less than a second.
"""

import sys
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

MAX_STEPS: Final = 10**6
"""Steps of loops and macros that one rendering may take."""
MAX_BYTES: Final = 1 << 28
"""Of values that one rendering may make, search and compare, one after another."""
OBJECT_BYTES: Final = 256
OPERATION_BYTES: Final = 256
MAX_BITS: Final = 1 << 12
"""Of any integer: arithmetic of longer ones takes long, and no template needs it."""
_MAX_DEPTH: Final = 2000  # Python prints, compares and hashes by recursion
_LEVELS: Final = 6  # of lists; each one above copies what it prints
_MAX_PRINTED: Final = 1 << 24  # bytes of a value that is printed in Python's way, in which each may take four
_MAX_ODD_KEYS: Final = 64
_KEY_BITS: Final = 60  # an integer of so many is its own hash
_ATOMS = (int, float, bool, type(None))
MAX_WIDTH: Final = 4
"""Bytes of a character, once it is joined with others."""
_LONG: Final = 256  # characters, from which on the size of a text tells their width


@dataclass
class Budget:
    """What is left to a rendering.

    Attributes:
        chars: How many characters its text, or any value, may have.
        marks: How many generation marks were made, if they are wanted.
        steps: Of loops and macros.
        size: In bytes, of all values.
        printed: How many characters were printed.
        width: Bytes of each of them: as many as the widest takes, since they are joined.
    """

    chars: int
    marks: int | None = None
    steps: int = MAX_STEPS
    size: int = MAX_BYTES
    printed: int = 0
    width: int = 1

    def step(self, steps: int, size: int) -> None:
        """Takes a round of a loop, or a call of a macro, whose body has so many bytes of text."""
        self.steps -= steps
        if self.steps < 0:
            raise OverflowError(f"its loops take more than {MAX_STEPS:,} steps")
        if size:
            self.spend(size)

    def check_size(self, size: int, does: str, width: int = 1) -> None:
        """Takes a value of so many characters, or items, of that width, which an operation is about to make."""
        if size > self.chars:
            raise OverflowError(f"it {does} a value to {size:,} items (max_chars)")
        self.spend(size * width)

    def print_text(self, text: str) -> None:
        """Takes a text that will be joined with all that is printed."""
        self.widen(width_of(text))
        self.printed += len(text)
        self.spend(len(text) * self.width)

    def widen(self, width: int) -> None:
        """Takes what it costs that all that is printed has characters of so many bytes."""
        if width > self.width:
            self.spend((width - self.width) * self.printed)
            self.width = width

    def spend(self, size: int) -> None:
        """Takes so many bytes."""
        self.size -= size
        if self.size < 0:
            raise OverflowError(f"it makes, searches or compares more than {MAX_BYTES:,} bytes of values")


budget_of_rendering: ContextVar[Budget] = ContextVar("budget of the template that is being rendered")


@dataclass(slots=True)
class Extent:
    """How much there is of a value.

    Attributes:
        size: Bytes of all texts and objects, each as often as it would be printed.
        num_objects: How many these are.
        depth: How deep they are nested.
        width: Bytes of a character of all texts, if they are joined.
    """

    size: int = 0
    num_objects: int = 0
    depth: int = 0
    width: int = 1


def width_of(*values: Any) -> int:
    """Bytes of a character of the texts among these values, when they are joined: 1, 2 or 4; about, where it is 2."""
    width = 1
    for value in values:
        if isinstance(value, str) and not value.isascii():
            length = len(value)
            width = max(width, round(sys.getsizeof(value) / length) if length >= _LONG else MAX_WIDTH)
    return min(width, MAX_WIDTH)


def size_of(value: Any) -> int:
    """The size of a value as it would be printed: what a list holds twice counts twice."""
    if isinstance(value, str | bytes):
        return sys.getsizeof(value)
    if isinstance(value, _ATOMS):
        return _integer_size(value) if type(value) is int else OBJECT_BYTES
    return extent_of(value).size


def printed_size(value: Any) -> int:
    """The same of a value that is about to be printed.

    Raises:
        OverflowError: It is a list, or the like, that is too large for that.
    """
    size = size_of(value)
    if size > _MAX_PRINTED and not isinstance(value, str):
        raise OverflowError(f"it prints a {type(value).__name__} of more than {_MAX_PRINTED:,} bytes")
    return size


def _integer_size(value: int) -> int:
    """Its digits cost by each other."""
    return OBJECT_BYTES + (value.bit_length() ** 2 >> 10)


def extent_of(value: Any) -> Extent:
    """The same, with the number of objects.

    A list may hold another one twice, which holds another one twice: what is left of the budget bounds the walk.
    """
    left, extent, level = budget_of_rendering.get().size, Extent(), [value]
    while level:
        extent.depth += 1
        if extent.depth > _MAX_DEPTH:
            raise OverflowError(f"it has a value that is nested more than {_MAX_DEPTH:,} deep")
        copies = max(1, extent.depth - _LEVELS)
        extent.size += OBJECT_BYTES // 8 * (copies - 1) * len(level)
        below: list[Any] = []
        for node in level:
            extent.num_objects += 1
            if isinstance(node, str | bytes):
                extent.size += sys.getsizeof(node) * copies
                extent.width = max(extent.width, width_of(node))
                continue
            if type(node) is int:
                extent.size += _integer_size(node)
                continue
            extent.size += OBJECT_BYTES * (1 + len(node)) if isinstance(node, range) else OBJECT_BYTES
            below += _parts(node)
            if extent.size + OBJECT_BYTES * len(below) > left:
                raise OverflowError(f"it has a value of more than {left:,} bytes, as it would be printed")
        level = below
    return extent


def _parts(value: Any) -> list[Any]:
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if type(value).__name__ == "Namespace":  # of jinja, which prints its attributes
        return list(vars(value).values())
    return list(value) if isinstance(value, type({}.items()) | type({}.values()) | type({}.keys())) else []


def shallow_size(value: Any) -> int:
    """The size of a value without that of what a container holds."""
    if isinstance(value, str | bytes):
        return sys.getsizeof(value)
    has_items = hasattr(value, "__len__") and not isinstance(value, type)  # of which a class only has the method
    return OBJECT_BYTES * (1 + len(value)) if has_items else OBJECT_BYTES


def check_integer(value: Any) -> None:
    """Refuses an integer that is too long; any other value is well."""
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise OverflowError(f"it makes an integer of more than {MAX_BITS:,} bits")


def check_keys(keys: Iterable[Any]) -> None:
    """Refuses many keys whose hashes can be made equal: each is compared with all others then.

    Hashes of texts are not known to a template, and so few floats have the same one that it does not matter.
    """
    odd = sum(isinstance(key, tuple | range) or (type(key) is int and key.bit_length() > _KEY_BITS) for key in keys)
    if odd > _MAX_ODD_KEYS:
        raise OverflowError(
            f"it has more than {_MAX_ODD_KEYS} keys that are tuples or integers of over {_KEY_BITS} bits"
        )


def as_list(value: Any) -> Any:
    """An iterator as a list, whose objects are counted; any other value as it is."""
    if not hasattr(value, "__next__"):
        return value
    found, budget = [], budget_of_rendering.get()
    for item in value:
        budget.spend(OPERATION_BYTES)
        found.append(item)
    return found
