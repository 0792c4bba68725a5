"""The values of a checkpoint, checked one by one: damage must not decide what comes next."""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from streamdata.errors import StateError, shown
from streamdata.recipe.percent import check_weight
from streamdata.run import MAX_RANKS, MAX_WORKERS

FORMAT = 3
"""Of the states, in each generation's header: another one is refused there, before anything is misread."""
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
    if value["format"] != FORMAT:
        raise ValueError(
            f"expected format {FORMAT}, got {shown(value['format'])}: start anew, or go on under their own number of "
            "ranks and workers with the version of streamdata that wrote them"
        )
    _check_topology(value)
    check_texts(value["nodes"])
    if value["weights"].keys() != value["nodes"].keys() - {""}:
        raise ValueError("expected a weight of each node but the top")
    for weight in value["weights"].values():
        check_weight(weight)
    if not value["cuts"].keys() <= value["nodes"].keys():
        raise ValueError("expected cuts of sources")
    for cut in value["cuts"].values():
        check_cut(cut)
    if bool(count(value["deal"])) != ("dealt" in value) or not re.fullmatch(r"[0-9a-f]{32}|", value.get("dealt", "")):
        raise ValueError("expected a digest in 'dealt' if and only if something was before")
    return dict(value)


def check_cut(value: Any) -> None:
    """Refuse what does not say how a source is divided.

    Raises:
        ValueError: It is something else.
    """
    blocks, window, _, _, _ = map(count, value)
    if not blocks or not window:  # what is computed of it divides by them
        raise ValueError(f"expected a cut into blocks and windows, got {shown(value)}")


def check_keys(value: Any, names: Collection[str]) -> None:
    """Refuse what is no mapping with exactly these keys.

    Raises:
        ValueError: It is something else.
    """
    if not isinstance(value, Mapping) or value.keys() != set(names):
        raise ValueError(f"expected the fields {sorted(names)}")


def check_texts(value: Any) -> None:
    """Refuse what is no mapping of texts to texts.

    Raises:
        ValueError: It is something else.
    """
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for pair in value.items() for text in pair):
        raise ValueError("expected texts in 'nodes'")


def check_numbers(values: Iterable[Any]) -> None:
    """Refuse what are no finite numbers.

    Raises:
        ValueError: One is none.
    """
    if not all(map(_is_finite, values)):
        raise ValueError("expected numbers")


def check_lines(lines: Any) -> None:
    """Refuse what are not lines on earlier generations.

    Raises:
        ValueError: One is none.
    """
    for line in lines:
        for name in ("generation", "dp_size", "num_workers", "step"):
            count(line[name])
        check_numbers(value for name, value in line.items() if name != "weights")
        for weight in line.get("weights", {}).values():
            check_weight(weight)


def _check_topology(header: Mapping[str, Any]) -> None:
    # Each is looked at.
    for name, most in (("dp_size", MAX_RANKS), ("num_workers", MAX_WORKERS)):
        if not 1 <= count(header[name]) <= most:
            raise ValueError(f"expected 1 to {most} in {name!r}, got {shown(header[name])}")
    if (lanes := header["dp_size"] * header["num_workers"]) > _MAX_LANES:
        raise ValueError(f"expected at most {_MAX_LANES} lanes, got {lanes}")


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
