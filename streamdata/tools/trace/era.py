"""One generation of a run as its lanes read it: its tree, its topology, any lane from any point, and ranks' batches."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from typing import Any, Final, NamedTuple

from streamdata.fields import DATASET_NAME, INDEX, KEY, URL
from streamdata.mixing.deals import Deals
from streamdata.mixing.leaf import Run
from streamdata.mixing.lengths import count_samples
from streamdata.mixing.merged import MergedDataset
from streamdata.mixing.reading import lane_samples
from streamdata.mixing.tree import Node, tree_of
from streamdata.run import Lane
from streamdata.run.lane_link import LaneLink
from streamdata.sources import MapStyleSource
from streamdata.sources.source import Sample
from streamdata.states.headers import header
from streamdata.states.progress import Progress, batches_by_size
from streamdata.tools.trace.seek import must_be_read, seek


def record_of(sample: Sample) -> dict[str, Any]:
    """The record that a sample was made of; the last one where there were several.

    Samples of map-style sources may bring a url and a key of their own, which nobody knows without reading them: of
    these the index is the name, whether a step is sought or read.
    """
    if INDEX in sample or URL not in sample:
        return {"source": sample[DATASET_NAME], "index": sample.get(INDEX)}
    return {"source": sample[DATASET_NAME], "url": str(sample[URL]), "key": sample[KEY]}


_FUNCTIONS: Final = ("single_process_fn", "process_fn", "max_bad")


class Bare:
    """A dataset without its functions, of which a map-style one gives nothing but the number of each record."""

    __getitems__ = None

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getattr__(self, name: str) -> Any:
        if name in _FUNCTIONS:
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {}


class Era:
    """A generation.

    Args:
        dataset: What the recipe builds.
        weights: By path, what its nodes had then; None as the recipe says now.
        dp_size: Ranks.
        num_workers: Of each rank, at least 1.
        begins: The states with which it began.
    """

    def __init__(
        self,
        dataset: MergedDataset,
        weights: Mapping[str, Any] | None,
        dp_size: int,
        num_workers: int,
        begins: Progress,
    ) -> None:
        self.dp_size, self.num_workers, self.begins = dp_size, num_workers, begins
        self.top = tree_of(dataset, weights=weights)
        self.tree = self.top.tree()
        self._dataset, self._weights = dataset, weights
        self._deals: dict[tuple[int, int, bool], tuple[Progress, Deals]] = {}

    @cached_property
    def _bare(self) -> Node:
        """The tree with nothing but records."""
        top = tree_of(self._dataset, weights=self._weights)
        for node in top.walk():
            if node.is_mixture:
                continue
            node.dataset = bare = Bare(node.dataset)
            if isinstance(node.source, MapStyleSource):
                del node.source  # it was made of the dataset itself
                node.as_source = partial(MapStyleSource, bare)
        return top

    def run(self, progress: Progress, epoch_pass: int, rank: int, worker: int) -> Run:
        """A lane where states of this generation say that it stood."""
        lane = Lane(dp_size=self.dp_size, dp_rank=rank, num_workers=self.num_workers, worker=worker)
        run = Run.at(progress, epoch_pass, lane, self._dealt(progress, epoch_pass), self.tree, self._dataset.skips)
        link = LaneLink(None, None, lambda _: None, lambda: None)
        return replace(run, header=header(self.tree, lane, progress.before, {}), link=link)

    def _dealt(self, progress: Progress, epoch_pass: int, *, is_bare: bool = False) -> Deals:
        """How its sources, or the bare ones, are dealt out in a pass."""
        key = id(progress), epoch_pass, is_bare
        if key not in self._deals:  # with the states themselves, so that no others get their number
            self._deals[key] = progress, Deals(progress, epoch_pass, self.dp_size * self.num_workers)
        return self._deals[key][1]

    def sharing(self, epoch_pass: int, rank: int) -> list[int]:
        """The workers of a rank that have a share of a pass."""
        deals, first = self._dealt(self.begins, epoch_pass), rank * self.num_workers
        return [worker for worker in range(self.num_workers) if deals.has_share(self.top, first + worker)]

    def _has_given_all(self, run: Run) -> bool:
        return run.progress.has_given_all(run.key, self.tree)

    def samples(self, run: Run) -> Iterator[Sample]:
        """The samples that the lane delivers."""
        return iter(()) if self._has_given_all(run) else lane_samples(run, self.top)

    def records(self, run: Run) -> Iterator[Sample]:
        """The records of a lane in which each gives one sample: their names, of map-style sources without reading."""
        deals = self._dealt(run.progress, run.key.epoch_pass, is_bare=True)
        return iter(()) if self._has_given_all(run) else lane_samples(replace(run, deals=deals), self._bare)

    def left(self, run: Run) -> float:
        """How many samples a lane that can be sought gets yet."""
        return 0 if self._has_given_all(run) else count_samples(run, self.top)

    def after(self, run: Run, samples: int) -> Run:
        """A lane that can be sought, so many samples later."""
        return replace(run, entries=seek(run, self.top, samples)) if samples else run


OnProgress = Callable[[int, int], None]


class LaneSizes(NamedTuple):
    """The sizes of a lane's batches from where it is begun on."""

    runs: Sequence[Sequence[int]]
    """Runs of batches of one size in the lane's pass, as of `Batches`."""
    begun: int
    """How many batches there were before."""
    known: int
    """How many of those that follow states tell of."""
    size: int
    """Samples of each batch after these."""

    def samples(self, batches: int) -> int:
        """How many samples so many batches have."""
        known = min(batches, self.known)
        counts = batches_by_size(self.runs, self.begun, self.begun + known)
        return sum(size * count for size, count in counts.items()) + (batches - known) * self.size

    def of_batch(self, number: int) -> int:
        """How many samples a batch has, counted from 0."""
        return self.samples(number + 1) - self.samples(number)

    def batch_of(self, sample: int) -> int:
        """The batch that has a sample, both counted from 0."""
        beyond = sample - self.samples(self.known)
        if beyond >= 0:
            return self.known + beyond // self.size
        return bisect_right(range(1, self.known + 1), sample, key=self.samples)

    def total(self, samples: float) -> float:
        """How many batches so many samples make."""
        return self.known + math.ceil((samples - self.samples(self.known)) / self.size)


