"""The batches of ranks at each step, by pass and generation: `states of a run → stretches of each rank`.

Each generation that the states tell of is an era, which begins where the one before it ended. States that were saved in
between are points in it. Of the newest one nobody knows the end: it goes on as a resume from the states would. States
hold the entries of one size of the run alone, and a line on each generation of earlier ones. A line and the states with
which that size began, as the line says, tell where its lanes began and, where all of its steps were alike, ended.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple

from streamdata.errors import StateError
from streamdata.mixing.deals import header_of
from streamdata.mixing.merged import MergedDataset
from streamdata.mixing.tree import tree_of
from streamdata.states.checks import check_nodes
from streamdata.states.cursor import LaneKey
from streamdata.states.headers import DealHeader, Topology
from streamdata.states.joining import merge_states
from streamdata.states.progress import Progress, history_of
from streamdata.tools.trace.era import Era

_NEEDED: Final = {"weights", "samples", "batch_size"}
"""Fields without which the line on a generation does not tell its steps."""


class Point(NamedTuple):
    """The place of a rank's lanes in a pass, by some states or by the line on a generation."""

    progress: Progress | None
    """The states; None of a line, which says no more than how many batches there were."""
    samples: tuple[int, ...]
    """Samples that each worker's lane had delivered, since the topology began."""
    batches: tuple[int | None, ...]
    """Batches that it had delivered; None where nobody counted them."""


