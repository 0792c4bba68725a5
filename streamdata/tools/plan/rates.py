"""The rest of a run, after the samples that were drawn: `RunCourse, shares, sizes → RunCourse at its end`, estimated.

Each source goes on by its share, as if samples could be divided: of schedules by the integral of their shares, in short
steps. Where a source ends, what it leaves is shared among the others, or ends the stream.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Final

from streamdata.mixing.tree import Node, mean_node_shares, num_in
from streamdata.tools.plan.draws import Averages, RunCourse

NUM_STEPS: Final = 48
"""Steps of a run whose shares follow schedules."""
_NEARLY: Final = 1e-9


class Rates:
    """The pace at which a run takes samples of its sources.

    Args:
        top: The tree.
        averages: What is known of its functions.
    """

    def __init__(self, top: Node, averages: Averages) -> None:
        self._top, self._averages = top, averages
        self.epochs: dict[str, float] = {}
        """Samples in an epoch of each source, by path; infinite where nobody has counted its records."""
        self.totals: dict[str, float] = {}
        """Samples of all epochs of it that are read."""
        self._below = {node.path: [leaf.path for leaf in node.leaves()] for node in top.walk()}
        for node in top.leaves():
            records = num_in(node, "records")
            self.epochs[node.path] = math.inf if records is None else records / averages.pulled_by(node)
            self.totals[node.path] = math.inf if node.is_endless else self.epochs[node.path] * node.epochs.end

    def go_on(self, course: RunCourse, samples: float, tokens: float) -> None:
        """Go on until the run has so many samples or tokens, or the stream ends."""
        over = {path for path, total in self.totals.items() if course.samples[path] >= total * (1 - _NEARLY)}
        pulls = self._averages.pulled_by(self._top)
        # Time is what the top has drawn, or its cost; what sources leave that have ended makes it pass faster.
        time = course.delivered * pulls / self._rates(self._top, self._shares(1.0, 0.0), set())[1]
        num_steps = NUM_STEPS * course.delivered / min(samples, tokens / max(course.tokens, 1.0) * course.delivered)
        for until, shares in self._stretches(time, time / num_steps):
            while time < until:
                rates, pace = self._rates(self._top, shares, over)
                of_tokens = math.fsum(rate * self._averages.tokens.get(path, 0.0) for path, rate in rates.items())
                left = min(samples - course.delivered, (tokens - course.tokens) / of_tokens if of_tokens else math.inf)
                rest = {path: (self.totals[path] - course.samples[path]) / rate for path, rate in rates.items() if rate}
                step = min(left, (until - time) * pace / pulls, *rest.values(), math.inf)
                course.has_ended = left > 0 and not rates
                if course.has_ended or math.isinf(step):
                    return
                self._take(course, rates, step)
                course.tokens += step * of_tokens
                if step == left:
                    return
                over |= {path for path, samples_left in rest.items() if samples_left <= step * (1 + _NEARLY)}
                time = until if step == (until - time) * pace / pulls else time + step * pulls / pace

    def _stretches(self, time: float, step: float) -> Iterator[tuple[float, Mapping[str, float]]]:
        """Ends of stretches of a schedule, and each node's share of the stream until there."""
        knots = sorted({at for node in self._top.walk() if node.shares for at in node.shares.times})
        while knots and time < knots[-1]:
            until = min(time + step, *(knot for knot in knots if knot > time), math.inf)
            yield until, self._shares(until, time)
            time = until
        yield math.inf, self._shares(time + 1, time)

    def _shares(self, until: float, since: float) -> dict[str, float]:
        leaves = mean_node_shares(self._top, until, since)
        return {path: math.fsum(leaves[leaf] for leaf in below) for path, below in self._below.items()}

    def _rates(self, node: Node, shares: Mapping[str, float], over: set[str]) -> tuple[dict[str, float], float]:
        """Samples of each source for one of a node, none where it has ended; and those that it draws in its time."""
        if not node.is_mixture:
            return ({} if node.path in over else {node.path: 1.0}), 1.0
        parts = []
        for child in node.children:
            share, (below, _) = shares[child.path] / (shares[node.path] or 1.0), self._rates(child, shares, over)
            if not below and node.dataset.stop == "first_exhausted" and share:
                return {}, 1.0
            if node.dataset.cost is not None:
                costs = (rate * self._averages.costs.get((node.path, path), 1.0) for path, rate in below.items())
                share /= math.fsum(costs) or 1.0
            parts.append((share, below))
        pace = math.fsum(share for share, below in parts if below) or 1.0
        factor = self._averages.pulled_by(node) / pace
        return {path: rate * share * factor for share, below in parts for path, rate in below.items()}, pace

    def _take(self, course: RunCourse, rates: Mapping[str, float], step: float) -> None:
        for path, rate in rates.items():
            course.samples[path] += rate * step
            ahead = 0.0
            if path in self._averages.pulls:  # in each lane, records that it has pulled and not made samples of
                each, first = self._averages.pulls[path]
                ahead = course.lanes * (first / each - 1)
            beyond = course.samples[path] + ahead - self.epochs[path] * (1 + _NEARLY)
            if beyond > 0 and rate and not course.repeats[path]:
                course.repeats[path][-1] = course.delivered + step - min(step, beyond / rate)
        course.delivered += step
