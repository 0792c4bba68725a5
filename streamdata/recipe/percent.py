"""What a `percent` may be: a number, a schedule over time, or a size."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final, TypeAlias

from streamdata.errors import shown

Points: TypeAlias = list[list[float]]
"""Of a schedule: [time, percent] of each, by time."""

Weight: TypeAlias = float | Points | dict[str, Points]
"""A number, or a schedule: its points where it is linear between them, `{"steps": points}` where it is not. Plain JSON,
and one text for one schedule, since headers are compared.

Linear is the share in the mixture, between the points of any of its sources, and not the percent: beside a source of
0.6, `[[0, 10], [2000, 0]]` gives 944 of the first 2,000 samples, where a linear percent would give 1,655."""

STEPS: Final = "steps"
SIZES: Final = ("tokens", "records")
LEAST, MOST = 1e-100, 1e100
"""Positive percents, times and costs lie between them, so that no clock of any number of samples is without end."""


@dataclass(frozen=True)
class SizeWeight:
    """A weight that follows from how large the source is: `size ** exponent`."""

    by: str
    """One of `SIZES`."""
    exponent: float


def read_percent(percent: Any) -> Weight | SizeWeight:
    """Read what a recipe says as `percent`.

    Raises:
        ValueError: It is not one; the message does not say whose.
    """
    number = _number(percent)
    if number is not None:  # first, since most are: what else it could be takes longer to find
        return number
    if isinstance(percent, Mapping):
        return _read_mapping(percent)
    if isinstance(percent, Sequence) and not isinstance(percent, str | bytes):
        return _read_points(percent)
    raise ValueError(
        f"expected a positive number as percent, got {shown(percent)}\n"
        f"  Set its attribute `percent`, from {LEAST:g} to {MOST:g}; they need not add to 1. 0 leaves a source out; a "
        "list of [time, percent] is a schedule."
    )


def is_absent(percent: Any) -> bool:
    """Whether this `percent` says that the source is not there: it is the number 0."""
    return _number(percent) == 0


def check_weight(weight: Any) -> None:
    """Check a weight as states hold it.

    Raises:
        ValueError: It is not one.
    """
    if type(weight) in (int, float):
        if not 0 < float(weight) < math.inf:
            raise ValueError(f"expected positive numbers in 'weights', got {shown(weight)}")
        return
    # Read and compared: what reads as a schedule but is written otherwise was not written by `to_state`.
    if not isinstance(weight, list | dict) or read_percent(weight) != weight:
        raise ValueError(f"expected numbers and schedules in 'weights', got a {type(weight).__name__}")


def _read_mapping(percent: Mapping[Any, Any]) -> Weight | SizeWeight:
    if set(percent) == {STEPS}:
        return {STEPS: _read_points(percent[STEPS])}
    if not {"by"} <= set(percent) <= {"by", "exponent"}:
        raise ValueError(
            f"expected 'steps', or 'by' and if need be 'exponent' in percent, got {shown(percent)}\n"
            "  Such as {steps: [[0, 0.7], [1000000, 0.3]]} or {by: tokens, exponent: 0.7}."
        )
    if percent["by"] not in SIZES:
        raise ValueError(f"expected one of {', '.join(SIZES)} as by in percent, got {shown(percent['by'])}")
    exponent = percent.get("exponent", 1)
    # Not `_number`: an exponent below 0 is odd, but it says what it does.
    if type(exponent) not in (int, float) or not math.isfinite(exponent):
        raise ValueError(f"expected a number as exponent in percent, got {shown(exponent)}")
    return SizeWeight(percent["by"], float(exponent))


def _read_points(points: Any) -> Points:
    if not isinstance(points, Sequence) or isinstance(points, str | bytes) or not points:
        raise ValueError(f"expected a list of [time, percent] as percent, got {shown(points)}")
    read: Points = []
    for point in points:
        is_pair = isinstance(point, Sequence) and not isinstance(point, str | bytes) and len(point) == 2  # noqa: PLR2004
        numbers = [_number(number) for number in point] if is_pair else [None]
        if None in numbers:
            raise ValueError(
                f"expected [time, percent], two numbers >= 0, in the schedule of percent, got {shown(point)}\n"
                f"  Those that are not 0 are from {LEAST:g} to {MOST:g}."
            )
        read.append([number for number in numbers if number is not None])
        if len(read) > 1 and read[-1][0] <= read[-2][0]:
            raise ValueError(
                f"expected times that increase in the schedule of percent, got {read[-1][0]:g} after {read[-2][0]:g}"
            )
    return read


def _number(value: Any) -> float | None:
    """The value as a float, if it is 0 or within the bounds."""
    # Python's bool is a Real, NumPy's is not: `percent: yes` in a recipe is a slip, not the weight 1.
    # By type first: to ask an abstract class takes ten times as long, and a mixture may have thousands of sources.
    if type(value) not in (int, float) and (isinstance(value, bool) or not isinstance(value, Real)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if number == 0 or LEAST <= number <= MOST else None
