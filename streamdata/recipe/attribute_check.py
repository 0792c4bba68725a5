"""What a recipe sets on objects, beside `target` and `params`: names that are misspelt, values of another type."""

import ast
from typing import Any, Final

from streamdata.errors import did_you_mean, shown
from streamdata.recipe.load import RecipeFile, attributes
from streamdata.recipe.locations import Path
from streamdata.recipe.mixture_check import MIXTURE
from streamdata.recipe.own_targets import is_own, refusal_of_attribute
from streamdata.recipe.parameters import Annotation
from streamdata.recipe.source_definitions import Definition, Definitions, NotCheckedError, NotFoundError
from streamdata.recipe.type_check import TypeCheck

OF_SOURCES: Final = ("name", "percent", "holdout", "part", "parts", "parts_by")
"""Attributes that have rules of their own in a mixture, wherever they are given."""

_TYPES: Final = {
    "length": "float | None",
    "length_divisor": "float",
    "length_multiplier": "float",
    "max_bad": "int",
    "max_epochs": "int | None",
    "process_fn": "Callable | list[Callable] | None",
    "records_per_block": "int",
    "single_process_fn": "Callable | None",
}
_ANNOTATIONS: Final = {name: Annotation(ast.parse(text, mode="eval").body, None) for name, text in _TYPES.items()}
_KNOWN: Final = (*_TYPES, *OF_SOURCES, "lanes", "source_identity")


def check_attributes(
    file: RecipeFile, path: Path, node: dict[Any, Any], target: str, definitions: Definitions, types: TypeCheck
) -> None:
    """Compares what is set on an object with what it takes.

    Args:
        file: Holds the object.
        path: Of the object.
        node: Its mapping, of a target or an include.
        target: What builds it.
        definitions: Shows what that is.
        types: Compares values.
    """
    try:
        definition = definitions.find(target)
        own = is_own(definition.name)
        parameters = [name for part in definitions.parameters(definition) for name in part.names] if own else []
    except (NotFoundError, NotCheckedError):
        return  # reported where the target is
    is_source = own or _is_in_mixture(file, path)
    params = node.get("params")
    given = params if isinstance(params, dict) else ()  # what else it may be is reported where it is read
    for key, value in attributes(node).items():
        if not isinstance(key, str) or key == "params":  # those of an include were looked at by who called
            continue
        if own:
            refusal = refusal_of_attribute(key, definition.name, parameters, given)
        else:
            refusal = _misspelt(key, definition, definitions) if is_source else None
        if refusal is None and is_source and key in _ANNOTATIONS and (*path, key) not in file.includes:
            refusal = types.refusal(value, _ANNOTATIONS[key])
        if refusal:
            file.locations.report((*path, key), refusal, key=True, target=target)


def _misspelt(key: str, cls: Definition, definitions: Definitions) -> str | None:
    """Why an attribute of a source that is not ours is refused: it is nearly one of a source, and nobody else's."""
    guess = did_you_mean(key, _KNOWN)
    if key in _KNOWN or not guess or not isinstance(cls.node, ast.ClassDef) or definitions.sets_attribute(cls, key):
        return None
    return f"unknown attribute {shown(key)}{guess}\n  A source takes: {', '.join(sorted(_KNOWN))}."


def _is_in_mixture(file: RecipeFile, path: Path) -> bool:
    """Whether an object is among the datasets of a mixture in the same file."""
    above, keys = path[:-3], path[-3:-1]
    if keys != ("params", "datasets"):
        return False
    node: Any = file.value
    for key in above:
        node = node[key]
    return isinstance(node, dict) and node.get("target") == MIXTURE
