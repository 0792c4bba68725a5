"""The records of the batches at a step: `recipe, states → the step's stretch of each rank → its records`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice, pairwise
from typing import Any, NamedTuple

from streamdata.errors import SourceError, StateError, shown
from streamdata.mixing.merged import MergedDataset
from streamdata.mixing.tree import Node
from streamdata.sources.files.shard_source import ShardDataset
from streamdata.sources.source import Sample
from streamdata.states.cursor import LaneKey, NodeState
from streamdata.states.progress import Progress
from streamdata.states.table import COUNTS
from streamdata.tools.trace.course import Course, Point, Stretch, point_of
from streamdata.tools.trace.era import RankStream, record_of
from streamdata.tools.trace.find import Search, WantedRecord

SEEK, READ = "seek", "read"
_EMPTY_PASSES = 2
_LOOK_AHEAD = 1000
_MAX_SAMPLES = 2**52
"""Samples of a rank: a clock from there on moves by whole samples alone, and at last not at all."""


class StepCount(NamedTuple):
    """The batches of a rank that make a step of the training loop, whose steps are counted from 1."""

    batches: int = 1
    """In a step: more than 1 where gradients are accumulated."""
    offset: int = 0
    """Batches before the first step; below 0 where the loop began with a later step than the first."""

    def first(self, step: int) -> int:
        """The number of a step's first batch among those of the job, from 0."""
        return (step - 1) * self.batches + self.offset

    def of(self, batch: int) -> int:
        """The step that a batch is of."""
        return (batch - self.offset) // self.batches + 1


def count_steps(saved: Sequence[tuple[int | None, Mapping[str, Any]]], batches_per_step: int | None) -> StepCount:
    """Find out how a training loop counts, by the steps that it gave to saves.

    Args:
        saved: Steps, None where nobody knows them, each with the states.
        batches_per_step: As the user says.

    Raises:
        StateError: It does not follow from them.
    """
    pairs = sorted({(step, Progress(states).step()) for step, states in saved if step is not None})
    found: set[StepCount | None] = set()
    if batches_per_step:
        counts = (StepCount(batches_per_step, number - step * batches_per_step) for step, number in pairs)
        found.update(counts if pairs else [StepCount(batches_per_step)])
    elif all(step == number for step, number in pairs):
        return StepCount()
    for (step, number), (later_step, later) in pairwise(() if batches_per_step else pairs):
        batches, rest = divmod(later - number, later_step - step) if later_step > step else (0, 0)
        found.add(StepCount(batches, later - later_step * batches) if batches > 0 and not rest else None)
    count = found.pop() if len(found) == 1 else None
    if count is not None:
        return count
    told = ", ".join(f"{number} batches at step {step}" for step, number in pairs)
    raise StateError(
        f"states: expected one number of batches for each step, got {told}\n"
        "  Give --batches-per-step, or states of two steps between which it was the same."
    )


@dataclass(frozen=True, kw_only=True)
class TracedStep:
    """A step.

    Attributes:
        step: Its number, from 1.
        records: What its batches are made of, by rank, then as delivered: `source`, and `url` and `key`, or `index`.
        how: `seek` where what came before was counted, `read` where it was read.
        origin: The step of the states from which that began, of ranks the lowest.
    """

    step: int
    how: str
    origin: int
    records: list[dict[str, Any]] = field(default_factory=list)


class FoundBatches(NamedTuple):
    """The batches of a rank from one on."""

    stretch: Stretch
    stream: RankStream
    origin: int
    """How many batches there were before the states from which reading began."""


