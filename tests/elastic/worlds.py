"""Trees of tiny sources of every kind, and what may change of them while a job runs."""

import copy
import gzip
import tempfile
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path

from streamdata import JsonlIterableDataset, MergedDataset, MetaDistributedWebDataset
from tests.elastic.functions import FUNCTIONS, MAX_TOKENS, YIELDS, burst_tokens, tokens_of, yielded_tokens
from tests.shard_files import write_jsonl, write_tars
from tests.streams import Numbers, NumbersAhead


@dataclass(frozen=True)
class Leaf:
    """A source of `size` records with the values 0 to size - 1."""

    name: str
    size: int
    kind: str = "map"
    function: str = "plain"
    block_size: int = 1
    shuffle_buffer: int = 0
    max_epochs: int | None = None

    @property
    def is_listed(self):
        """Whether blocks are records, and records samples: then a list says all of its order."""
        return self.kind in ("map", "ahead") and self.function == "plain"

    @property
    def max_tokens(self):
        """Of one sample."""
        return MAX_TOKENS.get(self.function, 1)

    def build(self, percent):
        """The source as a recipe builds it."""
        attributes = FUNCTIONS[self.function] | ({"max_epochs": self.max_epochs} if self.max_epochs else {})
        if self.kind in ("map", "ahead", "copies"):
            per_block = {"records_per_block": self.block_size} if self.kind == "copies" else {}
            make = NumbersAhead if self.kind == "ahead" else Numbers
            return make(self.name, self.size, percent, **attributes, **per_block)
        source = copy.copy(_opened(self))
        source.percent = percent
        for name in {"max_bad", "max_epochs"} & attributes.keys():
            setattr(source, name, attributes[name])
        return source


@lru_cache(16)  # each keeps its files open, and the mixture that it was part of
def _opened(leaf):
    functions = {key: value for key, value in FUNCTIONS[leaf.function].items() if key != "max_bad"}
    make = MetaDistributedWebDataset if leaf.kind == "tar" else JsonlIterableDataset
    cut = {} if leaf.kind == "gz" else {"block_size": leaf.block_size}
    folder = _shards(leaf.kind, leaf.size)
    return make(folder, **functions, **cut, shuffle_buffer=leaf.shuffle_buffer, name=leaf.name)


_folder = cache(lambda: tempfile.TemporaryDirectory(prefix="elastic-"))


@cache
def _shards(kind, size):
    """A folder with that many records in shards of uneven sizes."""
    folder = Path(_folder().name) / f"{kind}-{size}"
    sizes = [part for part in (size // 2, size // 3, size - size // 2 - size // 3) if part]
    if kind == "tar":
        return write_tars(folder, sizes, sidecars=False)
    write_jsonl(folder, sizes)
    if kind == "gz":
        for path in sorted(folder.glob("*.jsonl")):
            (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    return str(folder)


@dataclass(frozen=True)
class Mix:
    """A mixture of leaves and mixtures."""

    children: tuple
    name: str = ""
    cyclic: bool = True
    stop: str = "all_exhausted"
    function: str = ""
    shuffle: bool = True
    seed: int = 7
    has_cost: bool = False
    """Whether a sample's cost is how many tokens it has."""
    skip: frozenset = frozenset()
    """(path, value) of records that are left out."""

    def leaves(self, path=""):
        """Each leaf below, by its path."""
        for child in self.children:
            below = f"{path}.{child.name}".lstrip(".")
            if isinstance(child, Mix):
                yield from child.leaves(below)
            else:
                yield below, child

    def paths(self, path=""):
        """The path of each node below the top."""
        for child in self.children:
            below = f"{path}.{child.name}".lstrip(".")
            yield below
            if isinstance(child, Mix):
                yield from child.paths(below)

    def mixtures(self):
        """This one and those below."""
        yield self
        for child in self.children:
            if isinstance(child, Mix):
                yield from child.mixtures()

    def seeds_of(self, path):
        """What the seeds of a leaf's epochs are made of, but the pass and the epoch."""
        name, _, below = path.partition(".")
        child = next(child for child in self.children if child.name == name)
        return (self.seed, name, *child.seeds_of(below)) if below else (self.seed, name)

    def functions_over(self, path):
        """The yield functions that a leaf's samples go through, the innermost first."""
        name, _, below = path.partition(".")
        child = next(child for child in self.children if child.name == name)
        return [*(child.functions_over(below) if below else ()), *([self.function] if self.function else ())]

    @property
    def max_tokens(self):
        """Of one sample."""
        most = max(child.max_tokens for child in self.children)
        return yielded_tokens(self.function, most) if self.function else most

    def repeated(self):
        """How many tokens may come again for each lane of a topology that ends, through functions drawn anew."""
        own = burst_tokens(self.function, max(child.max_tokens for child in self.children)) if self.function else 0
        below = sum(child.repeated() for child in self.children if isinstance(child, Mix))
        return own + below * (2 if self.function == "twice" else 1)

    def build(self, config, path="", percent=None):
        """The mixture as a recipe builds it."""
        sources = []
        for child in self.children:
            below = f"{path}.{child.name}".lstrip(".")
            is_absent = below in config.absent
            if config.absent_as_zero or not is_absent:
                weight = 0 if is_absent else config.weights.get(below, 1)
                nested = (config, below) if isinstance(child, Mix) else ()
                sources.append(child.build(*nested, percent=weight))
        return MergedDataset(
            sources,
            cyclic=self.cyclic,
            stop=self.stop,
            seed=self.seed,
            shuffle_unstreaming_subsets=self.shuffle,
            shuffle_streaming_subsets=self.shuffle,
            customized_yield_fn=YIELDS.get(self.function),
            cost=num_tokens if self.has_cost else None,
            skip=None if path else self._skipped(frozenset() if config.absent_as_zero else config.absent),
            name=self.name or None,
            percent=percent,
        )

    def _skipped(self, absent):
        there = {source for source, _ in self.leaves() if not {source, source.partition(".")[0]} & absent}
        return [{"source": source, "index": value} for source, value in sorted(self.skip) if source in there]


def num_tokens(sample):
    """A cost."""
    return len(tokens_of(sample))


@dataclass(frozen=True)
class Config:
    """What a resume may change."""

    dp_size: int = 1
    num_workers: int = 1
    batch_size: int = 1
    weights: dict = field(default_factory=dict)
    absent: frozenset = frozenset()
    absent_as_zero: bool = False
    """Whether they are there, with a percent of 0."""

    @property
    def topology(self):
        """Ranks and lanes of a rank."""
        return self.dp_size, max(1, self.num_workers)

    @property
    def lanes(self):
        """Of the whole job."""
        return self.dp_size * max(1, self.num_workers)
