"""A mixture in one lane: which source is next, and what each sample says of where the stream stands."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from heapq import heapify, heappop, heapreplace
from itertools import accumulate
from time import perf_counter
from typing import Any
from weakref import proxy

from streamdata.errors import names_text, shown
from streamdata.fields import CURSOR, DATASET_NAME, STATES, TOKEN_FIELDS
from streamdata.mixing.clock import Clocks
from streamdata.mixing.leaf import Counts, Leaf, Pairs, Run, ShareAt
from streamdata.mixing.tree import MixtureSettings, Node
from streamdata.recipe.named_source import LEAST, MOST
from streamdata.run.lane_link import network_counts
from streamdata.sources.functions.process_functions import Feed, StreamFn, run_bursts
from streamdata.sources.functions.starts import is_stateful
from streamdata.sources.functions.tally import counts_of, num_tokens, raise_noted
from streamdata.sources.source import Sample, describe_record
from streamdata.states.cursor import Cursor, Entry, Mark, NodeState, PlainCursor, PlainEntry, node_of

logger = logging.getLogger("streamdata")

_COUNTED = ("draws", "tokens", "cost", "records")
"""Counts of sources within a burst; `cost` is the mixture's, for the time of schedules. Not failures: a burst may be
drawn anew, and they are forgiven once."""

# Both this many samples and, after them, a whole epoch must have gone by without an output. An epoch alone would not
# do: that of a tiny source is over within what a packer joins to one sample. Nor would samples alone, where a function
# drops most of them. Epochs are followed from here on only: that costs time per sample, and most yield sooner.
_MAX_JOINED = 1000
"""Samples that a yield function may join to one, over however many epochs of small sources."""

_NO_POSITION = (0, 0, 0, 0)
"""The cursor of a mixture that has nothing to say: where it stands, its sources say."""


def cost_function(cost: Callable[[Sample], float] | str) -> Callable[[Sample], float]:
    """The function that gives a sample's cost: the one given, or one that reads the field of that name."""
    if not isinstance(cost, str):
        return cost
    name = cost

    def field(sample: Sample) -> float:
        try:
            value: float = sample[name]
        except KeyError:
            fields = names_text(key for key in sample if not key.startswith("__"))
            raise ValueError(
                f"source {shown(sample.get(DATASET_NAME))}: expected the field {shown(name)} in each sample, which "
                f"cost names, got the fields {fields}"
            ) from None
        return value

    return field


