"""A recipe → all its problems at once: targets are compared with their signatures, and nothing is built.

streamdata's own targets are imported, and in a child process those of packages that the caller names; of other packages
nothing is imported: it is only looked whether they are there.
"""

import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

from streamdata.errors import shown
from streamdata.recipe.limits import PIPE, refusal_of_command, refusal_of_limits, refusal_of_url, under_allow
from streamdata.recipe.load import Recipe, RecipeFile, attributes, check_attributes, load_recipe
from streamdata.recipe.named_source import FOR_ALL, HOLDOUT_KEYS, check_name, for_all, read_percent, read_selection
from streamdata.recipe.resolve import References
from streamdata.recipe.signatures import Description, Type, describe, describe_elsewhere, refusal_of_value, type_of
from streamdata.recipe.targets import MIXTURE, PERMITTED, TARGETS, is_inside, is_own, refusal_of_name, validated_allow
from streamdata.recipe.yaml_tree import UNKNOWN, Kind, Path, Problem, children

MAX_PROBLEMS: Final = 1000
"""After so many the rest of the targets is not looked at: each takes time, such as for a guess what was meant."""
_OF_SOURCES: Final = ("name", "percent", *HOLDOUT_KEYS)
"""Attributes that have rules of their own in a mixture, wherever they are given."""
_SELECTION: Final = (read_selection, *HOLDOUT_KEYS)
_FIRST: Final = ("name", "percent", "holdout", "parts")
"""Keys that are judged whatever is known of the others."""
ATTRIBUTES: Final[dict[str, Type]] = {
    **dict.fromkeys(("length_divisor", "length_multiplier"), type_of(float)),
    **dict.fromkeys(("max_bad", "records_per_block"), type_of(int)),
    "length": type_of(float | None),
    "max_epochs": type_of(int | None),
    "weight_field": type_of(str | None),
    "process_fn": type_of(Callable | list[Callable] | None),  # type: ignore[type-arg]  # any of them
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
    """Finds all problems of a recipe that can be found without building it.

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
    for name in sorted(references.variables.keys() - references.used):
        file.locations.report((), f"the variable {shown(name)} is not used by the recipe", at=(1, 1), kind="warning")
    with under_allow(allow, references.variables):
        check = _Check(file, allow, imports, files)
        for part, path, node in file.targets():
            if len(problems) >= MAX_PROBLEMS:
                message = f"not checked, nor what follows: {len(problems)} problems"
                part.locations.report(path, message, kind="not checked")
                break
            check.node(part, path, node)
        if is_streamed:
            check.root(file)
    return list(problems)


class _Check:
    """Reports the problems of files that are loaded."""

    def __init__(
        self, file: RecipeFile, allow: Collection[str] | None, imports: Collection[str], files: RefusalOfFiles | None
    ) -> None:
        self.allow, self.files = allow, files
        self._told: set[str] = set()
        """Packages of which it was said that they are not imported."""
        packages = [*(allow or ()), *imports]
        named = [node.get("target") for *_, node in file.targets()]
        others = {name for name in named if isinstance(name, str) and is_inside(name, packages) and not is_known(name)}
        self._known = describe_elsewhere([name for name in sorted(others) if not refusal_of_name(name, allow)], allow)

    def find(self, name: str) -> Description | None:
        """Returns the description of a target, which may be its refusal; None if it is not imported in this process."""
        if name not in self._known:
            package = name.partition(".")[0]
            if refusal := refusal_of_name(name, self.allow):
                self._known[name] = Description(refusal)
            elif is_known(name) or (package not in sys.modules and find_spec(package) is None):
                self._known[name] = describe(name, None)
        return self._known.get(name)

    def node(self, file: RecipeFile, path: Path, node: dict[Any, Any]) -> None:
        """Checks a mapping: the object that it builds, or the attributes that it sets on an included one."""
        target = file.mappings(path)[-1][2].get("target")
        if path not in file.includes and isinstance(target, str) and target:
            self._target(file, path, node)
        elif isinstance(target, str):
            self._attributes(file, path, node, target)

    def _target(self, file: RecipeFile, path: Path, node: dict[Any, Any]) -> None:
        name, at, report = node["target"], (*path, "target"), file.locations.report
        if name == MIXTURE:
            self._mixture(file, path, node)
        self._attributes(file, path, node, name)
        known, package = self.find(name), name.partition(".")[0]
        if known:
            if known.refusal:
                report(at, known.refusal)
            elif isinstance(node.get("params", UNKNOWN), dict | None):
                self._params(file, path, node, known)
        elif package not in self._told:  # once for all its targets
            self._told.add(package)
            message = f"not checked: {shown(package)} is not imported, but by --import {package}"
            report(at, message, kind="not checked")

    def _params(self, file: RecipeFile, path: Path, node: dict[Any, Any], known: Description) -> None:
        """Compares a target's parameters with its signature, and looks at what they name."""
        target, params, parameters = node["target"], node["params"] or {}, known.parameters
        at, report, own = (*path, "params"), file.locations.report, is_own(known.origin)
        named = [name for name in params if isinstance(name, str)]
        if parameters:
            parameters.check(named, path, file.locations, target)
        elif target not in PERMITTED:
            report((*path, "target"), f"not checked: what {target} takes is not known", kind="not checked")
        for name, value in params.items():
            if (*at, name) not in file.includes and name not in _OF_SOURCES and value is not UNKNOWN:
                refusal = refusal_of_value(value, parameters.types.get(name) if parameters else None)
                if refusal is None and name == "limits" and own:
                    refusal = refusal_of_limits(value)
                if refusal:
                    report((*at, name), refusal, key=True, target=target)
        if own:
            self._texts(file, params, at)
        if own and self.files is not None and len(named) == len(params):
            with for_all(self._said(file, path)):
                for name, refusal, kind in self.files(known.origin, params):
                    report((*at, name), refusal, key=True, target=target, is_told=True, kind=kind)

    def _attributes(self, file: RecipeFile, path: Path, node: dict[Any, Any], target: str) -> None:
        """Compares what is set on an object of ours with what it takes: names that are misspelt, other types."""
        known = self.find(target)
        if known is None or not is_own(known.origin):
            return  # a refusal is reported where the target is; others take any attribute
        names = known.parameters.needed if known.parameters else ()
        check_attributes(node, path, file.locations, target, known.origin, names)
        for key, value in attributes(node).items():
            refusal = refusal_of_value(value, ATTRIBUTES.get(key))
            if refusal and (*path, key) not in file.includes:
                file.locations.report((*path, key), refusal, key=True, target=target)

    def _said(self, file: RecipeFile, path: Path) -> Mapping[str, Any]:
        """The parameters that mixtures above a path set for all sources below them; the nearest wins."""
        said = dict(self._said(*file.above)) if file.above else {}
        for depth in range(len(path)):
            node = file.mappings(path[:depth])[0][2]
            params = _params_of(node) if node.get("target") == MIXTURE else {}
            said.update((name, params[name]) for name in FOR_ALL if params.get(name) is not None)
        return said

    def _texts(self, file: RecipeFile, node: Any, path: Path) -> None:
        """Finds the commands, and the urls that are refused, in what one of our own targets is given."""
        if isinstance(node, str):  # commas part several, but a command has its own
            parts = [node] if node.startswith(PIPE) else [part.strip() for part in node.split(",")]
            refusals = [refusal_of_command(part) if part.startswith(PIPE) else refusal_of_url(part) for part in parts]
            if refusal := next(filter(None, refusals), None):
                file.locations.report(path, refusal)
        elif path in file.includes:
            self._texts(file.includes[path], file.includes[path].value, ())
        elif not isinstance(node, dict) or "target" not in node or str(node["target"]) in PERMITTED:
            for key, child in children(node):
                self._texts(file, child, (*path, key))

    def _mixture(self, file: RecipeFile, path: Path, node: dict[Any, Any]) -> None:
        """Reports names, percents, holdouts and parts of a mixture's sources, and finite mixtures in an endless one."""
        params, at, report = _params_of(node), (*path, "params", "datasets"), file.locations.report
        datasets = params.get("datasets", UNKNOWN)
        if isinstance(datasets, str | int | float) or datasets == []:
            message = f"expected a list of datasets, got {shown(datasets)}\n  Write '- target: …' for each."
            report(at, message, key=True, target=MIXTURE)
        names: dict[str, str] = {}
        percents: list[object] = []
        for index, child in children(datasets) if isinstance(datasets, list) else ():
            where = (*at, index)
            if not isinstance(child, dict) or not ("target" in child or "include" in child):
                continue
            percents.append(self._source(file, where, names))
            below = [node for *_, node in file.mappings(where) if node.get("target") == MIXTURE]
            if params.get("cyclic", True) is True and any(_params_of(node).get("cyclic") is False for node in below):
                message = "expected cyclic: true in a mixture within a cyclic one, got cyclic: false"
                remedy = "Write 'cyclic: true' in it or 'cyclic: false' around it, or list its sources there."
                report(where, f"{message}\n  {remedy}")
        if percents and all(percent == 0 for percent in percents):
            report(at, "expected a positive number as percent of some dataset, got 0 of all")

    def _source(self, file: RecipeFile, path: Path, names: dict[str, str] | None = None) -> object:
        """Checks what one source is called and weighs, and which part is read; without `names`, of a source alone.

        Returns:
            Its percent.
        """
        locations, values = file.locations, {key: self._attribute(file, path, key) for key in _OF_SOURCES}
        inner = {key: (*path, "params", key) for key in _OF_SOURCES}
        places = {key: at if at in locations.values else (*path, key) for key, at in inner.items()}
        for read, *keys in ((partial(check_name, places=names or {}), "name"), (read_percent, "percent"), _SELECTION):
            given = {key: values[key] for key in keys if not _holds_unknown(values[key])}
            first = next((key for key, value in given.items() if value is not None), None)
            # Of a share that is held out more is known than that a part has none.
            if first in _FIRST or (len(given) == len(keys) and (first or names is not None)):
                try:
                    read(**given)
                except ValueError as error:
                    locations.report(places[first] if first else path, str(error))
        if names is not None and isinstance(values["name"], str):
            names.setdefault(values["name"], f"at {locations.of(places['name'])}")
        return values["percent"]

    def _attribute(self, file: RecipeFile, path: Path, name: str) -> object:
        """An attribute that the child at a path will have: `UNKNOWN` if only running would show, None without one."""
        nodes = [node for *_, node in file.mappings(path)]
        for node in nodes:
            if name in node:
                return node[name]
        target, params = nodes[-1].get("target"), nodes[-1].get("params") or {}
        known = self.find(target) if isinstance(target, str) else None
        if known is None or not is_own(known.origin) or not isinstance(params, dict):
            return UNKNOWN  # what others build may name itself; what is wrong is reported elsewhere
        return params.get(name)  # ours take them as parameters, too

    def root(self, file: RecipeFile) -> None:
        """Reports a root that certainly cannot be streamed; without a target it may hold one, for its builder to find.

        Of a source alone the rules for the sources of a mixture apply, but that a name and a percent may be left out.
        """
        root = file.mappings(())[-1][2]
        is_built = "target" in root or "include" in root
        nodes = [root] if is_built else [node for *_, node in file.targets() if "target" in node]
        refusals = [self._not_streamed(node) for node in nodes] or ["nothing that is built"]
        if all(refusals):
            message = f"expected a {MIXTURE} or a source as the root, got {refusals[0]}"
            at = next(((key,) for key in ("target", "include") if key in file.value), ())
            file.locations.report(at, f"{message}\n  Write 'target: {MIXTURE}' and its params.", key=True)
        elif is_built and root.get("target") != MIXTURE:
            self._source(file, ())

    def _not_streamed(self, node: dict[Any, Any]) -> str | None:
        """Says what a target builds if that is no mixture and no source; None if it is, or only running would show."""
        target = node.get("target")
        known = self.find(target) if isinstance(target, str) else None
        if known is None or known.refusal:
            return None
        if "params" not in node:
            return f"{target} itself, for it has no params"
        is_source = not is_own(known.origin) or "percent" in TARGETS.get(known.origin, ())
        return None if is_source else target


def is_known(name: str) -> bool:
    """Whether a target is streamdata's own or a permitted one of the standard library; this process imports these."""
    return is_own(name) or name in PERMITTED


def _params_of(node: dict[Any, Any]) -> dict[Any, Any]:
    """The parameters of a node, as far as they are known."""
    params = node.get("params")
    return params if isinstance(params, dict) else {}


def _holds_unknown(value: object) -> bool:
    return value is UNKNOWN or any(_holds_unknown(child) for _, child in children(value))
