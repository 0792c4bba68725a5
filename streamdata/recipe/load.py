"""A recipe and all that it includes → `RecipeFile`s whose values are known, before anything is imported."""

import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from streamdata.errors import listing, one_line, shown
from streamdata.recipe.limits import RecipeLimits, RefusedFileError, read_bounded, read_limits
from streamdata.recipe.locations import (
    UNKNOWN,
    Locations,
    NodeBudget,
    OnProblem,
    Path,
    UnreadableError,
    path_text,
    refuse,
)
from streamdata.recipe.resolve import References, resolve
from streamdata.recipe.yaml_tree import plain_tree, read_yaml

Recipe = str | os.PathLike[str] | Mapping[str, Any]

_SUFFIXES: Final = (".yaml", ".yml")
_MAX_PATH_BYTES: Final = 4096
_NODES_OF_FILE: Final = 10  # what files cost beside their nodes, since two that include the next one twice multiply
_BYTES_OF_NODE: Final = 1000
NO_PARAMS: Final = "an include takes no params\n  Use variables, or set attributes beside 'include'."


@dataclass
class RecipeFile:
    """One file of a recipe, resolved.

    Attributes:
        locations: The locations of its nodes.
        value: Dicts, lists and leaves, among them `Dynamic` objects; a dict with ``target`` or ``include`` is
            to be built.
        includes: The files that its ``include`` mappings name, by the mapping's path.
    """

    locations: Locations
    value: Any
    includes: dict[Path, "RecipeFile"] = field(default_factory=dict)

    def files(self) -> Iterator["RecipeFile"]:
        """Yields this file and all that it includes, in the order of reading."""
        yield self
        for included in self.includes.values():
            yield from included.files()

    def mappings(self, path: Path) -> list[tuple["RecipeFile", Path, dict[Any, Any]]]:
        """Returns the mapping at a path, then the roots of what that includes, each with its file and path.

        A mapping is empty where something else stands there. The last one has the target, if there is any.
        """
        node = self.value
        for key in path:
            node = node[key]
        included = self.includes.get(path)
        return [(self, path, node if isinstance(node, dict) else {}), *(included.mappings(()) if included else ())]

    def buildable(self) -> Iterator[tuple[Path, dict[Any, Any]]]:
        """Yields the path and mapping of everything that this file builds or includes, outermost first."""
        return _buildable(self.value, ())


def _buildable(node: Any, path: Path) -> Iterator[tuple[Path, dict[Any, Any]]]:
    if isinstance(node, list):
        for index, child in enumerate(node):
            yield from _buildable(child, (*path, index))
    elif isinstance(node, dict):
        if "target" in node or "include" in node:
            yield path, node
        for key, child in node.items():
            if "target" in node and key == "params" and isinstance(child, dict):
                # These are arguments: one that is called `target` or `include` is not a request to build.
                for name, argument in child.items():
                    yield from _buildable(argument, (*path, "params", name))
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
    bounds = read_limits(limits, RecipeLimits, "recipe")
    is_file = not isinstance(recipe, Mapping)
    name = os.fspath(recipe) if not isinstance(recipe, Mapping) else "<recipe>"
    locations = Locations(name, on_problem=on_problem, has_lines=is_file, budget=NodeBudget(bounds.num_nodes))
    folders = _IncludeFolders(name if is_file else None, include_roots)
    return _Loader(references, folders, bounds).load(recipe, locations, ())


def attributes(node: dict[Any, Any]) -> dict[Any, Any]:
    """Returns what a mapping with ``target`` or ``include`` sets on its object."""
    own_keys = ("target", "params") if "target" in node else ("include",)
    return {key: child for key, child in node.items() if key not in own_keys}


class _IncludeFolders:
    """The folders below which includes lie: the recipe's, the working directory, and those that the caller names.

    A recipe may come from elsewhere: else it could have any file of the machine read, and shown in an error. What
    counts is where a file is, past all links.

    Args:
        recipe: The file of the top recipe; None where it is none.
        include_roots: More folders.
    """

    def __init__(self, recipe: str | None, include_roots: Sequence[str | os.PathLike[str]]) -> None:
        if isinstance(include_roots, str | os.PathLike):
            message = f"include_roots: expected a list of folders, got {shown(include_roots)}"
            raise ValueError(f"{message}\n  Write it in a list.")
        for root in include_roots:
            if not os.path.isdir(root):
                message = f"include_roots: expected folders, got {shown(str(root))}, which is none"
                raise ValueError(f"{message}\n  Name folders.")
        # A recipe that is a link includes what lies beside the link, or beside what that leads to.
        own = [] if recipe is None else [os.path.dirname(recipe) or ".", os.path.dirname(os.path.realpath(recipe))]
        self._roots = list(dict.fromkeys(map(os.path.realpath, [*own, ".", *include_roots])))

    def find(self, name: str, folder: pathlib.Path) -> pathlib.Path:
        """Returns the file of this name, sought from a folder, then from the working directory.

        Raises:
            RefusedFileError: There is none that may be included.
        """
        if not name.endswith(_SUFFIXES) or "\0" in name or len(os.fsencode(name)) > _MAX_PATH_BYTES:
            raise RefusedFileError(f"expected a file of .yaml or .yml, got {shown(name)}")
        inside = [path for path in dict.fromkeys([folder / name, pathlib.Path(name)]) if self._holds(path)]
        if not inside:
            raise RefusedFileError(
                f"the included file {shown(name)} lies outside of the recipe's folder and of the working directory\n"
                "  Move it there, or pass include_roots=[…] with its folder."
            )
        found = next((path for path in inside if os.path.exists(path)), None)  # False for names that no disk takes
        if found is None:
            looked = ", ".join(one_line(path.absolute()) for path in inside)
            raise RefusedFileError(f"the included file {shown(name)} was not found\n  Looked for {looked}.")
        if not os.path.realpath(found).endswith(_SUFFIXES):
            raise RefusedFileError(f"expected a file of .yaml or .yml, got the link {shown(name)} to another file")
        return found

    def _holds(self, path: pathlib.Path) -> bool:
        real = os.path.realpath(path)
        return any(os.path.commonpath([real, root]) == root for root in self._roots)


