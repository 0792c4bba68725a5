"""The mixture that a recipe builds."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from streamdata.errors import RecipeError
from streamdata.mixing import MergedDataset
from streamdata.recipe import instantiate_from_yaml


def build_mixture(recipe: Path, variables: Mapping[str, Any], allow: Collection[str] | None) -> MergedDataset:
    """Build a recipe whose root is a mixture.

    Raises:
        RecipeError: It cannot be built, or its root is something else.
    """
    dataset: object = instantiate_from_yaml(recipe, variables, allow=allow)
    if not isinstance(dataset, MergedDataset):
        raise RecipeError(
            f"{recipe}: root: expected a streamdata.MergedDataset, got {type(dataset).__name__}\n"
            "  The root of a recipe that is streamed is a mixture, be it of one source."
        )
    return dataset
