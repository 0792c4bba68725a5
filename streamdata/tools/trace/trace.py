"""The records of the batches at a step: `recipe, states → the legs of each rank → the step's leg → its records`.

Each generation of which states are given is an era, which begins where the one before it ended. States that were saved
in between cut it into legs. Of the newest one nobody knows the end: it goes on as a resume from states would. States
hold the entries of one size of the run alone: an earlier size is known as far as states that were saved under it tell.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import islice, pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple

from streamdata.errors import SourceError, StateError, shown
from streamdata.mixing.live_weights import live_at_resume
from streamdata.mixing.merged import MergedDataset
from streamdata.mixing.tree import tree_of
from streamdata.sources.source import Sample
from streamdata.states.checks import check_nodes
from streamdata.states.cursor import LaneKey
from streamdata.states.headers import Topology
from streamdata.states.joining import merge_states
from streamdata.states.progress import Progress, history_of
from streamdata.tools.trace.era import Era, Leg, OnProgress, RankStream, documents_of, record_of, samples_of
from streamdata.tools.trace.find import WantedRecord, batches_with

_GONE_BACK: Final = "\n  Leave out states of steps that the run went back from."
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
        self.steps = steps
        self.on_progress: OnProgress = lambda *_: None
        """Is told how far it is where that may take long: batches, or a rank's lanes."""
        self._dataset = dataset
        sizes: defaultdict[int, list[Progress]] = defaultdict(list)
        for progress in map(Progress, states):
            if progress:
                sizes[progress.before.number].append(progress)
        for held in sizes.values():
            held.append(Progress(merge_states(*[one.table for one in held])))
            _check_one_run(held)
        self._held = [sizes[number] for number in sorted(sizes)]
        """By size, oldest first: what states say of it, all of them together last."""
        self._newest = self._held[-1][-1] if sizes else Progress({})
        dataset.live = live_at_resume(dataset, self._newest)[0]  # what follows is drawn with the weights that were set
        tree = tree_of(dataset).tree
        check_nodes(self._newest, tree.nodes)
        self._lines = history_of(self._newest) if self._newest else []
        _check_history([progress for held in self._held for progress in held], self._lines, self._newest)
        self.shape = self._newest.topology() if self._newest else Topology(dp_size, 1)
        """The ranks, and workers of each, that there are now."""
        self._size = batch or next((line["batch_size"] for line in self._lines[::-1] if "batch_size" in line), 1)
        self._is_changed = bool(self._newest) and self._newest.generation(tree) != self._newest.newest
        self._until = cache(_until)  # the same for all ranks
        self._legs = cache(lambda rank: list(self._of_rank(rank)))
        """The legs of a rank in the sequence of time; the last one is what it reads now, if it is there now."""

    @cached_property
    def _eras(self) -> dict[int, Era]:
        """The generations of which entries are held, by number, and the one to come where the recipe has changed."""
        eras: dict[int, Era] = {}
        for held in self._held:
            progress = held[-1]
            for number in (number for number in progress.generations if number >= progress.known_since):
                is_first = number == progress.generations[0]
                begins = Progress({}).under_next_size(progress.before) if is_first else self._until(progress, number)
                eras[number] = Era(self._dataset, progress.tree(number), progress.topology(), begins, held)
        if not eras or self._is_changed:
            number = self._newest.newest + 1 if self._newest else 0
            eras[number] = Era(self._dataset, None, self.shape, self._newest, [])
        return eras

    def _of_rank(self, rank: int) -> Iterator[Leg]:
        first, last = 0, max(self._eras)
        for generation, era in self._eras.items():
            newest = era.states[-1] if era.states else self._newest
            is_first = bool(era.states) and generation == newest.generations[0]
            if is_first:
                first = newest.before.step
            elif generation == newest.known_since:  # what was before it is not known
                first = newest.step(generation)
            if rank >= era.dp_size:
                continue
            is_held = rank in newest.newest_passes or rank in newest.idle
            if is_first and not is_held and era.sharing(era.begins.before.first_pass, rank):
                raise StateError(
                    f"states: they hold nothing of rank {rank} of {era.dp_size}, which may have delivered something\n"
                    "  Give the states of all ranks: the folder of a step, or what merge_states joins."
                )
            passes = _passes(newest, generation, rank) if era.states else []
            if generation == last and not passes:
                began = era.begins.newest_passes.get(rank)
                passes = [era.begins.before.first_pass if began is None else began]
            for epoch_pass in passes:
                reached = (one for one in era.states if epoch_pass in _passes(one, generation, rank))
                read = [era.begins, *(self._until(one, generation + 1) for one in reached)]
                counted = [(_num_batches(one, epoch_pass, rank, era.num_workers), one) for one in read]
                counted.sort(key=itemgetter(0))
                # Below 0 are batches of its own that `uneven` left out.
                uneven = newest.uneven.get((generation, epoch_pass, rank), {"batches": 0})["batches"]
                most = first + counted[-1][0] - counted[0][0] + min(0, uneven)
                for (before, begin), (after, end) in pairwise(counted):
                    own, fillers = min(after - before, most - first), max(0, uneven) if end is counted[-1][1] else 0
                    yield Leg(era, epoch_pass, rank, first, own, fillers, begin, end, self._size)
                    first += own + fillers
                if generation == last and epoch_pass == passes[-1]:
                    yield Leg(era, epoch_pass, rank, first, 0, 0, counted[-1][1], None, self._size)

    def _num_ranks(self, batch: int) -> int:
        """How many ranks there were at a batch; of those before all that states tell of, at the first of these."""
        known = [line["dp_size"] for line in self._lines if line["step"] <= batch]
        return int((known or [line["dp_size"] for line in self._lines[:1]] or [self.shape.dp_size])[-1])

    @cached_property
    def num_batches(self) -> int:
        """How many batches the states say were delivered, by the rank that is furthest."""
        ranks = range(max(era.dp_size for era in self._eras.values()))
        return max((leg.after for rank in ranks for leg in self._legs(rank)), default=0)

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
            of_ranks = [self._find(batch, rank) for rank in range(self._num_ranks(batch))]
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
        if not 0 <= rank < self._num_ranks(first):
            raise ValueError(f"step {step}: expected a rank from 0 to {self._num_ranks(first) - 1}, got {rank}")
        number = self._after_fillers(first, rank)
        found = self._find(number, rank)
        if found is None:
            raise StateError(f"step {step}: the stream ends before it")
        while found is not None:
            before, end = number, found.leg.first + found.leg.own
            for batch in islice(found.batches(), end - number if number < end else None):
                yield self.steps.of(number), batch
                number += 1
            if number == before:
                return
            number = self._after_fillers(number, rank)
            found = self._find(number, rank)

    def _first(self, step: int) -> int:
        first = self.steps.first(step)
        if step < 1 or first < 0:
            began = max(1, self.steps.of(0))
            raise ValueError(f"step {step}: expected {began} or a later one; steps are counted from 1, as loops do")
        return first

    def _after_fillers(self, batch: int, rank: int) -> int:
        """The number of the first batch from one on that does not only fill up."""
        for leg in self._legs(rank):
            if leg.first + leg.own <= batch < leg.after:
                return leg.after
        return batch

    def _find(self, batch: int, rank: int) -> RankStream | None:
        """A rank's batches from one on; None where it has none there.

        Raises:
            StateError: The states do not say.
        """
        legs = [leg for leg in self._legs(rank) if leg.first <= batch]
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
        for rank in range(max(era.dp_size for era in self._eras.values())):
            for leg in self._legs(rank):
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


