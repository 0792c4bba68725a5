"""A tree whose records are blank: it is drawn from as the real one is, and nothing of a payload is read.

`tree → the same nodes over sources of blank records, without functions → draws`

What a function would make of a record nobody knows here: each record is one sample, each sample costs what one costs on
average. Where nobody has counted a source's records, it is as if its first shards did not end.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import numpy as np

from streamdata.fields import DATASET_NAME, URL
from streamdata.io.storage import Int64s, told_url
from streamdata.mixing.tree import Node
from streamdata.recipe.named_source import HOLDOUT_KEYS
from streamdata.shards.readers import NO_FIELDS, Record
from streamdata.sources import MapStyleSource, Source
from streamdata.sources.files.shard_source import BlockSource, SequentialSource
from streamdata.sources.foreign.own_stream import OwnStreamSource

NUMBER = "number"
"""The field of a blank record of a shard that says its number there; of parquet, in its row group."""
SHARD = "shard"
"""Of the same: the number of the shard."""

_KEPT = ("name", "percent", "max_epochs", "records_per_block", *HOLDOUT_KEYS)
"""What of a source's attributes decides its order."""

Costs = Mapping[tuple[str, str], float]
"""What a sample costs on average, by the path of the mixture and of the source that it is of."""


def blank_tree(node: Node, num_lanes: int, costs: Costs) -> Node:
    """The same tree over blank records.

    Args:
        node: Its top.
        num_lanes: How many lanes read it.
        costs: 1 where they do not say it.
    """
    if node.is_mixture:
        children = tuple(blank_tree(child, num_lanes, costs) for child in node.children)
        blank = copy(node)
        blank.children = children
        blank.dataset = _blank_settings(node, costs)
        blank.__dict__["weights"] = node.weights  # some follow from the sizes of the real sources
        return blank
    blank = copy(node)
    blank.dataset = _blank_dataset(node)
    source = _blank_source(node, blank.dataset, num_lanes)
    blank.__dict__.pop("source", None)
    blank.as_source = lambda: source
    return blank


def _blank_settings(node: Node, costs: Costs) -> Any:
    settings = node.dataset
    kept = {name: getattr(settings, name, None) for name in ("name", "percent", "cyclic", "stop", "seed")}
    cost = None if settings.cost is None else _mean_cost(node.path, costs)
    return SimpleNamespace(customized_yield_fn=None, cost=cost, **kept)


def _mean_cost(path: str, costs: Costs) -> Callable[[Record], float]:
    return lambda record: costs.get((path, record[DATASET_NAME]), 1.0)


def _blank_dataset(node: Node) -> Any:
    return SimpleNamespace(**{name: getattr(node.dataset, name) for name in _KEPT if hasattr(node.dataset, name)})


def _blank_source(node: Node, blank: Any, num_lanes: int) -> Source:
    source = node.source
    match source:
        case BlockSource() | SequentialSource():
            of_shards = copy(source)
            of_shards.shards = _BlankShards(source.shards)  # type: ignore[assignment]
            return of_shards
        case OwnStreamSource():
            shards: Any = _BlankShards(SimpleNamespace(urls=[""] * num_lanes))
            return SequentialSource("iterable", shards, 0)
        case MapStyleSource():
            return MapStyleSource(_Blanks(blank, len(node.dataset)))
    raise AssertionError(f"a new kind of source, {type(source).__name__}, needs a case here")


class _Blanks:
    """A map-style dataset of blank records."""

    def __init__(self, like: Any, size: int) -> None:
        self.__dict__.update(vars(like))
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, _: int) -> Record:
        return {}


class _BlankShards:
    """Shards of blank records: what of `IndexedShards` and `SequentialShards` a lane asks for."""

    has_remote, fits, decodes_ahead, cache = False, True, False, None

    def __init__(self, shards: Any) -> None:
        # A shard of parquet is a row group, of which a file may have several.
        self.groups = getattr(shards, "groups", None)
        """Of parquet."""
        files = range(len(shards.urls)) if self.groups is None else self.groups.file_of
        self.urls: Sequence[str] = [str(shards.urls[file]) for file in files]
        self._identity = getattr(shards, "identity", list)

    def identity(self) -> list[tuple[str, int]]:
        """As of the real ones."""
        return list(self._identity())

    def cache_keys(self) -> list[str]:
        """None of them is in a cache."""
        return []

    def is_slow(self) -> bool:
        """Nothing is read."""
        return False

    def window(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> "_BlankWindow":
        """The window of these runs."""
        return _BlankWindow(self.urls, shards, firsts, counts)

    def stream(self, shard: int, raw: object = None) -> Iterator[Record]:
        """Blank records without end."""
        del raw
        url = told_url(self.urls[shard])
        return ({URL: url, SHARD: shard, NUMBER: number} for number, _ in enumerate(repeat(None)))


class _BlankWindow:
    """A window of blank records."""

    look_ahead = 64

    def __init__(self, urls: Sequence[str], shards: Int64s, firsts: Int64s, counts: Int64s) -> None:
        self._urls = urls
        self._shards = np.repeat(shards, counts)
        self._numbers = np.arange(int(counts.sum())) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)

    def __len__(self) -> int:
        return len(self._shards)

    def come(self, portions: object) -> None:
        """Of parquet: nothing is waited for."""

    def take(
        self, positions: Int64s, common: Mapping[str, Any] = NO_FIELDS, portion: object = None
    ) -> Iterator[Record]:
        """The records at these positions."""
        del portion
        for shard, number in zip(self._shards[positions].tolist(), self._numbers[positions].tolist(), strict=True):
            yield {URL: self._urls[shard], SHARD: shard, NUMBER: number, **common}
