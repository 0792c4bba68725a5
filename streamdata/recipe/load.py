"""A recipe and all that it includes → `RecipeFile`s whose values are known, before anything is imported."""

import os
import pathlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from streamdata.errors import did_you_mean, listing, one_line, shown
from streamdata.recipe.limits import RecipeLimits, RefusedFileError, read_bounded, read_limits
from streamdata.recipe.resolve import References, resolve
from streamdata.recipe.targets import TARGETS, is_own, public_name
from streamdata.recipe.yaml_tree import (
    UNKNOWN,
    Locations,
    NodeBudget,
    OnProblem,
    Path,
    UnreadableError,
    children,
    path_text,
    plain_tree,
    read_yaml,
    refuse,
)

Recipe = str | os.PathLike[str] | Mapping[str, Any]

_SUFFIXES: Final = (".yaml", ".yml")
_MAX_PATH_BYTES: Final = 4096
_NODES_OF_FILE: Final = 10  # what files cost beside their nodes, since two that include the next one twice multiply
_BYTES_OF_NODE: Final = 1000


@dataclass
class RecipeFile:
    """One file of a recipe, resolved.

    Attributes:
        locations: The locations of its nodes.
        value: Dicts, lists and leaves, among them `Dynamic` objects; a dict with ``target`` or ``include`` is
            to be built.
        above: The file that includes it, and where; None of the root.
        includes: The files that its ``include`` mappings name, by the mapping's path.
    """

    locations: Locations
    value: Any
    above: "tuple[RecipeFile, Path] | None" = None
    includes: dict[Path, "RecipeFile"] = field(default_factory=dict)

    def targets(self) -> Iterator[tuple["RecipeFile", Path, dict[Any, Any]]]:
        """Yields file, path and mapping of everything that is built or included, in reading order."""
        for path, node in _buildable(self.value):
            yield self, path, node
        for included in self.includes.values():
            yield from included.targets()

    def mappings(self, path: Path) -> list[tuple["RecipeFile", Path, dict[Any, Any]]]:
        """Returns the mapping at a path and the roots of what it includes, each with its file and path.

        A mapping is empty where something else stands there. The last one has the target, if there is any.
        """
        node = self.value
        for key in path:
            node = node[key]
        included = self.includes.get(path)
        return [(self, path, node if isinstance(node, dict) else {}), *(included.mappings(()) if included else ())]


def _buildable(node: Any, path: Path = ()) -> Iterator[tuple[Path, dict[Any, Any]]]:
    """Yields the path and mapping of everything that a node builds or includes, outermost first."""
    if isinstance(node, dict) and ("target" in node or "include" in node):
        yield path, node
    for key, child in children(node):
        if key == "params" and "target" in node and isinstance(child, dict):
            # These are arguments: one that is called `target` or `include` is not a request to build.
            for name, argument in child.items():
                yield from _buildable(argument, (*path, key, name))
        else:
            yield from _buildable(child, (*path, key))


def load_recipe(
    recipe: Recipe,
    references: References,
    include_roots: Sequence[str | os.PathLike[str]] = (),
    limits: Mapping[str, int] | None = None,
    on_problem: OnProblem = refuse,
) -> RecipeFile | None:
    """Reads a recipe and its includes, fills in references and interpolations, and checks the shape of targets.

    Args:
        recipe: The YAML file, or what it would hold; the includes of that are found from the working directory.
        references: The values that it may refer to.
        include_roots: Folders where includes may lie, beside the recipe's own and the working directory.
        limits: How much is read, and what it may expand to; see `RecipeLimits`.
        on_problem: Takes every problem; where it returns, loading continues with `UNKNOWN` as the value.

    Returns:
        The root file, or None if the file cannot be read at all.

    Raises:
        ValueError: A root is no folder, or a limit is none.
    """
    if isinstance(include_roots, str | os.PathLike) or not all(map(os.path.isdir, include_roots)):
        message = f"include_roots: expected a list of folders, got {shown(include_roots)}"
        raise ValueError(f"{message}\n  Name folders that are there.")
    bounds = read_limits(limits, RecipeLimits, "recipe")
    name, folders = "<recipe>", [".", *include_roots]
    if not isinstance(recipe, Mapping):
        name = os.fspath(recipe)
        # A recipe that is a link includes what lies beside the link, or beside what that leads to.
        folders = [os.path.dirname(name) or ".", os.path.dirname(os.path.realpath(name)), *folders]
    has_lines = not isinstance(recipe, Mapping)
    locations = Locations(name, on_problem=on_problem, has_lines=has_lines, budget=NodeBudget(bounds.num_nodes))
    return _Loader(references, bounds, folders).load(recipe, locations, ())


