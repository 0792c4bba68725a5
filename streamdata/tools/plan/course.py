"""A run over blank records: `tree, averages of functions → blank tree → how far a run comes; a lane's first draws`.

A tree whose records are blank is drawn from as the real one is, by the real mixtures, clocks and orders; nothing of a
payload is read. Each sample costs what one costs on average, and in place of a function stands one that pulls as many
records for a sample as the real one did of a few. Where nobody has counted a source's records, it is as if its first
shards did not end.

The run is drawn in the order in which its ranks deliver. After so many draws each source goes on by its share, as if
samples could be divided: of schedules by the integral of their shares, in short steps. Where a source ends, what it
leaves is shared among the others, or ends the stream.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import islice, repeat
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

import numpy as np

from streamdata.fields import CURSOR, DATASET_NAME, INDEX
from streamdata.io.storage import Int64s, told_url
from streamdata.mixing.deals import Deals
from streamdata.mixing.leaf import Run
from streamdata.mixing.mixture import Mixture
from streamdata.mixing.tree import Node, mean_node_shares, num_in
from streamdata.run import Lane
from streamdata.shards.readers import Record
from streamdata.sources import MapStyleSource
from streamdata.sources.files.parquet import RowGroupSource
from streamdata.sources.files.shard_source import BlockSource, SequentialSource
from streamdata.sources.foreign.own_stream import OwnStreamSource
from streamdata.sources.skip import Skips
from streamdata.states.cursor import Cursor, Entry, node_of
from streamdata.states.headers import Tree
from streamdata.states.progress import Progress
from streamdata.tools.trace.era import Bare

NUMBER = "number"
"""The field of a blank record of a shard that says its number there; of parquet, in its row group."""
SHARD = "shard"
"""The field of such a record with the number of its shard."""


class Pulls(NamedTuple):
    """How many records a function pulls; of a yield function, samples."""

    each: float
    """For one output, on average."""
    first: float
    """Until its first output: a packer looks ahead."""


@dataclass(kw_only=True)
class Averages:
    """Averages that tell what a tree's functions do, by a look at some records."""

    pulls: dict[str, Pulls] = field(default_factory=dict)
    """By path, of sources with functions and of mixtures with yield functions; others give a sample for each record."""
    costs: dict[tuple[str, str], float] = field(default_factory=dict)
    """The cost of a sample on average, by the path of the mixture and of the source that it is of; else 1."""
    tokens: dict[str, float] = field(default_factory=dict)
    """Tokens of a sample on average, by the path of its source."""
    lengths: Sequence[int] = ()
    """Tokens of documents that the top's yield function packs or groups, where it balances."""

    def pulled_by(self, node: Node) -> float:
        """How many records, or samples, a node takes for one of its own."""
        return self.pulls[node.path].each if node.path in self.pulls else 1.0


COUNTED: Final = "counted"
"""The field of what a blank yield function gives: what it pulled was counted."""
_NEARLY: Final = 1e-9


Told = Callable[[Record], None]
"""Is told of a record or sample."""


class BlankFunction:
    """In place of a stream function: gives as many outputs, each the last record pulled.

    Args:
        pulls: How the real one pulls.
        note_pulled: Is told what it pulls,
        note_given: and of what it has made outputs.
        fields: What each output has beside.
    """

    def __init__(self, pulls: Pulls, note_pulled: Told, note_given: Told, fields: Record) -> None:
        self._each, self._ahead = pulls.each, max(0.0, pulls.first - pulls.each)
        self._note_pulled, self._note_given, self._fields, self._held = note_pulled, note_given, fields, 0.0

    def __call__(self, records: Iterator[Record]) -> Iterator[Record]:
        """Give an output for so many records; at the end, of what it still holds."""
        held: deque[Record] = deque()
        self._held, least = 0.0, self._ahead + self._each - _NEARLY
        record: Record = {}
        for record in records:
            self._note_pulled(record)
            held.append(record)
            self._held += 1
            while self._held >= least:
                yield self._output(record, held)
        while record and self._held >= self._each / 2:
            yield self._output(record, held)
        for record in held:
            self._note_given(record)

    def _output(self, record: Record, held: deque[Record]) -> Record:
        self._held -= self._each
        while held and len(held) > self._held + _NEARLY:
            self._note_given(held.popleft())
        return record | self._fields

    def state_dict(self) -> dict[str, int]:
        """Say that it holds something: else an epoch without an output were an error."""
        return {"rewind": int(self._held > _NEARLY)}

    def load_state_dict(self, state: object) -> None:
        """Nobody resumes it."""


