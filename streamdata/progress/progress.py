"""A checkpoint as one run sees it: whether it fits, and where each node of the tree stands in each lane."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.errors import StateError, names_text, shown
from streamdata.progress.cursor import LaneKey
from streamdata.progress.deal_header import DEAL, Base, DealHeader, canonical, deal_header_of, digest_of
from streamdata.progress.finals import Column, Finals, finals_of
from streamdata.progress.header import Topology, Tree, check_header, count
from streamdata.progress.lane_entries import LaneEntries
from streamdata.progress.leftovers import BlockCut
from streamdata.progress.remedies import remedy_for_order
from streamdata.progress.states_table import ROW, Group, Rows, StatesTable, not_states, owner_of, table_of
from streamdata.recipe.percent import Weight
from streamdata.run import Lane


class OfLanes(NamedTuple):
    """What is held of the lanes of the present size in a pass; a row each."""

    is_held: npt.NDArray[np.bool_]
    batches: Column
    """Delivered; 0 where nobody counted them."""
    ended_in: Column
    """The generation in which the lane has delivered its last sample of the pass; -1 where it has not."""


class Progress:
    """What `to_state` collected, checked: the entries of one size of the run, and a header of what was before it.

    Args:
        states: The collected dict, of this rank or of all ranks together. Empty means a fresh start.

    Raises:
        StateError: It was not written by `to_state`; the message names the first key that does not fit.
    """

    def __init__(self, states: Mapping[str, Any]) -> None:
        self.table: StatesTable = table_of(states).present()
        """The entries that count."""
        self.headers: Mapping[int, Mapping[str, Any]] = self.table.headers
        self.before = DealHeader()
        """What the sizes before came to."""
        self._workers: dict[tuple[int, int], int] = {}
        """By pass and rank: the worker that delivered last."""
        self._idle: set[int] = set()
        """The ranks of which saving and gathering recorded that they delivered nothing."""
        self._cache: dict[Any, Any] = {}
        """What was computed of the entries."""
        # Headers first. By generation: a rank may have gone on with other weights since.
        for key in sorted(self.table.others, key=lambda key: (key[0] != "g", owner_of(key).generation)):
            value = self.table.others[key]
            try:
                self._take(key, value)
            # All that values of any type can raise: whichever it is, these are not states.
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
                raise not_states(key, value, f"{type(error).__name__}: {str(error)[:200]}") from error
        self._check_headers()
        self._check_rows()

    def _take(self, key: str, value: Any) -> None:
        kind, *numbers = key.split("/")
        generation, *lane = map(int, numbers)
        match kind:
            case "generation":
                check_header(value)
            case "deal":
                # First of all: what is not what was written need not be looked at, and may be made to be large.
                if digest_of(canonical(value)) not in {header.get("dealt") for header in self.headers.values()}:
                    raise ValueError("expected the header that the generations name")
                self.before = deal_header_of(value)
            case "worker":
                epoch_pass, rank = lane
                self._check_lane(generation, rank, count(value))
                self._workers[epoch_pass, rank] = value
            case "idle":
                (rank,) = lane
                self._check_lane(generation, rank, worker=0)
                self._idle.add(rank)

    def _check_lane(self, generation: int, rank: int, worker: int) -> None:
        if generation not in self.headers:
            raise StateError(
                f"states: 'generation/{generation}' is missing, though there are entries of it\n"
                "  Save and restore the whole dict."
            )
        dp_size, num_workers = (self.headers[generation][name] for name in ("dp_size", "num_workers"))
        if rank >= dp_size or worker >= num_workers:
            raise StateError(
                f"states: an entry of rank {rank}, worker {worker} in generation {generation}, "
                f"which had dp_size={dp_size} and num_workers={num_workers}\n  Restore the states as they were saved."
            )

    def _check_headers(self) -> None:
        """Refuse headers that contradict one another, and the lack of what was before them."""
        first: Mapping[str, Any] = self.headers[min(self.headers)] if self.headers else {"deal": 0}
        for generation, header in self.headers.items():
            for name in ("dp_size", "num_workers", "deal", "dealt"):
                if header.get(name) != first.get(name):
                    got, expected = shown(header.get(name)), shown(first.get(name))
                    raise StateError(
                        f"states: 'generation/{generation}' does not fit the other headers: {name}={got}, in "
                        f"generation {min(self.headers)} {expected}\n  Restore the states as they were saved."
                    )
        # By the digest: a header that was mended by hand, or is of another run, would deal out other records.
        if first["deal"] != self.before.number or (self.before.number and first["dealt"] != self.before.digest):
            raise StateError(
                f"states: expected the header {DEAL}{first['deal']}, of what was delivered before the number of ranks "
                f"or workers changed, got {'another one' if self.before.number else 'none'}\n"
                "  Call states.update(to_state(batch)) from the first batch after a resume on, and save the whole dict."
            )

    def _check_rows(self) -> None:
        """Refuse cursors of lanes that were not there; leftovers, and clocks that owe something, of a first size."""
        rows = self.table.rows
        for generation in np.unique(rows["generation"]).tolist():
            is_own = rows["generation"] == generation
            self._check_lane(generation, *(int(rows[name][is_own].max()) for name in ("rank", "worker")))
        for epoch_pass in np.unique(rows["epoch_pass"]).tolist():
            for rank in np.unique(rows["rank"][rows["epoch_pass"] == epoch_pass]).tolist():
                if (epoch_pass, rank) not in self._workers:
                    raise StateError(
                        f"states: 'worker/…/{epoch_pass}/{rank}' is missing, though there are cursors of it\n"
                        "  Save and restore the whole dict."
                    )
        wrong = (rows["window"] < 0) | (rows["clock"] < 0) | (rows["pulled"][:, 1] < -1)
        if wrong.any() and not self.before.number:
            for key, value in self.table.select(wrong, {}).as_dict().items():
                raise not_states(key, value, "expected numbers >= 0")

    def __bool__(self) -> bool:
        return bool(self.headers)

    @property
    def newest(self) -> int:
        """The newest generation."""
        return max(self.headers)

    @property
    def is_begun(self) -> bool:
        """Whether something was delivered since the size last changed."""
        return bool(self.headers) and self.before.number <= self.newest

    @property
    def generations(self) -> list[int]:
        """Those of the present size, ascending."""
        return list(self.headers) if self.is_begun else []

    def step(self, generation: float = math.inf) -> int:
        """How many batches the furthest rank had delivered when a generation began, or has by now."""
        return self.before.step + (int(self.batches(generation).sum(axis=1).max()) if self.is_begun else 0)

    def batches(self, before: float = math.inf) -> Column:
        """What each lane has delivered in all passes of this size, before a generation; int64 (ranks, workers)."""
        found = [self._of_lanes(epoch_pass, before).batches for epoch_pass in self.passes()]
        total: Column = np.sum([np.zeros(self.topology().lanes, np.int64), *found], axis=0)
        return total.reshape(self.topology())

    def batches_of_rank(self, lane: Lane) -> int:
        """How many batches the rank of a lane has delivered since the run began, over all passes.

        What was delivered before the size last changed counts as that of the furthest rank then: ranks that train
        together have all delivered as many.

        Raises:
            StateError: Its batches were not counted.
        """
        if not self.is_under(lane) or not self.is_begun:
            return self.step()
        if any(None in self.batches_of_workers(epoch_pass, lane.dp_rank).values() for epoch_pass in self.passes()):
            raise StateError(
                f"states: they do not say how many batches rank {lane.dp_rank} delivered, which its place in a "
                "stretch follows from\n  Collate with TensorCollate or mixed_collate, which count them."
            )
        return self.before.step + int(self.batches()[lane.dp_rank].sum())

    def is_idle(self, dp_rank: int) -> bool:
        """Whether saving or gathering recorded that the rank delivered nothing since the size last changed."""
        return self.is_begun and dp_rank in self._idle

    def topology(self) -> Topology:
        """That of the newest generation."""
        newest = self.headers[self.newest]
        return Topology(newest["dp_size"], newest["num_workers"])

    def is_under(self, lane: Lane) -> bool:
        """Whether the newest generation has the topology of this run, or there is none."""
        return not self.headers or self.topology() == (lane.dp_size, lane.num_workers)

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
            header = make()
            # Of thousands of lanes these are hundreds of megabytes, and no other question needs all of them.
            self._cache = {"header": (tree, header)}
        made: DealHeader = self._cache["header"][1]
        return made

    def without_cursors(self, epoch_pass: int) -> "Progress":
        """The same generations, as if nothing of the pass had been delivered, under this size and earlier ones."""
        # The headers stay, so that generations count on: states of the pass before may still be in the trainer's dict.
        progress = Progress({key: value for key, value in self.table.others.items() if owner_of(key).rank is None})
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
            # Of a node that joined since a lane has ended the pass, the lane has read nothing.
            ended = self._of_lanes(epoch_pass).ended_in
            over = [n for n in self.generations if path in self.headers[n]["nodes"]]
            held = self._cursors(epoch_pass, path, before)
            self._cache[key] = finals_of(self.topology().lanes, held, np.flatnonzero(np.isin(ended, over)).tolist())
        finals: Finals = self._cache[key]
        return finals

    def column(self, name: str, epoch_pass: int, path: str, before: float = math.inf) -> npt.NDArray[Any]:
        """A number of a node's cursor in each lane, (L,): the same as in `finals`, of which nothing is kept."""
        column = np.zeros(self.topology().lanes, ROW[name])
        for lanes, rows in self._cursors(epoch_pass, path, before):
            column[lanes] = rows[name]
        return column

    def _cursors(self, epoch_pass: int, path: str, before: float = math.inf) -> list[tuple[Column, Rows]]:
        """The cursors of a node in the generations, oldest first, with the numbers of their lanes."""
        places, generations = self.table.groups, (number for number in self.generations if number < before)
        groups = (Group(number, epoch_pass, path) for number in generations)
        found = [self.table.rows[places[group]] for group in groups if group in places]
        return [(self._lanes(rows["rank"], rows["worker"]), rows) for rows in found]

    def _lanes(self, ranks: Column, workers: Column) -> Column:
        return ranks * self.topology().num_workers + workers

    def _of_lanes(self, epoch_pass: int, before: float = math.inf) -> OfLanes:
        key = "lanes", epoch_pass, before
        if key not in self._cache:
            rows = self.table.rows
            is_own = (rows["epoch_pass"] == epoch_pass) & (rows["generation"] < before) & self.is_begun
            is_held = np.zeros(self.topology().lanes, np.bool_)
            is_held[self._lanes(rows["rank"][is_own], rows["worker"][is_own])] = True
            batches, ended_in = np.zeros(len(is_held), np.int64), np.full(len(is_held), -1)
            # The newest entry of the top counts: each batch writes it whole.
            for lanes, tops in self._cursors(epoch_pass, "", before):
                batches[lanes] = tops["batches"]
                ended_in[lanes] = np.where(tops["ended"] > 0, tops["generation"], -1)
            self._cache[key] = OfLanes(is_held, batches, ended_in)
        found: OfLanes = self._cache[key]
        return found

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
        own = [dp_rank * self.topology().num_workers + worker for worker in workers]
        return bool((self._of_lanes(epoch_pass).ended_in[own] >= 0).all())

    def has_given_all(self, key: LaneKey, tree: Tree) -> bool:
        """Whether the lane has delivered its last sample of the pass, and no source was added to the tree since."""
        if not self.is_begun:
            return False
        number = key.dp_rank * self.topology().num_workers + key.worker
        ended_in = int(self._of_lanes(key.epoch_pass).ended_in[number])
        return ended_in >= 0 and tree.nodes.keys() <= self.headers[ended_in]["nodes"].keys()

    def lane(self, key: LaneKey) -> LaneEntries:
        """What is held of a lane."""
        entries = LaneEntries()
        for generation, path, cursor in self.table.of_lane(*key) if self.is_begun else ():
            entries.cursors.setdefault(path, {})[generation] = cursor
        return entries

    def paths(self) -> set[str]:
        """The nodes of which an entry is held."""
        return set(self.table.paths) if self.is_begun else set()

    def num_batches(self, epoch_pass: int) -> Mapping[int, int | None]:
        """Batches delivered by each lane of which something is held, by its number; None where nobody counted them."""
        if not self.is_begun:
            return {}
        lanes = self._of_lanes(epoch_pass)
        return {lane: int(lanes.batches[lane]) or None for lane in np.flatnonzero(lanes.is_held).tolist()}

    def batches_of_workers(self, epoch_pass: int, dp_rank: int) -> Mapping[int, int | None]:
        """The same of the workers of a rank."""
        if not self.is_begun:
            return {}
        lanes, workers = self._of_lanes(epoch_pass), self.topology().num_workers
        own = slice(dp_rank * workers, (dp_rank + 1) * workers)
        pairs = zip(lanes.is_held[own].tolist(), lanes.batches[own].tolist(), strict=True)
        return {worker: batches or None for worker, (is_held, batches) in enumerate(pairs) if is_held}

    def batches_before(self, key: LaneKey) -> int | None:
        """How many batches the lane has delivered; None where a lane of its rank did not count them."""
        own = self.batches_of_workers(key.epoch_pass, key.dp_rank)
        return None if None in own.values() else own.get(key.worker, 0)

    def generation(self, tree: Tree) -> int:
        """Number the present generation: the newest one's, or the next where size, sources or weights differ."""
        if not self.headers:
            return self.before.number
        written = self.tree(self.newest)
        is_same = written.nodes.keys() == tree.nodes.keys() and written.weights == tree.weights
        return self.newest if is_same and self.is_begun else self.newest + 1

    def tree(self, generation: int) -> Tree:
        """What a generation's header says of the tree."""
        written = self.headers[generation]
        return Tree(written["nodes"], written["weights"])

    def blended_since(self, path: str, tree: Tree, present: int) -> int:
        """The generation of this size since which the mixture at the path has had these sources with these weights."""
        return self._since(present, lambda generation: self.blend_in(path, generation) == tree.blend(path))

    def blend_in(self, path: str, generation: int) -> Mapping[str, Weight]:
        """The sources of the mixture at the path with their weights, in a generation."""
        return self.tree(generation).blend(path)

    def blend_before(self, path: str, generation: int) -> Mapping[str, Weight]:
        """The same in the generation before that one."""
        # Not that number less one: generations of which no rank delivered anything may be missing.
        return self.blend_in(path, max(number for number in self.headers if number < generation))

    def cuts(self) -> dict[str, BlockCut]:
        """How each source was divided that was ever there."""
        written = {path: BlockCut(*cut) for header in self.headers.values() for path, cut in header["cuts"].items()}
        return {**self.before.cuts, **written}

    def nodes(self) -> dict[str, str]:
        """What determined the order of each node that was ever there, as it was when it was last there."""
        return dict(self.before.nodes) | {k: v for header in self.headers.values() for k, v in header["nodes"].items()}

    def check_nodes(self, nodes: Mapping[str, str]) -> None:
        """Compare the tree of these states with the present one: sources may join and leave, what stays may not change.

        Raises:
            StateError: A node's order differs (records, blocks, seed, shuffling), or no source is common.
        """
        if not self.headers:
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
        return any(epoch_pass in (None, held) for held in self.passes())

    def ranks(self) -> list[int]:
        """The ranks of which something is held."""
        return sorted({rank for _, rank in self._last_workers()})

    def last_worker(self, epoch_pass: int, dp_rank: int) -> int | None:
        """The worker that delivered the rank's last batch; None if none did."""
        return self._last_workers().get((epoch_pass, dp_rank))

    def member_since(self, path: str, present: int) -> int:
        """The generation of this size with which the node joined, the last time; `present` if it joins now."""
        return self._since(present, lambda generation: path in self.headers[generation]["nodes"])

    def _since(self, present: int, holds: Callable[[int], bool]) -> int:
        """The first of the generations, up to the newest, in all of which something holds; else `present`."""
        return min(itertools.takewhile(holds, reversed(self.generations)), default=present)

    def _last_workers(self) -> dict[tuple[int, int], int]:
        return self._workers if self.is_begun else {}
