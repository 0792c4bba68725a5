import functools

import pytest

from streamdata import MergedDataset
from streamdata.view import Node
from tests.streams import Numbers
from tests.view.functions import Totals, noisy, pairs


def nested() -> MergedDataset:
    """A quarter `a`; of the other three, one fifth `inner.b` and four fifths `inner.c`."""
    inner = MergedDataset([Numbers("b", 5, 0.1), Numbers("c", 5, 0.4)])
    inner.name, inner.percent = "inner", 3
    return MergedDataset([Numbers("a", 5, 1), inner])


def test_shares_are_of_the_parent_and_overall_shares_multiply_down_the_tree() -> None:
    """Weights need not add to 1 at any level."""
    shares = {node.path: (node.share, node.overall) for node in Node.of(nested()).walk()}
    expected = {"": (1, 1), "a": (0.25, 0.25), "inner": (0.75, 0.75), "inner.b": (0.2, 0.15), "inner.c": (0.8, 0.6)}
    assert {path: pytest.approx(pair) for path, pair in expected.items()} == shares


def test_nodes_come_parents_first_in_the_order_of_the_recipe() -> None:
    """And the leaves are those that are no mixtures."""
    top = Node.of(nested())
    assert [node.path for node in top.walk()] == ["", "a", "inner", "inner.b", "inner.c"]
    assert [(node.path, node.name) for node in top.leaves()] == [("a", "a"), ("inner.b", "b"), ("inner.c", "c")]


def test_functions_are_named_whatever_kind_of_callable_they_are() -> None:
    """A function, a partial, an object."""
    a = Numbers("a", 5, single_process_fn=functools.partial(noisy), process_fn=Totals())
    top = Node.of(MergedDataset([a], customized_yield_fn=pairs))
    assert top.functions() == {"customized_yield_fn": "pairs"}
    assert top.children[0].functions() == {"single_process_fn": "partial of noisy", "process_fn": "Totals"}


def test_only_a_mixture_has_a_tree() -> None:
    """The message says what to do."""
    with pytest.raises(ValueError, match=r"expected a MergedDataset, got Numbers\n.*MergedDataset\(\[dataset\]\)"):
        Node.of(Numbers("a", 5))
