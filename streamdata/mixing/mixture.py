"""A mixture in one lane: which source is next, and what each sample says of where the stream stands."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import NoReturn, Protocol

from streamdata.errors import SourceError
from streamdata.fields import CURSOR, STATES
from streamdata.mixing.clock import start_clocks
from streamdata.mixing.whole_epochs import WholeEpochs
from streamdata.progress import Cursor, LaneEntries, LaneKey, LaneLink, NodeKey, PlainCursor, PlainEntry, Progress, Tree
from streamdata.run import Lane
from streamdata.sources.functions import Bursts, Feed, StreamFn
from streamdata.sources.source import Sample, place_of
from streamdata.sources.tally import Tally

logger = logging.getLogger("streamdata")

Pairs = Iterator[tuple[Sample, PlainCursor]]
MergedFeed = Feed[dict[str, PlainEntry]]

_MOST_JOINED = 1000
"""Samples that a yield function may join to one, over however many epochs of small sources."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What all nodes of the tree share while one lane is iterated."""

    lane: Lane
    progress: Progress
    generation: int
    epoch_pass: int
    entries: LaneEntries
    tree: Tree
    header: str
    from_window: bool
    link: LaneLink


class Child(Protocol):
    """A source of a mixture, in one lane."""

    path: str
    is_mixture: bool
    endless: bool
    """Whether it goes on for ever; otherwise it ends with its parent's round, and begins again with the next."""

    def has_records(self, round_: int) -> bool:
        """Whether the lane has a share of it in this round."""

    def start(self, round_: int, cursor: Cursor | None) -> Pairs:
        """Its samples with the cursor after each, from where it stood, or from the beginning of the round."""

    def epoch_paths(self) -> Iterator[str]:
        """The nodes, it or some below it, whose cursors begin with how often they have begun anew."""


@dataclass(frozen=True, kw_only=True)
class Blend:
    """What a recipe says of a mixture, beside its sources."""

    names: Sequence[str]
    weights: Sequence[float]
    seeds: tuple[object, ...]
    """The seeds and names on the path from the top."""
    cyclic: bool
    stop_at_first: bool
    yield_fn: StreamFn | None
    max_bad: int
    """How many failures of the yield function are forgiven."""
    cost: Callable[[Sample], float] | None