class Mixture:
    """Draws from its children: the one with the lowest clock first.

    A finite mixture ends when its stop rule says so.

    Args:
        run: The lane and where it stood.
        node: The mixture; its children in the order of the recipe, which decides ties.
        above: The shares on the path from the top to it.

    Raises:
        ValueError: The mixture has a `max_bad`, and no yield function that could fail.
    """

    is_mixture = True

    def __init__(self, run: Run, node: Node, above: tuple[ShareAt, ...] = ()) -> None:
        settings: MixtureSettings = node.dataset
        self.path, self.endless = node.path, node.is_endless
        self._run, self._node, self._settings = run, node, settings
        self.joins = settings.customized_yield_fn is not None
        self._clocks = Clocks(run, node, above)
        self._children: list[Mixture | Leaf] = []
        self._node_states: list[NodeState | None] = []
        number = len(node.children)
        self._draws, self._costs, self._tokens = [0] * number, [0.0] * number, [0] * number
        for i, child in enumerate(node.children):
            shares = (*above, self._clocks.share_at(i))
            self._children.append(Mixture(run, child, shares) if child.is_mixture else Leaf(run, child))
            state = run.entries.node_state(child.path)
            self._node_states.append(state)
            if state is not None:
                self._draws[i], self._costs[i], self._tokens[i] = state.draws, state.cost, state.tokens
        self._weigh = None if settings.cost is None else cost_function(settings.cost)
        self._drawn = sum(run.entries.draws_below(node.path).values())
        self._streams: list[Pairs] = []
        self._heap: list[tuple[float, int]] = []
        self._amount = 0.0
        """Cost of the last sample."""
        self._starts: list[float] | None = None
        self.output_cost = 0.0
        """Cost of the last output of its yield function, where that balances."""
        self.mark: Mark | None = None
        """Mark of the last output of its yield function; None where that does not say what is in it."""
        self._tally = run.tally(node)
        if self._tally.max_bad and settings.customized_yield_fn is None:
            raise ValueError(
                f"source {shown(self._tally.name)}: max_bad={self._tally.max_bad} of a mixture is for its "
                "customized_yield_fn, got none\n  Give max_bad to the sources that it is meant for."
            )
        if self._tally.max_bad and getattr(settings.customized_yield_fn, "only_at_top", None):
            raise ValueError(
                f"source {shown(self._tally.name)}: expected no max_bad beside a customized_yield_fn that balances, "
                f"got {self._tally.max_bad}\n  After a failure one lane would not be aligned with the others any more."
            )

    def has_records(self) -> bool:
        return self.endless or any(child.has_records() for child in self._children)

    def beginning(self) -> PlainCursor:
        # A mixture has no windows: its cursor has room for the segment that its clocks are for.
        return (0, self._clocks.segment, 0, 0)

    def start(self, cursor: Cursor | None) -> Pairs:
        if self._settings.customized_yield_fn is not None:
            yield from self._yielded(self._settings.customized_yield_fn, cursor)
        elif self._clocks.is_told:
            for sample in self._draw_as_told():
                yield sample, self.beginning()
        else:
            for sample in self.draw():
                yield sample, _NO_POSITION

    def draw(self) -> Iterator[Sample]:
        """Yield the merged stream; a sample carries the entries of its source and of the nodes between."""
        heap = self._begin()
        pulls = [self._pull(i, heap) for i in range(len(self._children))]
        keys = [self._run.node_key(child.path) for child in self._children]
        nested = [child.is_mixture for child in self._children]
        steps, draws, drawn, spent = self._clocks.steps, self._draws, self._drawn, 0.0
        weigh, costs, tokens = self._weigh, self._costs, self._tokens
        is_plain = weigh is None and bool(steps)
        counts, now = network_counts(), perf_counter
        times = [self._run.times.setdefault(child.path, [0.0, 0.0]) for child in self._children]
        while heap:
            clock, i = heap[0]
            waited, began = counts.waited, now()
            try:
                sample, cursor = pulls[i]()
            except StopIteration:
                heappop(heap)
                if self._settings.stop == "first_exhausted":
                    break
                continue
            of_source = times[i]
            of_source[0] += now() - began
            if counts.waited != waited:
                of_source[1] += counts.waited - waited
            if is_plain:
                clock += steps[i]
            elif steps and weigh is not None:
                clock += steps[i] * self._spend(i, weigh, sample)
                spent = costs[i]
            else:
                clock = self._due(i, clock, sample)
                spent = costs[i]
            draws[i] = count = draws[i] + 1
            drawn += 1
            for name in TOKEN_FIELDS:
                if name in sample:
                    tokens[i] += num_tokens(sample[name])
            entry: PlainEntry = (keys[i], count, clock, cursor, drawn, None, spent, tokens[i])
            sample[CURSOR] = (*sample[CURSOR], entry) if nested[i] else (entry,)
            # Before the yield: what follows it runs when the next sample is asked for, or never.
            heapreplace(heap, (clock, i))
            yield sample

    def beginnings(self) -> Iterator[PlainEntry]:
        """Yield the entries of all nodes below as a generation begins in the lane.

        From then on they say it all: what follows does not depend on earlier generations any more, of which there may
        be thousands. What is below a mixture with a yield function is told by the start of its burst.
        """
        starts, run = self._begin_clocks(), self._run
        for i, (child, state) in enumerate(zip(self._children, self._node_states, strict=True)):
            if not (state or child.has_records()):
                continue
            cursor = state.cursor if state else child.beginning()
            if isinstance(child, Mixture) and child.joins:
                # What recipes have changed below draws its open burst anew: a resume has to find that it is of before.
                if state and run.progress.tree(state.generation).below(child.path) != run.tree.below(child.path):
                    continue
            elif isinstance(child, Mixture):
                if not self.path:
                    there = (clock for clock, one in zip(starts, self._children, strict=True) if one.has_records())
                    self._tell(i, min(there, default=0.0))
                yield from child.beginnings()
                cursor = child.beginning()
            counts = self._drawn, None, self._costs[i], self._tokens[i]
            yield run.node_key(child.path), self._draws[i], starts[i], cursor, *counts

    def _begin_clocks(self) -> list[float]:
        if self._starts is None:
            self._starts = self._clocks.begin()
        return self._starts

    def _begin(self) -> list[tuple[float, int]]:
        """Start the children where they stood; return (clock, number) of those with records."""
        clocks = self._begin_clocks()
        self._heap = heap = []
        for i, (child, state) in enumerate(zip(self._children, self._node_states, strict=True)):
            self._streams.append(child.start(state.cursor if state else None))
            if child.has_records():
                heap.append((clocks[i], i))
        heapify(heap)
        if self._clocks.is_told:
            self._cross()
        return heap

    def _pull(self, i: int, heap: list[tuple[float, int]]) -> Callable[[], tuple[Sample, PlainCursor]]:
        """Return the function that draws from a source; it tells the time to schedules within it."""
        pull = self._streams[i].__next__
        if self.path or not self._node.children[i].has_schedule:
            return pull

        def tell_and_pull() -> tuple[Sample, PlainCursor]:
            # The heap is as before this draw: its lowest clock is the lane's virtual time.
            self._tell(i, heap[0][0])
            return pull()

        return tell_and_pull

    def _tell(self, i: int, clock: float) -> None:
        """Set the present time, for schedules below a source of the top that is drawn at this clock."""
        present = self._run.present
        present.time, present.weigh = self._clocks.time(clock), self._weigh
        present.unit = self._costs[i] / self._draws[i] if self._costs[i] else 1.0

    def _draw_as_told(self) -> Iterator[Sample]:
        """Draw where the mixture is told the time: clocks that move without a draw join the next sample."""
        clocks, keys = self._clocks, [self._run.node_key(child.path) for child in self._children]
        numbers = {child.path: i for i, child in enumerate(self._children)}
        pairs = zip(self._children, self._node_states, strict=True)
        cursors: list[PlainCursor] = [state.cursor if state else child.beginning() for child, state in pairs]
        samples = self.draw()
        while True:
            self._cross()
            sample = next(samples, None)
            if sample is None:
                return
            drawn = Entry(*sample[CURSOR][-1])
            number = numbers[drawn.node.path]
            cursors[number] = drawn.cursor
            # Clocks that moved without a draw: a resume would find others, at another time.
            if clocks.is_new:
                others = [(clock, i) for clock, i in self._heap if i != number]
                entries: Iterator[PlainEntry] = (
                    (keys[i], self._draws[i], clock, cursors[i], drawn.drawn, None, self._costs[i], self._tokens[i])
                    for clock, i in others
                )
                sample[CURSOR] = (*entries, *sample[CURSOR])  # last is what was drawn
                clocks.is_new = False
            yield sample

    def _cross(self) -> None:
        """Move the clocks if schedules have come to another segment."""
        moved = self._clocks.cross(self._heap, self._unit()) if self._heap else None
        if moved is not None:
            self._heap[:] = moved
            heapify(self._heap)

    def _unit(self) -> float:
        """Mean cost of a sample; 1 where they have no cost."""
        return sum(self._costs) / sum(self._draws) if self._weigh is not None and any(self._draws) else 1.0

    def _due(self, i: int, clock: float, sample: Sample) -> float:
        """The clock after a draw, where shares follow schedules."""
        clocks, present = self._clocks, self._run.present
        amount = 1.0 if self._weigh is None else self._spend(i, self._weigh, sample)
        if not clocks.is_told:
            return clocks.pace(clock).due(i, clock, amount)
        # The sample is the one that the top will weigh, unless a yield function lies between.
        drawn = present.unit if present.weigh is None else float(present.weigh(sample))
        return clocks.pace(clock + amount, self._unit(), drawn).due(i, clock, amount)

    def _spend(self, i: int, weigh: Callable[[Sample], float], sample: Sample) -> float:
        """Return a sample's cost, after adding it to its source's."""
        try:
            value = weigh(sample)
            is_cost = LEAST <= value <= MOST  # in here: what is not even a number fails in the comparison
        except (Exception, SystemExit) as error:
            who, at = f"source {shown(self._children[i].path)}: cost", describe_record(sample)
            raise_noted(
                error, f"{who} failed at {at}\n  It is called with what the source yields, and returns a number."
            )
        if not is_cost:
            raise ValueError(
                f"source {shown(self._children[i].path)}: cost gave {shown(value)}, expected a positive number, "
                f"at {describe_record(sample)}\n"
                f"  It says how much of the mixture a sample takes, such as its number of tokens: {LEAST:g} to "
                f"{MOST:g}."
            )
        self._amount = amount = float(value)
        self._costs[i] += amount
        return amount

    def _yielded(self, function: StreamFn, cursor: Cursor | None) -> Pairs:
        run, tally, skips = self._run, self._tally, self._run.skips.digest(self.path)
        given, state = (0, None) if cursor is None or run.from_window else (cursor.given, cursor.function)
        # Whether the open burst can be drawn again as it was; else it begins anew.
        written = run.entries.node_state(self.path)
        if given and written is not None:
            was = run.progress.tree(written.generation)
            if was.below(self.path) != run.tree.below(self.path) or written.cursor.skips != skips:
                logger.warning(
                    "source %r: its sources, weights or `skip` are others than when the states were written, so what "
                    "its customized_yield_fn had begun is drawn anew: of what it gave, %d samples come again; of a "
                    "record that was cut into pieces, earlier ones too",
                    tally.name, given,
                )  # fmt: skip
                given, state = 0, None
        pulled = self._pulled(lambda: known)
        begins = not self.path and run.begins_generation
        start = tuple(self.beginnings()) if begins else ()
        # Which samples are in an output, a function that keeps some has to say; of any other all are in its next one.
        # With another function below it nobody says what that was given for a sample.
        joining = [node for node in self._node.walk() if node.is_mixture and node.dataset.customized_yield_fn]
        tells = hasattr(function, "ended_pulls") or not is_stateful(function)
        tally.counts_outputs = tells and not self.path and len(joining) == 1
        if tally.counts_outputs and written is not None:
            run.repeated.update({path: _delivered(counts) for path, counts in written.tail.items() if path})
        feed = MergedFeed(pulled, start, given, tally, "customized_yield_fn", repeated=run.repeated)
        known = proxy(feed)  # in a cycle, what sources hold open would stay so until a collection
        drawn = self._drawn
        for sample in run_bursts(function, feed, state):
            # What was pulled before this burst began: on resume, the burst is pulled again.
            sample[STATES], sample[CURSOR] = feed.start, ()
            for entry in feed.start:
                if node_of(entry).path.rpartition(".")[0] == self.path:  # not of a source further down
                    drawn = max(drawn, Entry(*entry).drawn)
            feed.start, self.output_cost, given = (), getattr(feed.stateful, "output_cost", 0.0), feed.given
            self.mark = Mark(tail=feed.counted | {self.path: {"given": given}}) if tally.counts_outputs else None
            yield sample, (0, 0, drawn, 0, given, feed.state, *counts_of(tally), None, "", skips)
        if not self.endless and cursor is None and feed.last and not feed.outputs:
            raise tally.silence("the stream of this lane's share", feed.passed_over())
        run.ends[self.path]["given"] = given
        for entry in feed.start:  # the last burst is over
            run.ends[node_of(entry).path] |= Counter({n: getattr(Entry(*entry), n) for n in _COUNTED[:3]})

    def _pulled(self, feed_of: "Callable[[], MergedFeed]") -> Iterator[tuple[Sample, tuple[PlainEntry, ...]]]:
        """The merged stream for the yield function, which must not pass over all of it without end."""
        epochs = WholeEpochs(node.path for node in self._node.leaves())
        feed, outputs, pulled = feed_of(), 0, 0
        counts = feed.counts
        tallies = self._run.tallies if self._tally.counts_outputs else {}
        states = ((path, tally, self._run.entries.node_state(path)) for path, tally in tallies.items())
        before = {path: (state.tokens if state else 0, tally.used) for path, tally, state in states}
        for sample in self.draw():
            entries = (*sample[STATES], *sample[CURSOR]) if STATES in sample else sample[CURSOR]
            if tallies:
                path, tokens = node_of(entries[0]).path, entries[0][-1]  # of the source; others are of what it is in
                (tokens_before, used_before), used = before[path], tallies[path].used
                counts += (path, tokens - tokens_before, self._amount, used - used_before)
                before[path] = tokens, used
            if feed.outputs != outputs:
                outputs, pulled = feed.outputs, 0
            pulled += 1
            if pulled == _MAX_JOINED:
                epochs.begin()
            elif pulled > _MAX_JOINED and epochs.are_over({node_of(entry).path: entry for entry in entries}):
                if not feed.holds_records():
                    raise self._tally.silence("a whole epoch of each source in this lane", feed.passed_over())
                pulled = 0
            yield sample, entries


