"""The rules for the children of a `MergedDataset`, checked on a recipe before it is built."""

from collections.abc import Callable
from typing import Any, Final

from streamdata.errors import shown
from streamdata.recipe.load import RecipeFile
from streamdata.recipe.locations import UNKNOWN, Locations, Path
from streamdata.recipe.named_source import HOLDOUT_KEYS, is_absent, read_percent, read_selection
from streamdata.recipe.own_targets import builds_source, is_own
from streamdata.recipe.signatures import Description

_ABSENT: Final = object()
MIXTURE: Final = "streamdata.MergedDataset"
Find = Callable[[str], Description | None]
"""A target's name → what is known of it; None where nothing is."""


def check_mixture(file: RecipeFile, path: Path, node: dict[Any, Any], find: Find) -> None:
    """Reports missing, duplicate or dotted names, percents, holdouts and parts that are not valid, and finite mixtures.

    A finite mixture is refused within an endless one.

    Args:
        file: Holds the mixture.
        path: Of the mixture.
        node: Its mapping.
        find: Shows which classes set their own name or weight.
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
        percents.append(_check_source(file, where, find, names))
        if is_cyclic and _is_finite_mixture(file, where):
            message = (
                "expected cyclic: true in a mixture within a cyclic one, got cyclic: false\n"
                "  Write 'cyclic: true' in it, or list its sources in the mixture around it, or write "
                "'cyclic: false' there, too."
            )
            file.locations.report(where, message)
    if percents and all(map(is_absent, percents)):
        file.locations.report(at, "expected a positive number as percent of some dataset, got 0 of all")


def check_root(file: RecipeFile, find: Find) -> None:
    """Reports a root that certainly cannot be streamed; one without a target may hold what is, for who builds it.

    Of a source alone the rules for the sources of a mixture apply, but that a name and a percent may be left out.
    """
    root = file.mappings(())[-1][2]
    if "target" in root or "include" in root:
        what = _not_streamed(root, find)
        if what:
            message = f"expected a {MIXTURE} or a source as the root, got {what}\n  Name what is to be streamed."
            file.locations.report(("target",) if "target" in file.value else ("include",), message, key=True)
        elif root.get("target") != MIXTURE:
            _check_source(file, (), find)
    elif not any(
        "target" in node and not _not_streamed(node, find) for part in file.files() for _, node in part.buildable()
    ):
        message = (
            f"expected a {MIXTURE} or a source as the root, got neither\n  Write 'target: {MIXTURE}' and its params."
        )
        file.locations.report((), message, at=(1, 1))


def _not_streamed(node: dict[Any, Any], find: Find) -> str | None:
    """What a target certainly builds that is no mixture and no source; None where only running would show."""
    target = node.get("target")
    known = find(target) if isinstance(target, str) else None
    if known is None:
        return None
    if "params" not in node:
        return f"{target} itself, for it has no params"
    if is_own(known.origin):
        return None if builds_source(known.origin) else target
    return target if known.sets is not None and {"__iter__", "__getitem__"}.isdisjoint(known.sets) else None


def _check_source(file: RecipeFile, path: Path, find: Find, names: dict[str, str] | None = None) -> object:
    """Checks what one source is called and weighs, and which part is read; without `names`, of a source alone.

    Returns:
        Its percent.
    """
    keys = ("name", "percent", *HOLDOUT_KEYS)
    name, percent, *selection = (_attribute(file, path, key, find) for key in keys)
    in_params = {key: (*path, "params", key) for key in keys if (*path, "params", key) in file.locations.values}
    places = {key: (*path, key) for key in keys} | in_params
    if names is not None or name is not _ABSENT:
        _check_name(file.locations, path, places["name"], name, {} if names is None else names)
    if percent is _ABSENT:
        if names is not None:
            message = "expected a dataset with a weight, got none\n  Add 'percent: 1.0' beside 'target'."
            file.locations.report(path, message)
    elif not _holds_unknown(percent):
        try:
            read_percent(percent)
        except ValueError as error:
            file.locations.report(places["percent"], str(error))
    selected = zip(HOLDOUT_KEYS, selection, strict=True)
    given: dict[str, Any] = {key: value for key, value in selected if value not in (_ABSENT, UNKNOWN, None)}
    if UNKNOWN not in selection or not {"holdout", "parts"}.isdisjoint(given):
        try:
            read_selection(**given)
        except ValueError as error:
            key = next(iter(given))
            file.locations.report(places[key], str(error))
    return percent


def _check_name(locations: Locations, path: Path, at: Path, name: object, names: dict[str, str]) -> None:
    if name is _ABSENT:
        locations.report(path, "expected a dataset with a name, got none\n  Add a unique 'name' beside 'target'.")
    elif isinstance(name, str) and name and "." not in name:
        if name in names:
            locations.report(at, f"expected a unique name, got {shown(name)} again, first at {names[name]}")
        names.setdefault(name, locations.of(at))
    elif name is not UNKNOWN:
        locations.report(at, f"expected text without '.' as a name, got {shown(name)}")


def _is_finite_mixture(file: RecipeFile, path: Path) -> bool:
    nodes = (node for _, _, node in file.mappings(path) if node.get("target") == MIXTURE)
    return any(isinstance(node.get("params"), dict) and node["params"].get("cyclic") is False for node in nodes)


def _holds_unknown(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_unknown, value.values()))
    return any(map(_holds_unknown, value)) if isinstance(value, list) else value is UNKNOWN


def _attribute(file: RecipeFile, path: Path, name: str, find: Find) -> object:
    """The value that the child at a path will have, `UNKNOWN` if only running would show, `_ABSENT` if it has none."""
    for holder, at, node in file.mappings(path):
        if name in node:
            return node[name]
        if "include" not in node:
            return _constructed(node, name, find)
        if at not in holder.includes:
            return UNKNOWN  # it was not found, which is reported already
    return UNKNOWN


def _constructed(node: dict[Any, Any], name: str, find: Find) -> object:
    """The value that a child has of an attribute once it is built: that of a parameter, or what its class sets."""
    target = node.get("target")
    if not isinstance(target, str):
        return _ABSENT
    known = find(target)
    if known is None:
        return UNKNOWN
    if is_own(known.origin):  # ours take them as parameters, and have no names of their own
        params = node.get("params")
        value = (params or {}).get(name) if isinstance(params, dict | None) else UNKNOWN
        return _ABSENT if value is None else value
    return _ABSENT if known.sets is not None and name not in known.sets else UNKNOWN
