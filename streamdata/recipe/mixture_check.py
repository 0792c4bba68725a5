"""The rules for the children of a `MergedDataset`, checked on a recipe before it is built."""

import ast
from collections.abc import Iterator
from typing import Any, Final

from streamdata.errors import shown
from streamdata.recipe.holdout import HOLDOUT_KEYS, read_selection
from streamdata.recipe.load import RecipeFile
from streamdata.recipe.locations import UNKNOWN, Locations, Path
from streamdata.recipe.own_targets import builds_source, is_own
from streamdata.recipe.percent import is_absent, read_percent
from streamdata.recipe.source_definitions import Definitions, NotCheckedError, NotFoundError

_ABSENT = object()
MIXTURE: Final = "streamdata.MergedDataset"


def check_mixture(file: RecipeFile, path: Path, node: dict[Any, Any], definitions: Definitions) -> None:
    """Reports missing, duplicate or dotted names, percents, holdouts and parts that are not valid, and finite mixtures.

    A finite mixture is refused within an endless one.

    Args:
        file: Holds the mixture.
        path: Of the mixture.
        node: Its mapping.
        definitions: Shows which classes set their own name or weight.
    """
    params = node.get("params")
    datasets = params.get("datasets", UNKNOWN) if isinstance(params, dict) else UNKNOWN
    is_cyclic = isinstance(params, dict) and params.get("cyclic", True) is True
    at = (*path, "params", "datasets")
    if isinstance(datasets, list) and not datasets:
        file.locations.report(at, "expected at least one dataset, got none", target=node["target"])
    if isinstance(datasets, str | int | float):
        message = f"expected a list of datasets, got {shown(datasets)}\n  Write '- target: …' for each."
        file.locations.report(at, message, key=True, target=node["target"])
    names: dict[str, str] = {}
    percents: list[object] = []
    for index, child in enumerate(datasets if isinstance(datasets, list) else []):
        if not isinstance(child, dict) or not ("target" in child or "include" in child):
            continue
        where = (*at, index)
        percents.append(_check_source(file, where, definitions, names))
        if is_cyclic and _is_finite_mixture(file, where):
            message = (
                "expected cyclic: true in a mixture within a cyclic one, got cyclic: false\n"
                "  Write 'cyclic: true' in it, or list its sources in the mixture around it, or write "
                "'cyclic: false' there, too."
            )
            file.locations.report(where, message)
    if percents and all(map(is_absent, percents)):
        file.locations.report(at, "expected a positive number as percent of some dataset, got 0 of all")


def check_root(file: RecipeFile, definitions: Definitions) -> None:
    """Reports a root that certainly cannot be streamed; one without a target may hold what is, for who builds it.

    Of a source alone the rules for the sources of a mixture apply, but that a name and a percent may be left out.
    """
    root = file.root()
    if "target" in root or "include" in root:
        what = _not_streamed(root, definitions)
        if what:
            message = f"expected a {MIXTURE} or a source as the root, got {what}\n  Name what is to be streamed."
            file.locations.report(("target",) if "target" in file.value else ("include",), message, key=True)
        elif root.get("target") != MIXTURE:
            _check_source(file, (), definitions)
    elif not any(_may_be_streamed(node, definitions) for part in file.files() for _, node in part.buildable()):
        message = (
            f"expected a {MIXTURE} or a source as the root, got neither\n  Write 'target: {MIXTURE}' and its params."
        )
        file.locations.report((), message, at=(1, 1))


def _may_be_streamed(node: dict[Any, Any], definitions: Definitions) -> bool:
    return "target" in node and _not_streamed(node, definitions) is None


def _not_streamed(node: dict[Any, Any], definitions: Definitions) -> str | None:
    """What a target certainly builds that is no mixture and no source; None where only running would show."""
    target = node.get("target")
    if not isinstance(target, str):
        return None
    try:
        definition = definitions.find(target)
    except (NotFoundError, NotCheckedError):
        return None  # reported already
    if "params" not in node:
        return f"{target} itself, for it has no params"
    if is_own(definition.name):
        return None if builds_source(definition.name) else target
    is_class = isinstance(definition.node, ast.ClassDef)
    has_records = any(definitions.sets_attribute(definition, name) for name in ("__iter__", "__getitem__"))
    return target if is_class and not has_records else None


