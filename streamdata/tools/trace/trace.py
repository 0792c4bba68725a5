"""The records of the batches at a step: `recipe, states → the step's stretch of each rank → its records`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Any, NamedTuple

from streamdata.errors import SourceError, StateError
from streamdata.mixing.merged import MergedDataset
from streamdata.mixing.tree import Node
from streamdata.sources.files.shard_source import ShardDataset
from streamdata.sources.source import Sample
from streamdata.states.cursor import LaneKey, NodeState
from streamdata.states.table import COUNTS
from streamdata.tools.trace.course import Course, Point, Stretch, point_of
from streamdata.tools.trace.era import RankStream, record_of
from streamdata.tools.trace.find import Search, WantedRecord

SEEK, READ = "seek", "read"
_EMPTY_PASSES = 2
_LOOK_AHEAD = 1000
_MAX_SAMPLES = 2**52
"""Samples of a rank: a clock from there on moves by whole samples alone, and at last not at all."""


@dataclass(frozen=True, kw_only=True)
class TracedStep:
    """A step.

    Attributes:
        step: Its number.
        records: What its batches are made of, by rank, then as delivered: `source`, and `url` and `key`, or `index`.
        how: `seek` where what came before was counted, `read` where it was read.
        origin: The step of the states from which that began, of ranks the lowest.
    """

    step: int
    how: str
    origin: int
    records: list[dict[str, Any]] = field(default_factory=list)


class FoundBatches(NamedTuple):
    """The batches of a rank from a step on."""

    stretch: Stretch
    stream: RankStream
    origin: int


class Trace:
    """A run's steps: past ones over all resumes, and those to come as a resume from its states would give them.

    Args:
        dataset: What the recipe builds; it is not changed.
        states: Of the run, at one time or several; empty: of a run that has not begun. For steps of an earlier size:
            also some that were saved under it, or those that it began from.
        batch: Samples in the batch of one rank; by default what the states say, else 1.
        dp_size: Ranks of a run that has not begun.
        num_workers: Of each of them.

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
    ) -> None:
        self._course = Course(dataset, states, batch, dp_size, num_workers)
        self.on_progress: Callable[[int, int], None] | None = None
        """Called with how far it is, of how much, where that may take long: batches, or a rank's lanes."""

    @property
    def dp_size(self) -> int:
        """How many ranks there are now."""
        return self._course.shape.dp_size

    @cached_property
    def num_steps(self) -> int:
        """How many steps the states say were delivered, by the rank that is furthest."""
        ranks = range(max(era.dp_size for era in self._course.eras.values()))
        return max((stretch.end for rank in ranks for stretch in self._course.stretches(rank)), default=0)

    def is_indexed(self, source: str) -> bool:
        """Whether there is a source of that path whose records have an index, not a url and a key."""
        nodes = (node for era in self._course.eras.values() for node in era.top.leaves() if node.path == source)
        return not all(isinstance(node.dataset, ShardDataset) for node in nodes)

    def at(self, step: int) -> TracedStep:
        """The records of a step.

        Raises:
            StateError: The states do not reach back to it, or contradict the recipe; or the stream ends before it.
        """
        found = [one for rank in range(self._num_ranks(step)) if (one := self._find(step, rank)) is not None]
        if not found:
            raise self._beyond(step)
        batches = (next(one.stream.batches(bare=not one.stream.is_read), []) for one in found)
        records = [record_of(sample) for batch in batches for sample in batch]
        is_read = any(one.stream.is_read for one in found)
        origin = min(one.origin for one in found)
        return TracedStep(step=step, how=READ if is_read else SEEK, origin=origin, records=records)

    def batches(self, step: int, rank: int = 0) -> Iterator[tuple[int, list[Sample]]]:
        """Yield the samples of a rank at a step and at each later one, as they were delivered.

        Raises:
            StateError: The states do not reach back to it, or contradict the recipe; or the stream ends before it.
            ValueError: There is no such rank.
        """
        if not 0 <= rank < self._num_ranks(step):
            raise ValueError(f"step {step}: expected a rank from 0 to {self._num_ranks(step) - 1}, got {rank}")
        if self._find(step, rank) is None:
            raise self._beyond(step)
        return self._batches(step, rank)

    def _batches(self, step: int, rank: int) -> Iterator[tuple[int, list[Sample]]]:
        while (found := self._find(step, rank)) is not None:
            end = None if found.stretch.is_open else found.stretch.end - step
            before = step
            for batch in islice(found.stream.batches(), end):
                yield step, batch
                step += 1
            if step == before:
                return

    def _num_ranks(self, step: int) -> int:
        """How many ranks there were at a step."""
        return next((dp_size for dp_size, first in reversed(self._sizes) if first <= step), 0)

    @cached_property
    def _sizes(self) -> list[tuple[int, int]]:
        """The number of ranks of each era, with its first step."""
        found, most = [], 0
        for number, era in self._course.eras.items():
            most = max(most, self._course.first_of(number))
            found.append((era.dp_size, most))
            stretches = (each for rank in range(era.dp_size) for each in self._course.stretches(rank))
            most = max([most, *(stretch.end for stretch in stretches if stretch.era is era)])
        return found

    def _beyond(self, step: int) -> StateError:
        if step < self.num_steps:
            return StateError(
                f"states: they do not say where the ranks stood around step {step}\n"
                "  Give states that were saved under that number of ranks and workers, or those that it began from\n"
                "  (enough while weights, batch and pass stay the same). Later states say nothing of it."
            )
        return StateError(f"step {step}: the stream ends before it")

    def _find(self, step: int, rank: int) -> FoundBatches | None:
        """A rank's batches from a step on; None where it has none."""
        last = None
        for stretch in self._course.stretches(rank):
            if stretch.first <= step < stretch.end:
                return self._open(stretch, step)
            last = stretch
        return None if last is None or not last.is_open else self._in_later_pass(last, step)

    def _in_later_pass(self, stretch: Stretch, step: int) -> FoundBatches | None:
        """Look in what follows the newest states: the rest of the pass, and the passes after it."""
        empty = 0
        while empty < _EMPTY_PASSES and step >= stretch.first:
            found = self._open(stretch, step)
            if found is not None:
                return found
            if self.on_progress is not None:  # a far step may be many passes away
                self.on_progress(stretch.first, step)
            following = self._next_pass(stretch)
            empty = 0 if following.first > stretch.first else empty + 1
            stretch = following
        return None

    def _next_pass(self, stretch: Stretch) -> Stretch:
        """The pass after a stretch, which comes to its end."""
        first = stretch.end + self._stream(stretch, stretch.points[-1], None).skip(2**53)
        era, epoch_pass = stretch.era, stretch.epoch_pass + 1
        begin = point_of(era.begins, epoch_pass, stretch.rank, era.num_workers)
        return stretch._replace(epoch_pass=epoch_pass, first=first, points=(begin,), is_open=True)

    def _open(self, stretch: Stretch, step: int) -> FoundBatches | None:
        """The batches from a step on, begun at the nearest states before it; None where the pass ends before it."""
        wanted, size = step - stretch.first, stretch.size
        if wanted * size >= _MAX_SAMPLES:
            raise StateError(
                f"step {step}: expected fewer than 2**52 samples of a rank before it, got {wanted * size}\n"
                "  Name an earlier step, or a smaller batch."
            )
        done = [stretch.done(point) for point in stretch.points]
        number = max(i for i, count in enumerate(done) if count <= wanted)
        later = next((stretch.points[i] for i, count in enumerate(done) if count > wanted), None)
        stream = self._stream(stretch, stretch.points[number], later)
        if stream.skip(wanted - done[number]) < wanted - done[number] or not stream.has_more():
            return None
        return FoundBatches(stretch, stream, stretch.first + done[number])

    def _stream(self, stretch: Stretch, point: Point, later: Point | None) -> RankStream:
        era, progress = stretch.era, point.progress
        assert progress is not None, "a point from which lanes can be begun"
        workers = stretch.turns(progress)
        runs = [era.run(progress, stretch.epoch_pass, stretch.rank, worker) for worker in workers]

        def gives_one(lane: int, node: Node) -> bool:
            if later is None or later.progress is None:
                return False
            key = LaneKey(stretch.epoch_pass, stretch.rank, workers[lane])
            before, after = (
                entries.node_state(node.path) for entries in (runs[lane].entries, later.progress.lane(key))
            )
            # A lane that has read nothing yet counts on from its part of what earlier sizes had counted.
            counts = runs[lane].deals.counts(node.path, runs[lane].lane.index)
            return _gave_one(node, before, after, dict(zip(COUNTS, counts, strict=True)))

        return RankStream(era, runs, stretch.size, gives_one, self.on_progress)

    def find(
        self, source: str | None = None, *, url: str | None = None, key: str | None = None, index: int | None = None
    ) -> list[int]:
        """The steps at which a record came, and the next one at which it comes.

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
        steps: set[int] = set()
        newest = self.num_steps
        for rank in range(max(era.dp_size for era in self._course.eras.values())):
            for stretch in self._course.stretches(rank):
                steps.update(search(stretch).past_steps())
                if stretch.is_open:
                    ahead = stretch._replace(points=stretch.points[-1:], first=stretch.end)
                    found = set(search(ahead).comes(max(_LOOK_AHEAD, newest)))
                    if not found and wanted.is_known and not stretch.era.top.is_endless:
                        found.update(search(self._next_pass(stretch)).comes(max(_LOOK_AHEAD, newest)))
                    steps.update(found)
        if not wanted.is_known:
            raise SourceError(f"find: expected a record of a source of the recipe, got {wanted}")
        past, future = sorted(s for s in steps if s < newest), sorted(s for s in steps if s >= newest)
        return [*past, *future[:1]]

    def _opened(self, stretch: Stretch) -> RankStream:
        later = stretch.points[-1] if len(stretch.points) > 1 else None
        return self._stream(stretch, stretch.points[0], later)


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
