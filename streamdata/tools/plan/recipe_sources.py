"""The sources of a recipe, each to be built alone: `recipe → its sources, by name → one of them, or a part of it`."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from streamdata.recipe.build import authorised_recipe, build_node
from streamdata.recipe.load import Recipe, RecipeFile, attributes
from streamdata.recipe.locations import Path
from streamdata.recipe.mixture_check import MIXTURE
from streamdata.recipe.named_source import FOR_ALL, for_all
from streamdata.recipe.own_targets import public_name
from streamdata.recipe.permission import under_allow
from streamdata.recipe.resolve import Dynamic, References
from streamdata.recipe.targets import validated_allow

_Given = tuple[Mapping[str, Any], Collection[str] | None]
"""A recipe's variables, and which targets it may name."""


class RecipeSource:
    """A source as a recipe describes it.

    Args:
        name: Its dotted name below the top mixture; "" of a root that is a source, or of one without a name.
        file: Its file.
        path: Its place there.
        above: What the mixtures above it say for all, the outermost first.
        given: What the recipe is built with.
    """

    def __init__(
        self, name: str, file: RecipeFile, path: Path, above: tuple[Mapping[str, Any], ...], given: _Given
    ) -> None:
        self.name = name
        self._file, self._path, self._above, (self._variables, self._allow) = file, path, above, given
        self._node = file.mappings(path)[-1][2]

    @property
    def location(self) -> str:
        """File, line and column."""
        return self._file.locations.of(self._path)

    @property
    def target(self) -> str:
        """What builds it, one of streamdata's own by its public name."""
        return public_name(str(self._node.get("target"))) or str(self._node.get("target"))

    @property
    def params(self) -> Mapping[str, Any]:
        """Its parameters, as the recipe has them."""
        params = self._node.get("params")
        return params if isinstance(params, dict) else {}

    def build(self, **params: object) -> Any:
        """The source, with some of its parameters replaced.

        Raises:
            RecipeError: It cannot be built; the cause is the original error.
        """
        values = {name: Dynamic(name, value) for name, value in params.items()}
        file, node = _changed(self._file, self._path, values)
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
    return list(_sources(file, (), "", (), (variables or {}, allow)))


def _sources(
    file: RecipeFile, path: Path, name: str, above: tuple[Mapping[str, Any], ...], given: _Given
) -> Iterator[RecipeSource]:
    holder, at, node = file.mappings(path)[-1]
    if public_name(str(node.get("target"))) != MIXTURE:
        yield RecipeSource(name, file, path, above, given)
        return
    params = node.get("params") or {}
    datasets = params.get("datasets")
    said = {key: params[key] for key in FOR_ALL if key in params}
    for number, child in enumerate(datasets if isinstance(datasets, list) else ()):
        if isinstance(child, dict):
            below = (*at, "params", "datasets", number)
            own = f"{name}.{_name_of(holder, below)}".lstrip(".")
            yield from _sources(holder, below, own, (*above, said), given)


def _name_of(file: RecipeFile, path: Path) -> str:
    """The name of a source: an attribute, or a parameter."""
    for _, _, node in file.mappings(path):
        params = node.get("params")
        for mapping in (attributes(node), params if isinstance(params, dict) else {}):
            if isinstance(mapping.get("name"), str):
                return str(mapping["name"])
    return ""


def _changed(file: RecipeFile, path: Path, params: Mapping[str, object]) -> tuple[RecipeFile, dict[Any, Any]]:
    """Copies of a file and of what stands at a path of it, with other parameters."""
    node, included = file.mappings(path)[0][2], file.includes.get(path)
    if included is None:
        return file, {**node, "params": {**(node.get("params") or {}), **params}}
    inner, value = _changed(included, (), params)
    return replace(file, includes={**file.includes, path: replace(inner, value=value)}), node
