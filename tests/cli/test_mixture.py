from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from streamdata import MergedDataset, RecipeError
from streamdata.cli.mixture import build_mixture


def test_a_mixture_is_built_with_its_variables(write_recipe: Callable[..., Path]) -> None:
    """As `instantiate_from_yaml` builds it."""
    dataset = build_mixture(write_recipe("seed: ${variables:seed}"), {"seed": 8}, None)
    assert isinstance(dataset, MergedDataset)
    assert dataset.seed == 8


def test_a_root_that_is_no_mixture_is_refused(tmp_path: Path, streamdata: Callable[..., Result]) -> None:
    """It says what it is, and what is wanted."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("a: 1\n")
    with pytest.raises(RecipeError, match=r"root: expected a streamdata\.MergedDataset, got dict\n"):
        build_mixture(recipe, {}, None)
    assert streamdata("run", recipe).exit_code == 1
