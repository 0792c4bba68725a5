"""A checkpoint as one run sees it: whether it fits, and where each node of the tree stands in each lane."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from streamdata.errors import StateError, names_text, shown
from streamdata.progress.columns import CursorColumns
from streamdata.progress.cursor import LaneKey
from streamdata.progress.cursor_table import Group
from streamdata.progress.deal_header import DEAL, Base, DealHeader
from streamdata.progress.entries import Entries
from streamdata.progress.finals import Column, Finals, finals_of
from streamdata.progress.header import Topology, Tree
from streamdata.progress.lane_entries import LaneEntries
from streamdata.progress.leftovers import BlockCut
from streamdata.progress.remedies import remedy_for_order
from streamdata.recipe.percent import Weight
from streamdata.run import Lane


class Progress:
    """What `to_state` collected, checked: the entries of one size of the run, and a header of what was before it.

    Args:
        states: The collected dict, of this rank or of all ranks together. Empty means a fresh start.

    Raises:
        StateError: It was not written by `to_state`; the message names the first key that does not fit.
    """

    def __init__(self, states: Mapping[str, Any]) -> None:
        if not isinstance(states, Mapping):
            raise StateError(f"states: expected the dict that to_state fills, got {type(states).__name__}")
        self.entries = Entries(states)
        self._headers = self.entries.headers
        self.before: DealHeader = self.entries.deal
        """What the sizes before came to."""
        self._cache: dict[Any, Any] = {}
        """What was computed of the entries."""

    def __bool__(self) -> bool:
        return bool(self._headers)

    @property
    def newest(self) -> int:
        """The newest generation."""
        return max(self._headers)

    @property
    def is_begun(self) -> bool:
        """Whether something was delivered since the size last changed."""
        return bool(self._headers) and self.before.number <= self.newest

    @property
    def generations(self) -> set[int]:
        """Those of the present size."""
        return set(self._headers) if self.is_begun else set()

    def header(self, generation: int) -> Mapping[str, Any]:
        """What is written of a generation."""
        return self._headers[generation]

    def num_batches_in(self, generation: int) -> int:
        """How many batches all lanes together delivered in a generation."""
        return sum(self._batches_by_rank(generation + 1).values()) - sum(self._batches_by_rank(generation).values())

    def step(self, generation: int | None = None) -> int:
        """How many batches the furthest rank had delivered when a generation began, or has by now."""
        batches = self._batches_by_rank(math.inf if generation is None else generation)
        return self.before.step + max(batches.values(), default=0)

    def batches_of_rank(self, lane: Lane) -> int:
        """How many batches the rank of a lane has delivered since the run began, over all passes.

        What was delivered before the size last changed counts as that of the furthest rank then: ranks that train
        together have all delivered as many.

        Raises:
            StateError: Its batches were not counted.
        """
        if not self.is_under(lane):
            return self.step()
        held = [self.num_batches(epoch_pass) for epoch_pass in self.passes()]
        counts = [lanes.get(lane.dp_rank * lane.num_workers + w, 0) for lanes in held for w in range(lane.num_workers)]
        if None in counts:
            raise StateError(
                f"states: they do not say how many batches rank {lane.dp_rank} delivered, which its place in a "
                "stretch follows from\n  Collate with TensorCollate or mixed_collate, which count them."
            )
        return self.before.step + sum(count for count in counts if count is not None)

    def _batches_by_rank(self, before: float) -> dict[int, int]:
        """What each rank had delivered in all passes, before a generation began."""
        batches: dict[int, int] = {}
        for generations in self.entries.facts.values() if self.is_begun else ():
            for lane, facts in _newest_by_lane(generations, before).items():
                rank = lane // self.topology().num_workers
                batches[rank] = batches.get(rank, 0) + facts.get("batches", 0)
        return batches

    def is_idle(self, dp_rank: int) -> bool:
        """Whether saving or gathering recorded that the rank delivered nothing since the size last changed."""
        return any((generation, dp_rank) in self.entries.idle for generation in self.generations)

    def topology(self) -> Topology:
        """That of the newest generation."""
        return self.entries.topology(self.newest)

    def is_under(self, lane: Lane) -> bool:
        """Whether the newest generation has the topology of this run, or there is none."""
        return not self._headers or self.topology() == (lane.dp_size, lane.num_workers)

    def begin_deal(self, header: DealHeader) -> "Progress":
        """The same states at the beginning of another size, under which nothing was delivered yet.

        Args:
            header: What they came to.
        """
        progress = copy(self)
        progress.before, progress._cache = header, {}  # noqa: SLF001  (its own)
        return progress

    def once(self, tree: Tree, make: Callable[[], DealHeader]) -> DealHeader:
        """What `make` gives for a tree, made once."""
        if self._cache.get("header", (None, None))[0] != tree:
            self._cache["header"] = tree, make()
            # Of thousands of lanes these are hundreds of megabytes, and no other question needs all of them.
            for key in [key for key in self._cache if key[0] == "finals"]:
                del self._cache[key]
        header: DealHeader = self._cache["header"][1]
        return header

    def without_cursors(self, epoch_pass: int) -> "Progress":
        """The same generations, as if nothing of the pass had been delivered, under this size and earlier ones."""
        # The headers stay, so that generations count on: states of the pass before may still be in the trainer's dict.
        before = self.entries.deal
        states = {f"generation/{number}": header for number, header in self._headers.items()}
        if before.number:
            states[f"{DEAL}{before.number}"] = before.as_json()
        progress = Progress(states)
        # Without its base the pass is dealt out anew, as if no size had begun it.
        passes = {number: base for number, base in self.before.passes.items() if number != epoch_pass}
        finished = [number for number in self.before.finished if number != epoch_pass]
        progress.before = replace(self.before, passes=passes, finished=finished)
        return progress

    @property
    def first_pass(self) -> int:
        """The pass to begin with under this size: the oldest that was not finished before."""
        return self.before.first_pass

    def is_finished(self, epoch_pass: int) -> bool:
        """Whether nothing of the pass was left when this size began.

        Raises:
            StateError: Nobody knows.
        """
        # To begin it anew would deliver again what was delivered; to go on is impossible.
        if self.before.is_endless and epoch_pass < self.first_pass:
            raise StateError(
                f"set_epoch({epoch_pass}): the number of ranks or workers has changed in pass {self.first_pass} of an "
                "endless stream, and nothing is known of what was left of passes before it\n"
                f"  Go on with pass {self.first_pass} or a later one, or start without states."
            )
        return epoch_pass in self.before.finished

    def base(self, epoch_pass: int) -> Base:
        """What earlier sizes had come to in the pass."""
        return self.before.passes.get(epoch_pass, Base())

    def finals(self, epoch_pass: int, path: str, before: float = math.inf) -> Finals:
        """Where the lanes stood in a node, by the last entry of each; if so, before a generation."""
        key = "finals", epoch_pass, path, before
        if key not in self._cache:
            cursors, over = self._cursors(epoch_pass, path, before), self._lanes_over(epoch_pass, path)
            self._cache[key] = finals_of(self.topology().lanes, cursors, over)
        finals: Finals = self._cache[key]
        return finals

    def _lanes_over(self, epoch_pass: int, path: str) -> list[int]:
        """The lanes that have ended the pass while the node was there: what is left of it is not theirs."""
        if ("ended", epoch_pass) not in self._cache:
            generations: dict[int, int] = {}
            for generation, lanes in sorted(self.entries.facts[epoch_pass].items()):
                generations |= dict.fromkeys(lanes, generation)
            ended = {lane for lane, facts in self._facts(epoch_pass).items() if facts.get("ended")}
            self._cache["ended", epoch_pass] = {lane: generations[lane] for lane in ended}
        # One that was absent may have joined since: of that the lane has read nothing.
        ended_in: dict[int, int] = self._cache["ended", epoch_pass]
        return [lane for lane, generation in ended_in.items() if path in self._headers[generation]["nodes"]]

    def _lanes_with_cursors(self, epoch_pass: int) -> set[int]:
        cursors = self.entries.columns.cursors()
        is_own = cursors["epoch_pass"] == epoch_pass
        lanes = cursors["rank"] * self.topology().num_workers + cursors["worker"]
        return set(np.unique(lanes[is_own]).tolist())

    def draws(self, epoch_pass: int, path: str) -> Column:
        """The draws of a node in each lane, int64 (L,): the same as in `finals`, without all else."""
        draws = np.zeros(self.topology().lanes, np.int64)
        for lanes, cursors in self._cursors(epoch_pass, path):
            draws[lanes] = cursors["draws"]
        return draws

    def _cursors(self, epoch_pass: int, path: str, before: float = math.inf) -> list[tuple[Column, CursorColumns]]:
        """The cursors of a node in the generations, oldest first, with the numbers of their lanes."""
        generations = sorted(number for number in self.generations if number < before)
        columns = self.entries.columns
        groups = [(number, columns.group(number, epoch_pass, path)) for number in generations]
        return [(self.entries.lanes(Group(number, epoch_pass, path)), group) for number, group in groups if group]

    def drawn(self, epoch_pass: int, path: str) -> dict[int, int]:
        """How many samples a mixture had drawn in each lane, by the lane's number, where it is known."""
        return _newest_by_lane(self.entries.drawn[epoch_pass].get(path, {})) if self.is_begun else {}

    def drawn_by_lane(self, epoch_pass: int, path: str, *, of_its_own: bool) -> Column:
        """How many samples a mixture had drawn in each lane, int64 (L,); -1 where that is not known.

        Args:
            epoch_pass: The pass.
            path: The mixture.
            of_its_own: Whether its own entry says it, else what came with its sources' entries.
        """
        if of_its_own:
            finals = self.finals(epoch_pass, path)
            return np.where(finals.is_held, finals.draws, -1)
        drawn = np.full(self.topology().lanes, -1, np.int64)
        held = self.drawn(epoch_pass, path)
        drawn[list(held)] = list(held.values())
        return drawn

    def has_facts(self, epoch_pass: int, lane: int | None = None) -> bool:
        """Whether something is said of a lane, or of all, beside where it stood."""
        facts = self._facts(epoch_pass)
        return lane in facts if lane is not None else self.num_batches(epoch_pass).keys() <= facts.keys()

    def is_ended_alone(self, epoch_pass: int, lane: int) -> bool:
        """Whether no more is held of a lane than that it has ended the pass: from its iterator in a later one."""
        return bool(self._facts(epoch_pass).get(lane) == {"ended": True})

    def mixtures(self, epoch_pass: int) -> list[str]:
        """The mixtures that say how many samples they had drawn."""
        return sorted(self.entries.drawn[epoch_pass])

    def passes(self) -> list[int]:
        """The passes of which something was delivered under this size."""
        return sorted({epoch_pass for epoch_pass, _ in self._last_workers()})

    def newest_pass(self, dp_rank: int) -> int | None:
        """The latest pass (see `set_epoch`) of which the rank delivered something; None if it delivered nothing."""
        if "newest passes" not in self._cache:
            self._cache["newest passes"] = {rank: epoch_pass for epoch_pass, rank in sorted(self._last_workers())}
        newest: int | None = self._cache["newest passes"].get(dp_rank)
        return newest

    def has_ended(self, epoch_pass: int, dp_rank: int, workers: Iterable[int]) -> bool:
        """Whether each of these lanes of the rank has delivered its last sample of the pass."""
        facts, num_workers = self._facts(epoch_pass), self.topology().num_workers
        return all(facts.get(dp_rank * num_workers + worker, {}).get("ended", False) for worker in workers)

    def has_given_all(self, key: LaneKey, tree: Tree) -> bool:
        """Whether the lane has delivered its last sample of the pass, and no source was added to the tree since."""
        entries = self.lane(key)
        return entries.has_ended and tree.nodes.keys() <= self._headers[max(entries.facts)]["nodes"].keys()

    def lane(self, key: LaneKey) -> LaneEntries:
        """What is held of a lane."""
        entries = LaneEntries()
        if not self.is_begun:
            return entries
        own = key.dp_rank * self.topology().num_workers + key.worker
        table = self.entries.columns.table().cursors
        for generation, path, cursor in table.of_lane(key.epoch_pass, key.dp_rank, key.worker):
            entries.cursors.setdefault(path, {})[generation] = cursor
        for path, generations in self.entries.drawn[key.epoch_pass].items():
            if found := _of_lane(generations, own):
                entries.drawn[path] = found
        entries.facts = _of_lane(self.entries.facts[key.epoch_pass], own)
        return entries

    def paths_always_there(self) -> set[str]:
        """The nodes of all generations of this size."""
        trees = [set(self._headers[number]["nodes"]) for number in self.generations]
        return set.intersection(*trees) if trees else set()

    def paths(self) -> set[str]:
        """The nodes of which an entry is held."""
        return self.entries.paths() if self.is_begun else set()

    def num_batches(self, epoch_pass: int) -> Mapping[int, int | None]:
        """Batches delivered by each lane of which something is held, by its number; None where nobody counted them."""
        if not self.is_begun:
            return {}
        if ("batches", epoch_pass) not in self._cache:
            own = self._lanes_with_cursors(epoch_pass)
            drawn = [_newest_by_lane(held) for held in self.entries.drawn[epoch_pass].values()]
            facts = self._facts(epoch_pass)
            held = {lane: facts.get(lane, {}).get("batches") for lane in itertools.chain(own, *drawn, facts)}
            self._cache["batches", epoch_pass] = held
        batches: Mapping[int, int | None] = self._cache["batches", epoch_pass]
        return batches

    def batches_before(self, key: LaneKey) -> int | None:
        """How many batches the lane has delivered; None where a lane of its rank did not count them."""
        if not self.is_begun:
            return 0
        num_workers = self.topology().num_workers
        lanes = self.num_batches(key.epoch_pass)
        first = key.dp_rank * num_workers
        held = {worker: lanes[first + worker] for worker in range(num_workers) if first + worker in lanes}
        return None if None in held.values() else held.get(key.worker, 0)

    def newest_tree(self) -> Tree | None:
        """The tree of the newest generation, if there is one."""
        return self._tree(self.newest) if self._headers else None

    def generation(self, tree: Tree) -> int:
        """Number the present generation: the newest one's, or the next where size, sources or weights differ."""
        if not self._headers:
            return self.before.number
        written = self._tree(self.newest)
        is_same = written.nodes.keys() == tree.nodes.keys() and written.weights == tree.weights
        return self.newest if is_same and self.is_begun else self.newest + 1

    def blended_since(self, path: str, tree: Tree, present: int) -> int:
        """The generation of this size since which the mixture at the path has had these sources with these weights."""
        return self._since(present, lambda generation: self._tree(generation).blend(path) == tree.blend(path))

    def blend_in(self, path: str, generation: int) -> Mapping[str, Weight]:
        """The sources of the mixture at the path with their weights, in a generation."""
        return self._tree(generation).blend(path)

    def blend_before(self, path: str, generation: int) -> Mapping[str, Weight]:
        """The same in the generation before that one."""
        # Not that number less one: generations of which no rank delivered anything may be missing.
        return self.blend_in(path, max(number for number in self._headers if number < generation))

    def draws_alike(self, path: str, tree: Tree, generation: int) -> bool:
        """Whether what is below the mixture at the path is the same as it was in the generation, weights too."""
        return self._tree(generation).below(path) == tree.below(path)

    def cuts(self) -> dict[str, BlockCut]:
        """How each source was divided that was ever there."""
        cuts = dict(self.before.cuts)
        for _, header in sorted(self._headers.items()):
            cuts |= {path: BlockCut(*cut) for path, cut in header["cuts"].items()}
        return cuts

    def nodes(self) -> dict[str, str]:
        """What determined the order of each node that was ever there, as it was when it was last there."""
        nodes = dict(self.before.nodes)
        for _, header in sorted(self._headers.items()):
            nodes |= header["nodes"]
        return nodes

    def check_nodes(self, nodes: Mapping[str, str]) -> None:
        """Compare the tree of these states with the present one: sources may join and leave, what stays may not change.

        Raises:
            StateError: A node's order differs (records, blocks, seed, shuffling), or no source is common.
        """
        if not self._headers:
            return
        # A source that left and returns must not have changed either.
        written = self.nodes()
        if not (written.keys() & nodes.keys()) - {""}:
            raise StateError(
                f"states: written for another dataset, with the sources {names_text(written)}; "
                f"this one has {names_text(nodes)}\n"
                "  Resume with the recipe that wrote them, or start without states."
            )
        for path in nodes:
            if path in written and written[path] != nodes[path]:
                who = f"source {shown(path)}" if path else "the mixture"
                raise StateError(
                    f"states: {who} has another order than when they were written\n"
                    f"  expected {written[path]}\n  got      {nodes[path]}\n"
                    f"  {remedy_for_order(written[path], nodes[path])}, or start without states."
                )

    def lacks_rank(self, epoch_pass: int | None, dp_rank: int) -> bool:
        """Whether other ranks have delivered something of the pass that was set, or of any, and this one nothing."""
        # Without entries it would begin at the start, and deliver again what others, or it itself, had delivered.
        if dp_rank in self.ranks() or self.is_idle(dp_rank):
            return False
        return any(epoch_pass in (None, held) for held, _ in self._last_workers())

    def ranks(self) -> list[int]:
        """The ranks of which something is held."""
        return sorted({rank for _, rank in self._last_workers()})

    def last_worker(self, epoch_pass: int, dp_rank: int) -> int | None:
        """The worker that delivered the rank's last batch; None if none did."""
        return self._last_workers().get((epoch_pass, dp_rank))

    def member_since(self, path: str, present: int) -> int:
        """The generation of this size with which the node joined, the last time; `present` if it joins now."""
        return self._since(present, lambda generation: path in self._headers[generation]["nodes"])

    def _since(self, present: int, holds: Callable[[int], bool]) -> int:
        """The first of the generations, up to the newest, in all of which something holds; else `present`."""
        newest_first = itertools.takewhile(holds, sorted(self.generations, reverse=True))
        return min(newest_first, default=present)

    def _tree(self, generation: int) -> Tree:
        written = self._headers[generation]
        return Tree(written["nodes"], written["weights"])

    def _last_workers(self) -> dict[tuple[int, int], int]:
        """By pass and rank: the worker that delivered last."""
        if "workers" not in self._cache:
            # The newest generation's: a rank may have gone on with other weights since.
            held = self.entries.workers if self.is_begun else {}
            self._cache["workers"] = {key: newest[max(newest)] for key, newest in held.items()}
        workers: dict[tuple[int, int], int] = self._cache["workers"]
        return workers

    def _facts(self, epoch_pass: int) -> dict[int, Any]:
        """By the number of the lane, what is said of it."""
        if not self.is_begun:
            return {}
        if ("facts", epoch_pass) not in self._cache:
            self._cache["facts", epoch_pass] = _newest_by_lane(self.entries.facts[epoch_pass])
        facts: dict[int, Any] = self._cache["facts", epoch_pass]
        return facts


def _of_lane(generations: Mapping[int, Mapping[int, Any]], lane: int) -> dict[int, Any]:
    return {number: lanes[lane] for number, lanes in generations.items() if lane in lanes}


def _newest_by_lane(generations: Mapping[int, Mapping[int, Any]], before: float = math.inf) -> dict[int, Any]:
    newest: dict[int, Any] = {}
    for number in sorted(generations):
        if number < before:
            newest |= generations[number]
    return newest
