"""The tree of sources that a recipe built.

1. mixture → `tree_of` → `Node`s, one walk of the tree for all that is asked of it
2. percents, sizes → `Node.weights` → each mixture's weights
3. weights, schedules → `node_shares`, `mean_node_shares` → each node's share of the stream
"""

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np

from streamdata.errors import SourceError, listing, shown
from streamdata.mixing.schedule import Shares
from streamdata.recipe.named_source import LEAST, MOST, NamedSource, SizeWeight, Weight, plain_number, read_percent
from streamdata.sources import MapStyleSource, Source
from streamdata.sources.files.shard_source import ShardDataset
from streamdata.sources.foreign.named import is_own_stream
from streamdata.sources.foreign.own_stream import OwnStreamSource
from streamdata.sources.functions.process_functions import StreamFn
from streamdata.sources.order.blocks import ALL_EPOCHS, Epochs, Part, selection_of
from streamdata.sources.source import Sample
from streamdata.states.headers import BY_COST, MIXTURE, BlockCut, SetPercent, Tree

_BLOCKS_AT_ONCE = 1024  # that are counted for a part


class MixtureSettings(NamedSource):
    """The settings that a recipe gives to a mixture; `MergedDataset` has them, sources of records do not."""

    datasets: list[Any]
    cyclic: bool
    stop: str
    seed: int
    shuffle_unstreaming_subsets: bool
    shuffle_streaming_subsets: bool
    customized_yield_fn: StreamFn | None
    skip: object
    read_ahead_bytes: int | None
    connections: int | None
    stall_s: float | None
    live: Mapping[str, SetPercent] = {}
    """Weights that were set in place of the recipe's, by path; the top's count."""
    cost: Callable[[Sample], float] | str | None
    """Amount that a sample adds to its source's clock: a function of it, or the name of a field."""


