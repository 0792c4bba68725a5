"""A YAML recipe → the mixture that it describes, as type checkers see it."""

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from streamdata.mixing.merged import MergedDataset
from streamdata.recipe.build import build_recipe
from streamdata.recipe.load import Recipe


def instantiate_from_yaml(
    config_path: Recipe,
    variables: Mapping[str, Any] | None = None,
    dynamic_objs: Mapping[str, object] | None = None,
    *,
    allow: Collection[str] | None = None,
    include_roots: Sequence[str | os.PathLike[str]] = (),
    limits: Mapping[str, int] | None = None,
) -> MergedDataset:
    """Builds what a YAML recipe describes.

    A mapping with ``target`` and ``params`` becomes ``target(**params)``, its other keys become attributes; ``target``
    alone is the imported thing itself; ``include`` names another recipe. The whole recipe is read, and every target's
    name authorised, before anything is imported.

    Type checkers see a MergedDataset, as most recipes build one; for another, write
    ``cast(Other, instantiate_from_yaml(…))``.

    Args:
        config_path: The recipe's file, or what it would hold as a dict or DictConfig.
        variables: Values for ``${variables:x}``: text, numbers, paths, lists, tuples and dicts.
        dynamic_objs: Objects for ``${dynamic_objs:x}``, delivered by identity.
        allow: The packages whose targets are accepted, beside streamdata; by default all but the standard library.
        include_roots: Folders with files that it may include, beside its own folder and the working directory.
        limits: How much is read: `file_bytes` (1 MiB), `num_nodes` (100,000); see `RecipeLimits`.

    Raises:
        RecipeError: The recipe cannot be read or built; the message says where, and the cause is the original error.
    """
    built: MergedDataset = build_recipe(
        config_path, variables, dynamic_objs, allow=allow, include_roots=include_roots, limits=limits
    )
    return built
