"""The batches of ranks at each step, by pass and generation: `states of a run → legs of each rank`.

Each generation of which states are given is an era, which begins where the one before it ended. States that were saved
in between cut it into legs. Of the newest one nobody knows the end: it goes on as a resume from states would. States
hold the entries of one size of the run alone: an earlier size is known as far as states that were saved under it tell.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final

from streamdata.errors import StateError
from streamdata.mixing.live_weights import live_at_resume
from streamdata.mixing.merged import MergedDataset
from streamdata.mixing.tree import tree_of
from streamdata.states.checks import check_nodes
from streamdata.states.cursor import LaneKey
from streamdata.states.headers import Topology
from streamdata.states.joining import merge_states
from streamdata.states.progress import Progress, history_of
from streamdata.tools.trace.era import Era, Leg, samples_of

_GONE_BACK: Final = "\n  Leave out states of steps that the run went back from."


class Course:
    """A run by its states.

    Args:
        dataset: What the recipe builds.
        states: Of one run, each of all ranks or of some, at one or several times; none of a run that has not begun.
        batch: Samples in the batch of one rank from now on; None: as states say it was, else 1.
        dp_size: Ranks of a run that has not begun.

    Raises:
        StateError: They are not of one run, or of another recipe.
    """

    def __init__(
        self, dataset: MergedDataset, states: Sequence[Mapping[str, Any]], batch: int | None, dp_size: int
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
        dataset.live = live_at_resume(dataset, self.newest)[0]  # what follows is drawn with the weights that were set
        tree = tree_of(dataset).tree
        check_nodes(self.newest, tree.nodes)
        lines = history_of(self.newest) if self.newest else []
        self._lines = lines
        _check_history([progress for held in self._held for progress in held], lines, self.newest)
        self.shape = self.newest.topology() if self.newest else Topology(dp_size, 1)
        """The ranks, and workers of each, that there are now."""
        self._size = batch or next((line["batch_size"] for line in reversed(lines) if "batch_size" in line), 1)
        self._is_changed = bool(self.newest) and self.newest.generation(tree) != self.newest.newest
        self._until = cache(_until)  # the same for all ranks
        self._legs: dict[int, list[Leg]] = {}

    @cached_property
    def eras(self) -> dict[int, Era]:
        """The generations of which entries are held, by number, and the one to come where the recipe has changed."""
        eras: dict[int, Era] = {}
        for held in self._held:
            progress = held[-1]
            for number in (number for number in progress.generations if number >= progress.known_since):
                is_first = number == progress.generations[0]
                begins = Progress({}).under_next_size(progress.before) if is_first else self._until(progress, number)
                eras[number] = Era(self._dataset, progress.tree(number), progress.topology(), begins, held)
        if not eras or self._is_changed:
            eras[self.newest.newest + 1 if self.newest else 0] = Era(self._dataset, None, self.shape, self.newest, [])
        return eras

    def legs(self, rank: int) -> Sequence[Leg]:
        """The legs of a rank in the sequence of time; the last one is what it reads now, if it is there now.

        Raises:
            StateError: The states hold nothing of the rank at a time when others had delivered something, or batches
                were not counted.
        """
        if rank not in self._legs:
            self._legs[rank] = list(self._of_rank(rank))
        return self._legs[rank]

    def _of_rank(self, rank: int) -> Iterator[Leg]:
        first, last = 0, max(self.eras)
        for generation, era in self.eras.items():
            newest = era.states[-1] if era.states else self.newest
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

    def num_ranks(self, batch: int) -> int:
        """How many ranks there were at a batch; of those before all that states tell of, at the first of these."""
        known = [line["dp_size"] for line in self._lines if line["step"] <= batch]
        return int((known or [line["dp_size"] for line in self._lines[:1]] or [self.shape.dp_size])[-1])


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
