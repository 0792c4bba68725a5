"""The sources of a recipe, each to be built alone: `recipe → its sources, by name → one of them, or a part of it`."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from streamdata.recipe.build import authorised_recipe, build_node
from streamdata.recipe.defaults import FOR_ALL, for_all
from streamdata.recipe.load import Recipe, RecipeFile, attributes
from streamdata.recipe.locations import Path
from streamdata.recipe.mixture_check import MIXTURE
from streamdata.recipe.own_targets import public_name
from streamdata.recipe.permission import under_allow
from streamdata.recipe.trust import validated_allow
from streamdata.recipe.variables import Dynamic, References

_Node = dict[Any, Any]


class RecipeSource:
    """A source as a recipe describes it.

    Args:
        name: Its dotted name below the top mixture; "" of a root that is a source, or of one without a name.
        place: Its file, and its path and mapping there.
        above: What the mixtures above it say for all, the outermost first.
        variables: The recipe's, and which targets it may name.
    """

    def __init__(
        self,
        name: str,
        place: tuple[RecipeFile, Path, _Node],
        above: tuple[Mapping[str, Any], ...],
        variables: tuple[Mapping[str, Any], Collection[str] | None],
    ) -> None:
        self.name = name
        self._file, self._path, self._node = place
        self._above, (self._variables, self._allow) = above, variables

    @property
    def location(self) -> str:
        """File, line and column."""
        return str(self._file.locations.of(self._path))

    @property
    def target(self) -> str:
        """What builds it, one of streamdata's own by its public name."""
        node = _innermost(self._file, self._path, self._node)
        return public_name(str(node.get("target"))) or str(node.get("target"))

    @property
    def params(self) -> Mapping[str, Any]:
        """Its parameters, as the recipe has them."""
        params = _innermost(self._file, self._path, self._node).get("params")
        return params if isinstance(params, dict) else {}

    def build(self, **params: object) -> Any:
        """The source, with some of its parameters replaced.

        Raises:
            RecipeError: It cannot be built; the cause is the original error.
        """
        values = {name: Dynamic(name, value) for name, value in params.items()}
        file, node = _changed(self._file, self._path, self._node, values)
        with self.settings(), under_allow(self._allow, self._variables):
            return build_node(file, node, self._path, self._allow)

    @contextmanager
    def settings(self) -> Iterator[None]:
        """Put in force what the mixtures above it say for all."""
        with ExitStack() as stack:
            for params in self._above:
                stack.enter_context(for_all(params))
            yield


def recipe_sources(
    recipe: Recipe,
    variables: Mapping[str, Any] | None = None,
    allow: Collection[str] | None = None,
    include_roots: Sequence[str] = (),
) -> list[RecipeSource]:
    """The sources of records in a recipe, in its order; nothing is built.

    Raises:
        RecipeError: The recipe cannot be read, or names a target that may not be imported.
    """
    allow = validated_allow(allow)
    file = authorised_recipe(recipe, References(variables or {}, {}), allow, include_roots)
    if not isinstance(file.value, dict):
        return []
    return list(_sources((file, (), file.value), "", (), (variables or {}, allow)))


def _sources(
    place: tuple[RecipeFile, Path, _Node],
    name: str,
    above: tuple[Mapping[str, Any], ...],
    variables: tuple[Mapping[str, Any], Collection[str] | None],
) -> Iterator[RecipeSource]:
    node = _innermost(*place)
    if public_name(str(node.get("target"))) != MIXTURE:
        yield RecipeSource(name, place, above, variables)
        return
    file, path, node = _innermost_place(*place)
    params = node.get("params") or {}
    datasets = params.get("datasets")
    said = {key: params[key] for key in FOR_ALL if key in params}
    for number, child in enumerate(datasets if isinstance(datasets, list) else ()):
        if isinstance(child, dict):
            own = f"{name}.{_name_of(file, (*path, 'params', 'datasets', number), child)}".lstrip(".")
            yield from _sources((file, (*path, "params", "datasets", number), child), own, (*above, said), variables)


def _name_of(file: RecipeFile, path: Path, node: _Node) -> str:
    """The name of a source: an attribute, or a parameter."""
    params = node.get("params")
    for mapping in (attributes(node), params if isinstance(params, dict) else {}):
        if isinstance(mapping.get("name"), str):
            return str(mapping["name"])
    included = file.includes.get(path)
    return _name_of(included, (), included.value) if included and isinstance(included.value, dict) else ""


def _innermost(file: RecipeFile, path: Path, node: _Node) -> _Node:
    return _innermost_place(file, path, node)[2]


def _innermost_place(file: RecipeFile, path: Path, node: _Node) -> tuple[RecipeFile, Path, _Node]:
    """The mapping with the target, past all includes."""
    included = file.includes.get(path)
    if included is None or not isinstance(included.value, dict):
        return file, path, node
    return _innermost_place(included, (), included.value)


def _changed(file: RecipeFile, path: Path, node: _Node, params: Mapping[str, object]) -> tuple[RecipeFile, _Node]:
    """Copies of a file and of what stands at a path of it, with other parameters."""
    included = file.includes.get(path)
    if included is None or not isinstance(included.value, dict):
        return file, {**node, "params": {**(node.get("params") or {}), **params}}
    inner, value = _changed(included, (), included.value, params)
    return replace(file, includes={**file.includes, path: replace(inner, value=value)}), node