def attributes(node: dict[Any, Any]) -> dict[Any, Any]:
    """Returns the keys that a mapping with ``target`` or ``include`` sets as attributes on its object."""
    own_keys = ("target", "params") if "target" in node else ("include",)
    return {key: child for key, child in node.items() if key not in own_keys}


def check_attributes(
    node: dict[Any, Any], path: Path, locations: Locations, target: str, origin: str, parameters: Collection[str]
) -> None:
    """Reports attributes that a recipe may not set on streamdata's objects; other objects take any.

    Args:
        node: Sets them.
        path: Of the node.
        locations: Takes the problems.
        target: The name by which the recipe calls what is built.
        origin: The dotted name of where that, or the object's class, is defined.
        parameters: The names of what it can be called with.
    """
    if not is_own(origin):
        return
    known, params = TARGETS.get(public_name(origin) or "", ()), node.get("params")
    for key in attributes(node):
        is_twice = isinstance(params, dict) and key in params  # one of the two would be passed over
        if not isinstance(key, str) or key == "params" or (key in known and not is_twice):
            continue  # the first two are reported where shapes are checked, and where includes are
        if is_twice:
            refusal = f"expected {shown(key)} once, got it here and below 'params'\n  Remove one of them."
        elif key in parameters:
            refusal = f"expected {shown(key)} as a parameter, got it as an attribute\n  Write it below 'params'."
        else:
            guess, takes = did_you_mean(key, [*known, *parameters]), ", ".join(known) or "none"
            refusal = f"unknown attribute {shown(key)}{guess}\n  It takes: {takes}; all else is in 'params'."
        locations.report((*path, key), refusal, key=True, target=target)


