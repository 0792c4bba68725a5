"""The clocks of a mixture in one lane: where they stand when it begins, and at which pace they go on.

`Clocks` finds both from the lane's states, by pure functions:

| what the states say of a source, in this lane and pass | its clock | rule |
|---|---|---|
| nothing: a fresh start, a new pass, not drawn yet | its start | `start_clocks`, `scheduled_starts` |
| the same, after a change of topology | its start, later by what the job gave of it above its share | `shifted` |
| a clock | that clock | `begin_clocks` |
| it joined or returned, not drawn since | the lowest of the others then, or its own if higher | `begin_clocks` |
| the same, but the others had not been drawn then | its start | `begin_clocks` |
| its sources or weights changed, and it was not drawn since | at most a step above the lowest | `begin_clocks` |
| the same, with costs or schedules | as much above the lowest as it still owes by cumulative share | `Carry` |
| the same, but the mixture is finite | as if nothing had changed | `begin_clocks` |
| it was removed | none: its share goes to those that stay, whose weights have changed with it | `begin_clocks` |

The rules for a change look at the states before the change, and never at where the run stands by now. So all resumes of
one generation put a clock at the same value until its source is drawn, and from then on its own entry says it.

With costs of 1 and as long as no source has ended, a source of share w among n has given j·w samples after j samples of
a lane, within 2 (1 + n·w). Proof: source i is drawn at the times s_i + k / w_i, k = 0, 1, …, with 0 ≤ s_i < 1 / w_i,
and draws come in the order of their times. When all draws before time t (and some of those at t) are done, source i
was drawn N_i times with |N_i - w_i t| ≤ 1. Summed over the sources, the number J of all draws has |J - t| ≤ n, so that
|N_i - w_i J| ≤ |N_i - w_i t| + w_i |t - J| ≤ 1 + n w_i. A lane's stream is the part of this sequence from some draw
on, so two such errors add up.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapreplace
from typing import Any, NamedTuple

from streamdata.mixing.leaf import Run, ShareAt
from streamdata.mixing.schedule import ClockPace, ScheduledPace, Shares, SteadyPace
from streamdata.mixing.tree import Node
from streamdata.recipe.named_source import Weight
from streamdata.run import Lane, Permutation, stable_seed

# Its multiples, modulo 1, are spread evenly however many there are: what is a good start for ten sources is one for a
# thousand, and no table of starts is needed.
GOLDEN_RATIO = 0.6180339887498949

# Lanes that begin one draw after another where shares follow schedules. In simulation (`schedule_table`) global batches
# are as even with 16 as with 8 or 32; with all lanes they come in clumps once shares have changed, with 1 at the start.
_GROUP = 16
_FIXED_POINT_STEPS = 50

# After a change of topology virtual time begins here, so that what a source was given too little of can be made up for
# before it: by (excess per lane) / share. Not as much as is needed: that depends on shares, and with other weights the
# same clock would be another time.
HEADROOM = 2.0**20

LEAST_SHARE = 2.0**-20
"""Least share of a mixture in the whole: one drawn at the edge of a share of 0 must not make time run without bound."""


class History(NamedTuple):
    """The known past of one source of a mixture, at the moment a lane begins to read it."""

    joined: int
    """The generation with which it joined, the last time that it did; 0 if it was there from the first."""
    clocks: Mapping[int, float]
    """Its last clock in each generation in which it was drawn."""

    def was_drawn_since(self, generation: int) -> bool:
        """Whether the source was drawn in that generation or a later one."""
        return bool(self.clocks) and max(self.clocks) >= generation

    def clock(self) -> float | None:
        """The source's last clock; None if it was never drawn."""
        return self.clocks[max(self.clocks)] if self.clocks else None

    def drawn_before(self, generation: int) -> int | None:
        """The last generation before the given one in which the source was drawn."""
        return max((number for number in self.clocks if number < generation), default=None)


class Carry(NamedTuple):
    """Carries clocks over a change of weights in a mixture whose steps vary, by costs or schedules."""

    pace: ClockPace
    """Pace of the present generation."""
    pace_in: Callable[[int], ClockPace]
    """Pace of a generation whose sources have the numbers that they have in this one."""
    phases: Sequence[float]
    """For each source the part of a draw at which it starts."""

    def join(self, source: int, clock: float) -> float:
        """The clock of a source that joins; one whose share is 0 waits until its share grows."""
        return self.pace.due(source, clock, 0.0)

    def reweigh(self, source: int, clock: float, lowest: float, drawn_in: int | None) -> float:
        """A source's clock after the change: what it still owed of its next draw is counted at its present share."""
        # What its last sample cost is at most what it owes: so it waits no longer than if it had always had its present
        # share, and an expensive sample is made up for whatever the weights are now.
        if drawn_in is not None and clock >= lowest:
            return self.pace.due(source, lowest, self.pace_in(drawn_in).grown(source, lowest, clock))
        return clock if clock >= lowest else self.pace.due(source, lowest, self.phases[source])


