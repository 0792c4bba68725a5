"""Deals the sources of a tree out to the lanes of a run.

1. states, a pass, number of lanes → `Deals` → the blocks of each lane
2. states of another number of ranks or workers → `begin_deal` → what the lanes of the present one begin with
"""

import logging
import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from streamdata.errors import StateError, shown
from streamdata.mixing.tree import Node
from streamdata.run import Lane
from streamdata.sources import Deal, DealtLane, DealtSource
from streamdata.sources.foreign.own_stream import OwnStreamSource
from streamdata.states.headers import Base, DealHeader, Leftovers, Tree
from streamdata.states.progress import Progress, history_of, share_out, totals_of_nodes
from streamdata.states.table import COUNTS


class Deals:
    """How the sources of a tree are dealt out to the lanes, in one pass.

    Args:
        progress: The states, showing the present size.
        epoch_pass: The pass.
        lanes: How many lanes there are.
    """

    def __init__(self, progress: Progress, epoch_pass: int, lanes: int) -> None:
        self._progress, self._pass, self._lanes = progress, epoch_pass, lanes
        self._base = progress.base(epoch_pass)
        self._deals: dict[str, tuple[DealtSource, Deal]] = {}

    def lane(self, node: Node, index: int) -> DealtLane:
        """The share of one lane in a source of records."""
        if node.path not in self._deals:
            source = node.source
            assert source is not None, "a mixture has no blocks to deal out"
            # What earlier sizes had of an iterable is refused before.
            if isinstance(source, OwnStreamSource):
                source = source.over(self._lanes)
            dealt = DealtSource(
                name=node.path,
                source=source,
                seeds=(*node.seeds, self._pass),
                shuffle=node.shuffle,
                epochs=node.epochs,
                part=node.part,
            )
            left = self._base.left.get(node.path, Leftovers())
            cut = node.cut._replace(blocks=source.num_blocks)
            self._deals[node.path] = dealt, Deal(node.path, cut, self._pass, self._lanes, left)
        return DealtLane(*self._deals[node.path], index)

    def has_share(self, node: Node, lane: int) -> bool:
        """Whether the lane has a share of a node."""
        if node.is_endless:
            return True
        if node.is_mixture:
            return any(self.has_share(child, lane) for child in node.children)
        return self.lane(node, lane).has_records()

    def num_blocks(self, lane: int, node: Node) -> int | None:
        """How many blocks of a source are dealt to the lane, leftovers left out; None where it has no share.

        0 where, of what a size left, they may all give nothing, and of an iterable; of a part at most 1, if it has
        a record in them.
        """
        if isinstance(node.source, OwnStreamSource):
            return 0
        dealt = self.lane(node, lane)
        if not dealt.has_records():
            return None
        if self._progress.before.number and node.may_leave_out:
            return 0
        if node.part is None:
            return dealt.order.share(0)
        counts = dealt.counts(dealt.start)
        return int(counts is not None and any(counts))

    def counts(self, path: str, lane: int) -> list[int]:
        """The counts from which a lane counts on a node's `COUNTS`; over all lanes their sums are as before."""
        counted = self._base.counts.get(path)
        return [share_out(total, self._lanes, lane) for total in counted] if counted else [0] * len(COUNTS)


def left_of(progress: Progress, epoch_pass: int, path: str, lanes: int) -> Leftovers:
    """The records of a source that the lanes have left in a pass; the source need not be there any more."""
    left = progress.base(epoch_pass).left.get(path, Leftovers())
    last, is_over = progress.last(epoch_pass, path), progress.is_over(epoch_pass, path)
    if not (last.is_held | is_over).any():  # absent, or not drawn: as it was
        return left
    return Deal(path, progress.cuts()[path], epoch_pass, lanes, left).left_by(last, is_over)


logger = logging.getLogger("streamdata")
_MAX_LINES: Final = 20
"""Kept of earlier generations."""


def begin_deal(progress: Progress, top: Node, tree: Tree, lane: Lane) -> tuple[Progress, str]:
    """Begin to read under another size.

    Args:
        progress: The states, showing the size that ends.
        top: The present tree.
        tree: The same, as headers have it.
        lane: Whose number of ranks and workers are the next size.

    Returns:
        The states, showing the next size; and in words what happened.

    Raises:
        StateError: A source is an iterable, of which nobody knows what is left.
    """
    _refuse_iterables(progress, top, lane)
    header = header_of(progress, top, tree)
    return progress.under_next_size(header), _Ending(progress, top, tree).in_words(lane, header.first_pass)


