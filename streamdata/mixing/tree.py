"""The tree of sources that a recipe built, walked once: what its nodes are, and what follows from that for a lane."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from streamdata.errors import SourceError
from streamdata.recipe.named_source import NamedSource
from streamdata.run import Lane
from streamdata.sources import MapStyleSource, Source
from streamdata.sources.functions import StreamFn
from streamdata.sources.shard_source import ShardDataset
from streamdata.sources.source import Sample

_MAY_LEAVE_OUT = ("single_process_fn", "process_fn", "max_bad")


class MixtureSettings(NamedSource):
    """What a recipe says of a mixture: a `MergedDataset` is one, and so is told from the sources that hold records."""

    datasets: list[Any]
    cyclic: bool
    stop: str
    seed: int
    shuffle_unstreaming_subsets: bool
    shuffle_streaming_subsets: bool
    customized_yield_fn: StreamFn | None
    cost: Callable[[Sample], float] | None


@dataclass(frozen=True, kw_only=True)
class Node:
    """A mixture, or a source of records."""

    path: str
    """Its path of names, "" at the top."""
    dataset: Any
    seeds: tuple[object, ...]
    """The seeds and names on the path from the top, its own included."""
    children: tuple["Node", ...] = ()
    """Of a mixture, in the order of the recipe."""
    source: Source | None = None
    """Of a source of records: the same, as blocks."""
    shuffle: bool = False
    """Whether a source of records is shuffled: its parent says so."""

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

    def orders(self) -> dict[str, str]:
        """The order of each node, by path."""
        return {node.path: node.order for node in self.walk()}

    def weights(self) -> dict[str, float]:
        """The weight of each node below this one in its parent, by path."""
        return {node.path: float(node.dataset.percent) for node in self.walk() if node is not self}

    def joins(self) -> dict[str, bool]:
        """Of each mixture, by path: whether it has a yield function."""
        mixtures = (node for node in self.walk() if node.source is None)
        return {node.path: node.dataset.customized_yield_fn is not None for node in mixtures}

    def anomalies(self) -> dict[str, dict[str, int]]:
        """What sources have in their shards that is no record, or less than one: how many, by path and kind."""
        found = {node.path: node.source.anomalies() for node in self.walk() if node.source is not None}
        return {path: anomalies for path, anomalies in found.items() if anomalies}

    def has_share(self, lane: Lane) -> bool:
        """Whether the lane has a share of it in its first round."""
        if self.source is not None:
            return self._num_blocks(lane) > 0
        return self.dataset.cyclic or any(child.has_share(lane) for child in self.children)

    def least_samples(self, lane: Lane) -> float:
        """How many samples the lane gets of it at the least: a block has a record, and a function gives something."""
        if self.source is not None:
            blocks = self._num_blocks(lane)
            return min(blocks, 1) if any(getattr(self.dataset, name, None) for name in _MAY_LEAVE_OUT) else blocks
        if self.dataset.cyclic:
            return math.inf
        shares = [count for count in (child.least_samples(lane) for child in self.children) if count]
        least = min(shares, default=0) if self.dataset.stop == "first_exhausted" else sum(shares)
        return least if self.dataset.customized_yield_fn is None else min(least, 1)

    def _num_blocks(self, lane: Lane) -> int:
        assert self.source is not None, "a mixture has no blocks"
        return len(range(lane.index, self.source.num_blocks, lane.count))


def tree_of(top: MixtureSettings) -> Node:
    """Walk the tree of a mixture.

    Raises:
        SourceError: A source has no records.
    """
    return _mixture(top, "", (top.seed,))


def path_below(path: str, name: str) -> str:
    """The path of names of a source of the mixture at `path`."""
    return f"{path}.{name}" if path else name


def _mixture(mixture: MixtureSettings, path: str, seeds: tuple[object, ...]) -> Node:
    children = [_child(mixture, dataset, path_below(path, dataset.name), seeds) for dataset in mixture.datasets]
    return Node(path=path, dataset=mixture, seeds=seeds, children=tuple(children))


def _child(parent: MixtureSettings, dataset: Any, path: str, seeds: tuple[object, ...]) -> Node:
    """A new kind of source has its case here."""
    source: Source
    match dataset:
        case MixtureSettings():
            return _mixture(dataset, path, (*seeds, dataset.name, dataset.seed))
        case ShardDataset():
            source, shuffle = dataset.source, parent.shuffle_streaming_subsets
        case _:
            source, shuffle = MapStyleSource(dataset), parent.shuffle_unstreaming_subsets
    if not source.num_blocks:
        raise SourceError(
            f"source {path!r}: expected at least one record, got an empty source\n  Remove it, or give it records."
        )
    return Node(path=path, dataset=dataset, seeds=(*seeds, dataset.name), source=source, shuffle=shuffle)
