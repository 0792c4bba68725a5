"""A checkpoint as one run sees it: whether it fits, and where each node of the tree stands in each lane."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Any

import numpy as np

from streamdata.errors import StateError, names_text, shown
from streamdata.progress.base import Base, earlier_deals
from streamdata.progress.checked import FORMAT
from streamdata.progress.columns import CursorColumns
from streamdata.progress.cursor import LaneKey
from streamdata.progress.cursor_table import Group
from streamdata.progress.entries import Entries
from streamdata.progress.finals import Column, Finals, finals_of
from streamdata.progress.header import BY_COST, OF_DEAL, Topology, Tree
from streamdata.progress.lane_entries import LaneEntries
from streamdata.progress.remedies import remedy_for_order
from streamdata.recipe.percent import Weight
from streamdata.run import Lane


class Progress:
    """What `to_state` collected, checked.

    It shows what belongs to one *deal*, all generations under one topology: at first the newest. No question passes a
    change of topology but those for `finals`, of which a change of topology makes what it deals out.

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
        newest: Mapping[str, Any] = self._headers[max(self._headers)] if self._headers else {}
        self.of_deal: dict[str, Any] = {name: newest[name] for name in OF_DEAL if name in newest} or {"deal": 0}
        """What the headers of the deal share; to be given to the header of its next generation."""
        self._cache: dict[Any, Any] = {}
        """What was computed of the entries, by what and of which deal."""

    def __bool__(self) -> bool:
        return bool(self._headers)

    @property
    def deal(self) -> int:
        """The generation with which the deal began that is shown."""
        number: int = self.of_deal["deal"]
        return number

    @property
    def newest(self) -> int:
        """The newest generation."""
        return max(self._headers)

    def deal_of(self, generation: int) -> int:
        """The deal that a generation belongs to."""
        deal: int = self._headers[generation].get("deal", 0)
        return deal

    def header(self, generation: int) -> Mapping[str, Any]:
        """What is written of a generation."""
        return self._headers[generation]

    def counts_before(self, deal: int, epoch_pass: int) -> Mapping[str, Any]:
        """By path, what the lanes of a deal together began to count from in a pass."""
        base: Mapping[str, Any] = self._headers[deal].get("base", {}).get(str(epoch_pass), {})
        counts: Mapping[str, Any] = base.get("counts", {})
        return counts

    def batches(self, deal: int, generation: int) -> int:
        """How many batches all lanes of a deal together delivered in a generation of it."""
        return sum(self._batches_by_rank(deal, generation + 1).values()) - sum(
            self._batches_by_rank(deal, generation).values()
        )

    def step(self, generation: int | None = None) -> int:
        """How many batches the furthest rank had delivered when a generation began, or has by now."""
        deal = self.deal_of(self.newest if generation is None else generation)
        first: int = self._headers[self.newest if generation is None else generation].get("step", 0)
        batches = self._batches_by_rank(deal, math.inf if generation is None else generation)
        return first + max(batches.values(), default=0)

    def batches_of_rank(self, lane: Lane) -> int:
        """How many batches the rank of a lane has delivered since the run began, over all passes.

        What was delivered before the topology last changed counts as that of the furthest rank then: ranks that train
        together have all delivered as many.

        Raises:
            StateError: Its batches were not counted.
        """
        if not self._headers:
            return 0
        if not self.is_under(lane):
            return self.step()
        first: int = self._headers[self.newest].get("step", 0)
        held = [self.num_batches(epoch_pass) for epoch_pass in self.passes()]
        counts = [lanes.get(lane.dp_rank * lane.num_workers + w, 0) for lanes in held for w in range(lane.num_workers)]
        if None in counts:
            raise StateError(
                f"states: they do not say how many batches rank {lane.dp_rank} delivered, which its place in a "
                "stretch follows from\n  Collate with TensorCollate or mixed_collate, which count them."
            )
        return first + sum(count for count in counts if count is not None)

    def _batches_by_rank(self, deal: int, before: float) -> dict[int, int]:
        """What each rank of a deal had delivered in all passes, before a generation of it began."""
        topology = self.topology(deal)
        batches: dict[int, int] = {}
        for generations in self.entries.facts.values():
            for lane, facts in self._newest_by_lane(generations, deal, before).items():
                rank = lane // topology.num_workers
                batches[rank] = batches.get(rank, 0) + facts.get("batches", 0)
        return batches

    def is_idle(self, dp_rank: int) -> bool:
        """Whether saving or gathering recorded that the rank delivered nothing in this deal."""
        generations = self.generations_of(self.deal)
        return any((generation, dp_rank) in self.entries.idle for generation in generations)

    def topology(self, deal: int | None = None) -> Topology:
        """That of a deal, or of the newest generation."""
        written = self._headers[max(self._headers) if deal is None else min(self.generations_of(deal))]
        return Topology(written["dp_size"], written["num_workers"])

    def is_under(self, lane: Lane) -> bool:
        """Whether the newest generation has the topology of this run, or there is none."""
        return not self._headers or self.topology() == (lane.dp_size, lane.num_workers)

    def begin_deal(self, of_deal: Mapping[str, Any]) -> "Progress":
        """The same states at the beginning of a deal, which has no entries yet.

        Args:
            of_deal: What the headers of its generations are to share.
        """
        progress = copy(self)
        progress.of_deal = {"deal": max(self._headers) + 1, **of_deal}
        return progress

    def without_cursors(self, epoch_pass: int) -> "Progress":
        """The same generations, as if nothing of the pass had been delivered, in this deal and in earlier ones."""
        # The headers stay, so that generations count on: states of the pass before may still be in the trainer's dict.
        progress = Progress({f"generation/{number}": header for number, header in self._headers.items()})
        base = {key: value for key, value in self.of_deal.get("base", {}).items() if key != str(epoch_pass)}
        progress.of_deal = {**self.of_deal, "base": base} if base else {**self.of_deal}
        if not base:
            progress.of_deal.pop("base", None)
        return progress

    @property
    def first_pass(self) -> int:
        """The pass to begin with in this deal: the oldest that was not finished in the one before."""
        first: int = self.of_deal.get("pass", 0)
        return first

    def is_finished(self, epoch_pass: int) -> bool:
        """Whether nothing of the pass was left when this deal began."""
        return epoch_pass in self.of_deal.get("finished", ())

    def base(self, epoch_pass: int) -> Base:
        """What earlier deals had come to in the pass."""
        written = self.of_deal.get("base", {}).get(str(epoch_pass))
        return Base() if written is None else Base(**written)

    def earlier_deals(self, epoch_pass: int, path: str) -> tuple[list[int], int]:
        """The deals before this one that still count for a source, as the function of that name."""
        return earlier_deals(self._headers, self.of_deal, epoch_pass, path)

    def finals(self, deal: int, epoch_pass: int, path: str, before: float = math.inf) -> Finals:
        """Where the lanes of a deal stood in a node, by the last entry of each; if so, before a generation of it."""
        return finals_of(self.topology(deal).lanes, self._cursors(deal, epoch_pass, path, before))

    def draws(self, epoch_pass: int, path: str) -> Column:
        """The draws of a node in each lane of this deal, int64 (L,): the same as in `finals`, without all else."""
        draws = np.zeros(self.topology(self.deal).lanes, np.int64)
        for lanes, cursors in self._cursors(self.deal, epoch_pass, path):
            draws[lanes] = cursors["draws"]
        return draws

    def _cursors(
        self, deal: int, epoch_pass: int, path: str, before: float = math.inf
    ) -> list[tuple[Column, CursorColumns]]:
        """The cursors of a node in a deal's generations, oldest first, with the numbers of their lanes."""
        generations = sorted(number for number in self.generations_of(deal) if number < before)
        columns = self.entries.columns
        groups = [(number, columns.group(number, epoch_pass, path)) for number in generations]
        return [(self.entries.lanes(Group(number, epoch_pass, path)), group) for number, group in groups if group]

    def drawn(self, deal: int, epoch_pass: int, path: str) -> dict[int, int]:
        """How many samples a mixture had drawn in the lanes of a deal, by the lane's number, where it is known."""
        return self._newest_by_lane(self.entries.drawn[epoch_pass].get(path, {}), deal)

    def drawn_by_lane(self, epoch_pass: int, path: str, *, of_its_own: bool) -> Column:
        """How many samples a mixture had drawn in each lane of this deal, int64 (L,); -1 where that is not known.

        Args:
            epoch_pass: The pass.
            path: The mixture.
            of_its_own: Whether its own entry says it, else what came with its sources' entries.
        """
        if of_its_own:
            finals = self.finals(self.deal, epoch_pass, path)
            return np.where(finals.is_held, finals.draws, -1)
        drawn = np.full(self.topology(self.deal).lanes, -1, np.int64)
        held = self.drawn(self.deal, epoch_pass, path)
        drawn[list(held)] = list(held.values())
        return drawn

    def has_facts(self, epoch_pass: int, lane: int | None = None) -> bool:
        """Whether something is said of a lane, or of all, beside where it stood."""
        facts = self._facts(epoch_pass)
        return lane in facts if lane is not None else self.num_batches(epoch_pass).keys() <= facts.keys()

    def mixtures(self, epoch_pass: int) -> list[str]:
        """The mixtures that say how many samples they had drawn."""
        return sorted(self.entries.drawn[epoch_pass])

    def passes(self, deal: int | None = None) -> list[int]:
        """The passes of which something was delivered in a deal."""
        return sorted({epoch_pass for epoch_pass, _ in self._last_workers(self.deal if deal is None else deal)})

    def newest_pass(self, dp_rank: int) -> int | None:
        """The latest pass (see `set_epoch`) of which the rank delivered something; None if it delivered nothing."""
        if ("newest passes", self.deal) not in self._cache:
            passes = sorted(self._last_workers(self.deal))
            self._cache["newest passes", self.deal] = {rank: epoch_pass for epoch_pass, rank in passes}
        newest: int | None = self._cache["newest passes", self.deal].get(dp_rank)
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
        if not self._headers or self.deal > self.newest:
            return entries
        own = key.dp_rank * self.topology().num_workers + key.worker
        table = self.entries.columns.table().cursors
        for generation, path, cursor in table.of_lane(key.epoch_pass, key.dp_rank, key.worker, self.deal):
            entries.cursors.setdefault(path, {})[generation] = cursor
        for path, generations in self.entries.drawn[key.epoch_pass].items():
            if found := self._of_lane(generations, own):
                entries.drawn[path] = found
        entries.facts = self._of_lane(self.entries.facts[key.epoch_pass], own)
        return entries

    def paths_always_there(self) -> set[str]:
        """The nodes of all generations of this deal."""
        trees = [set(self._headers[number]["nodes"]) for number in self.generations_of(self.deal)]
        return set.intersection(*trees) if trees else set()

    def paths(self) -> set[str]:
        """The nodes of which an entry is held, in any deal."""
        return self.entries.paths()

    def num_batches(self, epoch_pass: int) -> Mapping[int, int | None]:
        """Of each lane of the deal of which something is held, by its number: how many batches it has delivered.

        None stands for a lane of which nobody counted them.
        """
        if ("batches", self.deal, epoch_pass) not in self._cache:
            cursors = self.entries.columns.cursors()
            is_own = (cursors["epoch_pass"] == epoch_pass) & (cursors["generation"] >= self.deal)
            num_workers = self.topology().num_workers
            own = np.unique((cursors["rank"] * num_workers + cursors["worker"])[is_own])
            drawn = [self._newest_by_lane(held, self.deal) for held in self.entries.drawn[epoch_pass].values()]
            facts = self._facts(epoch_pass)
            held = {lane: facts.get(lane, {}).get("batches") for lane in itertools.chain(own.tolist(), *drawn, facts)}
            self._cache["batches", self.deal, epoch_pass] = held
        batches: Mapping[int, int | None] = self._cache["batches", self.deal, epoch_pass]
        return batches

    def batches_before(self, key: LaneKey) -> int | None:
        """How many batches the lane has delivered; None where a lane of its rank did not count them."""
        if not self._headers or self.deal > self.newest:
            return 0
        num_workers = self.topology().num_workers
        lanes = self.num_batches(key.epoch_pass)
        first = key.dp_rank * num_workers
        held = {worker: lanes[first + worker] for worker in range(num_workers) if first + worker in lanes}
        return None if None in held.values() else held.get(key.worker, 0)

    def newest_tree(self, present: Tree) -> Tree | None:
        """The tree of the newest generation, if there is one."""
        return self._tree(max(self._headers), present) if self._headers else None

    def generation(self, tree: Tree) -> int:
        """Number the present generation: the newest one's, or the next where topology, sources or weights differ.

        Or where states of an earlier format go on: the header of a generation must stay as its ranks have it.
        """
        if not self._headers:
            return 0
        newest = max(self._headers)
        written = self._tree(newest, tree)
        is_same = written.nodes.keys() == tree.nodes.keys() and written.weights == tree.weights
        is_same = is_same and self._headers[newest]["format"] == FORMAT
        return newest if is_same and self.deal <= newest else newest + 1

    def blended_since(self, path: str, tree: Tree, present: int) -> int:
        """The generation of this deal since which the mixture at the path has had these sources with these weights."""
        return self._since(present, lambda generation: self._tree(generation, tree).blend(path) == tree.blend(path))

    def blend_in(self, path: str, tree: Tree, generation: int) -> Mapping[str, Weight]:
        """The sources of the mixture at the path with their weights, in a generation."""
        return self._tree(generation, tree).blend(path)

    def blend_before(self, path: str, tree: Tree, generation: int) -> Mapping[str, Weight]:
        """The same in the generation before that one."""
        # Not that number less one: generations of which nothing is left may be missing.
        return self.blend_in(path, tree, max(number for number in self._headers if number < generation))

    def draws_alike(self, path: str, tree: Tree, generation: int) -> bool:
        """Whether what is below the mixture at the path is the same as it was in the generation, weights too."""
        return self._tree(generation, tree).below(path) == tree.below(path)

    def check_nodes(self, nodes: Mapping[str, str]) -> None:
        """Compare the tree of these states with the present one: sources may join and leave, what stays may not change.

        Raises:
            StateError: A node's order differs (records, blocks, seed, shuffling), or no source is common.
        """
        if not self._headers:
            return
        # As each was when it was last there: a source that left and returns must not have changed either.
        last = {path: past for _, past in sorted(self._headers.items()) for path in past["nodes"]}
        written = {path: past["nodes"][path] for path, past in last.items()}
        if not (written.keys() & nodes.keys()) - {""}:
            raise StateError(
                f"states: written for another dataset, with the sources {names_text(written)}; "
                f"this one has {names_text(nodes)}\n"
                "  Resume with the recipe that wrote them, or start without states."
            )
        for path in nodes:
            if path in written and _with_costs(last[path], nodes)[path] != nodes[path]:
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
        return any(epoch_pass in (None, held) for held, _ in self._last_workers(self.deal))

    def ranks(self, deal: int | None = None) -> list[int]:
        """The ranks of which a deal has something."""
        return sorted({rank for _, rank in self._last_workers(self.deal if deal is None else deal)})

    def last_worker(self, epoch_pass: int, dp_rank: int) -> int | None:
        """The worker that delivered the rank's last batch; None if none did."""
        return self._last_workers(self.deal).get((epoch_pass, dp_rank))

    def member_since(self, path: str, present: int) -> int:
        """The generation of this deal with which the node joined, the last time; `present` if it joins now."""
        return self._since(present, lambda generation: path in self._headers[generation]["nodes"])

    def _since(self, present: int, holds: Callable[[int], bool]) -> int:
        """The first of the deal's generations, up to the newest, in all of which something holds; else `present`."""
        generations = [number for number in self._headers if number >= self.deal]
        newest_first = itertools.takewhile(holds, sorted(generations, reverse=True))
        return min(newest_first, default=present)

    def _tree(self, generation: int, present: Tree) -> Tree:
        """The tree of a generation; states of earlier versions do not have weights."""
        written = self._headers[generation]
        # As if they had been the present ones: else each resume from such states would count as a change.
        return Tree(_with_costs(written, present.nodes), written.get("weights", present.weights))

    def generations_of(self, deal: int) -> set[int]:
        """The generations under the topology that began with a deal."""
        return {number for number, written in self._headers.items() if written.get("deal", 0) == deal}

    def _last_workers(self, deal: int) -> dict[tuple[int, int], int]:
        """By pass and rank: the worker that delivered last in a deal."""
        if ("workers", deal) not in self._cache:
            generations = self.generations_of(deal)
            held = {
                key: {number: worker for number, worker in by_generation.items() if number in generations}
                for key, by_generation in self.entries.workers.items()
            }
            self._cache["workers", deal] = {key: newest[max(newest)] for key, newest in held.items() if newest}
        workers: dict[tuple[int, int], int] = self._cache["workers", deal]
        return workers

    def _facts(self, epoch_pass: int) -> dict[int, Any]:
        """By the number of the lane, what is said of it in this deal."""
        if ("facts", self.deal, epoch_pass) not in self._cache:
            self._cache["facts", self.deal, epoch_pass] = self._newest_by_lane(
                self.entries.facts[epoch_pass], self.deal
            )
        facts: dict[int, Any] = self._cache["facts", self.deal, epoch_pass]
        return facts

    def _of_lane(self, generations: Mapping[int, Mapping[int, Any]], lane: int) -> dict[int, Any]:
        return {number: lanes[lane] for number, lanes in generations.items() if number >= self.deal and lane in lanes}

    def _newest_by_lane(
        self, generations: Mapping[int, Mapping[int, Any]], deal: int, before: float = math.inf
    ) -> dict[int, Any]:
        newest: dict[int, Any] = {}
        for number in sorted(generations.keys() & self.generations_of(deal)):
            if number < before:
                newest |= generations[number]
        return newest


def _with_costs(header: Mapping[str, Any], present: Mapping[str, str]) -> Mapping[str, str]:
    """The nodes of a header; the first format did not say which mixtures have a cost: those that have one now."""
    nodes: Mapping[str, str] = header["nodes"]
    if header["format"] == FORMAT:
        return nodes
    return {path: node + BY_COST if present.get(path) == node + BY_COST else node for path, node in nodes.items()}
