"""What a mixture needs of its children in one lane, and what all nodes of the tree share there."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol, Self

from streamdata.mixing.deals import Deals
from streamdata.mixing.places import WorkerPlace
from streamdata.mixing.present import Present
from streamdata.mixing.tree import Node
from streamdata.run import Lane
from streamdata.run.lane_link import LaneLink
from streamdata.run.traffic import SourceTimes
from streamdata.shards.ahead.read_ahead import LaneAhead
from streamdata.sources.functions.tally import Tally
from streamdata.sources.skip import Skips
from streamdata.sources.source import Sample
from streamdata.states.cursor import Cursor, LaneEntries, LaneKey, NodeKey, PlainCursor
from streamdata.states.headers import Base, Tree
from streamdata.states.progress import Progress
from streamdata.states.table import COUNTS

Pairs = Iterator[tuple[Sample, PlainCursor]]
"""Samples, each with the cursor after it."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What all nodes of the tree share while one lane is iterated."""

    lane: Lane
    key: LaneKey
    progress: Progress
    entries: LaneEntries
    """Of `progress`, those of this lane in this pass."""
    generation: int
    base: Base
    deals: Deals
    tree: Tree
    skips: Skips
    from_window: bool = False
    header: str = ""
    link: LaneLink | None = None
    present: Present = field(default_factory=Present)
    ahead: LaneAhead = field(default_factory=LaneAhead)
    place: WorkerPlace | None = None
    """Where a worker notes which record it is at."""
    times: SourceTimes = field(default_factory=dict)
    """How long sources were read; drawing adds to it."""
    tallies: dict[str, Tally] = field(default_factory=dict)
    """By path, of the nodes."""

    @classmethod
    def at(cls, progress: Progress, epoch_pass: int, lane: Lane, deals: Deals, tree: Tree, skips: Skips) -> Self:
        """A lane where states say that it stands in a pass."""
        key = LaneKey(epoch_pass, lane.dp_rank, lane.worker)
        return cls(
            lane=lane,
            key=key,
            progress=progress,
            entries=progress.lane(key),
            generation=progress.generation(tree),
            base=progress.base(epoch_pass),
            deals=deals,
            tree=tree,
            skips=skips,
        )

    def node_key(self, path: str) -> NodeKey:
        """What all entries of a node share."""
        return NodeKey(self.header, self.generation, self.key, path, self.link)

    def tally(self, node: Node) -> Tally:
        """What was not delivered of a node, counted on from where the states stand."""
        standing = self.entries.standing(node.path)
        at = None if standing is None else standing.cursor
        counts = self.deals.counts(node.path, self.lane.index) if at is None else [getattr(at, name) for name in COUNTS]
        max_bad = int(getattr(node.dataset, "max_bad", 0))
        tally = self.tallies[node.path] = Tally(node.path or "the top", max_bad, *counts)
        tally.note = None if self.place is None else self.place.noting(tally.name)
        return tally


class Child(Protocol):
    """A source of a mixture, in one lane."""

    path: str
    is_mixture: bool

    def has_records(self) -> bool:
        """Whether the lane has a share of it."""

    def beginning(self) -> PlainCursor:
        """The cursor before its first sample."""

    def start(self, cursor: Cursor | None) -> Pairs:
        """Its samples with the cursor after each, from the cursor on, or from the beginning where it is None."""
