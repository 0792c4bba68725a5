"""States as one run sees them: whether they are whole, where each node stands in each lane, and what was delivered."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamdata.errors import StateError
from streamdata.run import Lane
from streamdata.run.lane_link import Batches
from streamdata.states.cursor import LaneEntries, LaneKey, not_states, not_there
from streamdata.states.headers import DAMAGE, DEAL, Base, BlockCut, DealHeader, Topology, Tree, check_one_run, read_deal
from streamdata.states.table import COUNTS, POSITION, ROW, Column, Rows, StatesTable, owner_of, table_of


class LastCursors:
    """The last cursors of all lanes in a node and a pass, as columns (L,); 0 for lanes without one.

    Args:
        rows: Cursors.
        row_of: The row of each lane's last one, -1 of a lane without one, int64 (L,).
    """

    def __init__(self, rows: Rows, row_of: Column) -> None:
        self._rows, self._row_of, self.is_held = rows, row_of, row_of >= 0
        """Whether there is one, bool (L,)."""

    def __getitem__(self, name: str) -> Column:
        column = np.zeros((len(self.is_held), *ROW[name].shape), ROW[name].base)
        column[self.is_held] = self._rows[name][self._row_of[self.is_held]]
        return column

    @property
    def position(self) -> npt.NDArray[np.int64]:
        """Epoch, window, taken and output, int64 (L, 4)."""
        return np.stack([self[name] for name in POSITION], axis=1)


class Progress:
    """Checked states of one size of the run, with the header of earlier sizes.

    Args:
        states: The collected dict, of this rank or of all ranks together. Empty means a fresh start.

    Raises:
        StateError: The states were not written by `to_state`; the message names the first key that does not fit.
    """

    def __init__(self, states: Mapping[str, Any]) -> None:
        self.table: StatesTable = table_of(states).present()
        """The entries that count."""
        self.headers: Mapping[int, Mapping[str, Any]] = {}
        """Headers of the generations of the present size, ascending."""
        self.before = DealHeader()
        """Deliveries and leftovers of the run when its size last changed."""
        self.next_deal: tuple[Tree, DealHeader] | None = None
        """The header that another size goes on from, with the present tree that it was computed for."""
        self.last_workers: dict[tuple[int, int], int] = {}
        """The worker that delivered last, by pass and rank."""
        self.newest_passes: dict[int, int] = {}
        """The latest pass (see `set_epoch`) of which each rank delivered something; without ranks that delivered
        nothing."""
        self.passes: list[int] = []
        """The passes of which something was delivered under this size, ascending."""
        self.uneven: dict[tuple[int, int, int], Mapping[str, int]] = {}
        """Counts that no cursor has of ranks that `StreamLoader(uneven=…)` evened out, by generation, pass and rank:
        `batches` that were delivered beyond those that cursors count; of each node `padded/PATH`, `left_out/PATH` and
        `left_out_tokens/PATH`."""
        self.idle: set[int] = set()
        """The ranks of which saving and gathering recorded that they delivered nothing."""
        self._ends: dict[tuple[int, float], tuple[Column, list[Mapping[str, Mapping[str, int]]]]] = {}
        if self.table:
            self.headers = self.table.headers
            self._read_headers()
            self._read_lanes()

    def _read_headers(self) -> None:
        """Check that the headers belong together, and take over what was before them."""
        names = ("dp_size", "num_workers", "deal", "dealt")
        check_one_run((f"'generation/{n}'", {name: h[name] for name in names}) for n, h in self.headers.items())
        if not self.table.deal:
            return
        key = f"{DEAL}{self.table.deal}"
        try:
            self.before = read_deal(self.table.others.get(key), self.headers[self.newest]["dealt"])
        except DAMAGE as error:
            raise StateError(
                f"states: expected the header {key}, of what was delivered before the number of ranks or workers "
                f"changed, got {'another one' if key in self.table.others else 'none'}\n"
                "  Call states.update(to_state(batch)) from the first batch after a resume on, and save the whole dict."
            ) from error

    def _read_lanes(self) -> None:
        """Take over who delivered last, and who nothing; refuse lanes that were not there."""
        of_ranks = [(own, value) for key, value in self.table.others.items() if (own := owner_of(key)).rank >= 0]
        self.last_workers = {(own.epoch_pass, own.rank): value for own, value in of_ranks if own.kind == "worker"}
        self.uneven = {own[1:]: value for own, value in of_ranks if own.kind == "uneven"}
        self.idle = {own.rank for own, _ in of_ranks if own.kind == "idle"}
        for own, value in of_ranks:
            self._check_lane(own.generation, own.rank, value if own.kind == "worker" else 0)
        self.newest_passes = {rank: epoch_pass for epoch_pass, rank in sorted(self.last_workers)}
        self.passes = sorted({epoch_pass for epoch_pass, _ in self.last_workers})
        for (number, epoch_pass, path), of_node in self.table.groups.items():
            rows = self.table.rows[of_node]
            self._check_lane(number, int(rows["rank"].max()), int(rows["worker"].max()))
            ranks = np.unique(rows["rank"]).tolist() if not path else ()
            if missing := [rank for rank in ranks if (epoch_pass, rank) not in self.last_workers]:
                raise not_there(f"worker/…/{epoch_pass}/{missing[0]}")
        rows = self.table.rows
        # Below 0 are leftovers, and the clocks of what is owed: a first size has none.
        wrong = (rows["window"] < 0) | (rows["clock"] < 0) | (rows["pulled"][:, 1] < -1)
        if wrong.any() and not self.before.number:
            for key, value in self.table.select(wrong, lambda _: False).as_dict().items():
                raise not_states(key, value, "expected numbers >= 0")

    def _check_lane(self, generation: int, rank: int, worker: int) -> None:
        if generation not in self.headers:
            raise not_there(f"generation/{generation}")
        dp_size, num_workers = self.topology()
        if rank >= dp_size or worker >= num_workers:
            raise StateError(
                f"states: an entry of rank {rank}, worker {worker} in generation {generation}, "
                f"which had dp_size={dp_size} and num_workers={num_workers}\n  Restore the states as they were saved."
            )

    def __bool__(self) -> bool:
        return bool(self.headers)

    @property
    def newest(self) -> int:
        """The number of the newest generation."""
        return max(self.headers)

    @property
    def generations(self) -> list[int]:
        """The generations of the present size, ascending; empty if nothing was delivered since it changed."""
        return list(self.headers) if self.headers and self.before.number <= self.newest else []

    @cached_property
    def known_since(self) -> int:
        """The first generation of this size of which states say how it began.

        Earlier ones are left out once weights were set since.
        """
        if not self.generations:
            return self.before.number
        # What was set may be forgotten since, and its headers gone: that some are missing shows by the numbers.
        is_whole = len(self.generations) == self.newest + 1 - self.before.number
        if is_whole and not any("set_percents" in header for header in self.headers.values()):
            return self.before.number
        of_lanes: defaultdict[LaneKey, list[int]] = defaultdict(list)
        for (number, epoch_pass, path), of_node in self.table.groups.items():
            for lane in self.table.rows[of_node][["rank", "worker"]].tolist() if not path else ():
                of_lanes[LaneKey(epoch_pass, *lane)].append(number)
        # Of a lane that has left out some, two are there.
        firsts = [number for number, *more in of_lanes.values() if more and number > self.before.number]
        return 1 + max(firsts, default=self.before.number - 1)

    def topology(self) -> Topology:
        """The number of ranks and workers in the newest generation."""
        newest = self.headers[self.newest]
        return Topology(newest["dp_size"], newest["num_workers"])

    def is_under(self, lane: Lane) -> bool:
        """Whether the newest generation has this run's topology; true if there is none."""
        return not self.headers or self.topology() == (lane.dp_size, lane.num_workers)

    def under_next_size(self, header: DealHeader) -> "Progress":
        """Return a copy at the start of another size, under which nothing was delivered yet.

        Args:
            header: What the run has come to so far.
        """
        progress = Progress({})
        # The headers stay, so that generations count on: older states may still be in the trainer's dict.
        progress.table, progress.headers = self.table.only_headers(), self.headers
        progress.before, progress.next_deal = header, self.next_deal
        return progress

    def without_cursors(self, epoch_pass: int) -> "Progress":
        """Return a copy in which nothing of the pass was delivered, neither under this size nor under earlier ones."""
        # Without its base the pass is dealt out anew, as if no size had begun it.
        passes = {number: base for number, base in self.before.passes.items() if number != epoch_pass}
        finished = [number for number in self.before.finished if number != epoch_pass]
        return self.under_next_size(replace(self.before, passes=passes, finished=finished))

    def step(self, generation: float = math.inf) -> int:
        """The batches that the furthest rank had delivered when a generation began; by default, has by now."""
        return self.before.step + (int(self.batches(generation).max()) if self.generations else 0)

    def batches(self, before: float = math.inf) -> npt.NDArray[np.int64]:
        """Batches delivered per rank under this size before a generation, in all passes; int64 (ranks,)."""
        total = np.zeros(self.topology().dp_size, np.int64)
        for epoch_pass in self.passes:
            total += self.last(epoch_pass, "", before)["batches"].reshape(len(total), -1).sum(axis=1)
        for (number, _, rank), counts in self.uneven.items():
            total[rank] += counts["batches"] if number < before else 0
        return total

    def batches_of_workers(self, epoch_pass: int, dp_rank: int) -> dict[int, int]:
        """The batches delivered by each worker of a rank that delivered any; 0 if they were not counted."""
        if not self.generations:
            return {}
        last, workers = self.last(epoch_pass, ""), self.topology().num_workers
        own = slice(dp_rank * workers, (dp_rank + 1) * workers)
        pairs = zip(last.is_held[own].tolist(), last["batches"][own].tolist(), strict=True)
        return {worker: batches for worker, (is_held, batches) in enumerate(pairs) if is_held}

    def batches_before(self, key: LaneKey) -> Batches | None:
        """The batches that the lane has delivered in the pass; None if a lane of its rank did not count them."""
        own = self.batches_of_workers(key.epoch_pass, key.dp_rank)
        if 0 in own.values():
            return None
        held = self.lane(key).cursors.get("")
        top: Mapping[str, Any] = held[max(held)] if held else {"draws": 0}
        return Batches(own.get(key.worker, 0), top["draws"], top.get("sizes", ()))

    def batches_of_rank(self, lane: Lane) -> int:
        """The batches that a lane's rank has delivered since the run began, over all passes.

        Before the size last changed, the furthest rank's batches count: ranks that train together have all delivered
        the same number.

        Raises:
            StateError: The rank's batches were not counted.
        """
        if not self.is_under(lane) or not self.generations:
            return self.step()
        if any(0 in self.batches_of_workers(epoch_pass, lane.dp_rank).values() for epoch_pass in self.passes):
            raise StateError(
                f"states: they do not say how many batches rank {lane.dp_rank} delivered, so it is not known "
                "what is left of its steps_per_epoch\n  Collate with TensorCollate or mixed_collate, which count them."
            )
        return self.before.step + int(self.batches()[lane.dp_rank])

    def base(self, epoch_pass: int) -> Base:
        """The progress that earlier sizes made in the pass."""
        return self.before.passes.get(epoch_pass, Base())

    def last(self, epoch_pass: int, path: str, before: float = math.inf) -> LastCursors:
        """The last cursor of each lane in a node, optionally before a generation."""
        rows, topology = self.table.rows, self.topology()
        row_of = np.full(topology.lanes, -1)
        for generation in self.generations:
            of_node = self.table.groups.get((generation, epoch_pass, path))
            if of_node is not None and generation < before:
                lanes = rows["rank"][of_node] * topology.num_workers + rows["worker"][of_node]
                row_of[lanes] = np.arange(of_node.start, of_node.stop)
        return LastCursors(rows, row_of)

    def is_over(self, epoch_pass: int, path: str) -> npt.NDArray[np.bool_]:
        """Whether each lane has ended the pass, so that nothing of its share of a node is left; bool (L,)."""
        # Of a node that joined since a lane has ended the pass, the lane has read nothing.
        there = [number for number in self.generations if path in self.headers[number]["nodes"]]
        return np.isin(self._ends_of(epoch_pass)[0], there)

    def counts(self, epoch_pass: int, path: str) -> list[int]:
        """The sums of a node's `COUNTS` over all lanes of a pass; lanes without a cursor add what they were dealt."""
        last, first = self.last(epoch_pass, path), self.base(epoch_pass).counts.get(path, (0, 0, 0, 0))
        tail = self.tail(epoch_pass, path)
        lanes, without = len(last.is_held), np.flatnonzero(~last.is_held).tolist()
        dealt = [sum(share_out(total, lanes, lane) for lane in without) if total else 0 for total in first]
        own = [int(last[name].sum()) + tail[name] for name in COUNTS]
        return [sum(numbers) for numbers in zip(own, dealt, strict=True)]

    def tail(self, epoch_pass: int, path: str, before: float = math.inf) -> Counter[str]:
        """The sums of a node's `tail` over the lanes, optionally before a generation."""
        total: Counter[str] = Counter()
        for tails in self._ends_of(epoch_pass, before)[1]:
            total.update(tails.get(path, {}))
        return total

    def _ends_of(
        self, epoch_pass: int, before: float = math.inf
    ) -> tuple[Column, list[Mapping[str, Mapping[str, int]]]]:
        """How lanes ended the pass; kept, since each node asks.

        Returns:
            The generation in which each lane has delivered its last sample, -1 where it has not, (L,); and the
            tails of lanes that have one, as of `Mark`.
        """
        if (epoch_pass, before) not in self._ends:
            tops = self.last(epoch_pass, "", before)
            tails = [fields["tail"] for fields in tops["rare"].tolist() if fields and "tail" in fields]
            self._ends[epoch_pass, before] = np.where(tops["ended"] > 0, tops["generation"], -1), tails
        return self._ends[epoch_pass, before]

    def has_ended(self, epoch_pass: int, dp_rank: int, workers: Iterable[int]) -> bool:
        """Whether each of the given lanes of the rank has delivered its last sample of the pass."""
        own = [dp_rank * self.topology().num_workers + worker for worker in workers]
        return bool((self._ends_of(epoch_pass)[0][own] >= 0).all())

    def has_given_all(self, key: LaneKey, tree: Tree) -> bool:
        """Whether nothing of the pass is left in a lane: it finished it, or ended it and no source was added since.

        Raises:
            StateError: Nobody knows.
        """
        # To begin it anew would deliver again what was delivered; to go on is impossible.
        first_pass = self.before.first_pass
        if self.before.is_endless and key.epoch_pass < first_pass:
            raise StateError(
                f"set_epoch({key.epoch_pass}): the number of ranks or workers has changed in pass {first_pass} of an "
                "endless stream, and nothing is known of what was left of passes before it\n"
                f"  Go on with pass {first_pass} or a later one, or start without states."
            )
        if key.epoch_pass in self.before.finished or not self.generations:
            return key.epoch_pass in self.before.finished
        ended_in = int(self._ends_of(key.epoch_pass)[0][key.dp_rank * self.topology().num_workers + key.worker])
        return ended_in >= 0 and tree.nodes.keys() <= self.headers[ended_in]["nodes"].keys()

    def lane(self, key: LaneKey) -> LaneEntries:
        """The entries of one lane."""
        return self.table.lane(*key) if self.table else LaneEntries()

    def paths(self) -> set[str]:
        """The paths of all nodes that have an entry, or counts in a lane's tail."""
        tails = (tail for epoch_pass in self.passes for tail in self._ends_of(epoch_pass)[1])
        return {*self.table.paths, *itertools.chain.from_iterable(tails)}

    def generation(self, tree: Tree) -> int:
        """The number of the present generation: the newest, or the next if size, sources or weights differ."""
        if not self.headers:
            return self.before.number
        written = self.tree(self.newest)
        is_same = written.nodes.keys() == tree.nodes.keys() and written.weights == tree.weights
        is_same = is_same and written.set_percents == tree.set_percents
        return self.newest if is_same and self.generations else self.newest + 1

    def tree(self, generation: int) -> Tree:
        """The tree of a generation, from its header."""
        return Tree.of(self.headers[generation])

    def cuts(self) -> dict[str, BlockCut]:
        """How each source that was ever in the run was cut into blocks."""
        written = {path: BlockCut(*cut) for header in self.headers.values() for path, cut in header["cuts"].items()}
        return {**self.before.cuts, **written}

    def nodes(self) -> dict[str, str]:
        """The description of the order of each node that was ever in the run, as it last was."""
        return dict(self.before.nodes) | {k: v for header in self.headers.values() for k, v in header["nodes"].items()}

    def blended_since(self, path: str, tree: Tree, present: int) -> int:
        """The first generation of this size since which the mixture at `path` has its present sources and weights."""
        return self._since(lambda generation: self.tree(generation).blend(path) == tree.blend(path), present)

    def member_since(self, path: str, present: int) -> int:
        """The generation of this size with which a node last joined; `present` if it joins now."""
        return self._since(lambda generation: path in self.headers[generation]["nodes"], present)

    def _since(self, holds: Callable[[int], bool], present: int) -> int:
        return min(itertools.takewhile(holds, reversed(self.generations)), default=present)


