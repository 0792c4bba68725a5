"""How fast a mixture's clocks run: `(source, its clock, a draw or its cost) → its next clock`.

1. steps → `SteadyPace`; schedules → `Shares` → `ScheduledPace`: a `ClockPace` says when a source is due
2. a clock, its step → `advance` → many draws at once

Percents are normalised at each point of any sibling; between two such points the shares are linear, before the first
and after the last they are constant. So a source's share is linear by segments, its integral quadratic, and the time at
which that reaches a value is the root of a quadratic: nothing here is stepped through or approximated.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from streamdata.recipe.named_source import STEPS, Points, Weight


class Advance(NamedTuple):
    """The number of draws made from a source, and its clock after them."""

    draws: int
    clock: float


def advance(clock: float, step: float, limit: float, most: float = math.inf) -> Advance:
    """Draw while the clock is below `limit`, at most `most` times; equal to the bit to single steps.

    A clock is a float to which a step is added at each draw, and each addition rounds. Between two powers of two all
    floats are multiples of one unit, so there a step that rounds adds the same number of units each time: those
    additions are one multiplication of integers. (A step that lies halfway between two multiples goes to the even one:
    from the second addition on this is the same number of units each time, too.) So a clock goes over any number of
    draws in a few hundred operations: a handful for each power of two.

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
        unit, growth = math.ulp(clock), second - first
        if not (clock > 0 and first < limit and draws + 2 < most and math.ulp(second) == unit == math.ulp(first)):
            clock, draws = first, draws + 1
            continue
        clock, draws = second, draws + 2
        if clock >= limit:
            break
        if not growth:  # the step is lost in the rounding: the clock stands still for ever
            assert math.isfinite(most), "a clock that stands still, and a source without end"
            return Advance(draws + int(most - draws), clock)
        # How many more add the same and begin below the limit: up to the last float below the next power of two, from
        # which on the unit is another one.
        present, size, power = int(clock / unit), int(growth / unit), math.ldexp(1.0, math.frexp(clock)[1])
        within = (int(power / unit) - 1 - present) // size
        if limit < power:
            within = min(within, -((present - math.ceil(limit / unit)) // size))
        alike = int(min(within, most - draws))
        clock, draws = clock + alike * growth, draws + alike
    return Advance(draws, clock)


# What is never due still needs a clock that JSON holds: as if its share were this, it is due in 10**12 draws. A power
# of two, so that a clock read back as cumulative share (`grown`) is what it was made of.
_NEVER: Final = 2.0**-40
_HALVINGS: Final = 20
"""Number of halvings of a linear segment, from its end to its start: the first part then is a millionth of it."""
_LEAST: Final = 2.0**-10
"""Part of a draw that a source which is never due waits for at least, so that it is not due at once."""


class Shares:
    """The shares of a mixture's sources as functions of time, if any has a schedule.

    Percents are normalised at each point of any source; between two such points shares are linear, and percents are
    not: of `[[0, 10], [2000, 0]]` beside 0.6 the share is (10 / 10.6) · (1 - t / 2000), in all 944 of 2,000 samples.

    Args:
        names: Of the sources, for messages.
        weights: Of the sources.

    Attributes:
        times: The points of all sources; segment number k ends at `times[k]`, the last one does not end.

    Raises:
        ValueError: At some time all of them are 0.
    """

    def __init__(self, names: Sequence[str], weights: Sequence[Weight]) -> None:
        points = [_points(weight) for weight in weights if not isinstance(weight, int | float)]
        self.times = sorted({time for some in points for time, _ in some})
        # In segment 0 all hold what their first points say, which is what they say at the first of all times.
        self._begins: list[list[float]] = []
        for time in (self.times[0], *self.times):
            percents = [_percent(weight, time) for weight in weights]
            total = math.fsum(percents)
            if not 0 < total < math.inf:
                raise ValueError(
                    "expected a percent above 0 of some source at each time, got 0 of all of "
                    f"{', '.join(map(repr, names))} at time {time:g}\n  Give one of them a share there."
                )
            self._begins.append([percent / total for percent in percents])
        self._ends: list[list[float]] = []
        for time, begins in zip(self.times, self._begins, strict=False):
            percents = [_percent(weight, time, before=True) for weight in weights]
            total = math.fsum(percents)
            # All of them fall to 0, and another one is stepped up there: on the way they keep their ratios.
            self._ends.append([percent / total for percent in percents] if total else begins)
        self._ends.append(self._begins[-1])

    def refined(self) -> "Shares":
        """Return the same shares in finer segments: shortest at the start of each, where a share may grow from 0.

        For whom is told the time and looks no further than a segment: how fast time goes is a guess at first, and until
        a segment ends a wrong one makes it expect shares that are as wrong as shares differ within that.
        """
        fine: Shares = object.__new__(Shares)
        fine.times, fine._begins, fine._ends = [], [], []
        for k, (begins, ends) in enumerate(zip(self._begins, self._ends, strict=True)):
            is_linear = 0 < k < len(self.times) and begins != ends
            fractions = (
                [0.0, *(2.0**-halvings for halvings in range(_HALVINGS, 0, -1)), 1.0] if is_linear else [0.0, 1.0]
            )
            rows = [[b + (e - b) * part for b, e in zip(begins, ends, strict=True)] for part in fractions]
            fine._begins += rows[:-1]
            fine._ends += [*rows[1:-1], ends]
            if k < len(self.times):
                start = self.times[k - 1] if k else 0.0
                fine.times += [start + (self.times[k] - start) * part for part in fractions[1:-1]] + [self.times[k]]
        return fine

    def segment(self, time: float) -> int:
        """The number of the segment that contains `time`; a point of the schedule begins a segment."""
        return bisect_right(self.times, time)

    def at(self, time: float, source: int) -> float:
        """The source's share at `time`."""
        k = self.segment(time)
        if k in (0, len(self.times)):
            return self._begins[k][source]
        begin, end = self._begins[k][source], self._ends[k][source]
        return begin + (end - begin) * (time - self.times[k - 1]) / (self.times[k] - self.times[k - 1])

    def reach(self, source: int, time: float, rate: float, amount: float, ahead: bool = True) -> float:
        """The virtual time that a lane needs from `time` until the source's cumulative share has grown by `amount`.

        Args:
            source: Its number.
            time: Where the lane is.
            rate: How much time passes per draw of the lane's (or per cost, whichever `amount` is in).
            amount: 0 leads to where the share is not 0.
            ahead: False does not look beyond the present segment: its last shares count from then on.
        """
        k, gone = self.segment(time), 0.0
        final = len(self.times) if ahead else min(k + 1, len(self.times))
        last = self._ends[len(self.times) if ahead else k][source]
        while k < final:
            begin, end = self.at(time, source), self._ends[k][source]
            length = (self.times[k] - time) / rate
            area = length * (begin + end) / 2
            if area > amount:
                return gone + min(_root(begin, (end - begin) / length, amount), length)
            gone, amount, time, k = gone + length, amount - area, self.times[k], k + 1
        return gone + (amount / last if last else max(amount, _LEAST) / _NEVER)

    def advance(
        self, source: int, time: tuple[float, float, float], clock: float, limit: float, most: float
    ) -> Advance:
        """Draw within the clock's segment, as long as the draws are certain to end in it.

        The result is that of `clock + reach(…)` again and again: where the share changes, a million times a second.

        Args:
            source: Its number.
            time: What it is at a clock: the time, the clock since when, and the rate, as of a `ScheduledPace`.
            clock: Of the next draw; not below the one since when.
            limit: A draw at this clock is not made any more.
            most: How many draws there are.
        """
        base, since, rate = time
        now = base + rate * (clock - since)
        segment = self.segment(now)
        low, end = self._begins[segment][source], self._ends[segment][source]
        if low == end:
            growth = 1.0 / end if end else math.inf
            if segment < len(self.times):
                growth = _root(low, 0.0, 1.0) or math.inf
                # Two draws before its end: rounding does not matter there.
                limit = min(limit, clock + (self.times[segment] - now) / rate - 2 * growth)
            return advance(clock, growth, limit, most) if math.isfinite(growth) else Advance(0, clock)
        start, stop = self.times[segment - 1], self.times[segment]
        rise, width, draws, sqrt = end - low, stop - start, 0, math.sqrt
        # To the bit what `at` and `reach` compute: the same operations in the same sequence.
        while clock < limit and draws < most:
            now = base + rate * (clock - since)
            if now >= stop:
                break
            begin = low + rise * (now - start) / width
            length = (stop - now) / rate
            if length * (begin + end) / 2 <= 1.0:
                break
            square = begin * begin + 2 * ((end - begin) / length)
            root = begin + sqrt(square) if square > 0 else begin
            grown = 2.0 / root if root else 0.0
            clock += min(grown, length)
            draws += 1
        return Advance(draws, clock)

    def grown(self, source: int, time: float, rate: float, length: float) -> float:
        """The growth of the source's cumulative share while a lane goes on by `length` from `time`; inverts `reach`."""
        amount = 0.0
        for k in range(self.segment(time), len(self.times)):
            begin, end, whole = self.at(time, source), self._ends[k][source], (self.times[k] - time) / rate
            part = min(length, whole)
            end_of_part = begin + (end - begin) * (part / whole) if whole else begin
            amount += part * (begin + end_of_part) / 2
            if part == length:
                return amount
            length, time = length - whole, self.times[k]
        return amount + length * self.held(source, len(self.times))

    def held(self, source: int, segment: int) -> float:
        """The share that the source keeps after a segment, for a `reach` that does not look ahead."""
        return self._ends[segment][source] or _NEVER


def _root(share: float, slope: float, amount: float) -> float:
    """The length over which a share that changes by `slope` adds up to `amount`."""
    # Not (sqrt(…) - share) / slope: that loses all digits where the slope is nearly 0, and this is exact where it is 0.
    root = share + math.sqrt(max(0.0, share * share + 2 * slope * amount))
    return 2 * amount / root if root else 0.0


def _points(weight: Weight) -> Points:
    assert not isinstance(weight, int | float), "a number has no points"
    return weight[STEPS] if isinstance(weight, dict) else weight


def _percent(weight: Weight, time: float, before: bool = False) -> float:
    """The percent of a weight at a time, or just before it."""
    if isinstance(weight, int | float):
        return weight
    points = _points(weight)
    times = [point[0] for point in points]
    last = (bisect_left if before else bisect_right)(times, time) - 1
    if last < 0 or last + 1 == len(points):
        return points[max(last, 0)][1]
    (begin, low), (end, high) = points[last], points[last + 1]
    if isinstance(weight, dict):
        return low
    # Exact at both points: at one where a source's percent is 0 its share must be 0, too.
    return high if time == end else low + (high - low) * ((time - begin) / (end - begin))


class ClockPace(Protocol):
    """Converts between a source's clock and its cumulative share; virtual time counts a lane's draws, or costs."""

    def due(self, source: int, clock: float, amount: float) -> float:
        """The virtual time at which the source's cumulative share has grown by `amount` since `clock`."""

    def grown(self, source: int, clock: float, later: float) -> float:
        """The growth of the source's cumulative share from `clock` to `later`."""

    def advance(self, source: int, clock: float, limit: float, most: float) -> Advance:
        """Draw a source while its clock is below `limit`, at most `most` times; exact to the bit."""


@dataclass(frozen=True)
class SteadyPace:
    """A pace for shares that do not change."""

    steps: Sequence[float]
    """1 / share of each source."""

    def due(self, source: int, clock: float, amount: float) -> float:
        return clock + self.steps[source] * amount

    def grown(self, source: int, clock: float, later: float) -> float:
        return (later - clock) / self.steps[source]

    def advance(self, source: int, clock: float, limit: float, most: float) -> Advance:
        return advance(clock, self.steps[source], limit, most)


@dataclass(frozen=True)
class ScheduledPace:
    """A pace for shares on schedules; the time at virtual time x is `time + rate * max(0, x - since)`."""

    shares: Shares
    time: float
    since: float
    rate: float
    ahead: bool = True
    """Whether that is so in later segments, too; else a clock is computed as if the present one did not end."""

    def due(self, source: int, clock: float, amount: float) -> float:
        if amount < 0:  # only what a change of topology finds too much or too little of: a part of a step
            share = self.shares.at(self._time(clock), source)
            return clock + amount / share if share else clock
        if clock < self.since:
            share = self.shares.at(self.time, source)
            grown = (self.since - clock) * share
            if share and amount <= grown:
                return clock + amount / share
            clock, amount = self.since, amount - grown
        return clock + self.shares.reach(source, self._time(clock), self.rate, amount, self.ahead)

    def grown(self, source: int, clock: float, later: float) -> float:
        still = max(0.0, min(later, self.since) - clock)
        start = max(clock, self.since)
        moving = self.shares.grown(source, self._time(start), self.rate, max(0.0, later - start))
        return still * self.shares.at(self.time, source) + moving

    def advance(self, source: int, clock: float, limit: float, most: float) -> Advance:
        draws = 0
        while clock < limit and draws < most:
            # What is quick goes as far as it can; a draw over the end of a segment is made as `due` makes it.
            if clock >= self.since and self.ahead:
                time = self.time, self.since, self.rate
                some = self.shares.advance(source, time, clock, limit, most - draws)
                clock, draws = some.clock, draws + some.draws
            if clock < limit and draws < most:
                clock, draws = self.due(source, clock, 1.0), draws + 1
        return Advance(draws, clock)

    def _time(self, clock: float) -> float:
        return self.time + self.rate * max(0.0, clock - self.since)
