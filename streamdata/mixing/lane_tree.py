"""The tree of sources in one lane: nodes → `Mixture` and `LeafChild`, which read."""

from streamdata.mixing.leaf_child import LeafChild
from streamdata.mixing.mixture import Blend, Child, Mixture, Run
from streamdata.mixing.tree import Node
from streamdata.sources.functions import StreamFn


def read_mixture(run: Run, node: Node, *, parent_endless: bool = False) -> Mixture:
    """A mixture in one lane, with all that is below it.

    Raises:
        ValueError: It has a `max_bad`, and no yield function that could fail.
    """
    mixture = node.dataset
    blend = Blend(
        names=[child.dataset.name for child in node.children],
        weights=[float(child.dataset.percent) for child in node.children],
        seeds=node.seeds,
        cyclic=mixture.cyclic,
        stop_at_first=mixture.stop == "first_exhausted",
        yield_fn=mixture.customized_yield_fn,
        max_bad=_max_bad(node, mixture.customized_yield_fn),
        cost=mixture.cost,
    )
    children = [_child(run, child, parent_endless=mixture.cyclic) for child in node.children]
    return Mixture(run, node.path, blend, children, parent_endless)


def _child(run: Run, node: Node, *, parent_endless: bool) -> Child:
    return (
        read_mixture(run, node, parent_endless=parent_endless)
        if node.source is None
        else LeafChild(
            run, node.path, node.dataset, node.source, (*node.seeds, run.epoch_pass), node.shuffle, parent_endless
        )
    )


def _max_bad(node: Node, yield_fn: StreamFn | None) -> int:
    most = int(getattr(node.dataset, "max_bad", 0))
    if most and yield_fn is None:
        raise ValueError(
            f"source {node.path or 'the top'!r}: max_bad={most} of a mixture is for its customized_yield_fn, got none\n"
            "  Give max_bad to the sources that it is meant for."
        )
    return most