class _Loader:
    def __init__(self, references: References, folders: _IncludeFolders, limits: RecipeLimits) -> None:
        self.references, self.folders, self.limits = references, folders, limits

    def load(self, recipe: Recipe, locations: Locations, stack: tuple[str, ...]) -> RecipeFile | None:
        """Loads one recipe; ``stack`` holds the real paths of the files that are being loaded."""
        try:
            value = self._read(recipe, locations, is_included=bool(stack))
        except UnreadableError as error:
            locations.on_problem(error.problem, error.__cause__)
            return None
        file = RecipeFile(locations, value)
        for path, node in file.buildable():
            _check_shape(node, path, locations)
            if isinstance(node.get("include"), str) and "target" not in node:
                self._include(file, path, node["include"], (*stack, os.path.realpath(locations.file)))
        return file

    def _read(self, recipe: Recipe, locations: Locations, *, is_included: bool) -> Any:
        if isinstance(recipe, Mapping):
            return resolve(plain_tree(recipe, locations), self.references, locations)
        try:
            text = read_bounded(recipe, self.limits.file_bytes, is_regular=is_included)
        except OSError as error:
            raise locations.unreadable((), f"cannot be read: {error.strerror or error}") from error
        except RefusedFileError as error:
            raise locations.unreadable((), str(error)) from error
        locations.count((), _NODES_OF_FILE + len(text) // _BYTES_OF_NODE)
        tree = read_yaml(text, locations)
        if not isinstance(tree, dict | list):
            got = "an empty file" if tree is None else f"a single value ({type(tree).__name__})"
            raise locations.unreadable((), f"expected a mapping or a list as the root, got {got}")
        return resolve(tree, self.references, locations)

    def _include(self, file: RecipeFile, path: Path, name: str, stack: tuple[str, ...]) -> None:
        locations = file.locations
        at = (*path, "include")
        try:
            found = self.folders.find(name, pathlib.Path(locations.file).parent)
        except RefusedFileError as error:
            locations.report(at, str(error))
            return
        if os.path.realpath(found) in stack:
            locations.report(at, f"{shown(name)} is included by itself (a cycle)")
        else:
            chain = (f"{locations.of(at)}: {path_text(at)}", *locations.chain)
            own = Locations(os.fspath(found), chain, locations.on_problem, budget=locations.budget)
            included = self.load(found, own, stack)
            if included is not None:
                file.includes[path] = included


def _check_shape(node: dict[Any, Any], path: Path, locations: Locations) -> None:
    """Checks a mapping that is to be built, as far as that needs no import."""
    kind = "target" if "target" in node else "include"
    value = node[kind]
    if value is not UNKNOWN and (not isinstance(value, str) or not value):
        locations.report((*path, kind), f"expected text after {shown(kind)}, got {shown(value)}")
    if kind == "target" and "include" in node:
        locations.report((*path, "include"), "expected either 'target' or 'include', got both", key=True)
    if kind == "target":
        _check_params(node.get("params"), str(value), (*path, "params"), locations)
    others = attributes(node)
    if kind == "target" and "params" not in node and others:
        names = listing(map(str, others))
        message = f"a target without params is the imported thing itself, and takes no attributes, got {names}"
        locations.report(path, f"{message}\n  Add 'params: {{}}' to build an object.", target=str(value))
    for key in others:
        if not isinstance(key, str) or (key.startswith("__") and key.endswith("__")):
            locations.report((*path, key), f"expected the name of an attribute, got {shown(key)}", key=True)


def _check_params(params: Any, target: str, path: Path, locations: Locations) -> None:
    if isinstance(params, dict):
        for key in params:
            if not isinstance(key, str):
                locations.report(
                    (*path, key), f"expected a parameter's name, got {shown(key)}", key=True, target=target
                )
    elif params is not None and params is not UNKNOWN:
        locations.report(path, f"expected a mapping or null as params, got {shown(params)}")