class _Loader:
    """Loads the files of one recipe.

    Includes lie below the recipe's folder, the working directory, or a folder that the caller names: a recipe may come
    from elsewhere, else it could have any file of the machine read, and shown in an error. What counts is where a file
    is, past all links.

    Args:
        references: The values that the recipe may refer to.
        limits: How much is read.
        folders: Where includes may lie.
    """

    def __init__(self, references: References, limits: RecipeLimits, folders: Iterable[str | os.PathLike[str]]) -> None:
        self.references, self.limits = references, limits
        self.folders = list(dict.fromkeys(map(os.path.realpath, folders)))

    def load(self, recipe: Recipe, locations: Locations, stack: tuple[str, ...]) -> RecipeFile | None:
        """Loads one recipe file; ``stack`` holds the real paths of the files being loaded."""
        try:
            value = self._read(recipe, locations, is_included=bool(stack))
        except UnreadableError as error:
            locations.on_problem(error.problem, error.__cause__)
            return None
        file = RecipeFile(locations, value)
        for path, node in _buildable(value):
            _check_shape(node, path, locations)
            if isinstance(node.get("include"), str) and "target" not in node:
                self._include(file, path, node, (*stack, os.path.realpath(locations.file)))
        return file

    def _read(self, recipe: Recipe, locations: Locations, *, is_included: bool) -> Any:
        if isinstance(recipe, Mapping):
            return resolve(plain_tree(recipe, locations), self.references, locations)
        try:
            text = read_bounded(recipe, self.limits.file_bytes, is_regular=is_included)
        except (OSError, RefusedFileError) as error:
            said = f"cannot be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)
            raise UnreadableError(locations, (), said) from error
        locations.count((), _NODES_OF_FILE + len(text) // _BYTES_OF_NODE)
        tree = read_yaml(text, locations)
        if not isinstance(tree, dict | list):
            got = "an empty file" if tree is None else f"a single value ({type(tree).__name__})"
            raise UnreadableError(locations, (), f"expected a mapping or a list as the root, got {got}")
        return resolve(tree, self.references, locations)

    def _include(self, file: RecipeFile, path: Path, node: dict[Any, Any], stack: tuple[str, ...]) -> None:
        locations, name, at = file.locations, node["include"], (*path, "include")
        try:
            found = self._found(name, pathlib.Path(locations.file).parent, stack)
        except RefusedFileError as error:
            locations.report(at, str(error))
            return
        chain = (f"{locations.of(at)}: {path_text(at)}", *locations.chain)
        own = Locations(os.fspath(found), chain, locations.on_problem, budget=locations.budget)
        included = self.load(found, own, stack)
        if included is None:
            return
        file.includes[path], included.above = included, (file, path)
        root = included.mappings(())[-1][2]
        if "params" in node and ("target" in root or not isinstance(included.value, dict)):
            message = "an include takes no params\n  Use variables, or set attributes beside 'include'."
            locations.report((*path, "params"), message, key=True)
        elif "target" in root and "params" not in root and attributes(node):
            message = "an included target without params is the imported thing itself, and takes no attributes"
            locations.report(path, message)

    def _found(self, name: str, folder: pathlib.Path, stack: tuple[str, ...]) -> pathlib.Path:
        """The included file of this name, sought from a folder, then from the working directory."""
        if not name.endswith(_SUFFIXES) or "\0" in name or len(os.fsencode(name)) > _MAX_PATH_BYTES:
            raise RefusedFileError(f"expected a file of .yaml or .yml, got {shown(name)}")
        looked = list(dict.fromkeys([folder / name, pathlib.Path(name)]))
        real = {path: os.path.realpath(path) for path in looked}
        inside = [p for p in looked if any(os.path.commonpath([real[p], root]) == root for root in self.folders)]
        if not inside:
            raise RefusedFileError(
                f"the included file {shown(name)} lies outside of the recipe's folder and of the working directory\n"
                "  Move it there, or pass include_roots=[…] with its folder."
            )
        found = next((path for path in inside if os.path.exists(path)), None)  # False for names that no disk takes
        if found is None:
            places = ", ".join(one_line(path.absolute()) for path in inside)
            raise RefusedFileError(f"the included file {shown(name)} was not found\n  Looked for {places}.")
        if not real[found].endswith(_SUFFIXES):
            raise RefusedFileError(f"expected a file of .yaml or .yml, got the link {shown(name)} to another file")
        if real[found] in stack:
            raise RefusedFileError(f"{shown(name)} is included by itself (a cycle)")
        return found


def _check_shape(node: dict[Any, Any], path: Path, locations: Locations) -> None:
    """Checks a mapping that is to be built, as far as that needs no import."""
    kind = "target" if "target" in node else "include"
    value = node[kind]
    if value is not UNKNOWN and (not isinstance(value, str) or not value):
        locations.report((*path, kind), f"expected text after {shown(kind)}, got {shown(value)}")
    if kind == "target" and "include" in node:
        locations.report((*path, "include"), "expected either 'target' or 'include', got both", key=True)
    others, at, params = attributes(node), (*path, "params"), node.get("params") if kind == "target" else None
    if params is not UNKNOWN and not isinstance(params, dict | None):
        locations.report(at, f"expected a mapping or null as params, got {shown(params)}")
    for key in params if isinstance(params, dict) else ():
        if not isinstance(key, str):
            message = f"expected a parameter's name, got {shown(key)}"
            locations.report((*at, key), message, key=True, target=str(value))
    if kind == "target" and "params" not in node and others:
        names = listing(map(str, others))
        message = f"a target without params is the imported thing itself, and takes no attributes, got {names}"
        locations.report(path, f"{message}\n  Add 'params: {{}}' to build an object.", target=str(value))
    for key in others:
        if not isinstance(key, str) or (key.startswith("__") and key.endswith("__")):
            locations.report((*path, key), f"expected the name of an attribute, got {shown(key)}", key=True)
