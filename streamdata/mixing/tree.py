"""The tree of sources that a recipe built, walked once: what its nodes are, and what follows from that for a lane."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from streamdata.errors import SourceError
from streamdata.progress import Tree
from streamdata.recipe.named_source import NamedSource
from streamdata.run import Lane
from streamdata.sources import MapStyleSource, Source
from streamdata.sources.functions import StreamFn
from streamdata.sources.shard_source import ShardDataset
from streamdata.sources.source import Sample

_MAY_LEAVE_OUT = ("single_process_fn", "process_fn", "max_bad")


class MixtureSettings(NamedSource):
    """What a recipe says of a mixture: a `MergedDataset` is one, and a source of records is not."""

    datasets: list[Any]
    cyclic: bool
    stop: str
    seed: int
    shuffle_unstreaming_subsets: bool
    shuffle_streaming_subsets: bool
    customized_yield_fn: StreamFn | None
    cost: Callable[[Sample], float] | None


@dataclass(kw_only=True, eq=False)  # not frozen: that takes three times as long to make, and there is one per source
class Node:
    """A mixture, or a source of records."""

    path: str
    """Its path of names, "" at the top."""
    dataset: Any
    seeds: tuple[object, ...]
    """The seeds and names on the path from the top, its own included."""
    children: tuple["Node", ...] = ()
    """Of a mixture, in the order of the recipe."""
    as_source: Callable[[], Source] | None = None
    """Of a source of records: gives it as blocks."""
    shuffle: bool = False
    """Whether a source of records is shuffled: its parent says so."""

    @property
    def is_mixture(self) -> bool:
        """Whether it has children, and no records of its own."""
        return self.as_source is None

    # Not made with the tree: that is walked when a mixture is built, too, where a dataset need not know its length yet.
    @cached_property
    def source(self) -> Source | None:
        """Of a source of records: the same, as blocks.

        Raises:
            SourceError: It has no records.
        """
        source = self.as_source() if self.as_source is not None else None
        if source is not None and not source.num_blocks:
            raise SourceError(
                f"source {self.path!r}: expected at least one record, got an empty source\n"
                "  Remove it, or give it records."
            )
        return source

    def walk(self) -> Iterator["Node"]:
        """Yield this node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def order(self) -> str:
        """What determines its order: a line to be compared on resume."""
        if self.source is not None:
            return self.source.describe(self.shuffle)
        settings: MixtureSettings = self.dataset
        joins = settings.customized_yield_fn is not None
        return f"mixture, seed {settings.seed}, cyclic {settings.cyclic}, stop {settings.stop}, yield function {joins}"

    def tree(self) -> Tree:
        """What of it and all below determines the order of the stream, to be compared on resume."""
        weights = {node.path: float(node.dataset.percent) for node in self.walk() if node is not self}
        return Tree({node.path: node.order for node in self.walk()}, weights)

    def joins(self) -> dict[str, bool]:
        """Of each mixture, by path: whether it has a yield function."""
        return {node.path: node.dataset.customized_yield_fn is not None for node in self.walk() if node.is_mixture}

    def anomalies(self) -> dict[str, dict[str, int]]:
        """What sources have in their shards that is not a record, or less than one: how many, by path and kind."""
        found = {node.path: node.source.anomalies() for node in self.walk() if node.source is not None}
        return {path: anomalies for path, anomalies in found.items() if anomalies}

    def has_share(self, lane: Lane) -> bool:
        """Whether the lane has a share of it in its first round."""
        if self.source is not None:
            return self._num_blocks(lane) > 0
        return self.dataset.cyclic or any(child.has_share(lane) for child in self.children)

    def least_samples(self, lane: Lane) -> float:
        """How many samples the lane gets of it at least: a block has a record, and a function gives something."""
        if self.source is not None:
            blocks = self._num_blocks(lane)
            return min(blocks, 1) if any(getattr(self.dataset, name, None) for name in _MAY_LEAVE_OUT) else blocks
        if self.dataset.cyclic:
            return math.inf
        shares = [count for count in (child.least_samples(lane) for child in self.children) if count]
        # Under first_exhausted it ends when some source has: at worst the shortest, with nothing drawn of the others.
        least = min(shares, default=0) if self.dataset.stop == "first_exhausted" else sum(shares)
        return least if self.dataset.customized_yield_fn is None else min(least, 1)

    def _num_blocks(self, lane: Lane) -> int:
        assert self.source is not None, "a mixture has no blocks"
        return len(range(lane.index, self.source.num_blocks, lane.count))


def tree_of(mixture: MixtureSettings, path: str = "", seeds: tuple[object, ...] | None = None) -> Node:
    """Walk the tree of a mixture, which is the top unless its path and the seeds down to it are given.

    Raises:
        ValueError: Something in it is not a source.
    """
    seeds = (mixture.seed,) if seeds is None else seeds
    children = tuple(_child(mixture, child, f"{path}.{child.name}".lstrip("."), seeds) for child in mixture.datasets)
    return Node(path=path, dataset=mixture, seeds=seeds, children=children)


def _child(parent: MixtureSettings, dataset: Any, path: str, seeds: tuple[object, ...]) -> Node:
    """A new kind of source has its case here."""
    seeds = (*seeds, dataset.name)
    match dataset:
        case MixtureSettings():
            return tree_of(dataset, path, (*seeds, dataset.seed))
        case ShardDataset():
            as_source, shuffle = partial(getattr, dataset, "source"), parent.shuffle_streaming_subsets
        case _ if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
            as_source, shuffle = partial(MapStyleSource, dataset), parent.shuffle_unstreaming_subsets
        case _:
            raise ValueError(
                f"MergedDataset, source of type {type(dataset).__name__}{in_recipe(dataset)}, {path!r}: expected "
                "a map-style dataset (__len__ and __getitem__) or a source of streamdata, got neither\n"
                "  An iterable of another library cannot be split and resumed exactly; use its files or its "
                "map-style form."
            )
    return Node(path=path, dataset=dataset, seeds=seeds, as_source=as_source, shuffle=shuffle)


def in_recipe(dataset: Any) -> str:
    """Where the dataset stands in a recipe, as part of a message; empty where there is none."""
    location = getattr(dataset, "_recipe_location", None)
    return f" at {location}" if location else ""
