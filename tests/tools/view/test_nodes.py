import functools

import pytest

from streamdata import MergedDataset
from streamdata.tools.view.tree import functions_of, shares_of
from tests.streams import Numbers
from tests.tools.view.functions import Totals, noisy, pairs


def nested() -> MergedDataset:
    """A quarter `a`; of the other three, one fifth `inner.b` and four fifths `inner.c`."""
    inner = MergedDataset([Numbers("b", 5, 0.1), Numbers("c", 5, 0.4)])
    inner.name, inner.percent = "inner", 3
    return MergedDataset([Numbers("a", 5, 1), inner])


def test_shares_are_of_the_parent_and_overall_shares_multiply_down_the_tree() -> None:
    """Weights need not add to 1 at any level."""
    shares = {path: (share.share, share.overall) for path, share in shares_of(nested()).items()}
    expected = {"": (1, 1), "a": (0.25, 0.25), "inner": (0.75, 0.75), "inner.b": (0.2, 0.15), "inner.c": (0.8, 0.6)}
    assert {path: pytest.approx(pair) for path, pair in expected.items()} == shares


def test_nodes_come_parents_first_in_the_order_of_the_recipe() -> None:
    """Each with the mixture that holds it."""
    dataset = nested()
    inner = dataset.datasets[1]
    parents = [(path, share.parent) for path, share in shares_of(dataset).items()]
    assert parents == [("", None), ("a", dataset), ("inner", dataset), ("inner.b", inner), ("inner.c", inner)]


def test_functions_are_named_whatever_kind_of_callable_they_are() -> None:
    """A function, a partial, an object."""
    a = Numbers("a", 5, single_process_fn=functools.partial(noisy), process_fn=Totals())
    assert functions_of(MergedDataset([a], customized_yield_fn=pairs)) == {"customized_yield_fn": "pairs"}
    assert functions_of(a) == {"single_process_fn": "partial of noisy", "process_fn": "Totals"}


def test_what_is_no_source_has_no_tree() -> None:
    """The message says what is wanted."""
    with pytest.raises(ValueError, match=r"describe: expected a MergedDataset or a source, got list\n.*__getitem__"):
        shares_of([Numbers("a", 5)])
