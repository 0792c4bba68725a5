"""One generation of a run as its lanes read it: its tree, its topology, any lane from any point, and ranks' batches.

Where a lane stands after so many more samples is found without reading any. The clocks of a mixture's sources do not
depend on one another: each is drawn whenever its own is due. So it is counted how often each is due before a time, to
the bit as drawing one after another would (`ClockPace.advance`), that time is chosen just below the draw that is looked
for, and the few draws that are left are made one by one. How far a source has come then is a matter of counting its
blocks (`position_after`), and of a mixture within the mixture the same again.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from heapq import heapify, heappop, heapreplace
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from streamdata.errors import SourceError
from streamdata.fields import BOUNDS, DATASET_NAME, INDEX, KEY, PADDED_BOUNDS, RECORD_IDS, SOURCE_IDS, URL
from streamdata.mixing.clock import Clocks
from streamdata.mixing.deals import Deals
from streamdata.mixing.leaf import Run
from streamdata.mixing.lengths import count_samples
from streamdata.mixing.merged import MergedDataset
from streamdata.mixing.reading import lane_samples
from streamdata.mixing.schedule import ClockPace
from streamdata.mixing.tree import Node, name_record, source_names, tree_of
from streamdata.run import Lane
from streamdata.run.lane_link import LaneLink
from streamdata.sources import MapStyleSource
from streamdata.sources.functions.tally import counts_of
from streamdata.sources.order.dealt_lane import position_after
from streamdata.sources.source import Sample
from streamdata.states.cursor import LaneEntries
from streamdata.states.headers import Topology, Tree, header
from streamdata.states.progress import Progress, batches_by_size
from streamdata.states.table import COUNTS

_FEW = 64
"""Draws that are made one by one rather than counted."""


def must_be_read(run: Run, node: Node, after: LaneEntries | None) -> bool:
    """Whether a lane's stream has to be read: not where each record gives one sample, and shares follow from time.

    Args:
        run: The lane.
        node: The top, or what is below it.
        after: Its entries at the end of the time in question; None where no states tell of it.
    """
    if node.is_mixture:
        joins_or_weighs = node.dataset.customized_yield_fn is not None or node.dataset.cost is not None
        is_scheduled_within = node.shares is not None and node.path
        below = (must_be_read(run, child, after) for child in node.children)
        return bool(joins_or_weighs or is_scheduled_within) or any(below)
    assert node.source is not None, "no mixture"
    if getattr(node.dataset, "process_fn", None) is not None:
        return True
    if node.source.count(np.zeros(1, np.int64), node.part) is None:
        return True
    may_differ = any(getattr(node.dataset, name, None) for name in ("single_process_fn", "max_bad"))
    return (may_differ or run.skips.of(node.path) is not None) and not _gave_one(run, node, after)


def _gave_one(run: Run, node: Node, after: LaneEntries | None) -> bool:
    """Whether each record that a lane has read of a source by then gave one sample, by what was counted."""
    if after is None or not node.is_endless:
        return False  # what was lost after its last sample, no entry says
    began, ended = run.entries.node_state(node.path), after.node_state(node.path)
    if ended is None:
        return True  # nothing was drawn of it
    if ended.cursor.output or (began is not None and began.cursor.output):
        return False
    grown = {name: getattr(ended.cursor, name) - getattr(run.tally(node), name) for name in COUNTS}
    if any(grown[name] for name in ("dropped", "bad", "skipped")):
        return False
    drawn = ended.draws - (began.draws if began else 0)
    return getattr(node.dataset, "single_process_fn", None) is None or grown["records"] == drawn


def seek(run: Run, top: Node, samples: int) -> LaneEntries:
    """The entries of a lane after so many more samples, which must be there and need no reading (`must_be_read`)."""
    after = LaneEntries()
    after.cursors = {path: dict(held) for path, held in run.entries.cursors.items()}
    _draw_from(run, top, samples, after)
    drawn = sum(after.draws_below("").values())
    after.cursors.setdefault("", {})[run.generation] = {"draws": drawn, "clock": 0.0, **_NO_POSITION}
    return after


def _draw_from(run: Run, node: Node, samples: int, after: LaneEntries) -> None:
    """Write what the entries below a mixture become once so many samples were drawn of it."""
    clocks = Clocks(run, node, ())
    there = [run.deals.has_share(child, run.lane.index) for child in node.children]
    left = [count_samples(run, child) if has else 0.0 for child, has in zip(node.children, there, strict=True)]
    draws, ends = _draw(clocks.begin(), clocks.pace(0.0), left, np.flatnonzero(there).tolist(), samples)
    for child, drawn, clock in zip(node.children, draws, ends, strict=True):
        if not drawn:
            continue
        before = run.entries.node_state(child.path)
        entry: dict[str, Any] = {"draws": (before.draws if before else 0) + drawn, "clock": clock}
        if child.is_mixture:
            _draw_from(run, child, drawn, after)
            entry |= _NO_POSITION
        else:
            lane = run.deals.lane(child, run.lane.index)
            position = position_after(lane, lane.start if before is None else before.cursor.position, drawn)
            entry |= dict(zip(_NO_POSITION, position, strict=False))
            entry |= dict(zip(COUNTS, counts_of(run.tally(child)), strict=True))
            if getattr(child.dataset, "single_process_fn", None) is not None:
                entry["records"] += drawn
        if before is not None and before.tokens:
            entry["tokens"] = before.tokens
        after.cursors.setdefault(child.path, {})[run.generation] = entry


_NO_POSITION: Final = {"epoch": 0, "window": 0, "taken": 0}
"""The position of a mixture: where it stands, its sources say."""


def _draw(
    clocks: Sequence[float], pace: ClockPace, left: Sequence[float], there: Sequence[int], samples: int
) -> tuple[list[int], list[float]]:
    """Draw so many samples from sources, the one with the lowest clock first and of equal ones the first.

    Args:
        clocks: Where they stand.
        pace: What moves them.
        left: How many samples each has.
        there: The sources that are drawn from, by number.
        samples: How many; so many must be there.

    Returns:
        The draws of each source, and where the clocks stand then.
    """
    draws, clocks = [0] * len(clocks), list(clocks)
    while there and (rest := samples - sum(draws)) > 4 * len(there) + _FEW:
        live = [i for i in there if draws[i] < left[i]]
        lowest = min(clocks[i] for i in live)
        # Shares add up to 1 at most, so that before this time no more than the rest is due, whatever the clocks are.
        # A step is 1 at least, and may lose half a unit of its clock in the rounding.
        steps = getattr(pace, "steps", None)
        share = 1.0 if steps is None else min(1.0, sum(1 / steps[i] for i in live) * (1 + 1e-9))
        span = (rest - len(live)) / share
        limit = lowest + span * max(0.0, 1 - math.ulp(lowest + span))
        for i in live:
            some = pace.advance(i, clocks[i], limit, left[i] - draws[i])
            draws[i] += some.draws
            clocks[i] = some.clock
        if samples - sum(draws) > rest - 2:  # clocks far ahead: nearly nothing is due so soon
            break
    # The last ones singly.
    heap = [(clocks[i], i) for i in there]
    heapify(heap)
    rest = samples - sum(draws)
    assert rest >= 0, "more was counted than is due"
    while rest:
        clock, i = heap[0]
        if draws[i] >= left[i]:
            heappop(heap)  # at its end; a mixture that ends with its first source is not asked for more
            continue
        draws[i] += 1
        rest -= 1
        clocks[i] = pace.due(i, clock, 1.0)
        heapreplace(heap, (clocks[i], i))
    return draws, clocks


def record_of(sample: Sample) -> dict[str, Any]:
    """The record that a sample was made of; the last one where there were several.

    Samples of map-style sources may bring a url and a key of their own, which nobody knows without reading them: of
    these the index is the name, whether a step is sought or read.
    """
    if INDEX in sample or URL not in sample:
        return {"source": sample[DATASET_NAME], "index": sample.get(INDEX)}
    return {"source": sample[DATASET_NAME], "url": str(sample[URL]), "key": sample[KEY]}


def documents_of(sample: Mapping[str, Any], top: Node) -> list[dict[str, Any]]:
    """The documents of a packed row: their records, as of `record_of`, and the tokens [begin, end) of each."""
    if SOURCE_IDS not in sample:
        return []
    if BOUNDS in sample:
        begins, sizes = sample.get(PADDED_BOUNDS, sample[BOUNDS])[:-1], sample[BOUNDS].diff()
        spans = list(zip(begins.tolist(), (begins + sizes).tolist(), strict=True))
    else:  # rows without gaps
        positions = sample["position_ids"]
        spans = list(pairwise([*(positions == 0).nonzero().flatten().tolist(), len(positions)]))
    names, found = source_names(top.dataset), []
    for source, record, span in zip(sample[SOURCE_IDS].tolist(), sample[RECORD_IDS], spans, strict=True):
        if source < 0:  # padding
            continue
        try:
            name = name_record(top, source, record)
        except SourceError:  # another library's iterable
            name = {"index": None}
        found.append({"source": names[source], **name, "begin": span[0], "end": span[1]})
    return found


def document_name(record: Mapping[str, Any]) -> str:
    """A record as `trace --find` takes it: URL#KEY, or SOURCE#INDEX."""
    return f"{record['url']}#{record['key']}" if "url" in record else f"{record['source']}#{record['index']}"


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
        weights: What its nodes had then, of a header; None as the recipe says now.
        shape: Ranks, and workers of each, at least 1.
        begins: The states with which it began.
        states: What states say of its size of the run, all of them together last; empty of one that is to come.
    """

    def __init__(
        self,
        dataset: MergedDataset,
        weights: Tree | None,
        shape: Topology,
        begins: Progress,
        states: Sequence[Progress],
    ) -> None:
        self.dp_size, self.num_workers = shape
        self.begins, self.states = begins, states
        self._dataset, lanes = dataset, self.dp_size * self.num_workers
        own: dict[str, Any] = {} if weights is None else {"weights": weights.weights, "live": weights.set_percents}
        self._new_top = partial(tree_of, dataset, **own)
        self.top = self._new_top()
        self.tree = self.top.tree
        self._dealt, self._dealt_bare = (cache(partial(Deals, lanes=lanes)) for _ in range(2))
        """How its sources, and the bare ones, are dealt out in a pass, by the states with which it is read."""

    @cached_property
    def _bare(self) -> Node:
        """The tree with nothing but records."""
        top = self._new_top()
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

    def sharing(self, epoch_pass: int, rank: int) -> list[int]:
        """The workers of a rank that have a share of a pass."""
        return self._dealt(self.begins, epoch_pass).sharing(self.top, rank, self.num_workers)

    def samples(self, run: Run, after: int = 0, *, bare: bool = False) -> Iterator[Sample]:
        """The samples that a lane delivers, of one that can be sought after so many.

        With `bare` nothing but the names of their records, of map-style sources without reading: then each record has
        to give one sample.
        """
        if run.progress.has_given_all(run.key, self.tree) or (after and after >= self.left(run)):
            return iter(())
        run = self.after(run, after)
        if not bare:
            return lane_samples(run, self.top)
        deals = self._dealt_bare(run.progress, run.key.epoch_pass)
        return lane_samples(replace(run, deals=deals), self._bare)

    def left(self, run: Run) -> float:
        """How many samples a lane that can be sought gets yet."""
        return 0 if run.progress.has_given_all(run.key, self.tree) else count_samples(run, self.top)

    def after(self, run: Run, samples: int) -> Run:
        """A lane that can be sought, so many samples later."""
        return replace(run, entries=seek(run, self.top, samples)) if samples else run


class Leg(NamedTuple):
    """The part of a pass that a rank reads between two of the states that are given, or after the last of them."""

    era: Era
    epoch_pass: int
    rank: int
    first: int
    """The number of its first batch among those of the job, from 0."""
    own: int
    """Its batches as far as states tell of them, without those that `uneven` left out."""
    fillers: int
    """Batches after these that only fill up."""
    begin: Progress
    """The states with which it begins, and those with which it ends;"""
    end: Progress | None
    """None where no states tell of what follows."""
    size: int
    """Samples of a batch there."""

    @property
    def after(self) -> int:
        """The number after its last batch that states tell of."""
        return self.first + self.own + self.fillers

    @property
    def has_ended(self) -> bool:
        """Whether the rank has then delivered all of the pass."""
        workers = self.era.sharing(self.epoch_pass, self.rank)
        return (self.end or self.begin).has_ended(self.epoch_pass, self.rank, workers)


OnProgress = Callable[[int, int], None]
"""Is told how far something is, and of how much."""


def samples_of(sizes: Sequence[Sequence[int]], begin: int, end: int) -> int:
    """How many samples a lane's batches have that follow its first `begin`, up to number `end`; as of `Batches`."""
    return sum(size * count for size, count in batches_by_size(sizes, begin, end).items())


