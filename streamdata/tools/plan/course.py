"""How far a run comes: `tree, averages of functions, topology, length → RunCourse`, drawn and then estimated.

The run is drawn over blank records, in the order in which its ranks deliver. After so many draws each source goes on by
its share, as if samples could be divided: of schedules by the integral of their shares, in short steps. Where a source
ends, what it leaves is shared among the others, or ends the stream.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from streamdata.fields import CURSOR, DATASET_NAME
from streamdata.mixing.deals import Deals
from streamdata.mixing.mixture import Mixture
from streamdata.mixing.tree import Node, mean_node_shares, num_in
from streamdata.run import Lane
from streamdata.shards.readers import Record
from streamdata.states.cursor import Cursor, Entry, node_of
from streamdata.states.progress import Progress
from streamdata.tools.plan.draws import COUNTED, Averages, blank_tree, fresh_run

_NUM_STEPS: Final = 48
"""Steps of a run whose shares follow schedules."""
_MAX_LANES: Final = 64
_MAX_PLACES: Final = 1 << 12
"""Sources times lanes that are drawn: each has an order of its own."""
_MAX_DRAWS: Final = 10**5
_MAX_PULLED: Final = 4 * 10**5
"""Blank records that functions are given: packers take many for a sample."""
_NEARLY: Final = 1e-9


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
