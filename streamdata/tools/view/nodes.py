"""What the recipe's weights give each node of the tree of sources: its share of the stream."""

import functools
from collections.abc import Callable
from typing import Any

from streamdata.mixing import MergedDataset
from streamdata.mixing.merged import top_of
from streamdata.mixing.tree import NodeShare, mean_node_shares, node_shares, tree_of

__all__ = ["NodeShare", "functions_of", "mean_shares", "shares_of"]


def shares_of(dataset: Any, time: float = 0.0) -> dict[str, NodeShare]:
    """Return the nodes of a dataset's tree by path, parents first, with their shares.

    Args:
        dataset: A mixture, or a source alone.
        time: Where shares follow schedules, those of this time of a pass.

    Raises:
        ValueError: It is neither.
        SourceError: A source has no records.
    """
    return node_shares(tree_of(top_of(dataset, "describe")), time)


def mean_shares(dataset: MergedDataset, until: float) -> dict[str, float]:
    """The share of the whole stream that each source should have had from the start of a pass to a time of it."""
    return mean_node_shares(tree_of(dataset), until)


def functions_of(dataset: Any) -> dict[str, str]:
    """Return the names of the functions that a dataset's samples pass, by attribute."""
    attributes = ("single_process_fn", "process_fn", "customized_yield_fn", "cost")
    found = {attribute: getattr(dataset, attribute, None) for attribute in attributes}
    return {
        attribute: function if isinstance(function, str) else _name_of(function)  # a cost may name a field
        for attribute, function in found.items()
        if function is not None
    }


def _name_of(function: Callable[..., Any] | list[Any]) -> str:
    if isinstance(function, list):
        return " + ".join(map(_name_of, function))
    if isinstance(function, functools.partial):
        return f"partial of {_name_of(function.func)}"
    return getattr(function, "__qualname__", None) or type(function).__qualname__
