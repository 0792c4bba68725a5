"""What is written of a generation: its size, its tree, and which header of the sizes before it it goes on from."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from streamdata.errors import StateError, shown
from streamdata.progress.deal_header import DealHeader
from streamdata.progress.leftovers import BlockCut
from streamdata.recipe.percent import Weight, check_weight
from streamdata.run import MAX_RANKS, MAX_WORKERS, Lane

FORMAT: Final = 3
"""Of the states, in each generation's header: another one is refused there, before anything is misread."""
MIXTURE: Final = "mixture, "
"""How the order of a mixture begins, and no other one."""
BY_COST: Final = ", by cost"
"""How the order of a mixture ends that has a cost."""
_MAX_LANES: Final = 1 << 22


class Topology(NamedTuple):
    """How many ranks there are, and how many workers each has."""

    dp_size: int
    num_workers: int

    @property
    def lanes(self) -> int:
        """How many lanes that makes."""
        return self.dp_size * self.num_workers


class Tree(NamedTuple):
    """What determines the order of a stream, by the paths of the nodes."""

    nodes: Mapping[str, str]
    """For each node, what determines its own order."""
    weights: Mapping[str, Weight]
    """For each node but the top, its weight in its parent: a number or a schedule."""
    cuts: Mapping[str, BlockCut] = {}
    """For each source of records, how it is divided."""

    def below(self, path: str) -> tuple[Mapping[str, str], Mapping[str, Weight]]:
        """The nodes and weights of what is below the node."""
        start = f"{path}." if path else ""
        nodes = {key: node for key, node in self.nodes.items() if key.startswith(start) and key != path}
        return nodes, {key: weight for key, weight in self.weights.items() if key.startswith(start)}

    def blend(self, path: str) -> Mapping[str, Weight]:
        """The weights of the node's children."""
        return {key: weight for key, weight in self.weights.items() if key.rpartition(".")[0] == path}


def header(tree: Tree, lane: Lane, deal: DealHeader, anomalies: Mapping[str, Mapping[str, int]]) -> str:
    """Write a generation's header: its size, its tree, and for people what its sources have in their shards.

    Args:
        tree: What determines the order.
        lane: Whose number of ranks and workers count.
        deal: What all generations of this size go on from.
        anomalies: Of each node that has any: how much is not a record, or less than one, by kind. No resume compares
            it.
    """
    size = {"dp_size": lane.dp_size, "num_workers": lane.num_workers, "deal": deal.number}
    noted = {"anomalies": anomalies} if anomalies else {}
    before = {"dealt": deal.digest} if deal.number else {}
    trees = {"nodes": dict(tree.nodes), "weights": dict(tree.weights), "cuts": dict(tree.cuts)}
    return json.dumps({"format": FORMAT, **size, **before, **trees, **noted})


def check_header(value: Any) -> None:
    """Refuse what is no header of a generation.

    Raises:
        ValueError: It is none, or of another version; TypeError, KeyError or AttributeError where it is something else.
    """
    if value["format"] != FORMAT:
        raise ValueError(
            f"expected format {FORMAT}, got {shown(value['format'])}: start anew, or go on under their own number of "
            "ranks and workers with the version of streamdata that wrote them"
        )
    size = count(value["dp_size"]), count(value["num_workers"])
    if not all(size) or size[0] > MAX_RANKS or size[1] > MAX_WORKERS or size[0] * size[1] > _MAX_LANES:
        raise ValueError(f"expected 1 to {_MAX_LANES} lanes, got {size[0]} ranks with {size[1]} workers")
    if not all(isinstance(text, str) for pair in value["nodes"].items() for text in pair):
        raise ValueError("expected texts in 'nodes'")
    if value["weights"].keys() != value["nodes"].keys() - {""} or not value["cuts"].keys() <= value["nodes"].keys():
        raise ValueError("expected a weight of each node but the top, and cuts of sources")
    for weight in value["weights"].values():
        check_weight(weight)
    for cut in value["cuts"].values():
        blocks, window, *_ = BlockCut(*map(count, cut))
        if not blocks or not window:  # what is computed of it divides by them
            raise ValueError(f"expected a cut into blocks and windows, got {shown(cut)}")
    if bool(count(value["deal"])) != ("dealt" in value) or not re.fullmatch(r"[0-9a-f]{32}|", value.get("dealt", "")):
        raise ValueError("expected a digest in 'dealt' if and only if something was before")


def count(value: Any) -> int:
    """A count, as it is.

    Raises:
        ValueError: It is not an int, negative, or too large to be a count.
    """
    # Not isinstance: True is an int, but not a count.
    if type(value) is not int or not 0 <= value < 2**53:
        raise ValueError(f"expected a count below 2**53, got {shown(value)}")
    return value


def check_position(name: str, what: str, got: int, last: int) -> None:
    """Refuse states that stand where there is nothing: `got` is beyond `last`.

    Raises:
        StateError: They do.
    """
    if got > last:
        raise StateError(
            f"source {shown(name)}: states {what}, expected at most {last}\n  Restore the states as they were saved."
        )