def _check_source(
    file: RecipeFile, path: Path, definitions: Definitions, names: dict[str, str] | None = None
) -> object:
    """Checks what one source is called and weighs, and which part is read; without `names`, of a source alone.

    Returns:
        Its percent.
    """
    keys = ("name", "percent", *HOLDOUT_KEYS)
    name, percent, *selection = (_attribute(file, path, key, definitions) for key in keys)
    if names is not None or name is not _ABSENT:
        _check_name(file.locations, path, name, {} if names is None else names)
    if names is not None or percent is not _ABSENT:
        _check_percent(file.locations, path, percent)
    _check_holdout(file.locations, path, *selection)
    return percent


def _check_name(locations: Locations, path: Path, name: object, names: dict[str, str]) -> None:
    at = (*path, "name")
    if name is _ABSENT:
        locations.report(path, "expected a dataset with a name, got none\n  Add a unique 'name' beside 'target'.")
    elif isinstance(name, str) and name and "." not in name:
        if name in names:
            locations.report(at, f"expected a unique name, got {shown(name)} again, first at {names[name]}")
        names.setdefault(name, locations.of(at))
    elif name is not UNKNOWN:
        locations.report(at, f"expected text without '.' as a name, got {shown(name)}")


def _check_percent(locations: Locations, path: Path, percent: object) -> None:
    if percent is _ABSENT:
        locations.report(path, "expected a dataset with a weight, got none\n  Add 'percent: 1.0' beside 'target'.")
    elif not _holds_unknown(percent):
        try:
            read_percent(percent)
        except ValueError as error:
            locations.report((*path, "percent"), str(error))


def _check_holdout(locations: Locations, path: Path, *values: object) -> None:
    given = {key: None if value is _ABSENT else value for key, value in zip(HOLDOUT_KEYS, values, strict=True)}
    if UNKNOWN in given.values():
        return
    try:
        read_selection(**given)
    except ValueError as error:
        key = next(key for key in HOLDOUT_KEYS if given[key] is not None)
        locations.report((*path, key), str(error))


def _is_finite_mixture(file: RecipeFile, path: Path) -> bool:
    nodes = (_node_at(holder.value, at) for holder, at in _holders(file, path))
    params = (node.get("params") for node in nodes if node.get("target") == MIXTURE)
    return any(isinstance(given, dict) and given.get("cyclic") is False for given in params)


def _holds_unknown(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_unknown, value.values()))
    return any(map(_holds_unknown, value)) if isinstance(value, list) else value is UNKNOWN


def _attribute(file: RecipeFile, path: Path, name: str, definitions: Definitions) -> object:
    """The value that the child at a path will have, `UNKNOWN` if only running would show, `_ABSENT` if it has none."""
    for holder, at in _holders(file, path):
        node = _node_at(holder.value, at)
        if name in node:
            return node[name]
        if "include" in node:
            if at not in holder.includes:
                return UNKNOWN  # it was not found, which is reported already
            continue
        return _constructed(node, name, definitions)
    return UNKNOWN


def _holders(file: RecipeFile, path: Path) -> Iterator[tuple[RecipeFile, Path]]:
    """The mapping at a path, then the roots of the files that it includes."""
    yield file, path
    while path in file.includes:
        file, path = file.includes[path], ()
        yield file, path


def _node_at(node: Any, path: Path) -> dict[Any, Any]:
    for key in path:
        node = node[key]
    return node if isinstance(node, dict) else {}


def _constructed(node: dict[Any, Any], name: str, definitions: Definitions) -> object:
    """The value that a child has of an attribute once it is built: that of a parameter, or what its class sets."""
    try:
        definition = definitions.find(node["target"]) if isinstance(node.get("target"), str) else None
    except (NotFoundError, NotCheckedError):
        return UNKNOWN
    if definition is None:
        return _ABSENT
    if is_own(definition.name):  # ours take them as parameters, and have no names of their own
        params = node.get("params")
        value = (params or {}).get(name) if isinstance(params, dict | None) else UNKNOWN
        return _ABSENT if value is None else value
    is_class = isinstance(definition.node, ast.ClassDef)
    return _ABSENT if is_class and not definitions.sets_attribute(definition, name) else UNKNOWN
