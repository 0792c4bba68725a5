"""What the recipe's weights give each node of the tree of sources: its share of the stream."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streamdata.mixing import MergedDataset
from streamdata.mixing.tree import Node, tree_of


@dataclass(frozen=True, kw_only=True)
class NodeShare:
    """A node of the tree, with its share of the stream.

    Attributes:
        node: A mixture, or a source within one.
        share: Its weight among its parent's children, in (0, 1].
        overall: Its share of the whole stream: the shares on the path from the top, multiplied.
        parent: The mixture that holds it; None at the top.
    """

    node: Node
    share: float = 1.0
    overall: float = 1.0
    parent: MergedDataset | None = None


def shares_of(dataset: MergedDataset) -> dict[str, NodeShare]:
    """Return the nodes of a dataset's tree by path, parents first, with their shares.

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
        total = sum(child.dataset.percent for child in mixture.children)
        for child in mixture.children:
            share = child.dataset.percent / total
            overall = shares[mixture.path].overall * share  # known: a walk meets parents first
            shares[child.path] = NodeShare(node=child, share=share, overall=overall, parent=mixture.dataset)
    return {node.path: shares[node.path] for node in top.walk()}


def functions_of(dataset: Any) -> dict[str, str]:
    """Return the names of the functions that a dataset's samples pass, by attribute."""
    attributes = ("single_process_fn", "process_fn", "customized_yield_fn", "cost")
    found = {attribute: getattr(dataset, attribute, None) for attribute in attributes}
    return {attribute: _name_of(function) for attribute, function in found.items() if function is not None}


def _name_of(function: Callable[..., Any]) -> str:
    if isinstance(function, functools.partial):
        return f"partial of {_name_of(function.func)}"
    return getattr(function, "__qualname__", None) or type(function).__qualname__