class Trace:
    """A run's steps: past ones over all resumes, and those to come as a resume from its states would give them.

    Args:
        dataset: What the recipe builds; it is not changed.
        states: Of the run, at one time or several; empty: of a run that has not begun. Of steps of an earlier size they
            tell as far as some were saved under it.
        batch: Samples in the batch of one rank from now on; by default what the states say, else 1.
        dp_size: Ranks of a run that has not begun.
        num_workers: Of each of them.
        steps: How the training loop counts.

    Raises:
        StateError: The states are not of one run, or of another recipe.
    """

    def __init__(
        self,
        dataset: MergedDataset,
        states: Sequence[Mapping[str, Any]],
        batch: int | None = None,
        dp_size: int = 1,
        num_workers: int = 1,
        steps: StepCount = StepCount(),  # noqa: B008  it does not change
    ) -> None:
        self._course = Course(dataset, states, batch, dp_size, num_workers)
        self.steps = steps
        self.on_progress: Callable[[int, int], None] | None = None
        """Called with how far it is, of how much, where that may take long: batches, or a rank's lanes."""

    @property
    def dp_size(self) -> int:
        """How many ranks there are now."""
        return self._course.shape.dp_size

    @cached_property
    def num_batches(self) -> int:
        """How many batches the states say were delivered, by the rank that is furthest."""
        ranks = range(max(era.dp_size for era in self._course.eras.values()))
        return max((stretch.end for rank in ranks for stretch in self._course.stretches(rank)), default=0)

    @property
    def num_steps(self) -> int:
        """The last step of which the states say that it was delivered."""
        return self.steps.of(self.num_batches - 1)

    def at(self, step: int) -> TracedStep:
        """The records of a step.

        Raises:
            StateError: The states do not tell of it, or contradict the recipe; or the stream ends before it.
            ValueError: The run began with a later step.
        """
        first, found = self._first(step), []
        for batch in range(first, first + self.steps.batches):
            of_ranks = [self._find(batch, rank) for rank in range(self._course.num_ranks(batch))]
            found += [one for one in of_ranks if one is not None]
        if not found:
            raise StateError(f"step {step}: the stream ends before it")
        batches = [next(one.stream.batches(bare=not one.stream.is_read), []) for one in found]
        return TracedStep(
            step=step,
            how=READ if any(one.stream.is_read for one in found) else SEEK,
            origin=self.steps.of(min(one.origin for one in found) - 1),
            records=[record_of(sample) for batch in batches for sample in batch],
        )

    def batches(self, step: int, rank: int = 0) -> Iterator[tuple[int, list[Sample]]]:
        """Yield the samples of a rank's batches at a step and at each later one, as they were delivered.

        Raises:
            StateError: The states do not tell of it, or contradict the recipe; or the stream ends before it.
            ValueError: There is no such rank; or the run began with a later step.
        """
        first = self._first(step)
        if not 0 <= rank < self._course.num_ranks(first):
            raise ValueError(f"step {step}: expected a rank from 0 to {self._course.num_ranks(first) - 1}, got {rank}")
        first = self._after_fillers(first, rank)
        if self._find(first, rank) is None:
            raise StateError(f"step {step}: the stream ends before it")
        return ((self.steps.of(number), samples) for number, samples in self._batches(first, rank))

    def _first(self, step: int) -> int:
        first = self.steps.first(step)
        if step < 1 or first < 0:
            began = max(1, self.steps.of(0))
            raise ValueError(f"step {step}: expected {began} or a later one; steps are counted from 1, as loops do")
        return first

    def _batches(self, number: int, rank: int) -> Iterator[tuple[int, list[Sample]]]:
        while (found := self._find(number, rank)) is not None:
            before, end = number, found.stretch.first + found.stretch.own
            for batch in islice(found.stream.batches(), end - number if number < end else None):
                yield number, batch
                number += 1
            if number == before:
                return
            number = self._after_fillers(number, rank)

    def _after_fillers(self, batch: int, rank: int) -> int:
        """The number of the first batch from one on that does not only fill up."""
        for stretch in self._course.stretches(rank):
            if stretch.first + stretch.own <= batch < stretch.end:
                return stretch.end
        return batch

    def _find(self, batch: int, rank: int) -> FoundBatches | None:
        """A rank's batches from one on; None where it has none there.

        Raises:
            StateError: The states do not say.
        """
        stretches = self._course.stretches(rank)
        for stretch in stretches:
            if stretch.first <= batch < stretch.end:
                return self._open(stretch, batch) if batch < stretch.first + stretch.own else None
        last = stretches[-1] if stretches else None
        if last is not None and last.is_open and batch >= last.first:
            return self._in_later_pass(last, batch)
        before = [stretch for stretch in stretches if stretch.first <= batch]
        if before and before[-1].has_ended and batch < self._course.reached(before[-1]):
            return None
        step = self.steps.of(batch)
        raise StateError(
            f"states: they do not say where rank {rank} stood at step {step}\n"
            f"  Give states, too, of step {step} or a later one, saved before the number of ranks or workers changed."
        )

    def _in_later_pass(self, stretch: Stretch, batch: int) -> FoundBatches | None:
        """Look in what follows the newest states: the rest of the pass, and the passes after it."""
        empty = 0
        while empty < _EMPTY_PASSES and batch >= stretch.first:
            found = self._open(stretch, batch)
            if found is not None:
                return found
            if self.on_progress is not None:  # a far step may be many passes away
                self.on_progress(stretch.first, batch)
            following = self._next_pass(stretch)
            empty = 0 if following.first > stretch.first else empty + 1
            stretch = following
        return None

    def _next_pass(self, stretch: Stretch) -> Stretch:
        """The pass after a stretch, which comes to its end."""
        first = stretch.end + self._stream(stretch, stretch.points[-1], None, is_open=True).skip(2**53)
        era, epoch_pass = stretch.era, stretch.epoch_pass + 1
        begin = point_of(era.begins, epoch_pass, stretch.rank, era.num_workers)
        return stretch._replace(epoch_pass=epoch_pass, first=first, points=(begin,), is_open=True, uneven=0)

    def _open(self, stretch: Stretch, batch: int) -> FoundBatches | None:
        """The batches from one on, begun at the nearest states before it; None where the pass ends before it."""
        wanted = batch - stretch.first - (stretch.uneven if batch >= stretch.end else 0)
        if wanted * stretch.size >= _MAX_SAMPLES:
            raise StateError(
                f"step {self.steps.of(batch)}: expected fewer than 2**52 samples of a rank before it, got "
                f"{wanted * stretch.size}\n  Name an earlier step, or a smaller batch."
            )
        done = [stretch.done(point) for point in stretch.points]
        number = max(i for i, count in enumerate(done) if count <= wanted)
        later = next((stretch.points[i] for i, count in enumerate(done) if count > wanted), None)
        stream = self._stream(stretch, stretch.points[number], later, is_open=batch >= stretch.first + stretch.own)
        if stream.skip(wanted - done[number]) < wanted - done[number] or not stream.turns:
            return None
        return FoundBatches(stretch, stream, stretch.first + done[number])

    def _stream(self, stretch: Stretch, point: Point, later: Point | None, *, is_open: bool) -> RankStream:
        """The batches after a point: those of which states tell, or, `is_open`, also those that would follow them."""
        era = stretch.era
        workers = stretch.turns(point.progress)
        runs = [era.run(point.progress, stretch.epoch_pass, stretch.rank, worker) for worker in workers]

        def gives_one(lane: int, node: Node) -> bool:
            if later is None:
                return False
            key = LaneKey(stretch.epoch_pass, stretch.rank, workers[lane])
            before, after = (
                entries.node_state(node.path) for entries in (runs[lane].entries, later.progress.lane(key))
            )
            # A lane that has read nothing yet counts on from its part of what earlier sizes had counted.
            counts = runs[lane].deals.counts(node.path, runs[lane].lane.index)
            return _gave_one(node, before, after, dict(zip(COUNTS, counts, strict=True)))

        sizes = [stretch.sizes(worker, point) for worker in workers]
        return RankStream(era, runs, sizes, gives_one, self.on_progress, is_open=is_open)

    def find_named(self, name: str) -> list[int]:
        """The steps that `find` returns of the record URL#KEY; or SOURCE#INDEX, of a source without shards.

        Raises:
            SourceError: No source has such records.
            ValueError: It is neither.
        """
        before, _, after = name.strip().rpartition("#")
        if not before or not after:
            raise ValueError(f"record: expected URL#KEY, or SOURCE#INDEX of a map-style source, got {shown(name)}")
        nodes = (node for era in self._course.eras.values() for node in era.top.leaves() if node.path == before)
        if after.isascii() and after.isdigit() and not all(isinstance(node.dataset, ShardDataset) for node in nodes):
            return self.find(before, index=int(after))
        return self.find(url=before, key=after)

    def find(
        self, source: str | None = None, *, url: str | None = None, key: str | None = None, index: int | None = None
    ) -> list[int]:
        """The steps at which a record came, as far as states tell of them, and the next one at which it comes.

        Where steps have to be read, those that were delivered are, and at least a thousand that follow.

        Args:
            source: Its path; may be left out with a url, which then may be one of several sources.
            url: With `key`, as of a sample.
            key: As of a sample.
            index: Of a map-style source.

        Raises:
            SourceError: No source has such records.
        """
        wanted = WantedRecord(source, url, key, index)
        search = partial(Search, wanted=wanted, opened=self._opened, on_progress=self.on_progress)
        batches: set[int] = set()
        newest = self.num_batches
        for rank in range(max(era.dp_size for era in self._course.eras.values())):
            for stretch in self._course.stretches(rank):
                batches.update(search(stretch).past_steps())
                if stretch.is_open:
                    ahead = stretch._replace(points=stretch.points[-1:], first=stretch.end, uneven=0)
                    found = set(search(ahead).comes(max(_LOOK_AHEAD, newest)))
                    if not found and wanted.is_known and not stretch.era.top.is_endless:
                        found.update(search(self._next_pass(stretch)).comes(max(_LOOK_AHEAD, newest)))
                    batches.update(found)
        if not wanted.is_known:
            raise SourceError(f"find: expected a record of a source of the recipe, got {wanted}")
        future = sorted(batch for batch in batches if batch >= newest)[:1]
        return sorted({self.steps.of(batch) for batch in (*(b for b in batches if b < newest), *future)})

    def _opened(self, stretch: Stretch) -> RankStream:
        later = stretch.points[-1] if len(stretch.points) > 1 else None
        return self._stream(stretch, stretch.points[0], later, is_open=later is None)


def _gave_one(node: Node, before: NodeState | None, after: NodeState | None, counts: Mapping[str, int]) -> bool:
    """Whether each record that a lane read between two points gave one sample, by what was counted."""
    if not node.is_endless:
        return False  # what was lost after its last sample, no entry says
    if after is None:
        return True  # nothing was drawn of it
    if after.cursor.output or (before is not None and before.cursor.output):
        return False
    if before is not None:
        counts = {name: getattr(before.cursor, name) for name in COUNTS}
    grown = {name: getattr(after.cursor, name) - count for name, count in counts.items()}
    if any(grown[name] for name in _LOST):
        return False
    drawn = after.draws - (before.draws if before else 0)
    return getattr(node.dataset, "single_process_fn", None) is None or grown["records"] == drawn


_LOST = ("dropped", "bad", "skipped")
