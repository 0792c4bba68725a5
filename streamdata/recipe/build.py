"""The files of a recipe → objects, built from the leaves up."""

import contextlib
import os
import types
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from streamdata.errors import did_you_mean, shown, text_of
from streamdata.recipe.limits import under_allow
from streamdata.recipe.load import Recipe, RecipeFile, attributes, check_attributes, load_recipe
from streamdata.recipe.named_source import FOR_ALL, for_all
from streamdata.recipe.resolve import Dynamic, References
from streamdata.recipe.signatures import Parameters, parameters_of
from streamdata.recipe.targets import (
    MIXTURE,
    TargetError,
    callable_of,
    import_target,
    origin_of,
    refusal_of_name,
    validated_allow,
)
from streamdata.recipe.yaml_tree import Path, path_text

Uses = list[tuple[str, object]]
_used: set[tuple[str, str]] = set()
_said: set[tuple[str, str]] = set()
"""Variables, each with its value as text, that a recipe of this process used, and those said to be unused."""
_SHARED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def authorised_recipe(
    config_path: Recipe,
    variables: Mapping[str, Any],
    dynamic_objs: Mapping[str, object],
    allow: Collection[str] | None,
    include_roots: Sequence[str | os.PathLike[str]] = (),
    limits: Mapping[str, int] | None = None,
) -> RecipeFile:
    """Reads a recipe and checks that every target may be imported; see `instantiate_from_yaml`.

    Raises:
        RecipeError: The recipe cannot be read, or names a target that may not be imported.
    """
    validated_allow(allow)
    references = References(variables, dynamic_objs)
    file = load_recipe(config_path, references, include_roots, limits)
    assert file is not None, "the first problem raises"
    # One dict of variables may serve several recipes: each that none of them has used is said once.
    given = {(name, repr(value)) for name, value in variables.items()}
    _used.update(each for each in given if each[0] in references.used)
    unused = sorted(given - _used - _said)
    _said.update(unused)
    if unused:
        names = ", ".join(repr(name) for name, _ in unused)
        warnings.warn(f"{file.locations.file}: the variables {names} are not used by the recipe", stacklevel=3)
    for part, path, node in file.targets():
        if "target" in node and (refusal := refusal_of_name(node["target"], allow)):
            part.locations.report((*path, "target"), refusal)
    return file


def build_node(
    file: RecipeFile, node: Any, path: Path, allow: Collection[str] | None, variables: Mapping[str, Any]
) -> Any:
    """Builds the object at a path of an authorised file; see `instantiate_from_yaml`.

    Raises:
        RecipeError: The object cannot be built; the message says where, and the cause is the original error.
    """
    with under_allow(allow, variables):
        return _Builder(file, allow, []).node(node, path)


class _Builder:
    """Builds one file.

    Args:
        file: What to build.
        allow: See `instantiate_from_yaml`.
        uses: Grows by each dynamic object met, with its location; shared by the files of a recipe.
    """

    def __init__(self, file: RecipeFile, allow: Collection[str] | None, uses: Uses) -> None:
        self.file = file
        self.locations = file.locations  # whose reports raise `RecipeError`
        self.allow = allow
        self.uses = uses

    def node(self, node: Any, path: Path) -> Any:
        """Builds the object of a node and of all nodes below it."""
        if isinstance(node, Dynamic):
            self.uses.append((f"{self.locations.of(path)}: {path_text(path)}", node.value))
            return node.value
        if isinstance(node, list):
            return [self.node(child, (*path, index)) for index, child in enumerate(node)]
        if not isinstance(node, dict):
            return node
        if "target" in node:
            return self._target(node, path)
        if "include" in node:
            return self._include(node, path)
        return {key: self.node(child, (*path, key)) for key, child in node.items()}

    def _target(self, node: dict[Any, Any], path: Path) -> Any:
        name = node["target"]
        try:
            target = import_target(name, self.allow)
        except TargetError as error:
            return self.locations.report((*path, "target"), str(error), cause=error.__cause__ or error)
        if "params" not in node:
            return target
        self._check_attributes(target, node, path)  # before the slow work that building may be
        met = len(self.uses)
        obj = self._call(target, name, node["params"] or {}, path)
        return self._finished(obj, node, path, met)

    def _call(self, target: object, name: str, params: dict[Any, Any], path: Path) -> Any:
        call = callable_of(target)
        if call is None:
            return self.locations.report(path, f"expected a callable, got {type(target).__name__}", target=name)
        parameters = parameters_of(call)
        if parameters:
            parameters.check(params, path, self.locations, name)
        said = {key: self.node(params[key], (*path, "params", key)) for key in FOR_ALL if key in params}
        with for_all(said if name == MIXTURE else {}):
            others = {key: self.node(node, (*path, "params", key)) for key, node in params.items() if key not in said}
            try:
                return call(**others, **said)
            except (Exception, SystemExit) as error:  # whatever a constructor raises is wrapped
                failure = error
        message = f"{type(failure).__name__}: {text_of(failure)}"  # not above: it may quote what no context may
        return self.locations.report(path, message, target=name, cause=failure, is_told=True)

    def _include(self, node: dict[Any, Any], path: Path) -> Any:
        included = self.file.includes[path]
        met = len(self.uses)
        obj = _Builder(included, self.allow, self.uses).node(included.value, ())
        others = attributes(node)
        if type(obj) is dict:
            obj.update({key: self.node(child, (*path, key)) for key, child in others.items()})
            return obj
        return self._finished(obj, node, path, met) if others else obj

    def _check_attributes(self, target: object, node: dict[Any, Any], path: Path) -> None:
        parameters = parameters_of(target) or Parameters()
        check_attributes(node, path, self.locations, _name_of(node), origin_of(target), parameters.needed)

    def _finished(self, obj: object, node: dict[Any, Any], path: Path, num_uses_before: int) -> object:
        """Sets an object's attributes, and tells it its location in the recipe and which dynamic objects it holds."""
        # Again, now of the object: what a factory builds is known only here.
        self._check_attributes(type(obj), node, path)
        name, report = _name_of(node), self.locations.report
        for key, child in attributes(node).items():
            at = (*path, key)
            if isinstance(obj, _SHARED):
                message = f"attributes cannot be set on {shown(obj)}, which others share"
                report(at, message, key=True, target=name)
            value = self.node(child, at)
            try:
                setattr(obj, key, value)
            except (Exception, SystemExit) as error:  # a property's setter may raise anything
                message = f"setting the attribute {shown(key)} failed with {type(error).__name__}: {text_of(error)}"
                guess = did_you_mean(key, [name for name in dir(obj) if not name.startswith("_")])
                report(at, message + guess, key=True, target=name, cause=error)
        if isinstance(obj, _SHARED):
            return obj
        # Past the class's own `__setattr__`, which may refuse names that it does not know. An object that takes no
        # attributes at all goes without a location.
        with contextlib.suppress(AttributeError, TypeError):
            object.__setattr__(obj, "_recipe_location", self.locations.of(path))
        remember = getattr(obj, "remember_dynamic_objects", None)
        if len(self.uses) > num_uses_before and callable(remember):
            try:
                remember(self.uses[num_uses_before:])
            except (Exception, SystemExit) as error:  # it may be anybody's
                report(path, f"{type(error).__name__}: {text_of(error)}", target=name, cause=error, is_told=True)
        return obj


def _name_of(node: dict[Any, Any]) -> str:
    """The target or file that builds a node."""
    return str(node.get("target", node.get("include")))
