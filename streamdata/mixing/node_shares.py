"""What the recipe's weights give each node of the tree of sources: its share of the stream."""

import math
from dataclasses import dataclass
from itertools import pairwise

from streamdata.mixing.tree import MixtureSettings, Node

# Gauss's rule with three nodes, on [-1, 1]: exact up to degree 5. Between two points a source's share of the whole is a
# product of linear functions, one for each mixture with schedules above it.
_GAUSS = ((-math.sqrt(0.6), 5 / 9), (0.0, 8 / 9), (math.sqrt(0.6), 5 / 9))


@dataclass(frozen=True, kw_only=True)
class NodeShare:
    """A node of the tree, with its share of the stream.

    Attributes:
        node: A mixture, or a source within one.
        share: Its weight among its parent's children, in [0, 1].
        overall: Its share of the whole stream: the shares on the path from the top, multiplied.
        parent: The mixture that holds it; None at the top.
    """

    node: Node
    share: float = 1.0
    overall: float = 1.0
    parent: MixtureSettings | None = None


def node_shares(top: Node, time: float = 0.0) -> dict[str, NodeShare]:
    """The nodes of a tree by path, parents first, with their shares; of schedules those at this time of a pass."""
    shares = {top.path: NodeShare(node=top)}
    for mixture in top.walk():
        for child, share in zip(mixture.children, _shares_at(mixture, time), strict=True):
            overall = shares[mixture.path].overall * share  # known: a walk meets parents first
            shares[child.path] = NodeShare(node=child, share=share, overall=overall, parent=mixture.dataset)
    return {node.path: shares[node.path] for node in top.walk()}


def mean_node_shares(top: Node, until: float) -> dict[str, float]:
    """The share of the whole stream of each source, on average from the start of a pass to a time of it, above 0."""
    points = {time for node in top.walk() if node.shares is not None for time in node.shares.times if time < until}
    means = dict.fromkeys((node.path for node in top.walk() if not node.children), 0.0)
    for begin, end in pairwise(sorted({0.0, until, *points})):
        for offset, weight in _GAUSS:
            shares = node_shares(top, (begin + end) / 2 + offset * (end - begin) / 2)
            for path in means:
                means[path] += shares[path].overall * weight / 2 * (end - begin) / until
    return means


def _shares_at(mixture: Node, time: float) -> list[float]:
    if mixture.shares is not None:
        return [mixture.shares.at(time, number) for number in range(len(mixture.children))]
    weights = [weight for weight in mixture.weights.values() if isinstance(weight, int | float)]
    return [weight / sum(weights) for weight in weights]
