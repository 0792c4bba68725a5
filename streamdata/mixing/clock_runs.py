"""Many draws of one clock at once, to the bit what adding one step after another gives.

A clock is a float to which a step is added at each draw, and each addition rounds. Between two powers of two all floats
are multiples of one unit, so there a step that rounds adds the same number of units each time: those additions are one
multiplication of integers. (A step that lies halfway between two multiples goes to the even one: from the second
addition on this is the same number of units each time, too.) So a clock goes over any number of draws in a few hundred
operations: a handful for each power of two.
"""

import math
from typing import NamedTuple


class Advance(NamedTuple):
    """What a source has come to."""

    draws: int
    clock: float


def advance(clock: float, step: float, limit: float, most: float = math.inf) -> Advance:
    """Draw while the clock is below the limit, and at most so many times.

    Args:
        clock: Of the next draw.
        step: What a draw adds.
        limit: A draw at this clock is not made any more; finite, unless `most` is.
        most: How many draws there are.
    """
    draws = 0
    while clock < limit and draws < most:
        # Two additions one by one: the second one is the same as all that follow below the next power of two.
        first = clock + step
        second = first + step
        unit = math.ulp(clock)
        if clock > 0 and first < limit and draws + 2 < most and math.ulp(second) == unit == math.ulp(first):
            skipped = _alike(second, second - first, unit, limit, most - draws - 2)
            clock, draws = second + skipped * (second - first), draws + 2 + skipped
        else:
            clock, draws = first, draws + 1
    return Advance(draws, clock)


def _alike(clock: float, growth: float, unit: float, limit: float, most: float) -> int:
    """How many more draws from the clock on add the same, without a rounding, and begin below the limit."""
    if clock >= limit:
        return 0
    if not growth:  # the step is lost in the rounding: the clock stands still for ever
        assert math.isfinite(most), "a clock that stands still, and a source without end"
        return int(most)
    present, size = int(clock / unit), int(growth / unit)
    # The last float below the next power of two: from there on the unit is another one.
    exponent = math.frexp(clock)[1]
    highest = int(math.ldexp(1.0, exponent) / unit) - 1
    within = (highest - present) // size
    if limit < math.ldexp(1.0, exponent):
        within = min(within, -((present - math.ceil(limit / unit)) // size))
    return int(min(within, most))
