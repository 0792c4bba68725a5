"""A YAML recipe → objects.

1. `yaml_tree`: text → dicts, lists and scalars with their locations
2. `resolve`: ``${variables:x}``, ``${dynamic_objs:x}`` and OmegaConf's interpolations → their values
3. `load`: a file and its includes → `RecipeFile`s
4. `own_targets`, `targets`: dotted names → authorised objects; `permission`: what their parameters may do
5. `build`: these → objects; or `signatures`, `check`, `mixture_check`: these → all their problems, without building any

Below the rooms that need it lies what recipes say of every source: `named_source` (name, weight, part) and `limits`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamdata.recipe.check import check_recipe
    from streamdata.recipe.locations import Problem

__all__ = ["Problem", "check_recipe"]

_MODULES = {"Problem": "locations", "check_recipe": "check"}


def __getattr__(name: str) -> object:
    # Other rooms need percents and parameters of what a recipe names: a spawned worker imports no OmegaConf for these.
    if name not in _MODULES:
        raise AttributeError(f"module 'streamdata.recipe' has no attribute {name!r}")
    return getattr(import_module(f"streamdata.recipe.{_MODULES[name]}"), name)
