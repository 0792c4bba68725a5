"""A recipe → all its problems at once, importing no target: signatures are read from source text."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from streamdata.errors import shown
from streamdata.recipe.attribute_check import OF_SOURCES, check_attributes
from streamdata.recipe.defaults import FOR_ALL, for_all
from streamdata.recipe.limits import RecipeLimits, read_limits, refusal_of_limits
from streamdata.recipe.load import NO_PARAMS, Recipe, RecipeFile, folders_of, load_recipe, locations_of
from streamdata.recipe.locations import UNKNOWN, Kind, Path, Problem
from streamdata.recipe.mixture_check import MIXTURE, check_mixture, check_root
from streamdata.recipe.own_targets import is_own, public_name
from streamdata.recipe.parameters import Parameters, parameters_of
from streamdata.recipe.permission import refusal_of_text, under_allow
from streamdata.recipe.source_definitions import Definition, Definitions, NotCheckedError, NotFoundError
from streamdata.recipe.source_parameters import Function, stage_parameters
from streamdata.recipe.targets import callable_of
from streamdata.recipe.trust import PERMITTED, refusal_of_name, refusal_of_origin, validated_allow
from streamdata.recipe.type_check import TypeCheck
from streamdata.recipe.variables import References

MAX_PROBLEMS: Final = 1000
"""After so many the rest of the targets is not looked at: each takes time, such as for a guess what was meant."""

RefusalOfFiles = Callable[[str, Mapping[str, Any]], Iterable[tuple[str, str, Kind]]]
"""Of a target of ours and its params: the names of those whose files are not there, each with what is wrong, or that
nobody has looked."""


def check_recipe(
    recipe: Recipe,
    variables: Mapping[str, Any] | None = None,
    dynamic_objs_names: Collection[str] | None = None,
    allow: Collection[str] | None = None,
    *,
    files: RefusalOfFiles | None = None,
    is_streamed: bool = False,
    include_roots: Sequence[str | os.PathLike[str]] = (),
    limits: Mapping[str, int] | None = None,
) -> list[Problem]:
    """Finds every problem of a recipe that can be seen without importing a target.

    Args:
        recipe: As for building.
        variables: As for building.
        dynamic_objs_names: The names of the dynamic objects that will be given; None accepts any name.
        allow: As for building.
        files: Looks for the files that our own targets name, and says what is wrong with them.
        is_streamed: Whether the root must be a mixture or a source, as `streamdata run` takes it.
        include_roots: As for building.
        limits: As for building.

    Returns:
        The problems in the order of reading; errors, warnings, and what could not be checked. After `MAX_PROBLEMS` the
        last one says where the check of targets ended.
    """
    objects = None if dynamic_objs_names is None else dict.fromkeys(dynamic_objs_names, UNKNOWN)
    references = References(variables or {}, objects)
    check = _Check(validated_allow(allow), files)
    # A dict, for it keeps the order and drops what a file that is included twice repeats.
    problems: dict[Problem, None] = {}
    locations = locations_of(recipe, lambda problem, _: problems.setdefault(problem))
    folders, bounds = folders_of(recipe, include_roots), read_limits(limits, RecipeLimits, "recipe")
    file = load_recipe(recipe, references, locations, folders, bounds)
    for name in references.unused():
        locations.report((), f"the variable {shown(name)} is not used by the recipe", at=(1, 1), kind="warning")
    with under_allow(check.allow, references.variables):
        for part in file.files() if file else ():
            check.file(part, problems)
            if len(problems) > MAX_PROBLEMS:
                break
        if file and is_streamed:
            check_root(file, check.definitions)
    return list(problems)


class _Check:
    """Reports the problems of files that are loaded."""

    def __init__(self, allow: Collection[str] | None, files: RefusalOfFiles | None) -> None:
        self.allow = allow
        self.files = files
        self.definitions = Definitions()
        self._said_for: dict[int, Mapping[str, Any]] = {}
        """What mixtures above an included file say for all sources below them, by the file's id."""
        self.types = TypeCheck(self.definitions.modules)

    def file(self, file: RecipeFile, problems: Collection[Problem]) -> None:
        """Checks all the targets of one file, until there are too many problems."""
        for path, included in file.includes.items():
            self._said_for[id(included)] = self._said(file, path)
        for path, node in file.buildable():
            if len(problems) >= MAX_PROBLEMS:
                file.locations.report(
                    path, f"not checked, nor what follows: {len(problems)} problems", kind="not checked"
                )
                return
            if isinstance(node.get("target"), str) and node["target"]:
                self._target(file, path, node)
            elif path in file.includes:
                self._included(file, path, node)

    def _target(self, file: RecipeFile, path: Path, node: dict[Any, Any]) -> None:
        at = (*path, "target")
        locations = file.locations
        refusal = refusal_of_name(node["target"], self.allow)
        if refusal:
            locations.report(at, refusal)
            return
        if node["target"] == MIXTURE:
            check_mixture(file, path, node, self.definitions)
        check_attributes(file, path, node, node["target"], self.definitions, self.types)
        try:
            self._definition(file, path, node)
        except NotFoundError as error:
            locations.report(at, str(error))
        except NotCheckedError as error:
            locations.report(at, f"not checked: {error}", kind="not checked")

    def _included(self, file: RecipeFile, path: Path, node: dict[Any, Any]) -> None:
        """Checks what is set on an object that another file builds."""
        target = file.includes[path].root().get("target")
        if not isinstance(target, str):
            return
        if "params" in node:
            file.locations.report((*path, "params"), NO_PARAMS, key=True)
        check_attributes(file, path, node, target, self.definitions, self.types)

    def _definition(self, file: RecipeFile, path: Path, node: dict[Any, Any]) -> None:
        """Finds what a target names, and compares its parameters."""
        definition = self.definitions.find(node["target"])  # of the standard library, any name is found
        refusal = None if definition.name in PERMITTED else refusal_of_origin(definition.name, self.allow)
        if refusal:
            file.locations.report((*path, "target"), refusal)
            return
        if definition.is_stage and "params" not in node:
            file.locations.report(path, "expected its parameters, got none\n  Write 'params: {}' beside its target.")
        if not isinstance(node.get("params", UNKNOWN), dict | None):
            return
        params = [name for name in node["params"] or {} if isinstance(name, str)]
        for parameters in self._parameters(file, path, node, definition):
            parameters.check(params, path, file.locations, node["target"])
            self._types(file, path, node, parameters)
        if is_own(definition.name):
            self._texts(file, node["params"], (*path, "params"))
            self._files(file, path, node, definition.name)

    def _types(self, file: RecipeFile, path: Path, node: dict[Any, Any], parameters: Parameters) -> None:
        """Compares the values of parameters with their types."""
        for name, annotation in parameters.annotations.items():
            if name not in (node["params"] or {}) or (*path, "params", name) in file.includes or name in OF_SOURCES:
                continue
            value = node["params"][name]
            refusal = self.types.refusal(value, annotation)
            if refusal is None and name == "limits" and is_own(node["target"]) and value is not UNKNOWN:
                refusal = refusal_of_limits(value)
            if refusal:
                at = (*path, "params", name)
                file.locations.report(at, refusal, key=True, target=node["target"])

    def _files(self, file: RecipeFile, path: Path, node: dict[Any, Any], origin: str) -> None:
        """Looks for the files that parameters name."""
        params = node["params"] or {}
        if self.files is None or not all(isinstance(name, str) for name in params):
            return
        with for_all(self._said(file, path)):
            for name, refusal, kind in self.files(public_name(origin) or origin, params):
                at = (*path, "params", name)
                file.locations.report(at, refusal, key=True, target=node["target"], is_told=True, kind=kind)

    def _said(self, file: RecipeFile, path: Path) -> Mapping[str, Any]:
        """What the mixtures above a path say for all sources below them, the nearest first."""
        said, node = dict(self._said_for.get(id(file), {})), file.value
        for key in path:
            params = node.get("params") if isinstance(node, dict) and node.get("target") == MIXTURE else None
            if isinstance(params, dict):
                said.update((name, params[name]) for name in FOR_ALL if params.get(name) is not None)
            node = node[key]
        return said

    def _texts(self, file: RecipeFile, node: Any, path: Path) -> None:
        """Finds the commands, and the urls that are refused, in what one of our own targets is given."""
        if isinstance(node, str):
            refusal = refusal_of_text(node)
            if refusal:
                file.locations.report(path, refusal)
        elif path in file.includes:
            included = file.includes[path]
            self._texts(included, included.value, ())
        elif isinstance(node, list):
            for number, child in enumerate(node):
                self._texts(file, child, (*path, number))
        elif isinstance(node, dict) and ("target" not in node or str(node["target"]) in PERMITTED):
            for key, child in node.items():
                self._texts(file, child, (*path, key))

    def _parameters(
        self, file: RecipeFile, path: Path, node: dict[Any, Any], definition: Definition
    ) -> list[Parameters]:
        if definition.is_stage:
            assert isinstance(definition.node, Function), "it was made of one"
            try:
                return [stage_parameters(definition.node, definition.module, (node["params"] or {}).get("args"))]
            except ValueError as error:
                file.locations.report((*path, "params", "args"), str(error), key=True, target=node["target"])
                return []
        if definition.name in PERMITTED:
            own = parameters_of(callable_of(PERMITTED[definition.name]))
            return [own] if own else []
        return self.definitions.parameters(definition)
