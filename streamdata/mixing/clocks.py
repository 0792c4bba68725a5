"""The clocks of one mixture in one lane: where they stand when it begins, and at which pace they go on."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from streamdata.mixing.child import Run
from streamdata.mixing.clock import (
    HEADROOM,
    Carry,
    History,
    begin_clocks,
    phases,
    scheduled_starts,
    shifted,
    start_clocks,
    turn,
)
from streamdata.mixing.pace import ClockPace, ScheduledPace, SteadyPace
from streamdata.mixing.present import LEAST_SHARE
from streamdata.mixing.schedule import Shares
from streamdata.mixing.tree import Node
from streamdata.recipe.named_source import Weight

ShareAt = Callable[[float], float]
"""The share of a source in its mixture at a time."""


class Clocks:
    """What moves a mixture's clocks.

    The time of the top's schedules follows from its own clocks: its virtual time is what its lane has drawn. Within a
    mixture that is not so: its parents' weights change, one of the two may count costs. So a mixture that has a
    schedule and is not the top is *told* the time at each draw, and looks no further than the segment of the schedules
    in which that is; where the next one begins, all its clocks are computed anew (`cross`).

    Args:
        run: The lane.
        node: The mixture.
        above: The shares on the path from the top to it.
    """

    def __init__(self, run: Run, node: Node, above: Sequence[ShareAt]) -> None:
        self._run, self._node, self._above = run, node, above
        self.is_told = node.shares is not None and bool(node.path)
        self.shares = node.shares.refined() if node.shares is not None and self.is_told else node.shares
        weights = list(node.weights.values())
        self.steps = [] if self.shares is not None else _steps(weights)
        self.segment = 0
        """Where it is told the time: the segment of the schedules that its clocks were computed for."""
        self.is_new = False
        """Whether clocks stand where no entry says it, although what follows depends on when that was found."""

    def share_at(self, source: int) -> ShareAt:
        """The share of a source at each time."""
        shares = self.shares
        if shares is None:
            share = 1 / self.steps[source]
            return lambda _: share
        return lambda time: shares.at(time, source)

    def time(self, clock: float) -> float:
        """Of the top: what the job has drawn when the lane's virtual time is this."""
        return self._run.base.time + self._run.lane.count * max(0.0, clock - self._first)

    def pace(self, since: float, unit: float = 1.0, drawn: float = 0.0) -> ClockPace:
        """The pace from now on; where it is told the time, that depends on where it stands.

        Args:
            since: The virtual time.
            unit: What a sample has cost on average, where it has a cost.
            drawn: What the top counts for the sample that was drawn just now; the time that it is told is before that.
        """
        if self.shares is None:
            return SteadyPace(self.steps)
        if not self.is_told:
            return self._top_pace
        present, lanes = self._run.present, self._run.lane.count
        share = max(math.prod(share_at(present.time) for share_at in self._above), LEAST_SHARE)
        # When the next one is drawn, the top will have drawn of its other sources what goes with this sample, too.
        time = min(present.time + lanes * drawn / share, self.shares.last_of(self.segment))
        return ScheduledPace(self.shares, time, since, lanes * present.unit / (share * unit), ahead=False)

    def begin(self) -> list[float]:
        """The clock of each source when the lane begins, or goes on from where the states stand."""
        run, node, settings = self._run, self._node, self._node.dataset
        histories = [self._history(child.path) for child in node.children]
        # The clock of a source that has ended stays behind, so a finite mixture's lowest clock is not where it stands.
        reweighed = run.progress.blended_since(node.path, run.tree, run.generation) if settings.cyclic else 0
        if self.is_told:
            self._find_segment(histories)
        carry = self._carry(histories, reweighed)
        gone = [] if carry is None else self._gone(reweighed)
        return begin_clocks(self._starts(), self.steps, histories, reweighed, carry, gone)

    def cross(self, clocks: Sequence[tuple[float, int]], unit: float) -> list[tuple[float, int]] | None:
        """Where it is told that the next segment has begun: the clocks, each with its source, computed for that."""
        assert self.shares is not None, "no segments to cross"
        segment = self.shares.segment(self._run.present.time)
        if segment == self.segment:
            return None
        # What a source still owes of its next draw, by the share that it had: so nothing is lost or drawn twice.
        lowest = min(clock for clock, _ in clocks)
        before, self.segment, self.is_new = self.segment, segment, True
        pace = self.pace(lowest, unit)
        held = self.shares.held
        return [(pace.due(i, lowest, (clock - lowest) * held(i, before)), i) for clock, i in clocks]

    @cached_property
    def _turn(self) -> int:
        return turn(self._run.lane, self._node.seeds)

    @cached_property
    def _first(self) -> float:
        """The virtual time of the lane's first draw: as many draws were made to get there."""
        return self._turn + (HEADROOM if self._run.base.excess else 0.0)

    @cached_property
    def _top_pace(self) -> ClockPace:
        assert self.shares is not None, "no schedule"
        return ScheduledPace(self.shares, self._run.base.time, self._first, self._run.lane.count)

    def _history(self, path: str) -> History:
        run = self._run
        return History(run.progress.member_since(path, run.generation), run.entries.clocks(path))

    def _starts(self) -> list[float]:
        run, children = self._run, self._node.children
        names = [child.dataset.name for child in children]
        if self.shares is None:
            delay = self._first - self._turn
            starts = [clock + delay for clock in start_clocks(names, self.steps, run.lane, self._node.seeds)]
        else:
            starts = scheduled_starts(names, self.pace(self._first), self._turn, self._first)
        excess = [run.base.excess.get(child.path, 0.0) / run.lane.count for child in children]
        # In a finite mixture nothing is made good: its stop rule says how much there is of each.
        return shifted(starts, self.pace(self._first), excess) if any(excess) and self._node.dataset.cyclic else starts

    def _find_segment(self, histories: Sequence[History]) -> None:
        run, path = self._run, self._node.path
        assert self.shares is not None, "is told the time"
        standing = run.entries.standing(path)
        since = run.progress.blended_since(path, run.tree, run.generation)
        # Not by its own entry's generation: its parent may have written that anew without drawing of it. Not of all
        # sources: one that has ended is not written anew.
        if standing is not None and any(history.was_drawn_since(since) for history in histories):
            self.segment = standing.cursor.window
        else:
            self.segment = self.shares.segment(run.present.time)
        # A clock that is found at this time would be another one at a resume's: it must be in the states with the next
        # sample.
        self.is_new = any(run.generation not in history.clocks for history in histories)

    def _carry(self, histories: Sequence[History], reweighed: int) -> Carry | None:
        generations = {history.drawn_before(reweighed) for history in histories} - {None}
        blends = {number: self._blend(number) for number in generations if number is not None}
        were_scheduled = any(_are_scheduled(blend.values()) for blend in blends.values())
        if self.shares is None and self._node.dataset.cost is None and not were_scheduled:
            return None
        known = [clock for history in histories if (clock := history.clock()) is not None]
        names = [child.dataset.name for child in self._node.children]
        paces = {number: self._pace_by(blend, reweighed) for number, blend in blends.items()}
        return Carry(self.pace(min(known, default=self._first)), paces.__getitem__, phases(names))

    def _blend(self, generation: int) -> Mapping[str, Weight]:
        return self._run.progress.tree(generation).blend(self._node.path)

    def _pace_by(self, blend: Mapping[str, Weight], reweighed: int) -> ClockPace:
        """The pace by weights of before a change; the present sources keep their numbers."""
        ours = [child.path for child in self._node.children]
        paths = [*ours, *(path for path in blend if path not in set(ours))]
        weights = [blend.get(path, 0.0) for path in paths]
        if not _are_scheduled(weights):
            return SteadyPace(_steps(weights))
        shares, run = Shares(paths, weights), self._run
        # The top's clocks look ahead over all segments; those of what is told are for one.
        if not self._node.path:
            return ScheduledPace(shares, run.base.time, self._first, run.lane.count)
        standing = run.entries.standing(self._node.path, before=reweighed)
        fine = shares.refined()
        segment = min(standing.cursor.window if standing is not None else 0, len(fine.times))
        return SteadyPace([1 / fine.held(source, segment) for source in range(len(paths))])

    def _gone(self, reweighed: int) -> list[History]:
        run = self._run
        # What the first generation of a size comes after is of another size.
        if reweighed <= run.progress.before.number:
            return []
        # Not that number less one: generations of which no rank delivered anything may be missing.
        before = self._blend(max(number for number in run.progress.headers if number < reweighed))
        ours = {child.path for child in self._node.children}
        # The clocks of those that stayed may be far ahead, while their shares were 0: as far would time run on.
        return [History(0, run.entries.clocks(left)) for left in before if left not in ours]


def _are_scheduled(weights: Iterable[Weight]) -> bool:
    return not all(isinstance(weight, int | float) for weight in weights)


def _steps(weights: Sequence[Weight]) -> list[float]:
    numbers = [weight for weight in weights if isinstance(weight, int | float)]
    total = sum(numbers)
    return [total / number if number else math.inf for number in numbers]