class MergedFeed(Feed[tuple[PlainEntry, ...]]):
    """The feed of a yield function, which counts by node what is in its outputs.

    Args:
        repeated: Counts of outputs before. Those of outputs that are given again are taken off it: what stays is of
            bursts that are not.
    """

    def __init__(self, *arguments: Any, repeated: Counts) -> None:
        super().__init__(*arguments)
        self._repeated = repeated
        self.counted = dict(repeated)
        """Counts of outputs since the nodes' last entries."""
        self.counts: list[Any] = []
        """Four for each sample held: its source, its tokens, its cost, of how many records it is the first. They are
        not tuples: thousands of these, for as long as a burst is open, make garbage collections longer and more."""

    def _end(self, numbers: Iterable[int]) -> None:
        counts, sums = self.counts, dict[str, list[float]]()
        for number in numbers:
            place = 4 * (number - self._first)
            of_source = sums.setdefault(counts[place], [0, 0, 0, 0])
            of_source[0] += 1
            of_source[1] += counts[place + 1]
            of_source[2] += counts[place + 2]
            of_source[3] += counts[place + 3]
        if self.stateful is None:
            counts.clear()
        if self.tally.replaying:
            self._repeated.update(_summed(self._repeated, sums, -1))
        else:
            self.counted = {**self.counted, **_summed(self.counted, sums, 1)}

    def _end_burst(self, over: list[Any]) -> None:
        del self.counts[: 4 * len(over)]
        self.counted = {path: counts for path, counts in self._repeated.items() if counts}  # entries say the rest

    def _joined(self, positions: Sequence[tuple[PlainEntry, ...]]) -> tuple[PlainEntry, ...]:
        return tuple({node_of(entry).path: entry for entries in positions for entry in entries}.values())


