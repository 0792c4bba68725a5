"""How fast a mixture's clocks run: `(source, its clock, a draw or its cost) → its next clock`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from streamdata.mixing.clock_runs import Advance, advance
from streamdata.mixing.schedule import Shares


class ClockPace(Protocol):
    """Virtual time counts what a lane draws of the mixture, in draws or costs; a source's clock says when it is due."""

    def due(self, source: int, clock: float, amount: float) -> float:
        """The virtual time at which the source's cumulative share has grown by `amount` since `clock`."""

    def grown(self, source: int, clock: float, later: float) -> float:
        """By how much it grows from `clock` to `later`."""

    def advance(self, source: int, clock: float, limit: float, most: float) -> Advance:
        """What a source comes to that draws while its clock is below the limit, at most so many times, to the bit."""


@dataclass(frozen=True)
class SteadyPace:
    """Shares that do not change."""

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
    """Shares that follow schedules, whose time at virtual time x is `time + rate * max(0, x - since)`."""

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
            some = self._within_segment(source, clock, limit, most - draws)
            clock, draws = some.clock, draws + some.draws
            if clock < limit and draws < most:
                clock, draws = self.due(source, clock, 1.0), draws + 1
        return Advance(draws, clock)

    def _within_segment(self, source: int, clock: float, limit: float, most: float) -> Advance:
        """The draws that surely end in the segment in which the clock lies, and after `since`."""
        time = self._time(clock)
        segment = self.shares.segment(time)
        if clock < self.since or not self.ahead:
            return Advance(0, clock)
        growth = self.shares.steady_growth(source, segment)
        if growth is None:
            return self.shares.advance(source, segment, (self.time, self.since, self.rate), clock, limit, most)
        if segment < len(self.shares.times):
            # Two draws before its end: rounding does not matter there.
            limit = min(limit, clock + (self.shares.times[segment] - time) / self.rate - 2 * growth)
        return advance(clock, growth, limit, most) if math.isfinite(growth) else Advance(0, clock)

    def _time(self, clock: float) -> float:
        return self.time + self.rate * max(0.0, clock - self.since)
