"""What the recipe's weights give each node of the tree of sources: its share of the stream."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from streamdata.mixing import MergedDataset
from streamdata.mixing.tree import Node, tree_of

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
    parent: MergedDataset | None = None


def shares_of(dataset: MergedDataset, time: float = 0.0) -> dict[str, NodeShare]:
    """Return the nodes of a dataset's tree by path, parents first, with their shares.

    Args:
        dataset: The top.
        time: Where shares follow schedules, those of this time of a pass.

    Raises:
        ValueError: It is not a MergedDataset.
        SourceError: A source has no records.
    """
    if not isinstance(dataset, MergedDataset):
        raise ValueError(
            f"describe: expected a MergedDataset, got {type(dataset).__name__}\n"
            "  A single dataset can be mixed alone: MergedDataset([dataset])."
        )
    top = tree_of(dataset)
    shares = {top.path: NodeShare(node=top)}
    for mixture in top.walk():
        for child, share in zip(mixture.children, _shares_at(mixture, time), strict=True):
            overall = shares[mixture.path].overall * share  # known: a walk meets parents first
            shares[child.path] = NodeShare(node=child, share=share, overall=overall, parent=mixture.dataset)
    return {node.path: shares[node.path] for node in top.walk()}


def mean_shares(dataset: MergedDataset, until: float) -> dict[str, float]:
    """The share of the whole stream that each source should have had from the start of a pass to a time of it."""
    top = tree_of(dataset)
    points = {time for node in top.walk() if node.shares is not None for time in node.shares.times if time < until}
    means = dict.fromkeys((node.path for node in top.walk() if not node.children), 0.0)
    for begin, end in pairwise(sorted({0.0, until, *points})):
        for offset, weight in _GAUSS:
            shares = shares_of(dataset, (begin + end) / 2 + offset * (end - begin) / 2)
            for path in means:
                means[path] += shares[path].overall * weight / 2 * (end - begin) / until
    return means


def _shares_at(mixture: Node, time: float) -> list[float]:
    if mixture.shares is not None:
        return [mixture.shares.at(time, number) for number in range(len(mixture.children))]
    weights = [weight for weight in mixture.weights.values() if isinstance(weight, int | float)]
    return [weight / sum(weights) for weight in weights]


def functions_of(dataset: Any) -> dict[str, str]:
    """Return the names of the functions that a dataset's samples pass, by attribute."""
    attributes = ("single_process_fn", "process_fn", "customized_yield_fn", "cost")
    found = {attribute: getattr(dataset, attribute, None) for attribute in attributes}
    return {
        attribute: function if isinstance(function, str) else _name_of(function)  # a cost may name a field
        for attribute, function in found.items()
        if function is not None
    }


def _name_of(function: Callable[..., Any]) -> str:
    if isinstance(function, functools.partial):
        return f"partial of {_name_of(function.func)}"
    return getattr(function, "__qualname__", None) or type(function).__qualname__