def share_out(total: int, parts: int, part: int) -> int:
    """The size of part number `part` when `total` is divided into `parts` sizes that differ by at most 1."""
    return total // parts + (part < total % parts)


def totals_of_nodes(progress: Progress) -> dict[str, dict[str, float]]:
    """Sum what was delivered from each node since the run began, over all ranks and passes.

    Returns:
        By path: `samples`, `tokens`, `cost`, the `COUNTS`, `left_out` and `padded`, without those that are 0.
    """
    # Over all passes: what earlier sizes delivered of any is in their header.
    totals = {path: dict(held) for path, held in progress.before.totals.items()}
    for epoch_pass in progress.passes:
        for path in progress.paths():
            last, tail = progress.last(epoch_pass, path), progress.tail(epoch_pass, path)
            if not path and not last["given"].any():  # a top without a function gives what its sources' entries say
                continue
            sums = (last[name].sum().item() + tail[name] for name in ("draws", "tokens", "cost"))
            given = dict(zip(("samples", "tokens", "cost"), sums, strict=True))
            first = progress.base(epoch_pass).counts.get(path, (0, 0, 0, 0))
            given |= zip(COUNTS, map(int.__sub__, progress.counts(epoch_pass, path), first), strict=True)
            total = totals.setdefault(path, {})
            total |= {name: total.get(name, 0) + value for name, value in given.items() if value}
        padded = (fields.get("padded", {}) for fields in progress.last(epoch_pass, "")["rare"].tolist() if fields)
        for path, number in itertools.chain.from_iterable(map(dict.items, padded)):
            totals[path] = added(totals.get(path, {}), {"padded": number})
    for counts in progress.uneven.values():
        for name, number in counts.items():
            kind, _, path = name.partition("/")
            totals[path] = added(totals.get(path, {}), _UNEVEN.get(kind, {}), number)
    return {path: total for path, total in totals.items() if total}