def start_clocks(names: Sequence[str], steps: Sequence[float], lane: Lane, seeds: Sequence[object]) -> list[float]:
    """Return the clock of each source before the lane's first draw.

    The k-th of the sorted names starts at a golden-ratio fraction of its step, so that sources of equal weight do not
    come in clumps. The lane then starts as many draws into that one sequence as its turn says; the lanes together
    begin at consecutive draws, so that a global batch is a piece of the sequence.

    Args:
        names: Of the sources, in the order of the recipe (which decides ties).
        steps: What a draw adds to each source's clock: 1 / share.
        lane: Whose clocks.
        seeds: Of the mixture: they choose which rank is when in its turn.
    """
    clocks = [phase * step for phase, step in zip(phases(names), steps, strict=True)]
    return _advanced(clocks, turn(lane, seeds), lambda source, clock: clock + steps[source])


def scheduled_starts(names: Sequence[str], pace: ClockPace, lane_turn: int, first: float) -> list[float]:
    """Return each source's first clock under schedules; its phase is a fraction of a draw, in cumulative share.

    Lanes keep the distances from one another, in cumulative shares, with which they start. Those of a sequence of draws
    are even for the shares of the start alone. So that lanes are even for later ones, too, only some begin one draw
    after another in one sequence; the next ones do so in another, whose phases are spread evenly among all others'.

    Args:
        names: Of the sources.
        pace: Time stands still in it until `first`.
        lane_turn: How many draws into the sequence the lane would start if there were only one.
        first: The lane's virtual time at its first draw.
    """
    group, num_draws = divmod(lane_turn, _GROUP)
    # Roberts' sequence, the golden ratio of as many dimensions as phases can be chosen in: the last one follows, so
    # that a lane of any group has drawn as much by the same virtual time.
    ratio, sorted_names = 2.0, sorted(names)
    for _ in range(_FIXED_POINT_STEPS):
        ratio = (1 + ratio) ** (1 / len(names))
    shifts = {name: ratio ** -(k + 1) for k, name in enumerate(sorted_names[:-1])}
    shifts[sorted_names[-1]] = -sum(shifts.values())
    spread = [(phase + group * shifts[name]) % 1 for phase, name in zip(phases(names), names, strict=True)]
    clocks = [pace.due(source, first - num_draws, phase) for source, phase in enumerate(spread)]
    return _advanced(clocks, num_draws, lambda source, clock: pace.due(source, clock, 1.0))


def shifted(clocks: Sequence[float], pace: ClockPace, amounts: Sequence[float]) -> list[float]:
    """Delay start clocks by the draws (or costs) that a lane has to make up for, for each source."""
    pairs = enumerate(zip(clocks, amounts, strict=True))
    # States hold no clocks below 0; `HEADROOM` is such that none of them comes near it.
    return [max(0.0, pace.due(source, clock, amount)) for source, (clock, amount) in pairs]


def phases(names: Sequence[str]) -> list[float]:
    """The fraction of a draw at which each source's clock starts, from the golden ratio and its name's rank."""
    # By name and not by position in the recipe: moving a source there must not change what comes next.
    parts = {name: k * GOLDEN_RATIO % 1 for k, name in enumerate(sorted(names))}
    return list(map(parts.__getitem__, names))


def _advanced(clocks: list[float], num_draws: int, following: Callable[[int, float], float]) -> list[float]:
    heap = sorted(zip(clocks, range(len(clocks)), strict=True))
    for _ in range(num_draws):
        clock, source = heap[0]
        clocks[source] = following(source, clock)
        heapreplace(heap, (clocks[source], source))
    return clocks


