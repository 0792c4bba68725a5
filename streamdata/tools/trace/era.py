"""One generation of a run as its lanes read it: its tree, its topology, and any lane from any point of it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Final

from streamdata.mixing.deals import Deals
from streamdata.mixing.leaf import Run
from streamdata.mixing.merged import MergedDataset
from streamdata.mixing.reading import lane_samples
from streamdata.mixing.tree import Node, tree_of
from streamdata.run import Lane
from streamdata.run.lane_link import LaneLink
from streamdata.sources import MapStyleSource
from streamdata.sources.files.shard_source import ShardDataset
from streamdata.sources.source import Sample
from streamdata.states.headers import header
from streamdata.states.progress import Progress
from streamdata.tools.trace.seek import samples_left, seek, why_not

_FUNCTIONS: Final = ("single_process_fn", "process_fn", "max_bad")


class Bare:
    """A dataset without its functions, of which a map-style one gives nothing but the number of each record."""

    __getitems__ = None

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getattr__(self, name: str) -> Any:
        if name in _FUNCTIONS:
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {}


class Era:
    """A generation.

    Args:
        dataset: What the recipe builds.
        weights: By path, what its nodes had then; None as the recipe says now.
        dp_size: Ranks.
        num_workers: Of each rank, at least 1.
        begins: The states with which it began.
    """

    def __init__(
        self,
        dataset: MergedDataset,
        weights: Mapping[str, Any] | None,
        dp_size: int,
        num_workers: int,
        begins: Progress,
    ) -> None:
        self.dp_size, self.num_workers, self.begins = dp_size, num_workers, begins
        self.top = tree_of(dataset, weights=weights)
        self.tree = self.top.tree()
        self._dataset, self._weights = dataset, weights
        self._deals: dict[tuple[int, int, bool], tuple[Progress, Deals]] = {}

    @cached_property
    def _bare(self) -> Node:
        """The same tree with nothing but records."""
        top = tree_of(self._dataset, weights=self._weights)
        for node in top.walk():
            if node.is_mixture:
                continue
            node.dataset = bare = Bare(node.dataset)
            if isinstance(node.source, MapStyleSource):
                del node.source  # it was made of the dataset itself
                node.as_source = partial(MapStyleSource, bare)
        return top

    def lane(self, rank: int, worker: int) -> Lane:
        """One of its lanes."""
        return Lane(dp_size=self.dp_size, dp_rank=rank, num_workers=self.num_workers, worker=worker)

    def run(self, progress: Progress, epoch_pass: int, rank: int, worker: int) -> Run:
        """A lane where states of this generation say that it stood."""
        lane, deals = self.lane(rank, worker), self.deals(progress, epoch_pass)
        run = Run.at(progress, epoch_pass, lane, deals, self.tree, self._dataset.skips)
        link = LaneLink(None, None, lambda _: None, lambda: None)
        return replace(run, header=self._header(progress), link=link)

    def deals(self, progress: Progress, epoch_pass: int, *, is_bare: bool = False) -> Deals:
        """How its sources, or the bare ones, are dealt out in a pass."""
        key = id(progress), epoch_pass, is_bare
        if key not in self._deals:  # with the states themselves, so that no others get their number
            self._deals[key] = progress, Deals(progress, epoch_pass, self.dp_size * self.num_workers)
        return self._deals[key][1]

    def _header(self, progress: Progress) -> str:
        return header(self.tree, self.lane(0, 0), progress.before, {})

    def has_given_all(self, run: Run) -> bool:
        """Whether nothing of the pass is left in the lane."""
        return run.progress.has_given_all(run.key, self.tree)

    def samples(self, run: Run) -> Iterator[Sample]:
        """What the lane delivers."""
        return iter(()) if self.has_given_all(run) else lane_samples(run, self.top)

    def records(self, run: Run) -> Iterator[Sample]:
        """The same where each record gives one sample: what names it, of map-style sources without reading it."""
        deals = self.deals(run.progress, run.key.epoch_pass, is_bare=True)
        return iter(()) if self.has_given_all(run) else lane_samples(replace(run, deals=deals), self._bare)

    def why_read(self, run: Run, gives_one: Callable[[Node], bool]) -> str | None:
        """Why the lane's stream has to be read; None where it can be sought."""
        return why_not(run, self.top, gives_one)

    def left(self, run: Run) -> float:
        """How many samples a lane that can be sought gets yet."""
        return 0 if self.has_given_all(run) else samples_left(run, self.top)

    def after(self, run: Run, samples: int) -> Run:
        """A lane that can be sought, so many samples later."""
        return replace(run, entries=seek(run, self.top, samples)) if samples else run

    @cached_property
    def joins(self) -> bool:
        """Whether its samples are those of a yield function over all."""
        return self.top.dataset.customized_yield_fn is not None

    @cached_property
    def sources(self) -> dict[str, Node]:
        """Those with records, by path."""
        return {node.path: node for node in self.top.walk() if not node.is_mixture}

    @property
    def is_shards(self) -> dict[str, bool]:
        """By path of a source: whether its records have urls and keys."""
        return {path: isinstance(node.dataset, ShardDataset) for path, node in self.sources.items()}