_UNEVEN: Final = {
    "left_out": {"left_out": 1, "samples": -1},
    "left_out_tokens": {"tokens": -1},
    "padded": {"padded": 1},
}
"""Totals that a count of `Progress.uneven` changes."""


def added(counts: Mapping[str, float], more: Mapping[str, float], times: int = 1) -> dict[str, Any]:
    """Add two mappings of counts, name by name; the second counts `times` times."""
    return {name: counts.get(name, 0) + more.get(name, 0) * times for name in dict.fromkeys((*counts, *more))}


def history_of(progress: Progress) -> list[Mapping[str, Any]]:
    """Describe the run's generations, oldest first.

    Returns:
        Of each its number, `step`, size, `weights`, what was drawn in it (`samples`, and `cost` where there is one),
        the `time` of schedules at its beginning, and `batch_size` where it is known.
    """
    lines = [*progress.before.sizes]
    for generation in (number for number in progress.generations if number >= progress.known_since):
        # Cursors count since the size began.
        (since, time), (until, _) = _drawn(progress, generation), _drawn(progress, generation + 1)
        line: dict[str, Any] = {"generation": generation, "step": progress.step(generation), "time": time}
        line["samples"] = until["draws"] - since["draws"]
        line |= {name: progress.headers[generation][name] for name in ("dp_size", "num_workers", "weights")}
        if cost := until["cost"] - since["cost"]:
            line["cost"] = cost
        # A whole batch, if there is one, of the latest pass.
        sizes = (size for epoch_pass in progress.passes for size in _last_sizes(progress, generation, epoch_pass))
        if largest := max(sizes, default=None):
            line["batch_size"] = largest[-1]
        lines.append(line)
    return lines