def begin_clocks(
    starts: Sequence[float],
    steps: Sequence[float],
    histories: Sequence[History],
    reweighed: int,
    carry: Carry | None = None,
    gone: Sequence[History] = (),
) -> list[float]:
    """Return the clock of each source where a lane begins to read, or resumes.

    Args:
        starts: The clocks that `start_clocks` returned.
        steps: What a draw adds to each clock.
        histories: What the states say; without clocks where they say nothing.
        reweighed: The generation with which the present sources and weights began; 0 where a change of them is not to
            move the clocks of sources that stayed.
        carry: How clocks pass a change where `steps` do not say it: with costs or schedules, of then or of now.
        gone: Of the sources that left with that generation: the lowest clock of then may have been one of theirs.
    """
    # Once per generation, not per source: a thousand sources may have joined together.
    known, known_starts = [*histories, *gone], [*starts, *[math.inf] * len(gone)]
    lowest_at: dict[int, float | None] = {}
    for history in histories:
        if history.joined not in lowest_at:
            lowest_at[history.joined] = _lowest_before(history.joined, known, known_starts)
    clocks = []
    for i, (history, start) in enumerate(zip(histories, starts, strict=True)):
        clock, lowest = history.clock(), lowest_at[history.joined]
        # Where nothing was drawn before it joined, it starts together with the others.
        if lowest is None or history.was_drawn_since(history.joined):
            clocks.append(start if clock is None else clock)
            continue
        # At zero it would be drawn thousands of times in a row, until it had caught up with the others. Below its own
        # clock of before it left, it would be given again what it had had.
        joined_at = max(clock or 0.0, lowest)
        clocks.append(joined_at if carry is None else carry.join(i, joined_at))
    # Sources that were not drawn before the change do not count: they stand at their starts, which may be far behind.
    lowest = _lowest_before(reweighed, known, [math.inf] * len(known)) if reweighed else None
    if lowest is None:
        return clocks
    for i, history in enumerate(histories):
        was_there = history.joined < reweighed or history.clock() is not None  # a source that returns has one of before
        if not was_there or history.was_drawn_since(reweighed):
            continue
        if carry is not None:
            clocks[i] = carry.reweigh(i, clocks[i], lowest, history.drawn_before(reweighed))
            continue
        # As if the source had always had its present weight. One that was not drawn yet can be far behind, and would be
        # drawn many times in a row: it starts from the lowest. One that was rare has a clock that its old, long step
        # put far ahead: for that time it would not be drawn at all.
        clock = lowest + starts[i] if clocks[i] < lowest else clocks[i]
        clocks[i] = min(clock, lowest + steps[i])
    return clocks


def _lowest_before(generation: int, histories: Sequence[History], starts: Sequence[float]) -> float | None:
    """The lowest clock at the moment when the generation began, of the sources of then; None before any draw."""
    lowest, was_drawn = math.inf, False
    for history, start in zip(histories, starts, strict=True):
        if history.joined < generation:
            held = history.drawn_before(generation)
            lowest = min(lowest, start if held is None else history.clocks[held])
            was_drawn = was_drawn or held is not None
    return lowest if was_drawn else None


def turn(lane: Lane, seeds: Sequence[object]) -> int:
    """The number of draws by which this lane starts ahead in the common sequence; unique for each lane."""
    # The ranks are permuted anew for each worker: else the same ranks would be neighbours in every global batch.
    permutation = Permutation(lane.dp_size, stable_seed("turns", seeds, lane.worker))
    return permutation.at(lane.dp_rank) + lane.worker * lane.dp_size