@dataclass(kw_only=True, eq=False)  # not frozen: that takes three times as long to make, and there is one per source
class Node:
    """A node of the tree: a mixture, or a source of records."""

    path: str
    """Its path of names, "" at the top."""
    dataset: Any
    seeds: tuple[object, ...]
    """The seeds and names on the path from the top, its own included."""
    children: tuple["Node", ...] = ()
    """A mixture's sources in the order of the recipe; those whose percent is 0 are not there."""
    as_source: Callable[[], Source] | None = None
    """Gives a source of records as blocks; None for a mixture."""
    shuffle: bool = False
    """Whether a source of records is shuffled: its parent says so."""
    repeats: bool = False
    """Whether a source of records begins its next epoch when one ends: its parent says so, by `cyclic`."""
    live: Mapping[str, SetPercent] = field(default_factory=dict)
    """Weights of nodes of the tree that were set in place of the recipe's, by path."""

    @property
    def is_mixture(self) -> bool:
        """Whether the node is a mixture: it has children, and no records of its own."""
        return self.as_source is None

    # Not made with the tree: that is walked when a mixture is built, too, where a dataset need not know its length yet.
    @cached_property
    def source(self) -> Source | None:
        """The node's records as blocks; None for a mixture.

        Raises:
            SourceError: The source has no records, or none in its part, if that can be known by finding the first one.
        """
        if self.as_source is None:
            return None
        source, part = self.as_source(), self.part
        if not source.num_blocks:
            raise SourceError(
                f"source {shown(self.path)}: expected at least one record, got an empty source\n"
                "  Remove it, or give it records."
            )
        for first in range(0, source.num_blocks, _BLOCKS_AT_ONCE) if part is not None else ():
            counted = source.count(np.arange(first, min(first + _BLOCKS_AT_ONCE, source.num_blocks)), part)
            if counted is None or counted:
                return source
        if part is not None:
            raise SourceError(
                f"source {shown(self.path)}: expected records of the {part}, got none in its {source.num_blocks} "
                "blocks\n  Raise its holdout, or give it more records."
            )
        return source

    @property
    def part(self) -> Part | None:
        """The part of the source's records that is read; None if all are.

        Raises:
            ValueError: Its `holdout` or `part` is not valid.
        """
        found = selection_of(self.dataset)
        return found if isinstance(found, Part) else None

    @cached_property
    def weights(self) -> dict[str, Weight]:
        """The weight of each child of the mixture, by the child's path.

        Raises:
            ValueError: The weights do not fit together, or one of them depends on a size that is not known.
        """
        weights: dict[str, Any] = {}
        sized: list[Node] = []
        for child in self.children:
            try:
                own = self.live.get(child.path)
                weight = read_percent(getattr(child.dataset, "percent", None)) if own is None else own.weight
                weights[child.path] = weight
            except ValueError as error:
                raise ValueError(f"source {shown(child.path)}: {error}") from None
            if isinstance(weight, SizeWeight):
                sized.append(child)
        # Numbers beside sizes would be weighed against millions of tokens.
        by = f"by {weights[sized[0].path].by}" if sized else ""
        for path, weight in weights.items() if sized else ():
            other = f"by {weight.by}" if isinstance(weight, SizeWeight) else f"is {shown(weight)}"
            if other != by:
                raise ValueError(
                    f"source {shown(sized[0].path)}: percent is {by}, that of source {shown(path)} beside it {other}\n"
                    "  Give all sources of a mixture a percent by size, counting one thing, or none."
                )
        for child in sized:
            weights[child.path] = _of_size(child, weights[child.path])
        return weights

    @cached_property
    def shares(self) -> Shares | None:
        """The shares of the mixture's children over time; None if they do not change.

        Raises:
            ValueError: Its weights do not go together, or at some time all are 0.
        """
        if {list, dict}.isdisjoint(map(type, self.weights.values())):
            return None
        return Shares(list(self.weights), list(self.weights.values()))

    @cached_property
    def has_schedule(self) -> bool:
        """Whether the node is, or contains, a mixture whose shares change over time."""
        return self.is_mixture and (self.shares is not None or any(child.has_schedule for child in self.children))

    def leaves(self) -> list["Node"]:
        """The sources of records below the node, in the recipe's order; for a source, itself."""
        return [node for node in self.walk() if not node.is_mixture]

    def walk(self) -> Iterator["Node"]:
        """Yield this node and all nodes below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def order(self) -> str:
        """A line that describes what determines the node's order; a resume compares it."""
        if self.source is not None:
            epochs = "" if self.max_epochs is None else f", at most {self.max_epochs} epochs"
            # Of another part, or of more that is held out, records would be read that were not to be, or twice.
            part = "" if self.part is None else f", {self.part}"
            return self.source.describe(self.shuffle) + epochs + part
        settings: MixtureSettings = self.dataset
        joins = settings.customized_yield_fn is not None
        # Clocks count in draws, or in costs: they do not go on in the other unit.
        costs = "" if settings.cost is None else BY_COST
        ends = f"cyclic {settings.cyclic}, stop {settings.stop}"
        return f"{MIXTURE}seed {settings.seed}, {ends}, yield function {joins}{costs}"

    @cached_property
    def tree(self) -> Tree:
        """The facts that determine the order of the stream, for the node and all below it; a resume compares them."""
        orders: dict[str, str] = {}
        weights: dict[str, Weight] = {}
        cuts: dict[str, BlockCut] = {}
        sources: dict[str, str | None] = dict.fromkeys(source_names(self.dataset, self.path))
        for node in self.walk():  # parents before children
            orders[node.path] = node.order
            weights |= node.weights
            if not node.is_mixture:
                sources[node.path] = getattr(node.dataset, "weight_field", None)
                if not isinstance(node.source, OwnStreamSource):
                    cuts[node.path] = node.cut
        return Tree(orders, weights, cuts, sources, self.live)

    def anomalies(self) -> dict[str, dict[str, int]]:
        """Counts of what the sources' shards hold that is not a whole record, by path and kind."""
        found: dict[str, dict[str, int]] = {}
        for node in self.walk():
            if node.source is not None and (counts := node.source.anomalies()):
                found[node.path] = counts
        return found

    @property
    def max_epochs(self) -> int | None:
        """The number of epochs of the source that are read; None if it is not bounded."""
        max_epochs = getattr(self.dataset, "max_epochs", None)
        return None if max_epochs is None else int(max_epochs)

    @cached_property
    def is_endless(self) -> bool:
        """Whether a lane's stream of the node never ends."""
        if not self.is_mixture:
            return self.repeats and self.max_epochs is None
        if not self.dataset.cyclic:
            return False
        endless = (child.is_endless for child in self.children)
        return all(endless) if self.dataset.stop == "first_exhausted" else any(endless)

    @property
    def cut(self) -> BlockCut:
        """How the source is divided into blocks, and how many of its epochs are read."""
        assert self.source is not None, "a mixture is not divided"
        return self.source.cut._replace(epochs=0 if self.is_endless else self.max_epochs or 1)

    @property
    def epochs(self) -> Epochs:
        """The range of the source's epochs that are read."""
        return ALL_EPOCHS if self.is_endless else Epochs(0, self.max_epochs or 1)


