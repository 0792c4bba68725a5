"""A recipe and all that it includes → `RecipeFile`s whose values are known, before anything is imported."""

import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamdata.errors import listing, shown
from streamdata.recipe.include_folders import IncludeFolders, RefusedFileError, checked_roots, read_bounded
from streamdata.recipe.limits import DEFAULT_RECIPE_LIMITS, RecipeLimits
from streamdata.recipe.locations import UNKNOWN, Locations, OnProblem, Path, UnreadableError, path_text, refuse
from streamdata.recipe.resolve import resolve
from streamdata.recipe.variables import References
from streamdata.recipe.yaml_tree import read_yaml, write_yaml

Recipe = str | os.PathLike[str] | Mapping[str, Any]

NO_PARAMS = "an include takes no params\n  Use variables, or set attributes beside 'include'."


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

    def root(self) -> dict[Any, Any]:
        """Returns the mapping at the root, past all includes; an empty one where it is not a mapping."""
        if () in self.includes:
            return self.includes[()].root()
        return self.value if isinstance(self.value, dict) else {}

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


def locations_of(recipe: Recipe, on_problem: OnProblem = refuse) -> Locations:
    """Returns the locations of a recipe, still without those of its nodes."""
    file = "<recipe>" if isinstance(recipe, Mapping) else os.fspath(recipe)
    return Locations(file, on_problem=on_problem, has_lines=not isinstance(recipe, Mapping))


def folders_of(recipe: Recipe, include_roots: Sequence[str | os.PathLike[str]]) -> IncludeFolders:
    """Returns the folders where the includes of a recipe may lie.

    Raises:
        ValueError: One of those given is no folder.
    """
    return IncludeFolders(None if isinstance(recipe, Mapping) else os.fspath(recipe), checked_roots(include_roots))


def load_recipe(
    recipe: Recipe,
    references: References,
    locations: Locations,
    folders: IncludeFolders | None = None,
    limits: RecipeLimits = DEFAULT_RECIPE_LIMITS,
) -> RecipeFile | None:
    """Reads a recipe and its includes, fills in references and interpolations, and checks the shape of targets.

    Args:
        recipe: The YAML file, or what it would hold; the includes of that are found from the working directory.
        references: The values that it may refer to.
        locations: As `locations_of` returns them. Every problem is reported to them; where that returns, loading
            continues with `UNKNOWN` as the value.
        folders: Where includes may lie; by default in the recipe's folder and the working directory.
        limits: How much is read, and what it may expand to.

    Returns:
        The root file, or None if the file cannot be read at all.
    """
    folders = folders or folders_of(recipe, ())
    return _Loader(references, folders, limits).load(recipe, locations, ())


def attributes(node: dict[Any, Any]) -> dict[Any, Any]:
    """Returns what a mapping with ``target`` or ``include`` sets on its object."""
    own_keys = ("target", "params") if "target" in node else ("include",)
    return {key: child for key, child in node.items() if key not in own_keys}


class _Loader:
    def __init__(self, references: References, folders: IncludeFolders, limits: RecipeLimits) -> None:
        self.references, self.folders, self.limits = references, folders, limits
        references.left_to_parse = limits.expression_chars
        self.num_loaded = self.num_bytes = self.num_nodes = self.num_interpolations = 0

    def load(self, recipe: Recipe, locations: Locations, stack: tuple[str, ...]) -> RecipeFile | None:
        """Loads one recipe; ``stack`` holds the real paths of the files that are being loaded."""
        self.num_loaded += 1
        try:
            if self.num_loaded > self.limits.num_files:
                raise locations.unreadable((), f"more than {self.limits.num_files} files are included")
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
        limits = self.limits
        if isinstance(recipe, Mapping):
            text = write_yaml(recipe, locations)
        else:
            try:
                text = read_bounded(recipe, limits.file_bytes, is_regular=is_included)
            except OSError as error:
                raise locations.unreadable((), f"cannot be read: {error.strerror or error}") from error
            except RefusedFileError as error:
                raise locations.unreadable((), str(error)) from error
        self._count(text, locations)
        tree = read_yaml(text, locations, limits._replace(num_nodes=limits.num_nodes - self.num_nodes))
        self.num_nodes += len(locations.values) + len(locations.keys)
        if not isinstance(tree, dict | list):
            got = "an empty file" if tree is None else f"a single value ({type(tree).__name__})"
            raise locations.unreadable((), f"expected a mapping or a list as the root, got {got}")
        return resolve(self.references.rewrite(tree, locations), self.references, locations, limits)

    def _count(self, text: bytes, locations: Locations) -> None:
        """Takes in what a file adds, before any time is spent on it."""
        self.num_bytes += len(text)
        self.num_interpolations += text.count(b"${")
        if self.num_bytes > self.limits.total_bytes:
            raise locations.unreadable((), f"all files together have more than {self.limits.total_bytes} bytes")
        if self.num_interpolations > self.limits.num_interpolations:
            message = f"all files together have more than {self.limits.num_interpolations} interpolations"
            raise locations.unreadable((), message)

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
            own = Locations(os.fspath(found), chain, locations.on_problem, environment=locations.environment)
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