def _summed(counts: Counts, sums: Mapping[str, list[float]], sign: int) -> Counts:
    """The counts of some sources and of the mixtures that they are in, with what is added, or taken off."""
    found: Counts = {}
    for source, numbers in sums.items():
        for path in _paths(source):
            before = found[path] if path in found else counts.get(path, {})
            more = zip(_COUNTED, numbers if path == source else numbers[:3], strict=False)  # mixtures read no records
            after = {name: total for name, number in more if (total := before.get(name, 0) + sign * number)}
            found[path] = after if "draws" in after else {}  # not what rounding leaves of costs
    return found


def _delivered(tail: Mapping[str, Any]) -> dict[str, Any]:
    """Counts of outputs in a tail: in that of a lane's end are also records that gave nothing."""
    used = tail.get("records", 0) - tail.get("dropped", 0) - tail.get("bad", 0)
    return {name: tail[name] for name in _COUNTED if name in tail} | {"records": used} if "draws" in tail else {}


_paths: Callable[[str], list[str]] = cache(lambda source: [*accumulate(source.split("."), "{}.{}".format)])


class WholeEpochs:
    """Tracks a merged stream until every source has gone through a whole epoch.

    Args:
        paths: The sources of records.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = frozenset(paths)
        self.begin()

    def begin(self) -> None:
        """Start tracking anew."""
        self._first: dict[str, int] = {}
        self._left = set(self._paths)

    def are_over(self, entries: Mapping[str, PlainEntry]) -> bool:
        """Whether each source has gone through a whole epoch since `begin`, including the sample of these entries."""
        for path in self._left & entries.keys():
            epoch = Cursor(*Entry(*entries[path]).cursor).epoch
            if epoch > self._first.setdefault(path, epoch) + 1:  # the first may have begun before
                self._left.remove(path)
        return not self._left
