"""A recipe → all its problems at once: targets are compared with their signatures, and nothing is built.

streamdata's own targets are imported, and in a child process those of packages that the caller names; of other packages
nothing is imported: it is only looked whether they are there.
"""

import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final

from streamdata.errors import did_you_mean, shown
from streamdata.recipe.limits import refusal_of_limits, refusal_of_text, under_allow
from streamdata.recipe.load import NO_PARAMS, Recipe, RecipeFile, attributes, load_recipe
from streamdata.recipe.named_source import FOR_ALL, HOLDOUT_KEYS, for_all, is_absent, read_percent, read_selection
from streamdata.recipe.resolve import References
from streamdata.recipe.signatures import (
    Description,
    Parameters,
    Type,
    describe_elsewhere,
    own_description,
    refusal_of_value,
    type_of,
)
from streamdata.recipe.targets import (
    MIXTURE,
    OWN,
    PERMITTED,
    TARGETS,
    is_inside,
    is_own,
    public_name,
    refusal_of_attribute,
    refusal_of_name,
    validated_allow,
)
from streamdata.recipe.yaml_tree import UNKNOWN, Kind, Locations, Path, Problem

MAX_PROBLEMS: Final = 1000
"""After so many the rest of the targets is not looked at: each takes time, such as for a guess what was meant."""
_OF_SOURCES: Final = ("name", "percent", *HOLDOUT_KEYS)
"""Attributes that have rules of their own in a mixture, wherever they are given."""
_TYPES: Final[dict[str, Type]] = {
    "length": type_of(float | None),
    "length_divisor": type_of(float),
    "length_multiplier": type_of(float),
    "max_bad": type_of(int),
    "max_epochs": type_of(int | None),
    "process_fn": type_of(Callable | list[Callable] | None),  # type: ignore[type-arg]  # any of them
    "records_per_block": type_of(int),
    "single_process_fn": type_of(Callable | None),
}

RefusalOfFiles = Callable[[str, Mapping[str, Any]], Iterable[tuple[str, str, Kind]]]
"""A target of ours and its params → the names of those whose files are not there, each with a problem and its kind."""


