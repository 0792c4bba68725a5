"""The batches of ranks at each step, by pass and generation: `states of a run → stretches of each rank`.

Each generation of which states are given is an era, which begins where the one before it ended. States that were saved
in between are points in it. Of the newest one nobody knows the end: it goes on as a resume from states would. States
hold the entries of one size of the run alone: an earlier size is known as far as states that were saved under it tell.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

from streamdata.errors import StateError
from streamdata.mixing.merged import MergedDataset
from streamdata.mixing.tree import tree_of
from streamdata.states.checks import check_nodes
from streamdata.states.cursor import LaneKey
from streamdata.states.headers import Topology
from streamdata.states.joining import merge_states
from streamdata.states.progress import Progress, history_of
from streamdata.tools.trace.era import Era, LaneSizes

_GONE_BACK: Final = "\n  Leave out states of steps that the run went back from."


class Point(NamedTuple):
    """The place of a rank's lanes in a pass, by some states."""

    progress: Progress
    samples: tuple[int, ...]
    """Samples that each worker's lane had delivered, since the topology began."""
    batches: tuple[int, ...]
    """Batches that it had delivered."""


class Stretch(NamedTuple):
    """The part of a pass that a rank reads in one generation."""

    era: Era
    epoch_pass: int
    rank: int
    first: int
    """The number of its first batch among those of the job, from 0."""
    points: tuple[Point, ...]
    """The states with which it begins, and what states say of it later, in this sequence."""
    is_open: bool
    """Whether it goes on after its last point."""
    size: int
    """Samples of a batch after its last point."""
    uneven: int
    """Batches that `uneven` filled up with after its own ones; below 0 those of its own that it left out."""

    def done(self, point: Point) -> int:
        """How many batches of the stretch were read by a point."""
        return sum(point.batches) - sum(self.points[0].batches)

    @property
    def end(self) -> int:
        """The number after its last batch that states tell of."""
        return self.first + self.done(self.points[-1]) + self.uneven

    @property
    def own(self) -> int:
        """How many of the batches that states tell of have records of their own."""
        return self.done(self.points[-1]) + min(0, self.uneven)

    @property
    def has_ended(self) -> bool:
        """Whether the rank has delivered all of the pass."""
        workers = self.era.sharing(self.epoch_pass, self.rank)
        return self.points[-1].progress.has_ended(self.epoch_pass, self.rank, workers)

    def turns(self, progress: Progress) -> list[int]:
        """The workers in the sequence in which they deliver after some states."""
        last, workers = progress.last_workers.get((self.epoch_pass, self.rank)), self.era.num_workers
        return [((0 if last is None else last + 1) + turn) % workers for turn in range(workers)]

    def sizes(self, worker: int, point: Point) -> LaneSizes:
        """The sizes of a lane's batches after a point."""
        last = self.points[-1]
        runs = last.progress.batches_before(LaneKey(self.epoch_pass, self.rank, worker))
        assert runs is not None, "points are of batches that were counted"
        return LaneSizes(runs.sizes, point.batches[worker], last.batches[worker] - point.batches[worker], self.size)


