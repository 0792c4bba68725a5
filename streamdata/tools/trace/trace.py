"""The records of the batches at a step: `recipe, states → the step's leg of each rank → its records`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, pairwise
from typing import Any, NamedTuple

from streamdata.errors import SourceError, StateError, shown
from streamdata.mixing.merged import MergedDataset
from streamdata.sources.source import Sample
from streamdata.states.progress import Progress
from streamdata.tools.trace.course import Course
from streamdata.tools.trace.era import Leg, OnProgress, RankStream, documents_of, record_of
from streamdata.tools.trace.find import WantedRecord, batches_with

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
    if not batches_per_step and all(step == number for step, number in pairs):
        return StepCount()
    if batches_per_step and not pairs:
        return StepCount(batches_per_step)
    # What does not divide gives the two saves another offset each.
    rates = {(later[1] - save[1]) // max(1, later[0] - save[0]) for save, later in pairwise(pairs)}
    rates = {batches_per_step} if batches_per_step else rates
    counts = {StepCount(rate, number - step * rate) for rate in rates for step, number in pairs}
    if len(counts) == 1 and min(counts).batches > 0:
        return counts.pop()
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
        records: What its batches are made of, by rank, then as delivered: `source`, and `url` and `key`, or `index`; of
            a packed row those of its last record, and of each of its `documents` the same, with its tokens, from
            `begin` to before `end`.
        how: `seek` where what came before was counted, `read` where it was read.
        origin: The step of the states from which that began, of ranks the lowest.
    """

    step: int
    how: str
    origin: int
    records: list[dict[str, Any]] = field(default_factory=list)


class Trace:
    """A run's steps: past ones over all resumes, and those to come as a resume from its states would give them.

    Args:
        dataset: What the recipe builds; it is not changed.
        states: Of the run, at one time or several; empty: of a run that has not begun. Of steps of an earlier size they
            tell as far as some were saved under it.
        batch: Samples in the batch of one rank from now on; by default what the states say, else 1.
        dp_size: Ranks of a run that has not begun.
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
        steps: StepCount = StepCount(),  # noqa: B008  it does not change
    ) -> None:
        self._course = Course(dataset, states, batch, dp_size)
        self.steps = steps
        self.on_progress: OnProgress = lambda *_: None
        """Is told how far it is where that may take long: batches, or a rank's lanes."""

    @property
    def dp_size(self) -> int:
        """How many ranks there are now."""
        return self._course.shape.dp_size

    @cached_property
    def num_batches(self) -> int:
        """How many batches the states say were delivered, by the rank that is furthest."""
        ranks = range(max(era.dp_size for era in self._course.eras.values()))
        return max((leg.after for rank in ranks for leg in self._course.legs(rank)), default=0)

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
        batches = [next(stream.batches(bare=not stream.is_read), []) for stream in found]
        return TracedStep(
            step=step,
            how=READ if any(stream.is_read for stream in found) else SEEK,
            origin=self.steps.of(min(stream.leg.first for stream in found) - 1),
            records=[
                record_of(sample) | ({"documents": documents} if documents else {})
                for stream, batch in zip(found, batches, strict=True)
                for sample in batch
                for documents in [documents_of(sample, stream.leg.era.top)]
            ],
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
            before, end = number, found.leg.first + found.leg.own
            for batch in islice(found.batches(), end - number if number < end else None):
                yield number, batch
                number += 1
            if number == before:
                return
            number = self._after_fillers(number, rank)

    def _after_fillers(self, batch: int, rank: int) -> int:
        """The number of the first batch from one on that does not only fill up."""
        for leg in self._course.legs(rank):
            if leg.first + leg.own <= batch < leg.after:
                return leg.after
        return batch

    def _find(self, batch: int, rank: int) -> RankStream | None:
        """A rank's batches from one on; None where it has none there.

        Raises:
            StateError: The states do not say.
        """
        legs = [leg for leg in self._course.legs(rank) if leg.first <= batch]
        last = next((leg for leg in legs if batch < leg.after), legs[-1] if legs else None)
        if last is not None and batch < last.after:
            return self._open(last, batch) if batch < last.first + last.own else None
        if last is not None and last.end is None:
            # In what follows the newest states: the rest of the pass, and the passes after it.
            empty = 0
            while empty < _EMPTY_PASSES and batch >= last.first:
                if (found := self._open(last, batch)) is not None:
                    return found
                self.on_progress(last.first, batch)  # a far step may be many passes away
                following = self._next_pass(last)
                empty = 0 if following.first > last.first else empty + 1
                last = following
            return None
        # Its pass may have ended while others went on.
        if last is not None and last.has_ended and last.era.states and batch < last.era.states[-1].step():
            return None
        step = self.steps.of(batch)
        raise StateError(
            f"states: they do not say where rank {rank} stood at step {step}\n"
            f"  Give states, too, of step {step} or a later one, saved before the number of ranks or workers changed.\n"
            "  Where sources or weights changed after that step: give states from before that change alone."
        )

    def _next_pass(self, leg: Leg) -> Leg:
        """The pass after a leg, which comes to its end."""
        first, epoch_pass = leg.first + RankStream(leg, self.on_progress).skip(2**53), leg.epoch_pass + 1
        return leg._replace(epoch_pass=epoch_pass, first=first, begin=leg.era.begins)

    def _open(self, leg: Leg, batch: int) -> RankStream | None:
        """The batches of a leg from one on; None where the pass ends before it."""
        wanted = batch - leg.first
        if wanted * leg.size >= _MAX_SAMPLES:
            raise StateError(
                f"step {self.steps.of(batch)}: expected fewer than 2**52 samples of a rank before it, got "
                f"{wanted * leg.size}\n  Name an earlier step, or a smaller batch."
            )
        stream = RankStream(leg, self.on_progress)
        return stream if stream.skip(wanted) == wanted and stream.turns else None

    def find(self, name: str) -> list[int]:
        """The steps at which a record came, as far as states tell of them, and the next one at which it comes.

        Where steps have to be read, those that were delivered are, and at least a thousand that follow.

        Args:
            name: URL#KEY, as of a sample; or SOURCE#INDEX, of a map-style source, by its path.

        Raises:
            SourceError: No source has such records.
            ValueError: It is neither.
        """
        place, _, key = name.strip().rpartition("#")
        if not place or not key:
            raise ValueError(f"record: expected URL#KEY, or SOURCE#INDEX of a map-style source, got {shown(name)}")
        wanted, newest = WantedRecord(place, key), self.num_batches
        batches, most = set[int](), max(_LOOK_AHEAD, newest)
        for rank in range(max(era.dp_size for era in self._course.eras.values())):
            for leg in self._course.legs(rank):
                found = set(batches_with(wanted, leg, most, self.on_progress))
                if leg.end is None and not found and wanted.is_known and not leg.era.top.is_endless:
                    found.update(batches_with(wanted, self._next_pass(leg), most, self.on_progress))
                batches.update(found)
        if not wanted.is_known:
            raise SourceError(
                f"find: expected a record of a source of the recipe, got {wanted}\n"
                "  Name it URL#KEY, as `trace --step` does; or SOURCE#INDEX, of a source without shards."
            )
        future = sorted(batch for batch in batches if batch >= newest)[:1]
        return sorted({self.steps.of(batch) for batch in (*(b for b in batches if b < newest), *future)})