class Mixture:
    """Draws from its children, the one with the lowest clock first.

    A finite mixture ends when its stop rule says so; within an endless one it then begins its next *round*, in which
    its sources read their next epoch, and its clocks begin anew.

    Args:
        run: The lane and where it stood.
        path: The mixture's path of names, "" at the top.
        blend: What the recipe says.
        children: In the order of the recipe, which decides ties.
        parent_endless: Whether it begins again by itself when it ends.
    """

    is_mixture = True

    def __init__(self, run: Run, path: str, blend: Blend, children: Sequence[Child], parent_endless: bool) -> None:
        self.path, self.endless = path, blend.cyclic or parent_endless
        self._run, self._blend, self._children = run, blend, children
        total = sum(blend.weights)
        self._steps = [total / weight for weight in blend.weights]
        self._standings = [run.entries.standing(child.path) for child in children]
        self._draws = [standing.draws if standing else 0 for standing in self._standings]
        self._drawn = sum(run.entries.draws_below(path).values())
        self._streams: dict[int, Pairs] = {}
        self._passed_over: dict[str, PlainEntry] = {}
        standing = run.entries.standing(path)
        cursor = standing.cursor if standing is not None else Cursor()
        self._tally = Tally(path or "the top", blend.max_bad, cursor.dropped, cursor.bad)

    def has_records(self, round_: int) -> bool:
        return self.endless or any(child.has_records(round_) for child in self._children)

    def epoch_paths(self) -> Iterator[str]:
        if all(child.endless for child in self._children):  # then so is a round
            for child in self._children:
                yield from child.epoch_paths()
        else:
            yield self.path

    def start(self, round_: int, cursor: Cursor | None) -> Pairs:
        if self._blend.cyclic or not self.endless:
            return self._round(0 if self._blend.cyclic else round_, cursor)
        return self._rounds(cursor)

    def _rounds(self, cursor: Cursor | None) -> Pairs:
        round_, empty = cursor.epoch if cursor else 0, 0
        # Where lanes outnumber a source's blocks, a lane has a share of it at least once in as many rounds as there
        # are lanes.
        while empty <= self._run.lane.count:
            empty += 1
            for pair in self._round(round_, cursor):
                empty = 0
                yield pair
            round_, cursor = round_ + 1, None
        raise SourceError(
            f"source {self.path!r}: {empty} rounds in a row gave no sample: {self._tally.summary()}\n"
            "  Give its sources records, or mend its customized_yield_fn."
        )

    def _round(self, round_: int, cursor: Cursor | None) -> Pairs:
        if self._blend.yield_fn is not None:
            yield from self._yielded(self._blend.yield_fn, round_, cursor)
            return
        after = (round_, 0, 0, 0)
        for sample in self.draw(round_):
            yield sample, after

    def draw(self, round_: int) -> Iterator[Sample]:
        """Yield the merged stream of a round; a sample carries the entries of its source and of the nodes between."""
        heap = self._begin(round_)
        pulls = [self._streams[i].__next__ for i in range(len(self._children))]
        keys = [self.key(child.path, round_) for child in self._children]
        nested = [child.is_mixture for child in self._children]
        steps, draws, cost, drawn = self._steps, self._draws, self._blend.cost, self._drawn
        while heap:
            clock, i = heap[0]
            try:
                sample, cursor = pulls[i]()
            except StopIteration:
                heappop(heap)
                if self._blend.stop_at_first:
                    break
                continue
            clock += steps[i] if cost is None else steps[i] * self._cost(i, cost, sample)
            draws[i] = count = draws[i] + 1
            drawn += 1
            entry: PlainEntry = (keys[i], count, clock, cursor, drawn, None)
            sample[CURSOR] = (*sample[CURSOR], entry) if nested[i] else (entry,)
            heapreplace(heap, (clock, i))
            yield sample
        self._drawn = drawn

    def _begin(self, round_: int) -> list[tuple[float, int]]:
        """Start the children where they stood, or for this round; return (clock, number) of those with records."""
        clocks = self._clocks(round_)
        for i, child in enumerate(self._children):
            if i not in self._streams or not child.endless:
                standing = self._standings[i]
                known = standing is not None and (child.endless or standing.round == round_)
                self._streams[i] = child.start(round_, standing.cursor if standing and known else None)
        self._standings = [None] * len(self._children)
        heap = [(clocks[i], i) for i, child in enumerate(self._children) if child.has_records(round_)]
        heapify(heap)
        return heap

    def _cost(self, i: int, cost: Callable[[Sample], float], sample: Sample) -> float:
        who = f"source {self._children[i].path!r}: cost"
        try:
            value = cost(sample)
            if 0 < value < math.inf:
                return float(value)
        except Exception as error:
            error.add_note(f"{who} failed at {place_of(sample)}\n  It takes what the source gives, and gives a number.")
            raise
        raise ValueError(
            f"{who} gave {value!r}, expected a positive number, at {place_of(sample)}\n"
            "  It says how much of the mixture a sample takes, such as its number of tokens."
        )

    def _clocks(self, round_: int) -> list[float]:
        starts = start_clocks(self._blend.names, self._steps, self._run.lane, self._blend.seeds)
        stood = [s.clock if s is not None and s.round == round_ else None for s in self._standings]
        clocks = [start if clock is None else clock for start, clock in zip(starts, stood, strict=True)]
        since = [self._run.progress.member_since(child.path, self._run.generation) for child in self._children]
        for i in {i for i, generation in enumerate(since) if generation > 0}:
            standing = self._standings[i]
            if standing is None or standing.generation < since[i]:
                clocks[i] = max(stood[i] or 0.0, self._lowest_before(since[i], since, starts, round_))
        blended = self._run.progress.blended_since(self.path, self._run.tree, self._run.generation)
        if self._blend.cyclic and self._blend.cost is None and blended > 0:
            never = [math.inf] * len(clocks)
            lowest = self._lowest_before(blended, since, never, round_)
            for i, standing in enumerate(self._standings):
                was_there = since[i] < blended or stood[i] is not None  # a source that returns has a clock of before
                if was_there and lowest < math.inf and (standing is None or standing.generation < blended):
                    # As if it had always had its weight: one that was rarer would wait for its old step, one that was
                    # not drawn yet could be far behind. Reckoned from before the change, so that each resume agrees.
                    clock = clocks[i] if clocks[i] >= lowest else lowest + starts[i]
                    clocks[i] = min(clock, lowest + self._steps[i])
        return clocks

    def _lowest_before(self, generation: int, since: Sequence[int], starts: Sequence[float], round_: int) -> float:
        """The lowest clock at the moment when `generation` began: there a source that joins with it starts."""
        lowest = []
        for child, joined, start in zip(self._children, since, starts, strict=True):
            if joined < generation:
                history = [s for s in self._run.entries.history(child.path) if s.generation < generation]
                standing = history[-1] if history else None
                lowest.append(standing.clock if standing is not None and standing.round == round_ else start)
        return min(lowest, default=0.0)

    def _yielded(self, function: StreamFn, round_: int, cursor: Cursor | None) -> Pairs:
        given, state = (0, None) if cursor is None or self._run.from_window else (cursor.given, cursor.function)
        if given and not self._draws_alike():
            given, state = 0, None
        tally, what = self._tally, "customized_yield_fn"
        # What the function of the round before pulled at its end, and gave nothing for, was drawn all the same.
        feed: MergedFeed = Feed(self._pulled(round_, lambda: feed), self._passed_over, _joined, given, tally, what)
        for sample in Bursts(function, feed, state, tally, what):
            # What was pulled before this burst began: on resume, the burst is pulled again.
            sample[STATES] = tuple(feed.start.values())
            sample[CURSOR] = ()
            feed.start = {}
            yield sample, (round_, 0, 0, 0, feed.given, feed.state, tally.dropped, tally.bad)
        if not self.endless and cursor is None and feed.last and not feed.outputs:
            self._refuse_silence("the stream of this lane's share", feed)
        feed.forget()
        self._passed_over = feed.start

    def _draws_alike(self) -> bool:
        """Whether the open burst of the yield function can be drawn again as it was; else it begins anew."""
        run, standing = self._run, self._run.entries.standing(self.path)
        is_alike = standing is None or run.progress.draws_alike(self.path, run.tree, standing.generation)
        if not is_alike:
            logger.warning(
                "source %r: its sources or weights are others than when the states were written, so that what its "
                "customized_yield_fn had begun is drawn anew: samples of one burst come twice, none are lost",
                self._tally.name,
            )
        return is_alike

    def _pulled(self, round_: int, feed_of: Callable[[], MergedFeed]) -> Iterator[tuple[Sample, dict[str, PlainEntry]]]:
        """The merged stream for the yield function, which must not pass over all of it for ever."""
        epochs = WholeEpochs(path for child in self._children for path in child.epoch_paths())
        outputs = pulled = 0
        for sample in self.draw(round_):
            entries, feed = _entries(sample), feed_of()
            if feed.outputs != outputs:
                outputs, pulled = feed.outputs, 0
            pulled += 1
            if pulled == _MOST_JOINED:  # not sooner: most functions give something long before
                epochs.begin()
            elif pulled > _MOST_JOINED and epochs.are_over(entries):
                if not feed.holds_records():
                    self._refuse_silence("a whole epoch of each source in this lane", feed)
                pulled = 0
            yield sample, entries

    def _refuse_silence(self, what: str, feed: MergedFeed) -> NoReturn:
        raise SourceError(
            f"source {self._tally.name!r}: {what} gave no sample: {self._tally.summary()}; {feed.passed_over()}\n"
            "  Mend the data or the function, or give the lane more records (fewer ranks or workers)."
        )

    def key(self, path: str, round_: int) -> NodeKey:
        """What all entries of a node share."""
        run = self._run
        lane = LaneKey(run.epoch_pass, run.lane.dp_rank, run.lane.worker)
        return NodeKey(run.header, run.generation, lane, path, round_, run.link)


def _entries(sample: Sample) -> dict[str, PlainEntry]:
    entries: tuple[PlainEntry, ...] = (*sample.get(STATES, ()), *sample[CURSOR])
    by_path = {}
    for entry in entries:
        node, *_ = entry
        by_path[node.path] = entry
    return by_path


def _joined(before: dict[str, PlainEntry], after: dict[str, PlainEntry]) -> dict[str, PlainEntry]:
    before.update(after)
    return before
