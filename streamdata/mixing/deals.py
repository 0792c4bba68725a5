"""Deals the sources of a tree out to the lanes of a run.

1. states, a pass, number of lanes → `Deals` → the blocks of each lane
2. states of another number of ranks or workers → `begin_deal` → what the lanes of the present one begin with
"""

import math
from typing import Final

from streamdata.errors import StateError, counted, shown
from streamdata.mixing.tree import Node
from streamdata.run import Lane
from streamdata.sources import Deal, DealtLane, DealtSource
from streamdata.sources.foreign.own_stream import OwnStreamSource
from streamdata.states.headers import Base, DealHeader, Leftovers, Tree
from streamdata.states.progress import Progress, history_of, share_out, totals_of_nodes
from streamdata.states.table import COUNTS


class Deals:
    """How the sources of a tree are dealt to the lanes in one pass.

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
        """The share that one lane has of a source of records."""
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

    def sharing(self, top: Node, rank: int, num_workers: int) -> list[int]:
        """The workers of a rank that have a share of the pass in the tree `top`."""
        workers = range(num_workers)
        if top.is_endless:  # not found anew for each of thousands of lanes
            return list(workers)
        return [worker for worker in workers if self.has_share(top, rank * num_workers + worker)]

    def least_samples(self, node: Node, lane: int) -> float | None:
        """The least number of samples that a lane gets from a node in a whole pass; None without a share.

        A block has a record, and a function gives something. Leftovers are not counted.
        """
        if isinstance(node.source, OwnStreamSource):
            return 0
        if node.source is not None:
            dealt = self.lane(node, lane)
            if not dealt.has_records():
                return None
            least: float = dealt.order.share(0) if node.part is None else any(dealt.counts(dealt.start) or ())
            if any(getattr(node.dataset, name, None) for name in ("single_process_fn", "process_fn", "max_bad")):
                least = 0 if self._progress.before.number else min(least, 1)  # what a size left may all give nothing
            return least
        if node.is_endless:
            return math.inf
        # Sources that were not there all the time may have given nothing.
        headers = self._progress.headers.values()
        there = (child for child in node.children if all(child.path in header["nodes"] for header in headers))
        found = [count for child in there if (count := self.least_samples(child, lane)) is not None]
        # Under first_exhausted it ends when some source has: at worst the shortest, with nothing drawn of the others.
        # A source of which the lane has no share is left out there, and ends nothing.
        least = min(found, default=0) if node.dataset.stop == "first_exhausted" else sum(found)
        least = least if node.dataset.customized_yield_fn is None else min(least, 1)
        return least if found else None

    def counts(self, path: str, lane: int) -> list[int]:
        """The initial values of a node's `COUNTS` in a lane; over all lanes they add up to those of earlier sizes."""
        counted = self._base.counts.get(path)
        return [share_out(total, self._lanes, lane) for total in counted] if counted else [0] * len(COUNTS)


_MAX_LINES: Final = 20
"""Kept of earlier generations."""


def begin_deal(progress: Progress, top: Node, tree: Tree, lane: Lane) -> tuple[Progress, str]:
    """Deal out what is left of every source, for a new number of ranks and workers.

    Args:
        progress: The states, showing the size that ends.
        top: The present tree.
        tree: The present tree, as headers store it.
        lane: A lane of the next size; its numbers of ranks and workers count.

    Returns:
        The states, showing the next size; and in words what happened.

    Raises:
        StateError: A source is an iterable, of which nobody knows what is left.
    """
    # One of which the states hold nothing was not there, and has nothing left over.
    known, old = progress.paths(), progress.topology()
    written = f"{counted(old.dp_size, 'rank')} with {counted(old.num_workers, 'worker')} each"
    present = f"{counted(lane.dp_size, 'rank')} with {counted(lane.num_workers, 'worker')} each"
    for node in top.walk():
        if isinstance(node.source, OwnStreamSource) and node.path in known:
            raise StateError(
                f"source {shown(node.path)} ({type(node.dataset).__name__}): expected the topology of the states, "
                f"{written}, got {present}: it is not elastic, since only the iterable itself knows which of its "
                "records each lane has not read\n"
                f"  Resume with dp_size={old.dp_size} and num_workers={old.num_workers}, or take the source out."
            )
    header = header_of(progress, top, tree)
    goes_on = f"{present} {'goes' if lane.dp_size == 1 else 'go'} on, in pass {header.first_pass}"
    what_comes_again = _Ending(progress, top, tree).what_comes_again()
    change = f"states: written under {written}; {goes_on}; what was left over is dealt out{what_comes_again}"
    return progress.under_next_size(header), change


def header_of(progress: Progress, top: Node, tree: Tree) -> DealHeader:
    """The header from which any next size goes on, computed once for given states."""
    if progress.next_deal is None or progress.next_deal[0] != tree:
        progress.next_deal = tree, _Ending(progress, top, tree).header()
    return progress.next_deal[1]