class Clocks:
    """Holds and advances the clocks of a mixture's sources.

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
        self.steps = [] if self.shares is not None else _steps(list(node.weights.values()))
        self._turn = turn(run.lane, node.seeds)
        # The virtual time of the lane's first draw: as many draws were made to get there.
        self._first = self._turn + (HEADROOM if run.base.excess else 0.0)
        self._untold_pace: ClockPace = SteadyPace(self.steps)
        if self.shares is not None:
            self._untold_pace = ScheduledPace(self.shares, run.base.time, self._first, run.lane.count)
        self.segment = 0
        """Where it is told the time: the segment of the schedules that its clocks were computed for."""
        self.is_new = False
        """Whether clocks stand where no entry says it, although what follows depends on when that was found."""

    def share_at(self, source: int) -> ShareAt:
        """A function that gives the source's share at each time."""
        shares = self.shares
        if shares is None:
            share = 1 / self.steps[source]
            return lambda _: share
        return lambda time: shares.at(time, source)

    def time(self, clock: float) -> float:
        """The job's time (samples drawn from the top mixture) at the lane's virtual time `clock`."""
        return self._run.base.time + self._run.lane.count * max(0.0, clock - self._first)

    def pace(self, since: float, unit: float = 1.0, drawn: float = 0.0) -> ClockPace:
        """The pace of virtual time from now on; in an inner mixture it depends on the time that its parent tells.

        Args:
            since: The virtual time.
            unit: What a sample has cost on average, where it has a cost.
            drawn: What the top counts for the sample that was drawn just now; the time that it is told is before that.
        """
        if self.shares is None or not self.is_told:
            return self._untold_pace
        present, lanes = self._run.present, self._run.lane.count
        share = max(math.prod(share_at(present.time) for share_at in self._above), LEAST_SHARE)
        # When the next one is drawn, the top will have drawn of its other sources what goes with this sample, too.
        time, ends = present.time + lanes * drawn / share, self.shares.times
        if self.segment < len(ends):
            time = min(time, math.nextafter(ends[self.segment], -math.inf))
        return ScheduledPace(self.shares, time, since, lanes * present.unit / (share * unit), ahead=False)

    def begin(self) -> list[float]:
        """The clock of each source where the lane begins, or where the states say that it stands."""
        run, node, settings = self._run, self._node, self._node.dataset
        if not run.entries.cursors and not self.is_told:  # a fresh start, or the first of a new pass or size
            return self._starts()
        histories = [
            History(run.progress.member_since(child.path, run.generation), run.entries.clocks(child.path))
            for child in node.children
        ]
        # The clock of a source that has ended stays behind, so a finite mixture's lowest clock is not where it stands.
        reweighed = run.progress.blended_since(node.path, run.tree, run.generation) if settings.cyclic else 0
        if self.shares is not None and self.is_told:
            # Not by its own entry's generation: its parent may have written that anew without drawing of it. Not of all
            # sources: one that has ended is not written anew.
            since = run.progress.blended_since(node.path, run.tree, run.generation)
            was_drawn = any(history.was_drawn_since(since) for history in histories)
            state = run.entries.node_state(node.path) if was_drawn else None
            self.segment = self.shares.segment(run.present.time) if state is None else state.cursor.window
            # A clock that is found at this time would be another one at a resume's: it must be in the states with the
            # next sample.
            self.is_new = any(run.generation not in history.clocks for history in histories)
        carry, gone = self._carry(histories, reweighed), []
        # Those of another size say nothing here: the lane has no entries of it.
        earlier = [number for number in run.progress.headers if number < reweighed]
        if carry is not None and earlier:
            # Not that number less one: generations of which no rank delivered anything may be missing.
            before = self._blend(max(earlier))
            ours = {child.path for child in node.children}
            # The clocks of those that stayed may be far ahead, while their shares were 0: as far would time run on.
            gone = [History(0, run.entries.clocks(left)) for left in before if left not in ours]
        return begin_clocks(self._starts(), self.steps, histories, reweighed, carry, gone)

    def cross(self, clocks: Sequence[tuple[float, int]], unit: float) -> list[tuple[float, int]] | None:
        """Recompute the clocks if the next segment of the schedules has begun; None if not."""
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

    def _starts(self) -> list[float]:
        run, children = self._run, self._node.children
        names = [child.dataset.name for child in children]
        if self.shares is None:
            starts = start_clocks(names, self.steps, run.lane, self._node.seeds)
            starts = [clock + HEADROOM for clock in starts] if run.base.excess else starts
        else:
            starts = scheduled_starts(names, self.pace(self._first), self._turn, self._first)
        # In a finite mixture nothing is made good: its stop rule says how much there is of each.
        if not run.base.excess or not self._node.dataset.cyclic:
            return starts
        excess = [run.base.excess.get(child.path, 0.0) / run.lane.count for child in children]
        return shifted(starts, self.pace(self._first), excess) if any(excess) else starts

    def _carry(self, histories: Sequence[History], reweighed: int) -> Carry | None:
        drawn_in = (history.drawn_before(reweighed) for history in histories)
        blends = {number: self._blend(number) for number in {*drawn_in} if number is not None}
        were_scheduled = any(_are_scheduled(blend.values()) for blend in blends.values())
        # Where weights are set again and again, a source would otherwise be drawn too often: a rise of its weight
        # brings its next draw nearer, a fall does not put it off.
        is_steady = self.shares is None and not self._run.tree.set_percents
        if is_steady and self._node.dataset.cost is None and not were_scheduled:
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
        shares = Shares(paths, weights)
        # The top's clocks look ahead over all segments; those of what is told are for one.
        if not self._node.path:
            return ScheduledPace(shares, self._run.base.time, self._first, self._run.lane.count)
        state = self._run.entries.node_state(self._node.path, before=reweighed)
        fine = shares.refined()
        segment = min(state.cursor.window if state is not None else 0, len(fine.times))
        return SteadyPace([1 / fine.held(source, segment) for source in range(len(paths))])


def _are_scheduled(weights: Iterable[Weight]) -> bool:
    return not all(isinstance(weight, int | float) for weight in weights)


def _steps(numbers: Sequence[Any]) -> list[float]:
    """Find by how much a draw moves the clock of each source, from constant weights."""
    total = sum(numbers)
    return [total / number if number else math.inf for number in numbers]