def _drawn(progress: Progress, before: int) -> tuple[Counter[str], float]:
    """Count what was drawn of the top mixture under this size before a generation.

    Returns:
        Its `draws` and `cost`; and the time of schedules then: what open bursts were given is not over, but drawn anew.
    """
    drawn, tails = Counter[str](), Counter[str]()
    for epoch_pass, path in itertools.product(progress.passes, progress.paths()):
        # What a yield function over all gave is made into batches, what its sources gave is drawn.
        if path and "." not in path:
            last = progress.last(epoch_pass, path, before)
            drawn.update(draws=last["draws"].sum().item(), cost=last["cost"].sum().item())
            tails.update(progress.tail(epoch_pass, path, before))
    time = progress.base(max(progress.passes, default=0)).time  # schedules begin anew in each pass: asked for of one
    return drawn + tails, time + (drawn["cost"] or drawn["draws"])


def _last_sizes(progress: Progress, generation: int, epoch_pass: int) -> Iterator[tuple[bool, int, int]]:
    """Yield of each lane's last batch of a generation in a pass whether it was a whole one, the pass, and its size.

    The last batch of a lane that has ended may be smaller: the one before it counts, if there is one.
    """
    after, before = (progress.last(epoch_pass, "", generation + more) for more in (1, 0))
    columns = (after["rare"], before["batches"].tolist(), after["batches"].tolist(), after["ended"].tolist())
    for fields, begin, end, has_ended in zip(*columns, strict=True):
        if end > begin:
            number = max(begin + 1, end - has_ended)
            counts = batches_by_size(fields.get("sizes", ()) if fields else (), number - 1, number)
            yield from ((number == end - has_ended, epoch_pass, size) for size in counts)


def batches_by_size(runs: Sequence[Sequence[int]], begin: int, end: int) -> dict[int, int]:
    """Count by size the batches of a lane after its first `begin`, up to number `end`.

    Args:
        runs: As of `Batches.sizes`.
        begin: How many are left out.
        end: The number of the last one, from 1.
    """
    counts: Counter[int] = Counter()
    for (first, size), (following, _) in itertools.pairwise([*runs, (end + 1, 0)]):
        counts[size] += max(0, min(following - 1, end) - max(first - 1, begin))
    return +counts