class RankStream:
    """Batches in the sequence in which the workers' turns bring them.

    Args:
        era: The generation.
        runs: The rank's lanes where they are begun, in the sequence of their turns.
        sizes: The sizes of each one's batches.
        is_open: Whether batches follow those of which states tell.
        gives_one: As of `must_be_read`, of one of the lanes, by its number here.
        on_progress: Called with how many batches were passed over by reading, and of how many.
    """

    def __init__(
        self,
        era: Era,
        runs: Sequence[Run],
        sizes: Sequence[LaneSizes],
        gives_one: Callable[[int, Node], bool],
        on_progress: OnProgress | None = None,
        *,
        is_open: bool,
    ) -> None:
        self._era, self.runs, self._sizes, self._on_progress = era, list(runs), sizes, on_progress
        self._is_open = is_open
        self.is_read = any(must_be_read(run, era.top, partial(gives_one, i)) for i, run in enumerate(runs))
        """Whether it has to be read, and is not sought."""
        self._lanes: dict[int, Iterator[Sample]] = {}
        self._given = [0] * len(runs)
        """Batches of each lane that are passed over, or given."""
        self.turns = list(range(len(runs)))
        """Lanes of which a batch follows, as far as is known without reading."""

    def skip(self, batches: int) -> int:
        """Pass over so many, before any was given; return how many there were."""
        if self._is_open and not self._era.top.is_endless and self.is_read:
            stream = self.batches()  # nobody knows how many samples its lanes have
            for done in range(batches):
                if self._on_progress is not None:
                    self._on_progress(done, batches)
                if next(stream, None) is None:
                    return done
            return batches
        totals = self._totals()
        there = int(min(batches, sum(totals)))
        self._given, self.turns = _after(totals, there)
        return there

    def step_of(self, lane: int, sample: int) -> int:
        """The batch, counted from where the lanes are begun, that has a lane's sample of that number."""
        batch, totals = self._sizes[lane].batch_of(sample), self._totals()
        return int(sum(min(total, batch + (other < lane)) for other, total in enumerate(totals)))

    def batches(self, *, bare: bool = False) -> Iterator[list[Sample]]:
        """The batches that follow; with `bare` nothing but which records they are made of, where nothing is read."""
        turns = self.turns
        while turns:
            lane = turns.pop(0)
            given, sizes = self._given[lane], self._sizes[lane]
            if given == sizes.known and not self._is_open:
                continue
            if lane not in self._lanes:
                self._lanes[lane] = self._opened(lane, given, bare=bare)
            batch = list(islice(self._lanes[lane], sizes.of_batch(given)))
            self._given[lane] += 1
            # Of a lane that gave all of a batch, only its next turn shows whether there is more.
            if len(batch) == sizes.of_batch(given):
                turns.append(lane)
            if batch:
                yield batch

    def _totals(self) -> list[float]:
        """How many batches each lane has, where that is known without reading."""
        if not self._is_open:
            return [sizes.known for sizes in self._sizes]
        if self._era.top.is_endless:
            return [math.inf] * len(self.runs)
        return [sizes.total(self._era.left(run)) for sizes, run in zip(self._sizes, self.runs, strict=True)]

    def _opened(self, lane: int, batches: int, *, bare: bool) -> Iterator[Sample]:
        era, run, samples = self._era, self.runs[lane], self._sizes[lane].samples(batches)
        if not self.is_read:
            if not era.top.is_endless and samples >= era.left(run):
                return iter(())
            run = era.after(run, samples)
            return era.records(run) if bare else era.samples(run)
        stream = era.samples(run)
        for done in range(batches):
            if self._on_progress is not None:
                self._on_progress(done, batches)
            for _ in islice(stream, self._sizes[lane].of_batch(done)):
                pass
        return stream


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