def check_recipe(
    recipe: Recipe,
    variables: Mapping[str, Any] | None = None,
    dynamic_objs_names: Collection[str] | None = None,
    allow: Collection[str] | None = None,
    *,
    imports: Collection[str] = (),
    files: RefusalOfFiles | None = None,
    is_streamed: bool = False,
    include_roots: Sequence[str | os.PathLike[str]] = (),
    limits: Mapping[str, int] | None = None,
) -> list[Problem]:
    """Finds every problem of a recipe that can be seen without building it.

    Args:
        recipe: As for building.
        variables: As for building.
        dynamic_objs_names: The names of the dynamic objects that will be given; None accepts any name.
        allow: As for building; targets of these packages are imported in a child process.
        imports: More packages whose targets are.
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
    # A dict, for it keeps the order and drops what a file that is included twice repeats.
    problems: dict[Problem, None] = {}
    allow, imports = validated_allow(allow), validated_allow(imports, "imports") or ()
    file = load_recipe(recipe, references, include_roots, limits, lambda problem, _: problems.setdefault(problem))
    if file is None:
        return list(problems)
    for name in references.unused():
        file.locations.report((), f"the variable {shown(name)} is not used by the recipe", at=(1, 1), kind="warning")
    with under_allow(allow, references.variables):
        check = _Check(file, allow, imports, files)
        for part in file.files():
            check.file(part, problems)
            if len(problems) > MAX_PROBLEMS:
                break
        if is_streamed:
            check_root(file, check.find)
    return list(problems)


class _Check:
    """Reports the problems of files that are loaded."""

    def __init__(
        self, file: RecipeFile, allow: Collection[str] | None, imports: Collection[str], files: RefusalOfFiles | None
    ) -> None:
        self.allow, self.files = allow, files
        self._said_for: dict[int, Mapping[str, Any]] = {}
        """Parameters that mixtures above an included file set for all sources below them, by the file's id."""
        self._told: set[str] = set()
        """Packages of which it was said that they are not imported."""
        nodes = (node for part in file.files() for _, node in part.buildable())
        names = {node["target"] for node in nodes if isinstance(node.get("target"), str)}
        others = [name for name in sorted(names) if not refusal_of_name(name, allow) and not self._is_known(name)]
        self._others = describe_elsewhere([n for n in others if is_inside(n, [*(allow or ()), *imports])], allow)

    def _is_known(self, name: str) -> bool:
        return is_own(name) or name in PERMITTED

    def description(self, name: str) -> Description | None:
        """Returns what is known of a target, its refusal among it; None where it is not imported."""
        if refusal := refusal_of_name(name, self.allow):
            return Description(refusal)
        return own_description(name) if self._is_known(name) else self._others.get(name)

    def find(self, name: str) -> Description | None:
        """Returns what is known of a target that can be imported."""
        known = self.description(name)
        return None if known is None or known.refusal else known

    def file(self, file: RecipeFile, problems: Collection[Problem]) -> None:
        """Checks all the targets of one file, until there are too many problems."""
        for path, included in file.includes.items():
            self._said_for[id(included)] = self._said(file, path)
        for path, node in file.buildable():
            if len(problems) >= MAX_PROBLEMS:
                message = f"not checked, nor what follows: {len(problems)} problems"
                file.locations.report(path, message, kind="not checked")
                return
            if isinstance(node.get("target"), str) and node["target"]:
                self._target(file, path, node)
            elif path in file.includes:
                target = file.mappings(path)[-1][2].get("target")
                if isinstance(target, str):
                    if "params" in node:
                        file.locations.report((*path, "params"), NO_PARAMS, key=True)
                    self._attributes(file, path, node, target)

    def _target(self, file: RecipeFile, path: Path, node: dict[Any, Any]) -> None:
        name, locations = node["target"], file.locations
        if name == MIXTURE:
            check_mixture(file, path, node, self.find)
        self._attributes(file, path, node, name)
        known = self.description(name)
        if known is None:
            self._not_imported(file, (*path, "target"), name.partition(".")[0])
        elif known.refusal:
            locations.report((*path, "target"), known.refusal)
        else:
            self._params(file, path, node, known)

    def _not_imported(self, file: RecipeFile, path: Path, package: str) -> None:
        """Says that a package is not there, or once that nobody has looked into it."""
        if package not in sys.modules and find_spec(package) is None:
            guess, remedy = did_you_mean(package, [OWN]), "Install it, or put its directory on PYTHONPATH."
            file.locations.report(path, f"no module {shown(package)} was found{guess}\n  {remedy}")
        elif package not in self._told:
            self._told.add(package)
            message = f"not checked: {shown(package)} is not imported, but by --import {package}"
            file.locations.report(path, message, kind="not checked")

    def _params(self, file: RecipeFile, path: Path, node: dict[Any, Any], known: Description) -> None:
        """Compares a target's parameters with its signature, and looks at what they name."""
        target, params = node["target"], node.get("params", UNKNOWN)
        if not isinstance(params, dict | None):
            return
        params = params or {}
        given = [name for name in params if isinstance(name, str)]
        parameters = known.parameters
        if parameters is None and target not in PERMITTED:
            message = f"not checked: what {target} takes is not known"
            file.locations.report((*path, "target"), message, kind="not checked")
        elif parameters:
            parameters.check(given, path, file.locations, target)
            self._types(file, path, node, parameters)
        if is_own(known.origin):
            self._texts(file, params, (*path, "params"))
            self._files(file, path, node, public_name(known.origin) or known.origin)

    def _types(self, file: RecipeFile, path: Path, node: dict[Any, Any], parameters: Parameters) -> None:
        """Compares the values of parameters with their types."""
        for name, value in (node["params"] or {}).items():
            at = (*path, "params", name)
            if at in file.includes or name in _OF_SOURCES or value is UNKNOWN:
                continue
            refusal = refusal_of_value(value, parameters.types.get(name))
            if refusal is None and name == "limits" and is_own(node["target"]):
                refusal = refusal_of_limits(value)
            if refusal:
                file.locations.report(at, refusal, key=True, target=node["target"])

    def _attributes(self, file: RecipeFile, path: Path, node: dict[Any, Any], target: str) -> None:
        """Compares what is set on an object with what it takes: names that are misspelt, values of another type."""
        known = self.find(target)
        if known is None or not is_own(known.origin):
            return  # reported where the target is; others take any attribute
        names = known.parameters.names if known.parameters else ()
        params = node.get("params")
        given = params if isinstance(params, dict) else ()  # what else it may be is reported where it is read
        for key, value in attributes(node).items():
            if not isinstance(key, str) or key == "params":  # those of an include were looked at by who called
                continue
            refusal = refusal_of_attribute(key, known.origin, names, given)
            if refusal is None and (*path, key) not in file.includes:
                refusal = refusal_of_value(value, _TYPES.get(key))
            if refusal:
                file.locations.report((*path, key), refusal, key=True, target=target)

    def _files(self, file: RecipeFile, path: Path, node: dict[Any, Any], target: str) -> None:
        """Looks for the files that parameters name."""
        params = node["params"] or {}
        if self.files is None or not all(isinstance(name, str) for name in params):
            return
        with for_all(self._said(file, path)):
            for name, refusal, kind in self.files(target, params):
                at = (*path, "params", name)
                file.locations.report(at, refusal, key=True, target=node["target"], is_told=True, kind=kind)

    def _said(self, file: RecipeFile, path: Path) -> Mapping[str, Any]:
        """The parameters that mixtures above a path set for all sources below them; the nearest wins."""
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


_ABSENT: Final = object()
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
    """Says what a target builds if that is no mixture and no source; None if it is, or only running would show."""
    target = node.get("target")
    known = find(target) if isinstance(target, str) else None
    if known is None:
        return None
    if "params" not in node:
        return f"{target} itself, for it has no params"
    if is_own(known.origin):
        return None if "percent" in TARGETS.get(public_name(known.origin) or "", ()) else target
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
