import inspect
from typing import Any

import pytest

from streamdata.recipe.signatures import Parameters, parameters_of
from streamdata.recipe.yaml_tree import Locations, Problem


def function(a: int, /, b: int, c: int = 0, *args: int, d: int, e: int = 0) -> None:
    """Has one parameter of each kind."""


def open_ended(a: int, **rest: Any) -> None:
    """Takes anything."""


def test_parameters_are_sorted_by_what_a_keyword_call_needs() -> None:
    """Required, optional, and those that only a position gives."""
    assert parameters_of(function) == Parameters({"b": True, "c": False, "d": True, "e": False}, ("a",))
    assert parameters_of(open_ended) == Parameters({"a": True}, accepts_any=True)


class Handwritten:
    """Describes itself as extensions do that nobody checked."""

    __signature__ = inspect.Signature([inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)])


@pytest.mark.parametrize("target", [dict, 3, Handwritten])
def test_what_python_does_not_know_is_not_checked(target: object) -> None:
    """Extensions need not describe themselves."""
    assert parameters_of(target) is None


def problems_of(wanted: Parameters, *given: str) -> dict[str, str]:
    """The messages by path."""
    found: list[Problem] = []
    wanted.check(given, (), Locations("r.yaml", on_problem=lambda problem, _: found.append(problem)), "target")
    return {problem.path: problem.message for problem in found}


def test_unknown_names_get_a_guess_among_what_is_not_given() -> None:
    """And the message lists what there is."""
    assert problems_of(Parameters({"img_size": True, "img_scale": False}), "img_siz", "img_scale") == {
        "params.img_siz": "unknown parameter 'img_siz', did you mean 'img_size'?\n  It takes: img_size, img_scale.",
        "root": "missing parameters: img_size; given: img_siz, img_scale",
    }


def test_keyword_catchers_accept_anything_but_still_miss() -> None:
    """`**kwargs` makes unknown names fine."""
    wanted = Parameters({"a": True}, accepts_any=True)
    assert problems_of(wanted, "a", "b") == {}
    assert list(problems_of(wanted, "b")) == ["root"]


def test_parameters_by_position_only_cannot_be_given() -> None:
    """A recipe calls by keywords."""
    assert "cannot be given by name" in problems_of(Parameters(positional=("x",)))["root"]
