"""A checkpoint as one run sees it: whether it fits, and where each node of the tree stands in each lane."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from streamdata.errors import StateError
from streamdata.progress.cursor import Cursor
from streamdata.run import Lane

FORMAT = 1
_COUNTS = ("draws", "epoch", "window", "taken", "part", "given", "dropped", "bad", "round")


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


def header(tree: Tree, lane: Lane) -> str:
    """Write a generation's header: its topology and its tree."""
    topology = {"dp_size": lane.dp_size, "num_workers": lane.num_workers}
    return json.dumps({"format": FORMAT, **topology, "nodes": dict(tree.nodes), "weights": dict(tree.weights)})


class Standing:
    """Where one node stood in one lane."""

    def __init__(self, value: Mapping[str, Any], generation: int) -> None:
        self.generation = generation
        self.draws: int = value["draws"]
        self.clock: float = value["clock"]
        self.round: int = value.get("round", 0)
        position = (value["epoch"], value["window"], value["taken"], value.get("part", 0))
        counts = (value.get("dropped", 0), value.get("bad", 0))
        self.cursor: Cursor = (*position, value.get("given", 0), value.get("function"), *counts)


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
        self._cursors: dict[tuple[int, int, int, int, str], Mapping[str, Any]] = {}
        self._workers: dict[tuple[int, int, int], int] = {}
        for key, value in states.items():
            self._take(key, value)
        self._check_generations()

    def __bool__(self) -> bool:
        return bool(self._headers)

    @property
    def newest_pass(self) -> int:
        """The latest pass (see `set_epoch`) of which something was delivered."""
        return max((key[1] for key in self._cursors), default=0)

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
        since = present
        for generation in sorted(self._headers, reverse=True):
            if self._tree(generation, tree).blend(path) != tree.blend(path):
                break
            since = generation
        return since

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
        newest = self._headers[max(self._headers)]
        for name, got in (("dp_size", lane.dp_size), ("num_workers", lane.num_workers)):
            if newest[name] != got:
                raise StateError(
                    f"states: written with {name}={newest[name]}, this run has {name}={got}\n"
                    f"  Resume with {name}={newest[name]} (num_workers 0 and 1 are the same)."
                )

    def knows_rank(self, epoch_pass: int, dp_rank: int) -> bool:
        """Whether the states of this pass hold something of the rank, or nothing at all of any rank."""
        ranks = {key[2] for key in self._workers if key[1] == epoch_pass}
        return not ranks or dp_rank in ranks

    def ranks(self) -> list[int]:
        """The ranks whose states are held."""
        return sorted({key[2] for key in self._workers})

    def last_worker(self, epoch_pass: int, dp_rank: int) -> int:
        """The worker that delivered the rank's last batch; -1 if none did."""
        found = [(key[0], worker) for key, worker in self._workers.items() if key[1:] == (epoch_pass, dp_rank)]
        return max(found, default=(0, -1))[1]

    def find(self, lane: Lane, epoch_pass: int, path: str, before: int | None = None) -> Standing | None:
        """Where the node stood in the lane, from the newest generation (before generation `before`) that says so."""
        for generation in sorted(self._headers, reverse=True):
            value = self._cursors.get((generation, epoch_pass, lane.dp_rank, lane.worker, path))
            if value is not None and (before is None or generation < before):
                return Standing(value, generation)
        return None

    def member_since(self, path: str, present: int) -> int:
        """The generation with which the node joined, the last time that it did; `present` if it joins now."""
        since = present
        for generation in sorted(self._headers, reverse=True):
            if path not in self._headers[generation]["nodes"]:
                break
            since = generation
        return since

    def _tree(self, generation: int, present: Tree) -> Tree:
        """The tree of a generation; states of earlier versions do not tell of weights."""
        written = self._headers[generation]
        return Tree(written["nodes"], written.get("weights", present.weights))

    def _take(self, key: object, value: Any) -> None:
        try:
            match str(key).split("/", 5):
                case ["generation", generation]:
                    self._headers[int(generation)] = _checked_header(value)
                case ["worker", generation, epoch_pass, rank]:
                    self._workers[int(generation), int(epoch_pass), int(rank)] = _count(value)
                case ["cursor", generation, epoch_pass, rank, worker, path]:
                    lane = (int(generation), int(epoch_pass), int(rank), int(worker))
                    self._cursors[*lane, path] = _checked_cursor(value)
                case _:
                    raise ValueError("not a key of to_state")
        except (ValueError, TypeError, KeyError) as error:
            raise StateError(
                f"states: {key!r}: {str(value)[:100]} does not come from to_state ({error!r})\n"
                "  Pass the dict that was filled by states.update(to_state(batch)), as it was saved."
            ) from error

    def _check_generations(self) -> None:
        for generation in {key[0] for key in [*self._cursors, *self._workers]} - self._headers.keys():
            raise StateError(
                f"states: 'generation/{generation}' is missing, though there are cursors of that generation\n"
                "  Save and restore the whole dict."
            )


def _checked_header(value: Any) -> Mapping[str, Any]:
    if value["format"] != FORMAT:
        raise ValueError(f"expected format {FORMAT}, got {value['format']!r}")
    _count(value["dp_size"])
    _count(value["num_workers"])
    nodes = value["nodes"]
    if not isinstance(nodes, Mapping) or not all(isinstance(text, str) for pair in nodes.items() for text in pair):
        raise ValueError("expected strings in 'nodes'")
    weights = value.get("weights", {})
    if not isinstance(weights, Mapping) or not all(isinstance(weight, int | float) for weight in weights.values()):
        raise ValueError("expected numbers in 'weights'")
    return dict(value)


def _checked_cursor(value: Any) -> Mapping[str, Any]:
    for name in _COUNTS:
        if name in value or name in ("draws", "epoch", "window", "taken"):
            _count(value[name])
    if not isinstance(value["clock"], int | float) or not 0 <= value["clock"] < float("inf"):
        raise ValueError(f"expected a clock, got {value['clock']!r}")
    if not isinstance(value.get("function", {}), Mapping):
        raise ValueError("expected a mapping in 'function'")
    return dict(value)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a count, got {value!r}")
    return value