def blank_tree(
    node: Node,
    num_lanes: int,
    averages: Averages,
    note_pulled: Told = lambda _: None,
    note_given: Told = lambda _: None,
) -> Node:
    """Copy a tree, over blank records; its functions tell what they are given, and of what they have made outputs."""
    blank = copy(node)
    if node.is_mixture:
        blank.children = tuple(blank_tree(each, num_lanes, averages, note_pulled, note_given) for each in node.children)
        blank.dataset = settings = copy(node.dataset)
        blank.weights = node.weights  # some follow from the sizes of the real sources
        if settings.cost is not None:
            settings.cost = lambda sample: averages.costs.get((node.path, sample[DATASET_NAME]), 1.0)
        if settings.customized_yield_fn is not None:
            pulls = averages.pulls.get(node.path, Pulls(1.0, 1.0))
            settings.customized_yield_fn = BlankFunction(pulls, note_pulled, note_given, {COUNTED: True})
        return blank
    blank.dataset = bare = cast("Any", Bare(node.dataset))
    if node.path in averages.pulls:
        bare.process_fn = BlankFunction(averages.pulls[node.path], note_pulled, note_given, {})
    source: Any = node.source
    if isinstance(source, MapStyleSource):
        source = MapStyleSource(bare)
    elif isinstance(source, OwnStreamSource):
        shards: Any = _BlankShards(SimpleNamespace(urls=[""] * num_lanes))
        source = SequentialSource("iterable", shards, 0)
    else:
        assert isinstance(source, BlockSource | SequentialSource), f"a case for {type(source).__name__}"
        source = copy(source)
        source.shards = _BlankShards(source.shards)
    blank.__dict__.pop("source", None)
    blank.as_source = lambda: source
    return blank


