"""A checkpoint as one run sees it: whether it fits, and where each node of the tree stands in each lane."""

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from streamdata.errors import StateError
from streamdata.progress.checked import FORMAT, checked_cursor, checked_header, checked_lane, count, shown
from streamdata.progress.cursor import LaneKey
from streamdata.progress.lane_entries import LaneEntries
from streamdata.run import Lane

ANOMALIES = "anomalies"
_LANE_NUMBERS = 4
"""Numbers in a key that names a lane: generation, pass, rank, worker."""


class Topology(NamedTuple):
    """How many ranks there are, and how many workers each has."""

    dp_size: int
    num_workers: int


class Tree(NamedTuple):
    """What determines the order of a stream, by the paths of the nodes."""

    nodes: Mapping[str, str]
    """For each node, what determines its own order."""
    weights: Mapping[str, float]
    """For each node but the top, its weight in its parent."""

    def below(self, path: str) -> "Tree":
        """The tree without what is not below the node."""
        start = f"{path}." if path else ""
        nodes = {key: node for key, node in self.nodes.items() if key.startswith(start) and key != path}
        return Tree(nodes, {key: weight for key, weight in self.weights.items() if key.startswith(start)})

    def blend(self, path: str) -> Mapping[str, float]:
        """The weights of the node's children."""
        return {key: weight for key, weight in self.weights.items() if key.rpartition(".")[0] == path}


def header(tree: Tree, lane: Lane, anomalies: Mapping[str, Mapping[str, int]]) -> str:
    """Write a generation's header: its topology, its tree, and for people what its sources have in their shards.

    Args:
        tree: What determines the order.
        lane: Whose number of ranks and workers count.
        anomalies: Of each node that has any: how much is not a record, or less than one, by kind. No resume compares
            it.
    """
    topology = {"dp_size": lane.dp_size, "num_workers": lane.num_workers}
    noted = {ANOMALIES: anomalies} if anomalies else {}
    return json.dumps({"format": FORMAT, **topology, "nodes": dict(tree.nodes), "weights": dict(tree.weights), **noted})


