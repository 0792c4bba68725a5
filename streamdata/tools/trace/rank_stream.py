"""The batches of one rank in one pass of a generation, from any of them on: as a DataLoader would have given them."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

from streamdata.mixing.leaf import Run
from streamdata.mixing.tree import Node
from streamdata.sources.source import Sample
from streamdata.tools.trace.era import Era

OnProgress = Callable[[int, int], None]


class RankStream:
    """Batches in the sequence in which the workers' turns bring them.

    Args:
        era: The generation.
        runs: The rank's lanes where they are begun, in the sequence of their turns.
        batch_size: Samples in a batch.
        gives_one: As of `Era.why_read`, of one of the lanes, by its number here.
        on_progress: Called with how many batches were passed over by reading, and of how many.
    """

    def __init__(
        self,
        era: Era,
        runs: Sequence[Run],
        batch_size: int,
        gives_one: Callable[[int, Node], bool],
        on_progress: OnProgress | None = None,
    ) -> None:
        self._era, self.runs, self._size, self._on_progress = era, list(runs), batch_size, on_progress
        whys = (era.why_read(run, partial(gives_one, i)) for i, run in enumerate(runs))
        self.why_read = next((why for why in whys if why), None)
        """Why it has to be read; None where it is sought."""
        self._lanes: dict[int, Iterator[Sample]] = {}
        self._given = [0] * len(runs)
        """Batches of each lane that are passed over, or given."""
        self._turns = list(range(len(runs)))

    def skip(self, batches: int) -> int:
        """Pass over so many, before any was given; return how many there were."""
        if not self._era.top.is_endless and self.why_read is not None:
            return self._read_over(batches)
        totals = self._totals()
        there = int(min(batches, sum(totals)))
        self._given, self._turns = _after(totals, there)
        return there

    def step_of(self, lane: int, sample: int) -> int:
        """The batch, counted from where the lanes are begun, that has a lane's sample of that number."""
        batch, totals = sample // self._size, self._totals()
        return int(sum(min(total, batch + (other < lane)) for other, total in enumerate(totals)))

    def has_more(self) -> bool:
        """Whether a batch follows, as far as is known without reading."""
        return bool(self._turns)

    def batches(self, *, bare: bool = False) -> Iterator[list[Sample]]:
        """The batches that follow; with `bare` nothing but which records they are made of, where nothing is read."""
        turns = self._turns
        while turns:
            lane = turns.pop(0)
            batch = list(islice(self._lane(lane, bare=bare), self._size))
            self._given[lane] += 1
            # Of a lane that gave all of a batch, only its next turn shows whether there is more.
            if len(batch) == self._size:
                turns.append(lane)
            if batch:
                yield batch

    def _totals(self) -> list[float]:
        """How many batches each lane has, where that is known without reading."""
        if self._era.top.is_endless:
            return [math.inf] * len(self.runs)
        return [-(-self._era.left(run) // self._size) for run in self.runs]

    def _lane(self, number: int, *, bare: bool) -> Iterator[Sample]:
        if number not in self._lanes:
            self._lanes[number] = self._opened(self.runs[number], self._given[number] * self._size, bare=bare)
        return self._lanes[number]

    def _opened(self, run: Run, samples: int, *, bare: bool) -> Iterator[Sample]:
        era = self._era
        if self.why_read is None:
            if not era.top.is_endless and samples >= era.left(run):
                return iter(())
            run = era.after(run, samples)
            return era.records(run) if bare else era.samples(run)
        stream, total = era.samples(run), samples // self._size
        for done in range(total):
            if self._on_progress is not None:
                self._on_progress(done, total)
            for _ in islice(stream, self._size):
                pass
        return stream

    def _read_over(self, batches: int) -> int:
        """Pass over batches of lanes of which nobody knows how many samples they have."""
        stream = self.batches()
        for done in range(batches):
            if self._on_progress is not None:
                self._on_progress(done, batches)
            if next(stream, None) is None:
                return done
        return batches


def _after(totals: Sequence[float], batches: int) -> tuple[list[int], list[int]]:
    """How many batches each lane has given after so many of all, and whose turns follow."""
    given = [0] * len(totals)
    there = [lane for lane, total in enumerate(totals) if total > 0]
    while there:
        rounds = min(min(totals[lane] for lane in there) - given[there[0]], batches // len(there))
        for lane in there:
            given[lane] += int(rounds)
        batches -= int(rounds) * len(there)
        there = [lane for lane in there if given[lane] < totals[lane]]
        if batches < len(there):
            break
    for lane in there[:batches]:
        given[lane] += 1
    turns = [lane for lane in (*there[batches:], *there[:batches]) if given[lane] < totals[lane]]
    return given, turns