class _BlankShards:
    """Shards of blank records, on a disk of this machine; all else is as of the real ones."""

    has_remote = False

    def __init__(self, shards: Any) -> None:
        self._shards = shards

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shards, name)

    def window(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> "_BlankWindow":
        """The window of these runs."""
        numbers = np.arange(int(counts.sum())) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
        return _BlankWindow(np.repeat(shards, counts), numbers)

    def stream(self, shard: int) -> Iterator[Record]:
        """Blank records without end."""
        return ({SHARD: shard} for _ in repeat(None))


class _BlankWindow:
    """A window of blank records, by the shard and the number there of each."""

    look_ahead = 64

    def __init__(self, shards: Int64s, numbers: Int64s) -> None:
        self._shards, self._numbers = shards, numbers

    def __len__(self) -> int:
        return len(self._shards)

    def come(self, portions: object) -> None:
        """Wait for nothing, where a window of parquet waits for portions."""

    def take(self, positions: Int64s, common: Mapping[str, Any], portion: object = None) -> Iterator[Record]:
        """The records at these positions."""
        del portion
        for shard, number in zip(self._shards[positions].tolist(), self._numbers[positions].tolist(), strict=True):
            yield {SHARD: shard, NUMBER: number, **common}


def fresh_run(top: Node, lane: Lane, deals: Deals) -> Run:
    """Make what the nodes of a tree share in a lane of a run that begins."""
    # Nothing to compare with: a description of a source reads the names of all of its shards.
    weights = {path: weight for node in top.walk() if node.is_mixture for path, weight in node.weights.items()}
    tree = Tree({node.path: "" for node in top.walk()}, weights, sources={leaf.path: None for leaf in top.leaves()})
    return Run.at(Progress({}), 0, lane, deals, tree, Skips(None, {}))


@dataclass(frozen=True)
class Draw:
    """One draw of a lane."""

    number: int
    """From 1."""
    source: str
    """The path of the source that the sample is of."""
    clock: float
    """The clock of that source after the draw, as states say it."""
    epoch: int
    window: int
    block: int | None = None
    """The source's block; None of an iterable."""
    url: str | None = None
    """The url of the shard; None of sources without shards."""
    record: int | None = None
    """The record's number in its shard; None where that shows only when it is read."""
    index: int | None = None
    """The index in a map-style dataset; None of other sources."""


def first_draws(top: Node, lane: Lane, count: int, averages: Averages) -> list[Draw]:
    """The first draws of a lane in the first pass; as many as there are, up to `count`.

    Args:
        top: The tree.
        lane: Whose.
        count: How many.
        averages: What is known of its functions.
    """
    blank = blank_tree(top, lane.count, averages)
    run = fresh_run(blank, lane, Deals(Progress({}), 0, lane.count))
    nodes, mixture, draws = {node.path: node for node in top.walk()}, Mixture(run, blank), []
    for number, sample in enumerate(islice(mixture.draw(), count), 1):
        entries = {node_of(entry).path: Entry(*entry) for entry in sample[CURSOR]}
        path = sample[DATASET_NAME]
        if path in entries:  # else a yield function below the top has pulled it
            entry = entries[path]
            place = _place(nodes[path].source, sample)
            draws.append(Draw(number, path, entry.clock, entry.cursor[0], entry.cursor[1], **place))
    return draws


def _place(source: Any, sample: Record) -> dict[str, Any]:
    """Where a draw's record lies, as fields of `Draw`."""
    if isinstance(source, MapStyleSource):
        return {"block": sample[INDEX] // source.records_per_block, "index": sample[INDEX]}
    if isinstance(source, OwnStreamSource):
        return {}
    shard, number = sample[SHARD], sample.get(NUMBER)
    if number is None:  # shuffled in groups, which a short shard may not fill
        return {"block": shard, "url": told_url(str(source.shards.urls[shard]))}
    block, _ = source.block_of(shard, number)
    if isinstance(source, RowGroupSource):  # as keys count rows: from the first of the file
        shard, number = source.shards.file_of[shard], number + int(source.shards.first_rows[shard])
    return {"block": block, "url": told_url(str(source.shards.urls[shard])), "record": number}


_NUM_STEPS: Final = 48
"""Steps of a run whose shares follow schedules."""
_MAX_LANES: Final = 64
_MAX_PLACES: Final = 1 << 12
"""Sources times lanes that are drawn: each has an order of its own."""
_MAX_DRAWS: Final = 10**5
_MAX_PULLED: Final = 4 * 10**5
"""Blank records that functions are given: packers take many for a sample."""


class RunCourse:
    """How far a run has come: what was delivered, and taken of each source.

    Args:
        top: The tree.
        averages: What is known of its functions.
        samples: The run ends once it has so many,
        tokens: or so many.
    """

    def __init__(self, top: Node, averages: Averages, samples: float, tokens: float) -> None:
        self._top, self._averages, self._most = top, averages, (samples, tokens)
        self.delivered = self.tokens = 0.0
        self.samples: dict[str, float] = {}
        """Samples that were taken of each source, by path."""
        self.repeats: dict[str, dict[int, float]] = {}
        """By path and lane, the sample of the job, from 1, with which the second epoch begins there."""
        self.epochs: dict[str, float] = {}
        """Samples in an epoch of each source; infinite where nobody has counted its records."""
        self.totals: dict[str, float] = {}
        """Samples of all epochs of it that are read."""
        for node in top.leaves():
            path, records = node.path, num_in(node, "records")
            self.samples[path], self.repeats[path] = 0, {}
            self.epochs[path] = math.inf if records is None else records / averages.pulled_by(node)
            self.totals[path] = math.inf if node.is_endless else self.epochs[path] * node.epochs.end
        self.has_ended = False
        """Whether the stream has come to its own end."""
        self.num_drawn = 0
        """How many of its samples were drawn, before it went on by rates."""
        self.lanes = 1
        """How many lanes drew them."""
        self._lane, self._pulled = 0, 0
        """The lane that draws at present, and how many blank records functions were given."""

    @property
    def is_enough(self) -> bool:
        """Whether the run is as long as it was to be."""
        return self.delivered >= self._most[0] or self.tokens >= self._most[1]

    def draw(self, lane: Lane, batch_size: int) -> None:
        """Draw the run in the order in which its ranks deliver: all of it, or as much as can be drawn in some seconds.

        Args:
            lane: The topology. Where it has more lanes than can be drawn, fewer are.
            batch_size: Of a rank.
        """
        most = max(1, min(_MAX_LANES, _MAX_PLACES // len(self._top.leaves())))
        workers = min(lane.num_workers, most)
        ranks = min(lane.dp_size, most // workers)
        self.lanes = ranks * workers
        blank = blank_tree(self._top, self.lanes, self._averages, self._note_pulled, self._note_given)
        deals = Deals(Progress({}), 0, self.lanes)

        def drawn(rank: int, worker: int) -> Iterator[Record]:
            run = fresh_run(blank, Lane(dp_size=ranks, dp_rank=rank, num_workers=workers, worker=worker), deals)
            for sample, _ in Mixture(run, blank).start(None):
                yield sample

        # The workers of a rank take turns, and one that has ended is left out.
        turns = [deque((rank * workers + n, drawn(rank, n)) for n in range(workers)) for rank in range(ranks)]
        while any(turns):
            for waiting in filter(None, turns):
                self._lane, stream = waiting.popleft()
                before = self.delivered
                for sample in islice(stream, batch_size):
                    self._note_pulled(sample)
                    self._note_given(sample)
                    self.delivered += 1
                    self.num_drawn += 1
                    if self.is_enough or self.num_drawn >= _MAX_DRAWS or self._pulled >= _MAX_PULLED:
                        return
                if self.delivered - before == batch_size:
                    waiting.append((self._lane, stream))
        self.has_ended = True

    def _note_pulled(self, sample: Record) -> None:
        """Note that a source gave a sample, or a function was given a record."""
        self._pulled += 1
        if COUNTED in sample or not isinstance(sample.get(CURSOR), tuple):
            return
        path, entry = sample[DATASET_NAME], sample[CURSOR][0]
        if node_of(entry).path != path:  # a mixture that is told the time puts other clocks before it
            entry = next(each for each in sample[CURSOR] if node_of(each).path == path)
        cursor = Cursor(*Entry(*entry).cursor)
        if (cursor.pulled or cursor)[0]:
            self.repeats[path].setdefault(self._lane, self.delivered + 1)

    def _note_given(self, sample: Record) -> None:
        """Count a sample of a source that is delivered, or is in one that is."""
        if COUNTED not in sample and isinstance(sample.get(CURSOR), tuple):
            self.samples[sample[DATASET_NAME]] += 1
            self.tokens += self._averages.tokens.get(sample[DATASET_NAME], 0.0)

    def go_on(self) -> None:
        """Go on by rates until the run is long enough, or the stream ends."""
        samples, tokens = self._most
        over = {path for path, total in self.totals.items() if self.samples[path] >= total * (1 - _NEARLY)}
        pulls = self._averages.pulled_by(self._top)
        # Time is what the top has drawn, or its cost; what sources leave that have ended makes it pass faster.
        time = self.delivered * pulls / self._rates(self._top, mean_node_shares(self._top, 1.0), set())[1]
        part = max(self.delivered / samples, max(self.tokens, 1.0) / tokens)  # none may have come by now
        for until, shares in self._stretches(time, time / part / _NUM_STEPS):
            while time < until:
                rates, pace = self._rates(self._top, shares, over)
                of_tokens = math.fsum(rate * self._averages.tokens.get(path, 0.0) for path, rate in rates.items())
                left = min(samples - self.delivered, (tokens - self.tokens) / of_tokens if of_tokens else math.inf)
                rest = {path: (self.totals[path] - self.samples[path]) / rate for path, rate in rates.items() if rate}
                step = min(left, (until - time) * pace / pulls, *rest.values(), math.inf)
                self.has_ended = left > 0 and not rates
                if self.has_ended or math.isinf(step):
                    return
                self._take(rates, step)
                self.tokens += step * of_tokens
                if step == left:
                    return
                over |= {path for path, samples_left in rest.items() if samples_left <= step * (1 + _NEARLY)}
                time = until if step == (until - time) * pace / pulls else time + step * pulls / pace

    def _stretches(self, time: float, step: float) -> Iterator[tuple[float, Mapping[str, float]]]:
        """Ends of stretches of a schedule, and each source's share of the stream until there."""
        knots = sorted({at for node in self._top.walk() if node.shares for at in node.shares.times})
        while knots and time < knots[-1]:
            until = min(time + step, *(knot for knot in knots if knot > time), math.inf)
            yield until, mean_node_shares(self._top, until, time)
            time = until
        yield math.inf, mean_node_shares(self._top, time + 1, time)

    def _rates(self, node: Node, shares: Mapping[str, float], over: set[str]) -> tuple[dict[str, float], float]:
        """Samples of each source for one of a node, none where it has ended; and those that it draws in its time."""
        if not node.is_mixture:
            return ({} if node.path in over else {node.path: 1.0}), 1.0
        parts = []
        for child in node.children:
            share = math.fsum(shares[leaf.path] for leaf in child.leaves())
            below, _ = self._rates(child, shares, over)
            if not below and node.dataset.stop == "first_exhausted" and share:
                return {}, 1.0
            if node.dataset.cost is not None:
                costs = (rate * self._averages.costs.get((node.path, path), 1.0) for path, rate in below.items())
                share /= math.fsum(costs) or 1.0
            parts.append((share, below))
        pace = math.fsum(share for share, below in parts if below) or 1.0
        factor = self._averages.pulled_by(node) / pace
        return {path: rate * share * factor for share, below in parts for path, rate in below.items()}, pace

    def _take(self, rates: Mapping[str, float], step: float) -> None:
        for path, rate in rates.items():
            self.samples[path] += rate * step
            ahead = 0.0
            if path in self._averages.pulls:  # in each lane, records that it has pulled and not made samples of
                each, first = self._averages.pulls[path]
                ahead = self.lanes * (first / each - 1)
            beyond = self.samples[path] + ahead - self.epochs[path] * (1 + _NEARLY)
            if beyond > 0 and rate and not self.repeats[path]:
                self.repeats[path][-1] = 1 + self.delivered + step - min(step, beyond / rate)
        self.delivered += step
