"""A YAML recipe → objects, or all its problems without building any.

1. `yaml_tree`: text → dicts, lists and scalars with their locations; what is wrong there
2. `resolve`: ``${variables:x}``, ``${dynamic_objs:x}`` and OmegaConf's interpolations → their values
3. `load`: a file and its includes → `RecipeFile`s
4. `targets`: dotted names → authorised objects; which of streamdata's own a recipe may name
5. `signatures`: a target → its parameters and their types
6. `build`: files → objects; `check`: files → problems

Below the rooms that need it lies what recipes say of every source: `named_source` (name, weight, part) and `limits`
(sizes, kinds of file, commands, urls and directories).
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamdata.recipe.check import check_recipe
    from streamdata.recipe.yaml_tree import Problem

__all__ = ["Problem", "check_recipe"]

_MODULES = {"Problem": "yaml_tree", "check_recipe": "check"}


def __getattr__(name: str) -> object:
    # Other rooms need percents and parameters of what a recipe names: a spawned worker imports no OmegaConf for these.
    if name not in _MODULES:
        raise AttributeError(f"module 'streamdata.recipe' has no attribute {name!r}")
    return getattr(import_module(f"streamdata.recipe.{_MODULES[name]}"), name)
