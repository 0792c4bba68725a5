"""A YAML recipe → objects.

1. `yaml_tree`: text → dicts, lists and scalars with their places
2. `variables`: ``${variables:x}`` and ``${dynamic_objs:x}`` → the caller's values
3. `resolve`: OmegaConf's interpolations → their values
4. `load`: a file and its includes → documents
5. `trust`, `own_targets`, `targets`: dotted names → authorised objects; `leave`: what their parameters may ask for
6. `build`: documents → objects; or `check`: documents → all their problems, without importing a target
"""

from streamdata.recipe.build import instantiate_from_yaml
from streamdata.recipe.check import check_recipe
from streamdata.recipe.places import Problem

__all__ = ["Problem", "check_recipe", "instantiate_from_yaml"]