def header_of(progress: Progress, top: Node, tree: Tree) -> DealHeader:
    """Header from which another size goes on. It does not depend on that size, and is computed once for some states."""
    if progress.next_deal is None or progress.next_deal[0] != tree:
        progress.next_deal = tree, _Ending(progress, top, tree).header()
    return progress.next_deal[1]


def _refuse_iterables(progress: Progress, top: Node, lane: Lane) -> None:
    # One of which the states hold nothing was not there, and has nothing left over.
    known, old = progress.paths(), progress.topology()
    for node in top.walk():
        if isinstance(node.source, OwnStreamSource) and node.path in known:
            raise StateError(
                f"source {shown(node.path)} ({type(node.dataset).__name__}): expected the topology of the states, "
                f"{_counted(old.dp_size, 'rank')} with {_counted(old.num_workers, 'worker')} each, "
                f"got {_counted(lane.dp_size, 'rank')} with {_counted(lane.num_workers, 'worker')} each: it is not "
                "elastic, since only the iterable itself knows which of its records each lane has not read\n"
                f"  Resume with dp_size={old.dp_size} and num_workers={old.num_workers}, or take the source out."
            )


class _Ending:
    """The size that ends. Nothing of it depends on the next one."""

    def __init__(self, progress: Progress, top: Node, tree: Tree) -> None:
        self._progress, self._top, self._tree = progress, top, tree
        self._topology = progress.topology()
        self._deals_of_passes: dict[int, Deals] = {}
        known = {*progress.passes, *progress.before.passes}
        ended = {number for number in known if self._has_ended(number)}
        self.finished = sorted({*progress.before.finished, *ended})
        """The passes of which nothing is left."""
        self.first_pass = self._first_pass(known, ended)
        """The oldest pass that some lane has not finished."""
        begun = {number for number in known - ended if number >= self.first_pass or not top.is_endless}
        self.passes = sorted({*begun, self.first_pass})
        """The passes of which something was delivered and something is left, and the one to go on with."""

    def header(self) -> DealHeader:
        """The header from which the next size goes on."""
        progress = self._progress
        return DealHeader(
            number=progress.newest + 1,
            step=progress.step(),
            first_pass=self.first_pass,
            is_endless=self._top.is_endless,
            finished=self.finished,
            passes={number: self._base(number) for number in self.passes},
            nodes=progress.nodes(),
            cuts=progress.cuts(),
            totals=totals_of_nodes(progress),
            sizes=history_of(progress)[-_MAX_LINES:],
            origin=progress.table.digest,  # what tells these states from those of another step
        )

    def _first_pass(self, known: set[int], ended: set[int]) -> int:
        if not self._top.is_endless:
            # Not by ranks: one that delivered nothing may have no share of the oldest, and a share of the next.
            return min(known - ended, default=max(known, default=self._progress.before.first_pass - 1) + 1)
        # One without end is left, by `set_epoch`, for another; a rank that delivered nothing is where the others are.
        return min(self._progress.newest_passes.values(), default=self._progress.before.first_pass)

    def _has_ended(self, epoch_pass: int) -> bool:
        if self._top.is_endless:
            return False
        ranks = range(self._topology.dp_size)
        return all(self._progress.has_ended(epoch_pass, rank, self._sharing(epoch_pass, rank)) for rank in ranks)

    def _sharing(self, epoch_pass: int, rank: int) -> list[int]:
        """The workers of the rank that have a share of the pass."""
        workers = range(self._topology.num_workers)
        if self._top.is_endless:  # not found anew for each of thousands of lanes
            return list(workers)
        deals, first = self._deals(epoch_pass), rank * len(workers)
        return [worker for worker in workers if deals.has_share(self._top, first + worker)]

    def _deals(self, epoch_pass: int) -> Deals:
        if epoch_pass not in self._deals_of_passes:  # once for all ranks
            self._deals_of_passes[epoch_pass] = Deals(self._progress, epoch_pass, self._topology.lanes)
        return self._deals_of_passes[epoch_pass]

    def _base(self, epoch_pass: int) -> Base:
        """The job's progress in a pass, over all lanes."""
        progress, before = self._progress, self._progress.base(epoch_pass)
        excess: dict[str, float] = {}
        for node in self._top.walk():
            if node.is_mixture:
                excess |= self._excess(node, epoch_pass, before.excess)
        # Of sources that are not there at present, too: they may return.
        counts = {path: progress.counts(epoch_pass, path) for path in sorted({*progress.paths(), *before.counts})}
        lanes = self._topology.lanes
        left = {path: left_of(progress, epoch_pass, path, lanes) for path in progress.cuts()}
        return Base(
            time=self._time(epoch_pass),
            excess={path: value for path, value in excess.items() if value},
            counts={path: numbers for path, numbers in counts.items() if any(numbers)},
            left={path: leftovers for path, leftovers in left.items() if leftovers},
        )

    def _excess(self, node: Node, epoch_pass: int, before: Mapping[str, float]) -> dict[str, float]:
        """How much more than its share the job gave of each source, since the mixture has its present weights."""
        since = self._progress.blended_since(node.path, self._tree, self._progress.newest + 1)
        # What was drawn under other weights is not made good; and in a finite mixture a source that has ended is owed
        # nothing, though it gives less than its share.
        if since > self._progress.newest or not node.dataset.cyclic:
            return {}
        paths = [child.path for child in node.children]
        given = {p: self._drawn(node, epoch_pass, p) - self._drawn(node, epoch_pass, p, since) for p in paths}
        shares, drawn = self._mean_shares(node, epoch_pass, since), sum(given.values())
        kept = before if since == min(self._progress.generations) else {}
        return {path: kept.get(path, 0.0) + given[path] - drawn * shares[path] for path in given}

    def _mean_shares(self, node: Node, epoch_pass: int, since: int) -> dict[str, float]:
        """The share of each source of a mixture, on average over the time since a generation of this deal."""
        if node.shares is None:
            weights = {child.path: float(node.weights[child.path]) for child in node.children}  # type: ignore[arg-type]
        else:
            begin, end = self._time(epoch_pass, since), self._time(epoch_pass)
            paths = enumerate(child.path for child in node.children)
            weights = {path: node.shares.grown(source, begin, 1.0, end - begin) for source, path in paths}
        total = sum(weights.values())
        return {path: weight / total if total else 0.0 for path, weight in weights.items()}

    def _time(self, epoch_pass: int, before: float = math.inf) -> float:
        """Samples (or cost) that the job had drawn of the top by now, or when a generation of this deal began."""
        sources = [path for path in self._progress.paths() if path and "." not in path]
        drawn = [self._drawn(self._top, epoch_pass, path, before) for path in sources]
        return self._progress.base(epoch_pass).time + sum(drawn)

    def _drawn(self, node: Node, epoch_pass: int, path: str, before: float = math.inf) -> float:
        """Samples (or cost) that all lanes together drew of a source of the mixture."""
        name = "draws" if node.dataset.cost is None else "cost"
        drawn: float = self._progress.last(epoch_pass, path, before)[name].sum().item()
        return drawn

    def in_words(self, lane: Lane, epoch_pass: int) -> str:
        """The change of size in one line, with a line for each rank of which nothing is known."""
        old = self._topology
        line = (
            f"states: written under {_counted(old.dp_size, 'rank')} with {_counted(old.num_workers, 'worker')} each; "
            f"{_counted(lane.dp_size, 'rank')} with {_counted(lane.num_workers, 'worker')} each "
            f"{'goes' if lane.dp_size == 1 else 'go'} on, in pass {epoch_pass}; what was left over is dealt out"
        )
        silent = [
            f"\nstates: they hold nothing of rank {rank} of {self._topology.dp_size}, which counts as one that "
            "delivered nothing: what it did deliver comes again"
            for rank in range(self._topology.dp_size)
            if rank not in self._progress.newest_passes
            and rank not in self._progress.idle
            and any(self._sharing(number, rank) for number in self.passes)  # of something that is not finished
        ]
        again = self.what_comes_again() or ("" if silent else "; nothing comes again")
        return line + again + "".join(silent)

    def what_comes_again(self) -> str:
        """Say how much of what yield functions gave is drawn anew."""
        joining = [node.path for node in self._top.walk() if node.is_mixture and node.dataset.customized_yield_fn]
        bursts = [(epoch_pass, path) for epoch_pass in self.passes for path in joining]
        given = np.concatenate([np.zeros(0, np.int64), *(self._progress.last(*burst)["given"] for burst in bursts)])
        if not given.any():
            return ""
        return (
            f"; {np.count_nonzero(given)} open bursts of customized_yield_fn are drawn anew: of what they gave, "
            f"{given.sum()} samples come again, from the same records"
        )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