def _until(progress: Progress, generation: int) -> Progress:
    """Read the generations before one from states."""
    entries = progress.table.as_dict().items()
    return Progress({key: value for key, value in entries if int(key.split("/", 2)[1]) < generation})


def _check_one_run(held: Sequence[Progress]) -> None:
    """Refuse states that are no part of what all of them come to: those of a leg of the run that was given up."""
    furthest = held[-1]
    for progress in held[:-1]:
        for epoch_pass, rank in progress.last_workers:
            for worker in range(progress.topology().num_workers):
                key = LaneKey(epoch_pass, rank, worker)
                own, all_of = progress.batches_before(key), furthest.batches_before(key)
                if own and all_of and samples_of(all_of.sizes, 0, own.number) != own.given:
                    raise StateError(
                        f"states: rank {rank}, worker {worker}, pass {epoch_pass}: by some {own.number} batches had "
                        f"{own.given} samples, by others not{_GONE_BACK}"
                    )


def _check_history(all_held: Sequence[Progress], lines: Sequence[Mapping[str, Any]], newest: Progress) -> None:
    """Refuse states of generations, or of steps of one, that the newest states do not go on from."""
    written = {line["generation"]: line for line in lines}
    for progress in all_held:
        later = [line["step"] for line in lines if line["generation"] > progress.newest]
        if progress.newest < newest.before.number:  # whose line may be gone, with those before weights that were set
            later.append(newest.before.step)
        if progress.step() > min(later, default=math.inf):
            raise StateError(
                f"states: generation {progress.newest} ended with {min(later)} batches, some are of more{_GONE_BACK}"
            )
        for number in progress.generations:
            header, line = progress.headers[number], written.get(number)
            is_other = line is None or any(line[name] != header[name] for name in ("dp_size", "num_workers", "weights"))
            # Lines are gone of old ones, and of those before weights that were set.
            is_gone = number < min(written) or newest.before.number <= number < newest.known_since
            if is_other and not is_gone:
                raise StateError(
                    f"states: some have another generation {number} than that which the newest go on from{_GONE_BACK}"
                )


def _passes(progress: Progress, generation: int, rank: int) -> list[int]:
    """The passes of which a rank delivered something in a generation."""
    keys = (key.split("/") for key in progress.table.others if key.startswith(("worker/", "uneven/")))
    return sorted({int(key[2]) for key in keys if (int(key[1]), int(key[3])) == (generation, rank)})


def _num_batches(progress: Progress, epoch_pass: int, rank: int, num_workers: int) -> int:
    """Read from states how many batches of a pass a rank has delivered.

    Raises:
        StateError: Batches were not counted.
    """
    found = [progress.batches_before(LaneKey(epoch_pass, rank, worker)) for worker in range(num_workers)]
    if None in found:
        raise StateError(
            f"states: they do not say how many batches rank {rank} delivered, nor of which size\n"
            "  Collate with TensorCollate or mixed_collate, which count them, and save what to_state gave: that of a\n"
            "  StatefulDataLoader tells nothing of passes that have ended."
        )
    return sum(one.number for one in found if one is not None)
