"""What is written of a generation: its size, its tree, and which header of the sizes before it it goes on from."""

import json
from collections.abc import Mapping
from typing import NamedTuple

from streamdata.progress.checked import FORMAT
from streamdata.progress.deal_header import DealHeader
from streamdata.progress.leftovers import BlockCut
from streamdata.recipe.percent import Weight
from streamdata.run import Lane

ANOMALIES = "anomalies"
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
    noted = {ANOMALIES: anomalies} if anomalies else {}
    before = {"dealt": deal.digest} if deal.number else {}
    trees = {"nodes": dict(tree.nodes), "weights": dict(tree.weights), "cuts": dict(tree.cuts)}
    return json.dumps({"format": FORMAT, **size, **before, **trees, **noted})
