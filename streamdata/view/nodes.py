"""The tree of sources of a dataset, with what share of the stream each was given."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from streamdata.mixing import MergedDataset


@dataclass(frozen=True, kw_only=True)
class Node:
    """A mixture, or a source within one.

    Attributes:
        path: Its path of names, "" at the top.
        dataset: What the recipe built.
        share: Its weight among its parent's children, in (0, 1].
        overall: Its share of the whole stream: the shares on the path from the top, multiplied.
        parent: The mixture that holds it; None at the top.
        children: Of a mixture, in the order of the recipe.
    """

    path: str
    dataset: Any
    share: float = 1.0
    overall: float = 1.0
    parent: MergedDataset | None = None
    children: list["Node"] = field(default_factory=list)

    @classmethod
    def of(cls, dataset: MergedDataset) -> "Node":
        """The tree of a dataset.

        Raises:
            ValueError: It is no MergedDataset.
        """
        if not isinstance(dataset, MergedDataset):
            raise ValueError(
                f"describe: expected a MergedDataset, got {type(dataset).__name__}\n"
                "  A single dataset can be mixed alone: MergedDataset([dataset])."
            )
        top = cls(path="", dataset=dataset)
        top._add_children()
        return top

    @property
    def name(self) -> str:
        """The last name of its path."""
        return self.path.rpartition(".")[2]

    def walk(self) -> Iterator["Node"]:
        """Yield this node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def leaves(self) -> Iterator["Node"]:
        """Yield the sources at and below this node."""
        return (node for node in self.walk() if not isinstance(node.dataset, MergedDataset))

    def functions(self) -> dict[str, str]:
        """The names of the functions that the samples of this node pass, by attribute."""
        attributes = ("single_process_fn", "process_fn", "customized_yield_fn", "cost")
        found = {attribute: getattr(self.dataset, attribute, None) for attribute in attributes}
        return {attribute: _name_of(function) for attribute, function in found.items() if function is not None}

    def _add_children(self) -> None:
        total = sum(dataset.percent for dataset in self.dataset.datasets)
        for dataset in self.dataset.datasets:
            share = dataset.percent / total
            path = f"{self.path}.{dataset.name}".lstrip(".")
            child = Node(path=path, dataset=dataset, share=share, overall=self.overall * share, parent=self.dataset)
            self.children.append(child)
            if isinstance(dataset, MergedDataset):
                child._add_children()


def _name_of(function: Any) -> str:
    if isinstance(function, functools.partial):
        return f"partial of {_name_of(function.func)}"
    return getattr(function, "__qualname__", None) or type(function).__qualname__
