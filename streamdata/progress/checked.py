"""The values of a checkpoint, checked one by one: damage must not decide what comes next."""

import math
from collections.abc import Mapping
from typing import Any

from streamdata.errors import StateError, shown
from streamdata.progress.base import Base
from streamdata.recipe.percent import check_weight
from streamdata.run import MAX_RANKS, MAX_WORKERS

# Of the states, in each generation's header: another one is refused there, before anything is misread.
FORMAT = 2
_FORMATS = (1, FORMAT)
"""What can be read: in the first, the topology never changes, and open bursts do not say what they have pulled."""
_BEGUN_WITH = ("step", "pass", "base", "dealt", "history")
"""In headers after a change of topology, always."""
_MAX_COUNT = 2**53
"""What every JSON reader holds exactly, and far below what NumPy's int64 overflows at when it is added to."""
_MAX_LANES = 1 << 22
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


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def checked_header(value: Any) -> Mapping[str, Any]:
    """A generation's header.

    Raises:
        ValueError: It is not one.
    """
    if type(value["format"]) is not int or value["format"] not in _FORMATS:
        raise ValueError(f"expected one of the formats {_FORMATS}, got {shown(value['format'])}")
    _check_topology(value)
    _check_tree(value)
    _check_deal(value)
    for epoch_pass in value.get("finished", ()):
        count(epoch_pass)
    for epoch_pass, base in value.get("base", {}).items():
        count(int(epoch_pass))
        _check_base(base)
    for line in value.get("history", ()):
        _check_line(line)
    return dict(value)


def _check_topology(header: Mapping[str, Any]) -> None:
    # Each is looked at.
    for name, most in (("dp_size", MAX_RANKS), ("num_workers", MAX_WORKERS)):
        if not 1 <= count(header[name]) <= most:
            raise ValueError(f"expected 1 to {most} in {name!r}, got {shown(header[name])}")
    if (lanes := header["dp_size"] * header["num_workers"]) > _MAX_LANES:
        raise ValueError(f"expected at most {_MAX_LANES} lanes, got {lanes}")


def _check_tree(header: Mapping[str, Any]) -> None:
    nodes = header["nodes"]
    if not isinstance(nodes, Mapping) or not all(isinstance(text, str) for pair in nodes.items() for text in pair):
        raise ValueError("expected strings in 'nodes'")
    if "weights" not in header:  # of the first versions
        return
    if header["weights"].keys() != nodes.keys() - {""}:
        raise ValueError("expected a weight of each node but the top")
    for weight in header["weights"].values():
        check_weight(weight)


def _check_deal(header: Mapping[str, Any]) -> None:
    deal = count(header["deal"] if header["format"] == FORMAT else header.get("deal", 0))
    if deal and (missing := set(_BEGUN_WITH) - header.keys()):
        raise ValueError(f"expected {shown(min(missing))}, of what its topology began with")
    for name in ("step", "pass"):
        count(header.get(name, 0))


def _check_line(line: Mapping[str, Any]) -> None:
    for name in ("generation", "dp_size", "num_workers", "step"):
        count(line[name])
    for weight in line.get("weights", {}).values():
        check_weight(weight)
    for counts in line["sources"].values():
        if not all(_is_finite(number) for number in counts.values()):
            raise ValueError("expected numbers in 'history'")


def _check_base(base: Mapping[str, Any]) -> None:
    if not base.keys() <= Base.__dataclass_fields__.keys():
        raise ValueError("expected other fields in 'base'")
    if not all(_is_finite(number) for number in (base["time"], *base.get("excess", {}).values())):
        raise ValueError("expected numbers in 'base'")
    for counts in base.get("counts", {}).values():
        _, _, _, _ = map(count, counts)
    for number in base.get("shifts", {}).values():
        count(number)


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
            f"source {shown(name)}: states {what}, expected at most {last}\n  Restore the states as they were saved."
        )


def check_levels(function: Any) -> None:
    """Refuse what is not a function's state, or nests deeper than what copies it can follow.

    Raises:
        ValueError: It is not one, or does.
    """
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