class Progress:
    """What `to_state` collected, checked.

    Args:
        states: The collected dict, of this rank or of all ranks together. Empty means a fresh start.

    Raises:
        StateError: It was not written by `to_state`; the message names the first key that does not fit.
    """

    def __init__(self, states: Mapping[str, Any]) -> None:
        if not isinstance(states, Mapping):
            raise StateError(f"states: expected the dict that to_state fills, got {type(states).__name__}")
        self._headers: dict[int, Mapping[str, Any]] = {}
        self._workers: dict[tuple[int, int], dict[int, int]] = {}
        self.lanes: defaultdict[LaneKey, LaneEntries] = defaultdict(LaneEntries)
        for key, value in states.items():
            self._take(key, value)
        self._check_whole()

    def __bool__(self) -> bool:
        return bool(self._headers)

    def topology(self) -> Topology:
        """That of the newest generation."""
        newest = self._headers[max(self._headers)]
        return Topology(newest["dp_size"], newest["num_workers"])

    def newest_pass(self, dp_rank: int) -> int | None:
        """The latest pass (see `set_epoch`) of which the rank delivered something; None if it delivered nothing."""
        return max((epoch_pass for epoch_pass, rank in self._workers if rank == dp_rank), default=None)

    def has_ended(self, epoch_pass: int, dp_rank: int, workers: Iterable[int]) -> bool:
        """Whether each of these lanes of the rank has delivered its last sample of the pass."""
        return all(self.lane(LaneKey(epoch_pass, dp_rank, worker)).has_ended for worker in workers)

    def lane(self, key: LaneKey) -> LaneEntries:
        """What is held of a lane."""
        # Not `self.lanes[key]`: asking must not make the lane one of which something is held.
        return self.lanes.get(key) or LaneEntries()

    def num_batches(self, epoch_pass: int, dp_rank: int) -> dict[int, int | None]:
        """How many batches each worker has delivered, of those of which something is held."""
        return {
            key.worker: entries.num_batches
            for key, entries in self.lanes.items()
            if (key.epoch_pass, key.dp_rank) == (epoch_pass, dp_rank)
        }

    def batches_before(self, key: LaneKey) -> int | None:
        """How many batches the lane has delivered; None where a lane of its rank did not count them."""
        held = self.num_batches(key.epoch_pass, key.dp_rank)
        return None if None in held.values() else held.get(key.worker, 0)

    def newest_tree(self, present: Tree) -> Tree | None:
        """The tree of the newest generation, if there is one."""
        return self._tree(max(self._headers), present) if self._headers else None

    def without_cursors(self) -> "Progress":
        """The same generations, as if nothing had been delivered in them."""
        # The headers stay, so that generations count on: states of the pass before may still be in the trainer's dict.
        return Progress({f"generation/{number}": header for number, header in self._headers.items()})

    def generation(self, tree: Tree) -> int:
        """Number the present generation: the newest one's, or the next where sources or weights are others since."""
        if not self._headers:
            return 0
        newest = max(self._headers)
        written = self._tree(newest, tree)
        is_same = written.nodes.keys() == tree.nodes.keys() and written.weights == tree.weights
        return newest if is_same else newest + 1

    def blended_since(self, path: str, tree: Tree, present: int) -> int:
        """The generation since which the mixture at the path has had these sources with these weights."""
        return self._since(present, lambda generation: self._tree(generation, tree).blend(path) == tree.blend(path))

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
        written = {path: node for _, past in sorted(self._headers.items()) for path, node in past["nodes"].items()}
        if not (written.keys() & nodes.keys()) - {""}:
            raise StateError(
                f"states: written for another dataset, with the sources {sorted(written)}; "
                f"this one has {sorted(nodes)}\n"
                "  Resume with the recipe that wrote them, or start without states."
            )
        for path in nodes:
            if path in written and written[path] != nodes[path]:
                who = f"source {path!r}" if path else "the mixture"
                raise StateError(
                    f"states: {who} has another order than when they were written\n"
                    f"  expected {written[path]}\n  got      {nodes[path]}\n"
                    "  Resume with the recipe, seed and data that wrote them, or start without states."
                )

    def check_lane(self, lane: Lane) -> None:
        """Compare the topology.

        Raises:
            StateError: Another number of ranks or workers.
        """
        if not self._headers:
            return
        for name, written in self.topology()._asdict().items():
            got = getattr(lane, name)
            if written != got:
                raise StateError(
                    f"states: written with {name}={written}, this run has {name}={got}\n"
                    f"  Resume with {name}={written} (num_workers 0 and 1 are the same)."
                )

    def lacks_rank(self, epoch_pass: int | None, dp_rank: int) -> bool:
        """Whether other ranks have delivered something of the pass that was set, or of any, and this one nothing."""
        # Without entries it would begin at the start, and deliver again what others, or it itself, had delivered.
        return dp_rank not in self.ranks() and any(epoch_pass in (None, held) for held, _ in self._workers)

    def ranks(self) -> list[int]:
        """The ranks whose states are held."""
        return sorted({rank for _, rank in self._workers})

    def last_worker(self, epoch_pass: int, dp_rank: int) -> int | None:
        """The worker that delivered the rank's last batch; None if none did."""
        held = self._workers.get((epoch_pass, dp_rank))
        return held[max(held)] if held else None

    def member_since(self, path: str, present: int) -> int:
        """The generation with which the node joined, the last time that it did; `present` if it joins now."""
        return self._since(present, lambda generation: path in self._headers[generation]["nodes"])

    def _since(self, present: int, holds: Callable[[int], bool]) -> int:
        """The first of the generations, up to the newest, in all of which something holds; else `present`."""
        newest_first = itertools.takewhile(holds, sorted(self._headers, reverse=True))
        return min(newest_first, default=present)

    def _tree(self, generation: int, present: Tree) -> Tree:
        """The tree of a generation; states of earlier versions do not have weights."""
        written = self._headers[generation]
        # As if they had been the present ones: else each resume from such states would count as a change of weights.
        return Tree(written["nodes"], written.get("weights", present.weights))

    def _take(self, key: object, value: Any) -> None:
        try:
            # At most five times: what follows the lane's numbers is the path, and names of sources may contain a slash.
            kind, *parts = str(key).split("/", 5)
            generation, *rest = (count(int(number)) for number in parts[:_LANE_NUMBERS])
            match kind, rest, parts[_LANE_NUMBERS:]:
                case "generation", [], []:
                    self._headers[generation] = checked_header(value)
                case "worker", [epoch_pass, rank], []:
                    self._workers.setdefault((epoch_pass, rank), {})[generation] = count(value)
                case "lane", [epoch_pass, rank, worker], []:
                    self.lanes[LaneKey(epoch_pass, rank, worker)].facts[generation] = checked_lane(value)
                case "drawn", [epoch_pass, rank, worker], [path]:
                    drawn = self.lanes[LaneKey(epoch_pass, rank, worker)].drawn
                    drawn.setdefault(path, {})[generation] = count(value)
                case "cursor", [epoch_pass, rank, worker], [path]:
                    cursors = self.lanes[LaneKey(epoch_pass, rank, worker)].cursors
                    cursors.setdefault(path, {})[generation] = checked_cursor(value)
                case _:
                    raise ValueError("not a key of to_state")
        # All that values of any type can raise in the lines above: whichever it is, these are not states.
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            why = f"{type(error).__name__}: {str(error)[:100]}"
            raise StateError(
                f"states: {shown(key)}: {shown(value)} does not come from to_state ({why})\n"
                "  Pass the dict that was filled by states.update(to_state(batch)), as it was saved."
            ) from error

    def _check_whole(self) -> None:
        generations = {number for held in self._workers.values() for number in held}
        generations.update(number for entries in self.lanes.values() for number in entries.generations())
        missing = [f"generation/{number}" for number in generations - self._headers.keys()]
        ranks = {(lane.epoch_pass, lane.dp_rank) for lane in self.lanes} - self._workers.keys()
        missing += [f"worker/…/{epoch_pass}/{dp_rank}" for epoch_pass, dp_rank in ranks]
        if missing:
            raise StateError(
                f"states: {min(missing)!r} is missing, though there are cursors of it\n"
                "  Save and restore the whole dict."
            )
