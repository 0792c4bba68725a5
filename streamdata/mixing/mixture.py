"""A mixture in one lane: which source is next, and what each sample says of where the stream stands."""

import logging
import math
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heapreplace

from streamdata.errors import SourceError
from streamdata.fields import CURSOR, STATES
from streamdata.mixing.child import Child, Pairs, Run
from streamdata.mixing.clock import History, begin_clocks, start_clocks
from streamdata.mixing.leaf import Leaf
from streamdata.mixing.tree import MixtureSettings, Node
from streamdata.mixing.whole_epochs import WholeEpochs
from streamdata.progress import Cursor, PlainEntry, node_of
from streamdata.sources.functions import Feed, StreamFn, run_bursts
from streamdata.sources.source import Sample, describe_record

logger = logging.getLogger("streamdata")

MergedFeed = Feed[dict[str, PlainEntry]]

# Both this many samples and, after them, a whole epoch must have gone by without an output. An epoch alone would not
# do: that of a tiny source is over within what a packer joins to one sample. Nor would samples alone, where a function
# drops most of them. Epochs are followed from here on only: that costs time per sample, and most yield sooner.
_MAX_JOINED = 1000
"""Samples that a yield function may join to one, over however many epochs of small sources."""


class Mixture:
    """Draws from its children, the one with the lowest clock first.

    A finite mixture ends when its stop rule says so; within an endless one it then begins its next *round*, in which
    its sources read their next epoch, and its clocks begin anew.

    Args:
        run: The lane and where it stood.
        node: The mixture; its children in the order of the recipe, which decides ties.
        parent_endless: Whether it begins again by itself when it ends.

    Raises:
        ValueError: It has a `max_bad`, and no yield function that could fail.
    """

    is_mixture = True

    def __init__(self, run: Run, node: Node, parent_endless: bool = False) -> None:
        settings: MixtureSettings = node.dataset
        self.path, self.endless = node.path, settings.cyclic or parent_endless
        self._run, self._node, self._settings = run, node, settings
        self._children = [_in_lane(run, child, settings.cyclic) for child in node.children]
        weights = [float(child.dataset.percent) for child in node.children]
        total = sum(weights)
        self._steps = [total / weight for weight in weights]
        self._standings = [run.entries.standing(child.path) for child in node.children]
        self._draws = [standing.draws if standing else 0 for standing in self._standings]
        self._drawn = sum(run.entries.draws_below(node.path).values())
        self._resumes = True
        """Whether what the states say still applies: only the first round that is read may go on in one of theirs."""
        self._streams: dict[int, Pairs] = {}
        self._passed_over: dict[str, PlainEntry] = {}
        self._tally = run.tally(node)
        if self._tally.max_bad and settings.customized_yield_fn is None:
            raise ValueError(
                f"source {self._tally.name!r}: max_bad={self._tally.max_bad} of a mixture is for its "
                "customized_yield_fn, got none\n  Give max_bad to the sources that it is meant for."
            )

    def has_records(self, round_: int) -> bool:
        return self.endless or any(child.has_records(round_) for child in self._children)

    def epoch_paths(self) -> Iterator[str]:
        if all(child.endless for child in self._children):  # then so is a round
            for child in self._children:
                yield from child.epoch_paths()
        else:
            yield self.path

    def start(self, round_: int, cursor: Cursor | None) -> Pairs:
        if self._settings.cyclic or not self.endless:
            return self._round(0 if self._settings.cyclic else round_, cursor)
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
        if self._settings.customized_yield_fn is not None:
            yield from self._yielded(self._settings.customized_yield_fn, round_, cursor)
            return
        after = (round_, 0, 0, 0)
        for sample in self.draw(round_):
            yield sample, after

    def draw(self, round_: int) -> Iterator[Sample]:
        """Yield the merged stream of a round; a sample carries the entries of its source and of the nodes between."""
        heap = self._begin(round_)
        pulls = [self._streams[i].__next__ for i in range(len(self._children))]
        keys = [self._run.node_key(child.path, round_) for child in self._children]
        nested = [child.is_mixture for child in self._children]
        steps, draws, cost, drawn = self._steps, self._draws, self._settings.cost, self._drawn
        while heap:
            clock, i = heap[0]
            try:
                sample, cursor = pulls[i]()
            except StopIteration:
                heappop(heap)
                if self._settings.stop == "first_exhausted":
                    break
                continue
            clock += steps[i] if cost is None else steps[i] * self._cost(i, cost, sample)
            draws[i] = count = draws[i] + 1
            drawn += 1
            entry: PlainEntry = (keys[i], count, clock, cursor, drawn, None)
            sample[CURSOR] = (*sample[CURSOR], entry) if nested[i] else (entry,)
            # Before the yield: what follows it runs when the next sample is asked for, or never.
            heapreplace(heap, (clock, i))
            yield sample
        self._drawn = drawn

    def _begin(self, round_: int) -> list[tuple[float, int]]:
        """Start the children where they stood, or for this round; return (clock, number) of those with records."""
        clocks = self._clocks(round_)
        for i, child in enumerate(self._children):
            if i not in self._streams or not child.endless:
                standing = self._standings[i] if self._resumes else None
                known = standing is not None and (child.endless or standing.round == round_)
                self._streams[i] = child.start(round_, standing.cursor if standing and known else None)
        self._resumes = False
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
            at = describe_record(sample)
            error.add_note(f"{who} failed at {at}\n  It is called with what the source yields, and returns a number.")
            raise
        raise ValueError(
            f"{who} gave {value!r}, expected a positive number, at {describe_record(sample)}\n"
            "  It says how much of the mixture a sample takes, such as its number of tokens."
        )

    def _clocks(self, round_: int) -> list[float]:
        run, settings = self._run, self._settings
        names = [child.dataset.name for child in self._node.children]
        starts = start_clocks(names, self._steps, run.lane, self._node.seeds)
        histories = [self._history(child.path, round_) for child in self._children]
        # The clock of a source that has ended stays behind, so a finite mixture's lowest clock is not where it stands;
        # and with a cost, what an expensive sample took is still to be made up for, whatever the weights are now.
        moves = settings.cyclic and settings.cost is None
        reweighed = run.progress.blended_since(self.path, run.tree, run.generation) if moves else 0
        return begin_clocks(starts, self._steps, histories, reweighed)

    def _history(self, path: str, round_: int) -> History:
        clocks = self._run.entries.clocks(path, round_) if self._resumes else {}
        return History(self._run.progress.member_since(path, self._run.generation), clocks)

    def _yielded(self, function: StreamFn, round_: int, cursor: Cursor | None) -> Pairs:
        given, state = (0, None) if cursor is None or self._run.from_window else (cursor.given, cursor.function)
        if given and not self._draws_alike():
            given, state = 0, None
        tally = self._tally
        # What the function of the round before pulled at its end, and gave nothing for, was drawn all the same.
        feed: MergedFeed = Feed(
            self._pulled(round_, lambda: feed), self._passed_over, _joined, given, tally, "customized_yield_fn"
        )
        for sample in run_bursts(function, feed, state):
            # What was pulled before this burst began: on resume, the burst is pulled again.
            sample[STATES] = tuple(feed.start.values())
            sample[CURSOR] = ()
            feed.start = {}
            yield sample, (round_, 0, 0, 0, feed.given, feed.state, tally.dropped, tally.bad)
        if not self.endless and cursor is None and feed.last and not feed.outputs:
            raise tally.silence("the stream of this lane's share", feed.passed_over())
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
        """The merged stream for the yield function, which must not pass over all of it without end."""
        epochs = WholeEpochs(path for child in self._children for path in child.epoch_paths())
        outputs = pulled = 0
        for sample in self.draw(round_):
            entries, feed = _entries(sample), feed_of()
            if feed.outputs != outputs:
                outputs, pulled = feed.outputs, 0
            pulled += 1
            if pulled == _MAX_JOINED:
                epochs.begin()
            elif pulled > _MAX_JOINED and epochs.are_over(entries):
                if not feed.holds_records():
                    raise self._tally.silence("a whole epoch of each source in this lane", feed.passed_over())
                pulled = 0
            yield sample, entries


def _in_lane(run: Run, node: Node, parent_endless: bool) -> Child:
    source = node.source
    return Mixture(run, node, parent_endless) if source is None else Leaf(run, node, source, parent_endless)


def _entries(sample: Sample) -> dict[str, PlainEntry]:
    entries: tuple[PlainEntry, ...] = (*sample.get(STATES, ()), *sample[CURSOR])
    return {node_of(entry).path: entry for entry in entries}


def _joined(before: dict[str, PlainEntry], after: dict[str, PlainEntry]) -> dict[str, PlainEntry]:
    before.update(after)
    return before
