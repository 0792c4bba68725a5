"""The values of a checkpoint, checked one by one: damage must not decide what comes next."""

import math
import reprlib
from collections.abc import Mapping
from typing import Any

from streamdata.errors import StateError
from streamdata.run import MAX_WORKERS

# Of the states, in each generation's header: another one is refused there, before anything is misread.
FORMAT = 1
_REQUIRED = ("draws", "epoch", "window", "taken")
# Written only where they are not zero, see `to_state`.
_OPTIONAL = ("part", "given", "dropped", "bad", "round")
_MAX_COUNT = 2**53
"""What every JSON reader holds exactly, and far below what NumPy's int64 overflows at when it is added to."""
_MAX_CLOCK = 2.0**63
_MAX_LEVELS = 100
"""Of a function's state: what copies it must not run out of stack."""


def count(value: Any) -> int:
    """A count, as it is.

    Raises:
        ValueError: It is not an int, negative, or too large to be a count.
    """
    # Not isinstance: True is an int, but not a count.
    if type(value) is not int or not 0 <= value < _MAX_COUNT:
        raise ValueError(f"expected a count below 2**53, got {shown(value)}")
    return value


def checked_header(value: Any) -> Mapping[str, Any]:
    """A generation's header.

    Raises:
        ValueError: It is not one.
    """
    if value["format"] != FORMAT:
        raise ValueError(f"expected format {FORMAT}, got {shown(value['format'])}")
    count(value["dp_size"])
    if count(value["num_workers"]) > MAX_WORKERS:  # each is looked at
        raise ValueError(f"expected at most {MAX_WORKERS} in 'num_workers', got {shown(value['num_workers'])}")
    nodes = value["nodes"]
    if not isinstance(nodes, Mapping) or not all(isinstance(text, str) for pair in nodes.items() for text in pair):
        raise ValueError("expected strings in 'nodes'")
    weights = value.get("weights", {})
    if not all(type(weight) in (int, float) and 0 < float(weight) < math.inf for weight in weights.values()):
        raise ValueError("expected positive numbers in 'weights'")
    return dict(value)


def checked_cursor(value: Any) -> Mapping[str, Any]:
    """A node's entry.

    Raises:
        ValueError: It is not one.
    """
    for name in _REQUIRED:
        count(value[name])
    for name in _OPTIONAL:
        count(value.get(name, 0))
    clock = value["clock"]
    if type(clock) not in (int, float) or not 0 <= clock < _MAX_CLOCK:
        raise ValueError(f"expected a clock, got {shown(clock)}")
    _check_levels(value.get("function", {}))
    return {**value, "clock": float(clock)}


def checked_lane(value: Any) -> Mapping[str, Any]:
    """A lane's entry.

    Raises:
        ValueError: It is not one.
    """
    if not value.keys() <= {"batches", "ended"} or type(value.get("ended", False)) is not bool:
        raise ValueError("expected 'batches' and 'ended' at most, the latter true")
    count(value.get("batches", 0))
    return dict(value)


def check_position(name: str, what: str, got: int, last: int) -> None:
    """Refuse states that stand where there is nothing: `got` is beyond `last`.

    Raises:
        StateError: They do.
    """
    if got > last:
        raise StateError(
            f"source {name!r}: states {what}, expected at most {last}\n  Restore the states as they were saved."
        )


def shown(value: object) -> str:
    """A value of any size and depth, as a short text for a message."""
    try:
        return reprlib.repr(value)[:100]
    except ValueError:  # an integer with more digits than Python prints
        return f"a {type(value).__name__}"


def _check_levels(function: Any) -> None:
    if not isinstance(function, Mapping):
        raise ValueError(f"expected a mapping in 'function', got {shown(function)}")
    # Level by level and not by recursion, which could itself run out of stack here.
    level: list[Any] = [function]
    for _ in range(_MAX_LEVELS):
        parts = [part for part in level if isinstance(part, Mapping | list | tuple)]
        level = [inner for part in parts for inner in (part.values() if isinstance(part, Mapping) else part)]
        if not level:
            return
    raise ValueError(f"expected at most {_MAX_LEVELS} levels in 'function'")
