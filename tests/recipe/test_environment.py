"""What a recipe takes from the environment is in no message of ours: they show the recipe's own text."""

from collections.abc import Callable
from pathlib import Path

import pytest

from streamdata import instantiate_from_yaml
from streamdata.errors import RecipeError
from streamdata.recipe.check import check_recipe

Write = Callable[..., str]
OURS = "{target: streamdata.JsonlIterableDataset, params: {path: recipe.yaml, %s}}"


@pytest.mark.parametrize("value", ["canary-91c", "canary\"s 91c'x", "canary" * 40])
@pytest.mark.parametrize(
    "written",
    [
        OURS % "block_size: '${oc.env:CANARY}'",
        OURS % "block_size: 'x ${oc.env:CANARY}'",
        OURS % "block_size: ['${oc.env:CANARY}']",
        OURS % "name: a, percent: '${oc.env:CANARY}'",
        OURS % "name: a, percent: '${env}'",
        "{include: '${oc.env:CANARY}'}",
        "{target: '${oc.env:CANARY}'}",
    ],
)
def test_a_check_shows_the_text_of_the_recipe(write: Write, monkeypatch, value: str, written: str) -> None:
    """In place of what it resolved to: of parameters, weights, files and targets."""
    monkeypatch.setenv("CANARY", value)
    above = "env: [[0, '${oc.env:CANARY}']]\nmixture: "
    mixture = f"{above}{{target: streamdata.MergedDataset, params: {{datasets: [{written}]}}}}"
    told = "".join(map(str, check_recipe(write(mixture))))
    assert "canary" not in told
    assert "91c" not in told
    assert "${oc.env:CANARY}" in told or "${env}" in told or "the name that an interpolation gives" in told


def test_a_build_shows_the_text_of_the_recipe(write: Write, monkeypatch) -> None:
    """Of what it refuses before anything is built."""
    monkeypatch.setenv("CANARY", "canary.yaml")
    with pytest.raises(RecipeError, match=r"the included file '\$\{oc\.env:CANARY\}' was not found"):
        instantiate_from_yaml(write("a: {include: '${oc.env:CANARY}'}"))


def test_a_path_of_the_environment_is_told_where_nothing_lies(write: Write, monkeypatch) -> None:
    """By the constructor that looked there: who is to mend it needs to see it."""
    monkeypatch.setenv("DATA", str(Path("/no/such/folder")))
    with pytest.raises(RecipeError, match=r"pattern '/no/such/folder/0\.jsonl'"):
        instantiate_from_yaml(
            write("{target: streamdata.JsonlIterableDataset, params: {path: '${oc.env:DATA}/0.jsonl'}}")
        )