class Stretch(NamedTuple):
    """The part of a pass that a rank reads in one generation."""

    era: Era
    epoch_pass: int
    rank: int
    first: int
    """The step of its first batch."""
    points: tuple[Point, ...]
    """The states with which it begins, and what states say of it later, in this sequence."""
    is_open: bool
    """Whether it goes on after its last point."""
    size: int
    """Samples in a batch of the rank."""

    def done(self, point: Point) -> int:
        """How many batches of the stretch the rank had delivered by a point."""
        begin = self.points[0]
        lanes = zip(begin.samples, point.samples, begin.batches, point.batches, strict=True)
        return sum(
            -(-(samples - begun) // self.size) if known is None or batches is None else batches - known
            for begun, samples, known, batches in lanes
        )

    @property
    def end(self) -> int:
        """The step after the last one that states tell of."""
        return self.first + self.done(self.points[-1])

    def turns(self, progress: Progress) -> list[int]:
        """The workers in the sequence in which they deliver after some states."""
        last, workers = progress.last_workers.get((self.epoch_pass, self.rank)), range(self.era.num_workers)
        first = 0 if last is None else last + 1
        return [(first + turn) % len(workers) for turn in workers]

    def until(self, step: int) -> "Stretch":
        """Add a point at a step to which the rank went on in turns, whole batch by whole batch."""
        last = self.points[-1]
        assert last.progress is not None, "a line adds the last point"
        left, turns = step - self.end, self.turns(last.progress)
        if left <= 0:
            return self
        more = [-(-(left - turns.index(worker)) // len(turns)) for worker in sorted(turns)]
        samples = tuple(held + count * self.size for held, count in zip(last.samples, more, strict=True))
        batches = tuple((held or 0) + count for held, count in zip(last.batches, more, strict=True))
        return self._replace(points=(*self.points, Point(None, samples, batches)))


class Course:
    """A run by its states.

    Args:
        dataset: What the recipe builds.
        states: Of one run, each of all ranks or of some, at one or several times; none of a run that has not begun.
        batch: Samples in the batch of one rank, as the user says; None: as the states say, else 1.
        dp_size: Ranks of a run that has not begun.
        num_workers: Of each of them.

    Raises:
        StateError: They are not of one run, or of another recipe.
    """

    def __init__(
        self,
        dataset: MergedDataset,
        states: Sequence[Mapping[str, Any]],
        batch: int | None,
        dp_size: int,
        num_workers: int,
    ) -> None:
        self._dataset = dataset
        sizes: defaultdict[int, list[Progress]] = defaultdict(list)
        for progress in map(Progress, states):
            if progress:
                sizes[progress.before.number].append(progress)
        for held in sizes.values():
            held.append(Progress(merge_states(*[one.table for one in held])))
        # By size, with what is furthest last: of headers the newest are there.
        self._held = [progress for number in sorted(sizes) for progress in sizes[number]]
        self._states = [progress.table.as_dict() for progress in self._held]
        self.newest = self._held[-1] if sizes else Progress({})
        tree = tree_of(dataset).tree()
        check_nodes(self.newest, tree.nodes)
        self._before = {progress.before.number: progress.before for progress in self._held}
        self._headers = {number: header for one in self._held for number, header in one.headers.items()}
        self._lines = {line["generation"]: line for line in self.newest.before.sizes}
        self._begin_by_lines()
        self.shape = self.newest.topology() if self._headers else Topology(dp_size, max(1, num_workers))
        """The ranks, and workers of each, that there are now."""
        self._batch = batch
        self._sizes: dict[int, int] = {}
        self._stretches: dict[int, list[Stretch]] = {}
        self._read: dict[tuple[int, int], Progress] = {}
        self._is_changed = bool(self._headers) and self.newest.generation(tree) != self.newest.newest

    def _begin_by_lines(self) -> None:
        """Compute how sizes began of which no states are given, where those are with which they did."""
        earlier: list[Mapping[str, Any]] = []
        for number, line in self._lines.items():
            last = earlier[-1] if earlier else {"generation": -1}
            # Of a line whose predecessor was left out nobody knows whether a size began with it.
            is_known = last["generation"] == number - 1
            is_first = is_known and any(line[name] != last.get(name) for name in Topology._fields)
            if is_first and number not in self._before and line.keys() >= _NEEDED:
                header = self._begun(line, earlier) if earlier else DealHeader()
                if header is not None:
                    self._before[number], self._headers[number] = header, {**line, "deal": number}
            earlier.append(line)

    def _begun(self, line: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]]) -> DealHeader | None:
        """Make the header that a size went on from; None where no states are those with which it began."""
        for progress in self._held:
            # By what each generation had delivered: states that lack a rank, or went another way, differ.
            is_there = progress.newest + 1 == line["generation"] and progress.step() == line["step"]
            if is_there and history_of(progress)[-len(earlier) :] == earlier:
                top = tree_of(self._dataset, weights=line["weights"])
                return header_of(progress, top, top.tree())
        return None

    @cached_property
    def eras(self) -> dict[int, Era]:
        """The generations of which entries are held, by number, and the one to come where the recipe has changed."""
        eras = {number: self._era(number, header) for number, header in sorted(self._headers.items())}
        if not eras or self._is_changed:
            number = self.newest.newest + 1 if eras else 0
            eras[number] = Era(self._dataset, None, *self.shape, self.newest)
        return eras

    def _era(self, number: int, header: Mapping[str, Any]) -> Era:
        if any(header["deal"] <= earlier < number for earlier in self._headers):
            known = next(states for states in reversed(self._states) if f"generation/{number}" in states)
            begins = Progress(_before(known, number))
        else:
            begins = Progress({}).under_next_size(self._before[header["deal"]])
        return Era(self._dataset, header["weights"], header["dp_size"], header["num_workers"], begins=begins)

    def first_of(self, number: int) -> int:
        """The step with which the topology of a generation began."""
        deal = self._headers[number]["deal"] if number in self._headers else self.newest.before.number
        return self._before[deal].step if deal in self._before else 0

    def stretches(self, rank: int) -> Sequence[Stretch]:
        """The stretches of a rank in the sequence of time; the last one is what it reads now.

        Raises:
            StateError: The states leave open how large batches were, or contradict what the user says.
        """
        if rank not in self._stretches:
            self._stretches[rank] = list(self._of_rank(rank))
        return self._stretches[rank]

    def _of_rank(self, rank: int) -> Iterator[Stretch]:
        step, last = 0, max(self.eras)
        for number, era in self.eras.items():
            step = max(step, self.first_of(number))
            if rank >= era.dp_size:
                continue
            points, end = self._points(number, era, rank), self._end(number)
            newest = era.begins.newest_passes.get(rank) if era.begins else None
            first_pass = era.begins.before.first_pass if newest is None else newest
            passes = sorted(points) or ([first_pass] if number == last or end else [])
            for epoch_pass in passes:
                begin = point_of(era.begins, epoch_pass, rank, era.num_workers)
                is_open = number == last and epoch_pass == passes[-1]
                begun = (begin, *points.get(epoch_pass, ()))
                stretch = Stretch(era, epoch_pass, rank, step, begun, is_open, self._size(number))
                if end:
                    stretch = stretch.until(end)
                yield stretch
                step = stretch.end

    def _end(self, number: int) -> int:
        """The step with which a generation of an earlier size ended, 0 where its line leaves open what was read.

        It does unless each rank delivered as many whole batches, all in one pass, of sources that are there.
        """
        line = self._lines.get(number, {})
        if number not in self.eras or not line.keys() >= _NEEDED:
            return 0
        era, later = self.eras[number], [line["step"] for other, line in self._lines.items() if other > number]
        end: int = min(later, default=self.newest.before.step)
        after = self._before[min(deal for deal in self._before if deal > number)]
        given = line["samples"]
        # A line counts what samples of a yield function are made of; the sums are those of all generations in between.
        if era.top.dataset.customized_yield_fn is not None:
            given = _num_given(after) - _num_given(era.begins.before)
        is_even = given == era.dp_size * (end - line["step"]) * line["batch_size"]
        is_one_pass = {era.begins.before.first_pass, *after.passes} == {after.first_pass}
        return end if is_even and is_one_pass and era.tree.weights.keys() == line["weights"].keys() else 0

    def _size(self, number: int) -> int:
        """Samples in the batch of one rank in a generation."""
        is_held = any(f"generation/{number}" in states for states in self._states)
        told: int | None = None if is_held else self._lines.get(number, {}).get("batch_size")
        if told is not None:
            return told
        if number not in self._sizes:
            before = max((known for known in self._sizes if known < number), default=None)
            self._sizes[number] = self._size_within(number, None if before is None else self._sizes[before])
        return self._sizes[number]

    def _size_within(self, number: int, before: int | None) -> int:
        """The size within the bounds that follow from states: what the user says, or the size of the one before."""
        bounds = list(self._bounds(number))
        least, most = max((low for low, _ in bounds), default=1), min((high for _, high in bounds), default=2**53)
        if not bounds or least == most:
            wanted = least if bounds else self._batch or before or 1
        else:
            wanted = self._batch or (before if before is not None and least <= before <= most else 0)
        if least <= wanted <= most and (self._batch in (None, wanted) or not bounds):
            return wanted
        told = f"{min(least, most)} to {max(least, most)}" if most < 2**53 else f"{least} or more"
        raise StateError(
            f"states: of generation {number} they tell of batches of {least if least == most else told} samples"
            f"{'' if self._batch is None else f', got {self._batch}'}\n"
            "  Give the size of one rank's batch (--batch); where it has changed, the states saved at that time, too."
        )

    def _bounds(self, number: int) -> Iterator[tuple[int, int]]:
        """Yield for each lane in a generation, between each two of its points, the bounds of the size of a batch."""
        era = self.eras[number]
        for rank in range(era.dp_size):
            for epoch_pass, points in self._points(number, era, rank).items():
                begin = point_of(era.begins, epoch_pass, rank, era.num_workers)
                for before, after in pairwise([begin, *points]):
                    yield from _bounds_between(before, after, epoch_pass, rank)

    def _points(self, generation: int, era: Era, rank: int) -> dict[int, list[Point]]:
        """By pass, what states say of a rank in a generation, in the sequence of time."""
        found: dict[int, list[Point]] = {}
        for number, states in enumerate(self._states):
            if f"generation/{generation}" not in states:
                continue
            if (number, generation) not in self._read:  # the same for all ranks
                self._read[number, generation] = Progress(_before(states, generation + 1))
            progress = self._read[number, generation]
            for epoch_pass in _passes(states, generation, rank):
                found.setdefault(epoch_pass, []).append(point_of(progress, epoch_pass, rank, era.num_workers))
        return {epoch_pass: sorted(points, key=lambda point: point.samples) for epoch_pass, points in found.items()}


def _bounds_between(begin: Point, end: Point, epoch_pass: int, rank: int) -> Iterator[tuple[int, int]]:
    """Yield for each lane between two points the least and the largest size that a batch may have had."""
    for worker, counts in enumerate(zip(begin.samples, end.samples, begin.batches, end.batches, strict=True)):
        samples, known = counts[1] - counts[0], counts[2] is not None and counts[3] is not None
        batches = (counts[3] or 0) - (counts[2] or 0)
        if not known or not batches:
            continue
        assert end.progress is not None, "of states"
        has_ended = end.progress.has_ended(epoch_pass, rank, [worker])
        if not has_ended and samples % batches == 0:
            yield samples // batches, samples // batches
        elif has_ended:  # the last one may be smaller
            yield -(-samples // batches), (samples - 1) // (batches - 1) if batches > 1 else 2**53


def point_of(progress: Progress, epoch_pass: int, rank: int, num_workers: int) -> Point:
    """Read from states where a rank's lanes stood."""
    lanes = [progress.lane(LaneKey(epoch_pass, rank, worker)) for worker in range(num_workers)]
    samples = tuple(0 if (own := lane.node_state("")) is None else own.draws for lane in lanes)
    counted = progress.batches_of_workers(epoch_pass, rank)
    batches = (counted.get(worker) if count else 0 for worker, count in enumerate(samples))
    return Point(progress, samples, tuple(batches))


def _num_given(header: DealHeader) -> float:
    """How many samples a yield function over all had given by then."""
    return header.totals.get("", {}).get("samples", 0)


def _before(states: Mapping[str, Any], generation: int) -> dict[str, Any]:
    """The entries of states of the generations before one."""
    return {key: value for key, value in states.items() if int(key.split("/", 2)[1]) < generation}


def _passes(states: Mapping[str, Any], generation: int, rank: int) -> list[int]:
    start = f"worker/{generation}/"
    keys = (key[len(start) :].split("/") for key in states if key.startswith(start))
    return sorted(int(epoch_pass) for epoch_pass, of_rank in keys if int(of_rank) == rank)