def num_in(node: Node, what: str) -> int | None:
    """The number of `records` or `tokens` in a node, as far as it is known without reading the data.

    A mixture has what its sources have together.
    """
    if node.is_mixture:
        counts = [num_in(child, what) for child in node.children]
        return None if None in counts else sum(filter(None, counts))
    if what == "tokens":
        count, parts = getattr(node.dataset, "num_tokens", None), selection_of(node.dataset)  # what token stores have
        if count is not None and not isinstance(parts, Part | None):
            return max(1, round(int(count) * parts.share))
    else:
        count = getattr(node.source, "num_records", None)
    if count is None:
        return None
    # As many as a part has on average: to count them, all would be looked at.
    return int(count) if node.part is None else max(1, round(count * node.part.share))


def named_nodes(mixture: MixtureSettings, path: str = "") -> dict[str, Any]:
    """The datasets of all nodes below a mixture by path, those that are left out too."""
    found: dict[str, Any] = {}
    for child in mixture.datasets:
        below = f"{path}.{child.name}".lstrip(".")
        found[below] = child
        if isinstance(child, MixtureSettings):
            found |= named_nodes(child, below)
    return found


def source_names(mixture: MixtureSettings, path: str = "") -> list[str]:
    """The paths of all sources of records in a mixture, sorted; of those that are left out, with percent 0, too."""
    names: list[str] = []
    for child in mixture.datasets:
        below = f"{path}.{child.name}".lstrip(".")
        names += source_names(child, below) if isinstance(child, MixtureSettings) else [below]
    return sorted(names)


def leaves_by_name(top: Node) -> dict[int | str, Node]:
    """The sources of records in a tree by their dotted names, and by their numbers in `source_names`."""
    leaves: dict[int | str, Node] = {node.path: node for node in top.leaves()}
    numbered = enumerate(source_names(top.dataset))
    return leaves | {number: leaves[name] for number, name in numbered if name in leaves}


def find_leaf(leaves: Mapping[int | str, Node], source: int | str, who: str) -> Node:
    """Look up a source by its number or name.

    Args:
        leaves: By `leaves_by_name`.
        source: Its number or name.
        who: Who asks, for the message.

    Raises:
        ValueError: There is no such source.
    """
    with suppress(TypeError):
        found = leaves.get(source if isinstance(source, str) else operator.index(source))
        if found is not None:
            return found
    expected = f"one of {listing(sorted({node.path for node in leaves.values()}))}, or their numbers"
    raise ValueError(f"{who}: expected as source {expected}, got {shown(source)}")


def name_record(top: Node, source: int | str, record_id: Sequence[int]) -> dict[str, Any]:
    """Look up which record a document is; see `MergedDataset.describe_record`."""
    who, (_, number, _) = "describe_record", map(int, record_id)
    node = find_leaf(leaves_by_name(top), source, who)
    assert node.source is not None, "a leaf"
    if number >= 0:  # of padding it is -1
        with suppress(IndexError):
            if (record := node.source.identify(number)) is not None:
                return record
            raise not_numbered(node, who)
    raise no_such_record(node, who, number)


def not_numbered(node: Node, who: str) -> SourceError:
    """Make the error for a source of which no record can be looked up."""
    return SourceError(
        f"{who}: source {shown(node.path)}: expected one whose records can be looked up, got another library's "
        "iterable\n  Put what names a record into its samples."
    )


def no_such_record(node: Node, who: str, number: int) -> ValueError:
    """Make the error for a number that no record of a source, or of its part, has."""
    part = "" if node.part is None else f" of the {node.part}"
    return ValueError(
        f"{who}: source {shown(node.path)}: expected the number of one of its records{part}, got {number}\n"
        "  Give a row of record_ids as this dataset gave it; -1 stands for padding."
    )


def _of_size(child: Node, weight: SizeWeight) -> float:
    size = num_in(child, weight.by)
    if not size:
        of_what = "token stores alone" if weight.by == "tokens" else "map-style datasets and of shards with an index"
        raise ValueError(
            f"source {shown(child.path)}: percent is by {weight.by}, and how many it has is "
            f"{'not known' if size is None else 'none'}\n  That is known of {of_what}: give numbers as percent."
        )
    # As logarithms: the power itself may be no float.
    if not math.log(LEAST) <= weight.exponent * math.log(size) <= math.log(MOST):
        raise ValueError(
            f"source {shown(child.path)}: expected a percent from {LEAST:g} to {MOST:g}, got {size} {weight.by} to the "
            f"power of {weight.exponent:g}\n  Give an exponent that is nearer to 0."
        )
    return math.pow(size, weight.exponent)