class _Ending:
    """The size that ends. Nothing of it depends on the next one."""

    def __init__(self, progress: Progress, top: Node, tree: Tree) -> None:
        self._progress, self._top, self._tree = progress, top, tree
        self._topology = progress.topology()
        self._deals: dict[int, Deals] = {}
        known, before = {*progress.passes, *progress.before.passes}, progress.before.first_pass
        if top.is_endless:
            # One is left, by `set_epoch`, for another; a rank that delivered nothing is where the others are.
            ended, first = set(), min(progress.newest_passes.values(), default=before)
        else:
            ended = {number for number in known if self._has_ended(number)}
            # Not by ranks: one that delivered nothing may have no share of the oldest, and a share of the next.
            first = min(known - ended, default=max(known, default=before - 1) + 1)
        self.finished = sorted({*progress.before.finished, *ended})
        """The passes of which nothing is left."""
        self.first_pass = first
        """The oldest pass that some lane has not finished."""
        begun = {number for number in known - ended if number >= self.first_pass or not top.is_endless}
        self.passes = sorted({*begun, self.first_pass})
        """The passes of which something was delivered and something is left, and the one to go on with."""

    def header(self) -> DealHeader:
        """Compute the header from which the next size goes on."""
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

    def _has_ended(self, epoch_pass: int) -> bool:
        ranks = range(self._topology.dp_size)
        return all(self._progress.has_ended(epoch_pass, rank, self._sharing(epoch_pass, rank)) for rank in ranks)

    def _sharing(self, epoch_pass: int, rank: int) -> list[int]:
        """The workers of the rank that have a share of the pass."""
        if epoch_pass not in self._deals:  # once for all ranks
            self._deals[epoch_pass] = Deals(self._progress, epoch_pass, self._topology.lanes)
        return self._deals[epoch_pass].sharing(self._top, rank, self._topology.num_workers)

    def _base(self, epoch_pass: int) -> Base:
        """The job's progress in a pass, over all lanes."""
        progress, before = self._progress, self._progress.base(epoch_pass)
        excess: dict[str, float] = {}
        # In a finite mixture a source that has ended is owed nothing, though it gives less than its share.
        for node in (node for node in self._top.walk() if node.is_mixture and node.dataset.cyclic):
            since = progress.blended_since(node.path, self._tree, progress.newest + 1)
            # What was drawn under other weights is not made good, nor what nobody knows.
            if since > progress.newest or since < progress.known_since:
                continue
            paths = [child.path for child in node.children]
            given = {p: self._drawn(node, epoch_pass, p) - self._drawn(node, epoch_pass, p, since) for p in paths}
            shares, drawn = self._mean_shares(node, epoch_pass, since), sum(given.values())
            kept = before.excess if since == min(progress.generations) else {}
            excess |= {path: kept.get(path, 0.0) + given[path] - drawn * shares[path] for path in paths}
        # Of sources that are not there at present, too: they may return.
        counts = {path: progress.counts(epoch_pass, path) for path in sorted({*progress.paths(), *before.counts})}
        left = dict(before.left)
        for path, cut in progress.cuts().items():
            last, is_over = progress.last(epoch_pass, path), progress.is_over(epoch_pass, path)
            if (last.is_held | is_over).any():  # else it is absent, or was not drawn
                deal = Deal(path, cut, epoch_pass, self._topology.lanes, left.get(path, Leftovers()))
                left[path] = deal.left_by(last, is_over)
        return Base(
            time=self._time(epoch_pass),
            excess={path: value for path, value in excess.items() if value},
            counts={path: numbers for path, numbers in counts.items() if any(numbers)},
            left={path: leftovers for path, leftovers in left.items() if leftovers},
        )

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

    def what_comes_again(self) -> str:
        """Describe what is delivered again: what yield functions had pulled, and ranks whose states are missing.

        Nothing else comes again.
        """
        silent = [
            f"\nstates: they hold nothing of rank {rank} of {self._topology.dp_size}, which counts as one that "
            "delivered nothing: what it did deliver comes again"
            for rank in range(self._topology.dp_size)
            if rank not in self._progress.newest_passes
            and rank not in self._progress.idle
            and any(self._sharing(number, rank) for number in self.passes)  # of something that is not finished
        ]
        joining = [node.path for node in self._top.walk() if node.is_mixture and node.dataset.customized_yield_fn]
        bursts = [(epoch_pass, path) for epoch_pass in self.passes for path in joining]
        again, progress = "" if silent else "; nothing comes again", self._progress
        if given := [n for burst in bursts for n in progress.last(*burst)["given"][~progress.is_over(*burst)] if n]:
            again = (
                f"; {len(given)} open bursts of customized_yield_fn are drawn anew: of what they gave, {sum(given)} "
                "samples come again, from the same records; of a record that was cut into pieces, earlier ones too"
            )
        return again + "".join(silent)
