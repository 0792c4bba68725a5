"""What is written of a generation: its topology, its tree, and what the lanes of its topology began with."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from streamdata.progress.checked import FORMAT
from streamdata.recipe.percent import Weight
from streamdata.run import Lane

ANOMALIES = "anomalies"
OF_DEAL = ("deal", "step", "pass", "finished", "base", "dealt", "history")
"""What the headers of all generations of a deal share, beside its topology."""
BY_COST = ", by cost"
"""How the order of a mixture ends that has a cost."""


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

    def below(self, path: str) -> "Tree":
        """The tree without what is not below the node."""
        start = f"{path}." if path else ""
        nodes = {key: node for key, node in self.nodes.items() if key.startswith(start) and key != path}
        return Tree(nodes, {key: weight for key, weight in self.weights.items() if key.startswith(start)})

    def blend(self, path: str) -> Mapping[str, Weight]:
        """The weights of the node's children."""
        return {key: weight for key, weight in self.weights.items() if key.rpartition(".")[0] == path}


def header(tree: Tree, lane: Lane, of_deal: Mapping[str, Any], anomalies: Mapping[str, Mapping[str, int]]) -> str:
    """Write a generation's header: its topology, its tree, and for people what its sources have in their shards.

    Args:
        tree: What determines the order.
        lane: Whose number of ranks and workers count.
        of_deal: What all generations under this topology share.
        anomalies: Of each node that has any: how much is not a record, or less than one, by kind. No resume compares
            it.
    """
    topology = {"dp_size": lane.dp_size, "num_workers": lane.num_workers}
    noted = {ANOMALIES: anomalies} if anomalies else {}
    trees = {"nodes": dict(tree.nodes), "weights": dict(tree.weights)}
    return json.dumps({"format": FORMAT, **topology, **of_deal, **trees, **noted})