@dataclass(eq=False)
class LaneBatches:
    """The batches of a lane in a leg."""

    run: Run
    """The lane where the leg begins."""
    sizes: Sequence[Sequence[int]]
    """Runs of batches of one size, as of `Batches`."""
    begun: int
    """How many of these come before the leg."""
    total: float
    """How many are of the leg; infinite where only reading shows it."""
    given: int = 0
    """How many are passed over, or given."""
    samples: Iterator[Sample] | None = None
    """The lane's samples after these."""

    def samples_in(self, batches: int) -> int:
        """How many samples its first batches have."""
        return samples_of(self.sizes, self.begun, self.begun + batches)

    def size_of(self, batch: int) -> int:
        """How many samples a batch has, counted from 0."""
        return self.samples_in(batch + 1) - self.samples_in(batch)


class RankStream:
    """The batches of a rank in a leg, in the sequence in which the workers' turns bring them.

    Args:
        leg: The leg.
        on_progress: Told how many batches were passed over by reading, and of how many.
    """

    def __init__(self, leg: Leg, on_progress: OnProgress) -> None:
        self.leg, self._era, self.on_progress = leg, leg.era, on_progress
        begin, end, num_workers = leg.begin, leg.end, leg.era.num_workers
        last = begin.last_workers.get((leg.epoch_pass, leg.rank), -1)
        workers = [(last + 1 + turn) % num_workers for turn in range(num_workers)]
        runs = [leg.era.run(begin, leg.epoch_pass, leg.rank, worker) for worker in workers]
        after = [None if end is None else end.lane(run.key) for run in runs]
        self.is_read = any(must_be_read(run, leg.era.top, then) for run, then in zip(runs, after, strict=True))
        """Whether it has to be read, and is not sought."""
        self.lanes = [self._lane(run) for run in runs]
        """In the sequence of their turns."""
        self._pass_over(0)

    def _lane(self, run: Run) -> LaneBatches:
        leg = self.leg
        if leg.end is None:
            is_open = self.is_read or self._era.top.is_endless
            total = math.inf if is_open else math.ceil(self._era.left(run) / leg.size)
            return LaneBatches(run, ((1, leg.size),), 0, total)
        begun, ended = leg.begin.batches_before(run.key), leg.end.batches_before(run.key)
        assert begun is not None, "legs are of batches that were counted"
        assert ended is not None, "legs are of batches that were counted"
        return LaneBatches(run, ended.sizes, begun.number, ended.number - begun.number)

    def skip(self, batches: int) -> int:
        """Pass over so many, before any was given; return how many there were."""
        if self.is_read and self.leg.end is None and not self._era.top.is_endless:
            stream = self.batches()  # nobody knows how many samples its lanes have
            for done in range(batches):
                self.on_progress(done, batches)
                if next(stream, None) is None:
                    return done
            return batches
        there = int(min(batches, sum(lane.total for lane in self.lanes)))
        self._pass_over(there)
        return there

    def _pass_over(self, batches: int) -> None:
        """Set how many batches each lane has given after so many of all, and whose turns follow."""
        totals = [lane.total for lane in self.lanes]
        rounds = bisect_right(range(1, batches + 1), batches, key=lambda most: int(sum(min(t, most) for t in totals)))
        for lane in self.lanes:
            lane.given = int(min(lane.total, rounds))
        begun = batches - sum(lane.given for lane in self.lanes)
        there = [lane for lane in self.lanes if lane.total > rounds]
        for lane in there[:begun]:
            lane.given += 1
        self.turns = deque(lane for lane in (*there[begun:], *there[:begun]) if lane.given < lane.total)
        """Lanes of which a batch follows, as far as is known without reading."""

    def number_of(self, lane: LaneBatches, sample: int) -> int:
        """The number of the batch among those of the job that has a lane's sample of that number."""
        batch, is_before = bisect_right(range(1, sample + 2), sample, key=lane.samples_in), True
        number = self.leg.first
        for other in self.lanes:
            is_before = is_before and other is not lane
            number += int(min(other.total, batch + is_before))
        return number

    def batches(self, *, bare: bool = False) -> Iterator[list[Sample]]:
        """The batches that follow; with `bare` nothing but which records they are made of, where nothing is read."""
        while self.turns:
            lane = self.turns.popleft()
            if lane.samples is None:
                lane.samples = self._samples(lane, bare=bare)
            size = lane.size_of(lane.given)
            batch = list(islice(lane.samples, size))
            lane.given += 1
            # Of a lane that gave all of a batch, only its next turn shows whether there is more.
            if len(batch) == size and lane.given < lane.total:
                self.turns.append(lane)
            if batch:
                yield batch

    def _samples(self, lane: LaneBatches, *, bare: bool) -> Iterator[Sample]:
        if not self.is_read:
            return self._era.samples(lane.run, lane.samples_in(lane.given), bare=bare)
        stream = self._era.samples(lane.run)
        for done in range(lane.given):
            self.on_progress(done, lane.given)
            for _ in islice(stream, lane.size_of(done)):
                pass
        return stream