def tree_of(
    mixture: MixtureSettings,
    path: str = "",
    seeds: tuple[object, ...] | None = None,
    *,
    weights: Mapping[str, Weight] | None = None,
    live: Mapping[str, SetPercent] | None = None,
) -> Node:
    """Build the tree of a mixture: as the top, or below the given path and seeds.

    Args:
        mixture: Its top.
        path: Of the mixture.
        seeds: Down to it.
        weights: As if the nodes had had these, by path, and there were no others: those of an earlier generation.
        live: Those that were set in place of the recipe's; by default the mixture's.

    Raises:
        ValueError: Something in it is not a source.
    """
    seeds = (mixture.seed,) if seeds is None else seeds
    live = mixture.live if live is None else live
    children = []
    for child in mixture.datasets:
        below = f"{path}.{child.name}".lstrip(".")
        # One whose percent is 0 is left out here, so that nothing counts it: neither a start clock nor a header.
        percent = live[below].weight if below in live else getattr(child, "percent", None)
        if plain_number(percent) != 0 if weights is None else below in weights:
            children.append(_child(mixture, child, below, seeds, weights, live))
    node = Node(path=path, dataset=mixture, seeds=seeds, children=tuple(children), live=live)
    if weights is not None:
        node.weights = {child.path: weights[child.path] for child in children}
    return node


def _child(
    parent: MixtureSettings,
    dataset: Any,
    path: str,
    seeds: tuple[object, ...],
    weights: Mapping[str, Weight] | None,
    live: Mapping[str, SetPercent],
) -> Node:
    """The node of one child of a mixture, by the kind of its dataset."""
    seeds = (*seeds, dataset.name)
    match dataset:
        case MixtureSettings():
            return tree_of(dataset, path, (*seeds, dataset.seed), weights=weights, live=live)
        case ShardDataset():
            as_source, shuffle = partial(getattr, dataset, "source"), parent.shuffle_streaming_subsets
        case _ if is_own_stream(dataset):  # before those with a length: every dataset of torch has a `__getitem__`
            as_source, shuffle = partial(OwnStreamSource, dataset), False
        case _ if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
            as_source, shuffle = partial(MapStyleSource, dataset), parent.shuffle_unstreaming_subsets
        case _:
            raise ValueError(
                f"MergedDataset, source of type {type(dataset).__name__}{in_recipe(dataset)}, {shown(path)}: expected "
                "a map-style dataset (__len__ and __getitem__), a torch IterableDataset or a source of streamdata, "
                "got neither\n  Derive it from torch.utils.data.IterableDataset, or use its map-style form."
            )
    return Node(path=path, dataset=dataset, seeds=seeds, as_source=as_source, shuffle=shuffle, repeats=parent.cyclic)


def in_recipe(dataset: Any) -> str:
    """A part of a message that says where the recipe defines the dataset; empty if no recipe does."""
    location = getattr(dataset, "_recipe_location", None)
    return f" at {location}" if location else ""


# Gauss's rule with three nodes, on [-1, 1]: exact up to degree 5. Between two points a source's share of the whole is a
# product of linear functions, one for each mixture with schedules above it.
_GAUSS = ((-math.sqrt(0.6), 5 / 9), (0.0, 8 / 9), (math.sqrt(0.6), 5 / 9))


@dataclass(frozen=True, kw_only=True)
class NodeShare:
    """A node of the tree with its share of the stream.

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
    """The nodes of a tree by path, parents first, with their shares; schedules are evaluated at `time` of a pass."""
    shares = {top.path: NodeShare(node=top)}
    for mixture in top.walk():
        if mixture.shares is not None:
            of_children = [mixture.shares.at(time, number) for number in range(len(mixture.children))]
        else:
            weights = [weight for weight in mixture.weights.values() if isinstance(weight, int | float)]
            of_children = [weight / sum(weights) for weight in weights]
        for child, share in zip(mixture.children, of_children, strict=True):
            overall = shares[mixture.path].overall * share  # known: a walk meets parents first
            shares[child.path] = NodeShare(node=child, share=share, overall=overall, parent=mixture.dataset)
    return {node.path: shares[node.path] for node in top.walk()}


def mean_node_shares(top: Node, until: float, since: float = 0.0) -> dict[str, float]:
    """The average share that each source has of the whole stream between two times of a pass."""
    times = {time for node in top.walk() if node.shares is not None for time in node.shares.times}
    points = {since, until, *(time for time in times if since < time < until)}
    means = dict.fromkeys((node.path for node in top.walk() if not node.children), 0.0)
    for begin, end in pairwise(sorted(points)):
        part = (end - begin) / (until - since)
        for offset, weight in _GAUSS:
            shares = node_shares(top, (begin + end) / 2 + offset * (end - begin) / 2)
            for path in means:
                means[path] += shares[path].overall * weight / 2 * part
    return means
