"""How much a run takes of each source: `tree, samples → of each source, and when the stream ends`.

Shares are followed as if samples could be divided; a lane keeps to them within a few samples. Where nothing ends, that
is samples times the mean share. Where sources end, what they leave is shared among the others, or ends the stream.
"""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

from streamdata.mixing.tree import Node, mean_node_shares, num_in
from streamdata.tools.plan.blanks import Costs


class Demand(NamedTuple):
    """What a run takes."""

    samples: dict[str, float]
    """Of each source, by path."""
    ends_after: float | None
    """How many samples the stream has, where these are fewer than the run asks for."""
    ended: list[str]
    """The sources that are at their end before, by path."""


class Stream:
    """What a tree gives.

    Args:
        top: The tree.
        records_per_sample: Of each source with functions, by path; 1 of others.
        costs: Of samples on average, where mixtures have costs.
    """

    def __init__(self, top: Node, records_per_sample: Mapping[str, float], costs: Costs) -> None:
        self._top, self._records_per_sample, self._costs = top, records_per_sample, costs
        self._totals: dict[str, float] = {}
        self._means: Mapping[str, float] = {}

    def demand(self, samples: float) -> Demand:
        """What a run of so many samples takes."""
        # In the time of schedules, which count what the top draws: samples, or their costs.
        self._means = self._mean_shares(samples)
        self._totals = {}
        total = self._total(self._top)
        taken: dict[str, float] = {}
        self._spread(self._top, min(samples, total), taken)
        ended = [node.path for node in self._leaves if 0 < self._total(node) <= taken[node.path] * (1 + 1e-9)]
        return Demand(taken, total if total < samples else None, ended)

    def samples_of(self, path: str, samples: float) -> float:
        """How much of one source a run takes."""
        return self.demand(samples).samples[path]

    @cached_property
    def _leaves(self) -> list[Node]:
        return [node for node in self._top.walk() if not node.is_mixture]

    @cached_property
    def has_ends(self) -> bool:
        """Whether some source comes to an end."""
        return not all(node.is_endless for node in self._top.walk())

    def _mean_shares(self, samples: float) -> Mapping[str, float]:
        leaves = mean_node_shares(self._top, samples)
        means = dict(leaves)
        for node in self._top.walk():
            if node.is_mixture:
                means[node.path] = math.fsum(leaves[leaf.path] for leaf in node.walk() if not leaf.is_mixture)
        return means

    def _fractions(self, node: Node) -> dict[str, float]:
        """Which part of a mixture's samples each child gives."""
        shares = {child.path: self._means[child.path] for child in node.children}
        if node.dataset.cost is not None:
            shares = {child.path: shares[child.path] / self._cost(node, child) for child in node.children}
        total = math.fsum(shares.values())
        return {path: share / total if total else 0.0 for path, share in shares.items()}

    def _cost(self, mixture: Node, node: Node) -> float:
        """What a sample of a node costs in a mixture above it."""
        if not node.is_mixture:
            return self._costs.get((mixture.path, node.path), 1.0)
        fractions = self._fractions(node)
        return math.fsum(fractions[child.path] * self._cost(mixture, child) for child in node.children) or 1.0

    def _total(self, node: Node) -> float:
        """How many samples a node has."""
        if node.path not in self._totals:
            self._totals[node.path] = self._count(node)
        return self._totals[node.path]

    def _count(self, node: Node) -> float:
        if node.is_endless:
            return math.inf
        if node.is_mixture:
            return math.fsum(self._allot(node, math.inf).values())
        records = num_in(node, "records")
        if records is None:
            return math.inf
        return records * node.epochs.end / self._records_per_sample.get(node.path, 1.0)

    def _allot(self, node: Node, samples: float) -> dict[str, float]:
        """What a mixture draws of each child until it has so many samples, or ends."""
        fractions = self._fractions(node)
        rest = {child.path: self._total(child) for child in node.children}
        drawn = dict.fromkeys(rest, 0.0)
        active = {path for path, fraction in fractions.items() if fraction and rest[path]}
        while active and samples > 0:
            total = math.fsum(fractions[path] for path in active)
            until = {path: rest[path] * total / fractions[path] for path in active}
            step = min(samples, *until.values())
            if math.isinf(step):
                return {path: math.inf if path in active else drawn[path] for path in drawn}
            for path in active:
                drawn[path] += step * fractions[path] / total
                rest[path] -= step * fractions[path] / total
            samples -= step
            ended = {path for path in active if until[path] <= step}
            active -= ended
            if ended and node.dataset.stop == "first_exhausted":
                break
        return drawn

    def _spread(self, node: Node, samples: float, taken: dict[str, float]) -> None:
        if not node.is_mixture:
            taken[node.path] = samples
            return
        drawn = self._allot(node, samples)
        for child in node.children:
            self._spread(child, drawn[child.path], taken)