class Course:
    """A run by its states.

    Args:
        dataset: What the recipe builds.
        states: Of one run, each of all ranks or of some, at one or several times; none of a run that has not begun.
        batch: Samples in the batch of one rank from now on; None: as states say it was, else 1.
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
            _check_one_run(held)
        self._held = [sizes[number] for number in sorted(sizes)]
        """By size, oldest first: what states say of it, all of them together last."""
        self.newest = self._held[-1][-1] if sizes else Progress({})
        tree = tree_of(dataset).tree()
        check_nodes(self.newest, tree.nodes)
        lines = history_of(self.newest) if self.newest else []
        self._lines = lines
        _check_history([progress for held in self._held for progress in held], lines)
        self.shape = self.newest.topology() if self.newest else Topology(dp_size, max(1, num_workers))
        """The ranks, and workers of each, that there are now."""
        self._size = batch or next((line["batch_size"] for line in reversed(lines) if "batch_size" in line), 1)
        self._stretches: dict[int, list[Stretch]] = {}
        self._read: dict[tuple[int, int], Progress] = {}
        self._is_changed = bool(self.newest) and self.newest.generation(tree) != self.newest.newest

    @cached_property
    def eras(self) -> dict[int, Era]:
        """The generations of which entries are held, by number, and the one to come where the recipe has changed."""
        eras: dict[int, Era] = {}
        for *_, progress in self._held:
            for number in progress.generations:
                is_first = number == progress.generations[0]
                begins = Progress({}).under_next_size(progress.before) if is_first else self._until(progress, number)
                eras[number] = Era(self._dataset, progress.headers[number]["weights"], *progress.topology(), begins)
        if not eras or self._is_changed:
            eras[self.newest.newest + 1 if self.newest else 0] = Era(self._dataset, None, *self.shape, self.newest)
        return eras

    def stretches(self, rank: int) -> Sequence[Stretch]:
        """The stretches of a rank in the sequence of time; the last one is what it reads now, if it is there now.

        Raises:
            StateError: The states hold nothing of the rank at a time when others had delivered something, or batches
                were not counted.
        """
        if rank not in self._stretches:
            self._stretches[rank] = list(self._of_rank(rank))
        return self._stretches[rank]

    def _of_rank(self, rank: int) -> Iterator[Stretch]:
        number, last = 0, max(self.eras)
        for generation, era in self.eras.items():
            held = next((held for held in self._held if generation in held[-1].generations), [])
            newest = held[-1] if held else self.newest
            is_first = bool(held) and generation == newest.generations[0]
            number = newest.before.step if is_first else number
            if rank >= era.dp_size:
                continue
            is_held = rank in newest.newest_passes or rank in newest.idle
            if is_first and not is_held and era.sharing(era.begins.before.first_pass, rank):
                raise StateError(
                    f"states: they hold nothing of rank {rank} of {era.dp_size}, which may have delivered something\n"
                    "  Give the states of all ranks: the folder of a step, or what merge_states joins."
                )
            passes = _passes(newest, generation, rank) if held else []
            if generation == last and not passes:
                began = era.begins.newest_passes.get(rank)
                passes = [era.begins.before.first_pass if began is None else began]
            for epoch_pass in passes:
                reached = (one for one in held if epoch_pass in _passes(one, generation, rank))
                read = [era.begins, *(self._until(one, generation + 1) for one in reached)]
                points = [point_of(one, epoch_pass, rank, era.num_workers) for one in read]
                points.sort(key=lambda point: sum(point.batches))
                uneven = newest.uneven.get((generation, epoch_pass, rank), {"batches": 0})["batches"]
                is_open = generation == last and epoch_pass == passes[-1]
                stretch = Stretch(era, epoch_pass, rank, number, tuple(points), is_open, self._size, uneven)
                yield stretch
                number = stretch.end

    def reached(self, stretch: Stretch) -> int:
        """The number after the last batch that the furthest rank had delivered by the states of a stretch's size."""
        generation = next(number for number, era in self.eras.items() if era is stretch.era)
        return max((held[-1].step() for held in self._held if generation in held[-1].generations), default=0)

    def num_ranks(self, batch: int) -> int:
        """How many ranks there were at a batch; of those before all that states tell of, at the first of these."""
        known = [line["dp_size"] for line in self._lines if line["step"] <= batch]
        return int((known or [line["dp_size"] for line in self._lines[:1]] or [self.shape.dp_size])[-1])

    def _until(self, progress: Progress, generation: int) -> Progress:
        """Read the generations before one from states."""
        if (id(progress), generation) not in self._read:  # the same for all ranks
            entries = progress.table.as_dict().items()
            held = {key: value for key, value in entries if int(key.split("/", 2)[1]) < generation}
            self._read[id(progress), generation] = Progress(held)
        return self._read[id(progress), generation]


def _check_one_run(held: Sequence[Progress]) -> None:
    """Refuse states that are no part of what all of them come to: those of a leg of the run that was given up."""
    furthest = held[-1]
    for progress in held[:-1]:
        for epoch_pass, rank in progress.last_workers:
            for worker in range(progress.topology().num_workers):
                key = LaneKey(epoch_pass, rank, worker)
                own, all_of = progress.batches_before(key), furthest.batches_before(key)
                if own and all_of and LaneSizes(all_of.sizes, 0, all_of.number, 1).samples(own.number) != own.given:
                    raise StateError(
                        f"states: rank {rank}, worker {worker}, pass {epoch_pass}: by some {own.number} batches had "
                        f"{own.given} samples, by others not{_GONE_BACK}"
                    )


def _check_history(all_held: Sequence[Progress], lines: Sequence[Mapping[str, Any]]) -> None:
    """Refuse states of generations, or of steps of one, that the newest states do not go on from."""
    written = {line["generation"]: line for line in lines}
    for progress in all_held:
        later = [line["step"] for line in lines if line["generation"] > progress.newest]
        if progress.step() > min(later, default=math.inf):
            raise StateError(
                f"states: generation {progress.newest} ended with {min(later)} batches, some are of more{_GONE_BACK}"
            )
        for number in progress.generations:
            header, line = progress.headers[number], written.get(number)
            is_other = line is None or any(line[name] != header[name] for name in ("dp_size", "num_workers", "weights"))
            if is_other and number >= min(written):  # of older ones the lines are gone
                raise StateError(
                    f"states: some have another generation {number} than that which the newest go on from{_GONE_BACK}"
                )


def _passes(progress: Progress, generation: int, rank: int) -> list[int]:
    """The passes of which a rank delivered something in a generation."""
    keys = (key.split("/") for key in progress.table.others if key.startswith(("worker/", "uneven/")))
    return sorted({int(key[2]) for key in keys if (int(key[1]), int(key[3])) == (generation, rank)})


def point_of(progress: Progress, epoch_pass: int, rank: int, num_workers: int) -> Point:
    """Read from states where a rank's lanes stood.

    Raises:
        StateError: Batches were not counted.
    """
    found = [progress.batches_before(LaneKey(epoch_pass, rank, worker)) for worker in range(num_workers)]
    batches = [one for one in found if one is not None]
    if len(batches) < len(found):
        raise StateError(
            f"states: they do not say how many batches rank {rank} delivered, nor of which size\n"
            "  Collate with TensorCollate or mixed_collate, which count them, and save what to_state gave: that of a\n"
            "  StatefulDataLoader tells nothing of passes that have ended."
        )
    return Point(progress, tuple(one.given for one in batches), tuple(one.number for one in batches))
