"""YAML text → plain dicts, lists and scalars, each with its line and column, and what is wrong there.

Values are read as OmegaConf reads them (``1e-3`` is a float, dates stay text), except that ``12:30`` stays text too
instead of becoming the number 750. Loading is safe: no tag builds an object, a key given twice is an error, aliases may
neither form a cycle nor multiply the document, and nesting is bounded.

A *path* leads from the root to a node: keys and list indexes, shown as ``params.datasets[2].params.img_size``.
A *location* is ``file:line:column`` (both from 1).
"""

import pathlib
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NoReturn

import yaml
from omegaconf import Container, OmegaConf
from yaml.constructor import SafeConstructor

from streamdata.errors import RecipeError, printable, shown, without_secrets
from streamdata.recipe.limits import DEFAULT_RECIPE_LIMITS

Key = str | int | float | bool
Path = tuple[Key, ...]
Kind = Literal["error", "warning", "not checked"]
MAX_DEPTH: Final = 100
"""Levels of a recipe, interpolations resolved."""
_MAX_KEY: Final = 100
_CUT: Final = 16


def path_text(path: Path) -> str:
    """Shows a path as a reader would write it; the root itself is ``root``."""
    text = ""
    for key in path:
        if isinstance(key, str) and key.isidentifier() and len(key) <= _MAX_KEY:
            text += f".{key}" if text else key
        else:
            text += f"[{shown(key)}]"
    return text or "root"


@dataclass(frozen=True)
class Problem:
    """Something to say about one location in a recipe.

    Attributes:
        location: ``file:line:column``.
        path: The node, as `path_text` shows it.
        message: What was expected and what was found; a second line, if any, says what to do.
        kind: ``not checked`` marks what a check could not look into.
        target: The dotted name that was being built, if any.
        chain: The locations of the includes that lead here, innermost first.
    """

    location: str
    path: str
    message: str
    kind: Kind = "error"
    target: str | None = None
    chain: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # Here, for all that is made of it: it may quote a url of the recipe, or another's error.
        object.__setattr__(self, "message", without_secrets(self.message))

    def __str__(self) -> str:
        """The problem as one message."""
        who = f"{self.path} ({self.target})" if self.target else self.path
        lines = [f"{self.location}: {who}: {self.message}", *(f"  included from {location}" for location in self.chain)]
        return without_secrets(printable("\n".join(lines)))


OnProblem = Callable[[Problem, BaseException | None], Any]
"""Takes a problem and the exception behind it: building raises at the first, checking collects them all."""


def refuse(problem: Problem, cause: BaseException | None) -> NoReturn:
    """Raises `RecipeError`, as building does."""
    raise RecipeError(str(problem)) from cause


class Unknown:
    """The value of a node that has a problem; only a check meets it."""

    def __repr__(self) -> str:
        """``?``, in messages."""
        return "?"


UNKNOWN = Unknown()


def children(node: object) -> Iterable[tuple[Any, Any]]:
    """Returns the keys and values of a mapping, or the indexes and items of a list; nothing of a leaf."""
    if isinstance(node, dict):
        return node.items()
    return enumerate(node) if isinstance(node, list) else ()


@dataclass
class NodeBudget:
    """How many nodes all files of a recipe may still have; see `RecipeLimits.num_nodes`."""

    left: int = DEFAULT_RECIPE_LIMITS.num_nodes


@dataclass
class Locations:
    """The lines and columns of one file, and what becomes of the problems there.

    Attributes:
        file: The file's name as shown in messages.
        on_problem: Takes each problem that is reported.
        has_lines: Whether there is such a file; a mapping given by a caller has no lines to point at.
        chain: The locations of the includes that lead to this file, innermost first.
        budget: Bounds the nodes of all files together.
        values: (line, column) where each node's value starts.
        keys: (line, column) of the key before each mapping value.
        written: Texts that interpolations gave, by path, each with what the file has there: messages show the latter,
            since the former may be of the environment.
    """

    file: str
    chain: tuple[str, ...] = ()
    on_problem: OnProblem = refuse
    has_lines: bool = True
    budget: NodeBudget = field(default_factory=NodeBudget)
    values: dict[Path, tuple[int, int]] = field(default_factory=dict)
    keys: dict[Path, tuple[int, int]] = field(default_factory=dict)
    written: dict[Path, tuple[str, str]] = field(default_factory=dict)

    def of(self, path: Path, *, key: bool = False) -> str:
        """Returns ``file:line:column`` of a node, or of the nearest node above it that the file itself holds."""
        if key and path in self.keys:
            return self._shown(self.keys[path])
        while path and path not in self.values:
            path = path[:-1]
        return self._shown(self.values.get(path, (1, 1)))

    def report(
        self,
        path: Path,
        message: str,
        *,
        key: bool = False,
        at: tuple[int, int] | None = None,
        kind: Kind = "error",
        target: str | None = None,
        cause: BaseException | None = None,
        is_told: bool = False,
    ) -> Unknown:
        """Reports a problem of the node at a path; ``key=True`` points at its key, ``at`` at a line and column.

        Of an interpolated text the message shows what the file has, unless it is a constructor's own (``is_told``).

        Returns:
            The value with which to continue, where problems are collected.
        """
        location = self._shown(at) if at else self.of(path, key=key)
        if path[-1:] == ("target",) and path in self.written:
            message = "the name that an interpolation gives is refused, or nothing to import\n  Write it out."
            cause = None
        elif not is_told and self.written:
            for below, (value, raw) in self.written.items():
                if below[: len(path)] == path:
                    message = message.replace(shown(value), shown(raw))
                    if shown(value)[:_CUT] in message:  # within a list, whose text is cut elsewhere
                        message = f"the value that {shown(raw)} gives is refused\n  Write it out to see why."
        if any(target == value for value, _ in self.written.values()):
            target = None
        self.on_problem(Problem(location, path_text(path), message, kind, target, self.chain), cause)
        return UNKNOWN

    def count(self, path: Path, number: int = 1, depth: int = 0) -> None:
        """Takes nodes from the budget, and looks how deep they are: their path, or more where one stands for many.

        Raises:
            UnreadableError: Nothing is left of it, or they are nested too deeply.
        """
        self.budget.left -= number
        if max(depth, len(path)) > MAX_DEPTH:
            remedy = "Aliases and interpolations count: does one point to a node that holds it (a cycle)?"
            path = path[: MAX_DEPTH // 10]  # the rest of a cycle repeats it
            raise UnreadableError(self, path, f"nested deeper than {MAX_DEPTH} levels\n  {remedy}")
        if self.budget.left < 0:
            message = "the recipe has more nodes than may be (num_nodes), with what aliases and interpolations add"
            raise UnreadableError(self, path, f"{message}\n  Make it smaller, or pass larger limits.")

    def _shown(self, mark: tuple[int, int]) -> str:
        return f"{self.file}:{mark[0]}:{mark[1]}" if self.has_lines else self.file


class UnreadableError(Exception):
    """A file of a recipe cannot be read any further, whether problems are raised or collected.

    Attributes:
        problem: The reason, and the node where it was found.
    """

    def __init__(self, locations: Locations, path: Path, message: str) -> None:
        self.problem = Problem(locations.of(path), path_text(path), message, chain=locations.chain)
        super().__init__(str(self.problem))


_TAG = "tag:yaml.org,2002:"
_QUOTED = re.compile(r"'[^'<>]{3,}'")
"""In PyYAML's messages: names out of the file; but not what it expected, such as '<block end>' or ':'."""
# PyYAML follows YAML 1.1, where `1e3`, `1.5e3` and `-.5` are text, `12:30` is the number 750, and a date an object.
_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*[eE][-+]?[0-9]+|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?)$")


class _RecipeLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # where PyYAML has libyaml
    """PyYAML's safe loader. That in C would overflow its stack on deep nesting, which is looked at before."""


_RecipeLoader.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+0123456789."))

_SCALARS = {_TAG + kind: SafeConstructor.yaml_constructors[_TAG + kind] for kind in ("null", "bool", "int", "float")}
_TEXTS = {_TAG + kind for kind in ("str", "value", "timestamp")}  # a value is a plain "="


def read_yaml(content: bytes, locations: Locations) -> Any:
    """Reads the one document of a file, and notes the locations of its nodes.

    Args:
        content: The file's bytes, UTF-8.
        locations: Is filled. Duplicate keys, cycles and unknown tags are reported to it; then reading continues.

    Returns:
        Nested dicts, lists and scalars that share nothing with one another; None for an empty document.

    Raises:
        UnreadableError: It is not YAML in UTF-8, or its nodes or nesting exceed their bounds.
    """
    try:
        text = content.decode("utf-8-sig")
        num_nodes, depth = 0, 0
        for event in yaml.parse(text, _RecipeLoader):  # too many are told at a tenth of the price of nodes
            num_nodes += isinstance(event, yaml.NodeEvent)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if num_nodes > locations.budget.left or depth > MAX_DEPTH:
                locations.values[()] = _mark(event)
                locations.count((), num_nodes, depth)
        node = yaml.compose(text, _RecipeLoader)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        locations.values[()] = (line, error.start - content.rfind(b"\n", 0, error.start))
        message = f"expected UTF-8, got byte 0x{content[error.start]:02x}"
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        if mark is not None:
            locations.values[()] = (mark.line + 1, mark.column + 1)
        said = [getattr(error, "context", None), getattr(error, "problem", None)]
        found = " ".join(part for part in said if part) or str(error).partition("\n")[0]
        message = "not valid YAML: " + _QUOTED.sub("…", found)
    else:
        return None if node is None else _value(node, (), locations)
    raise UnreadableError(locations, (), message)  # not above: PyYAML's errors quote lines, also as its context


def plain_tree(value: Any, locations: Locations, path: Path = (), *, is_final: bool = False) -> Any:
    """Returns what a caller passes as a recipe or as a variable's value: dicts and lists of its own, and scalars.

    Args:
        value: A dict or DictConfig, or what they hold.
        locations: Its budget bounds the nodes.
        path: Where the value stands.
        is_final: Whether nothing in it is interpolated: then tuples stay what they are.

    Raises:
        UnreadableError: It holds other objects, or nests too deeply.
    """
    locations.count(path)
    if isinstance(value, Container):
        value = OmegaConf.to_container(value, resolve=is_final)
    if isinstance(value, Mapping) and all(isinstance(key, Key) for key in value):
        return {key: plain_tree(child, locations, (*path, key), is_final=is_final) for key, child in value.items()}
    if isinstance(value, list | tuple):
        copied = [plain_tree(child, locations, (*path, n), is_final=is_final) for n, child in enumerate(value)]
        return tuple(copied) if is_final and isinstance(value, tuple) else copied
    if type(value) in (str, int, float, bool, bytes, type(None)) or isinstance(value, pathlib.Path):
        return value
    got = f"{type(value).__module__}.{type(value).__qualname__}"
    remedy = "Pass an object as one of dynamic_objs, and write ${dynamic_objs:its_name}."
    raise UnreadableError(locations, path, f"expected text, numbers, paths, lists and dicts, got {got}\n  {remedy}")


def _mark(node: Any) -> tuple[int, int]:
    """The line and column where a node or an event starts."""
    return node.start_mark.line + 1, node.start_mark.column + 1


_Pairs = dict[Key, tuple[yaml.Node, yaml.Node]]


def _value(node: yaml.Node, path: Path, locations: Locations) -> Any:
    """Returns a node of PyYAML's graph, where an alias is the same node again, as a tree."""
    locations.values[path] = _mark(node)
    locations.count(path)
    if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
        pairs = _pairs(node, path, locations, len(path))
        locations.keys.update({(*path, key): _mark(pair[0]) for key, pair in pairs.items()})
        return {key: _value(pair[1], (*path, key), locations) for key, pair in pairs.items()}
    if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
        return [_value(child, (*path, index), locations) for index, child in enumerate(node.value)]
    return _scalar(node, path, locations)


def _scalar(node: yaml.Node, path: Path, locations: Locations) -> Any:
    is_text = node.tag in _TEXTS or (node.tag in (_TAG + "int", _TAG + "float") and ":" in node.value)
    construct = SafeConstructor.construct_yaml_str if is_text else _SCALARS.get(node.tag)
    if construct is None or not isinstance(node, yaml.ScalarNode):
        message = f"the YAML tag {shown(node.tag)} is refused, expected plain mappings, lists and scalars"
        locations.report(path, message)
        return None
    with suppress(KeyError, ValueError):
        return construct(SafeConstructor(), node)
    # Only here, where no error of PyYAML's, which quotes the text, is the context of another.
    locations.report(path, f"expected a value of YAML type {node.tag.removeprefix(_TAG)}, got another text")
    return None


def _pairs(node: yaml.MappingNode, path: Path, locations: Locations, depth: int) -> _Pairs:
    """A mapping's keys and values, with those that it merges and does not override; the first source wins."""
    own: _Pairs = {}
    merged: _Pairs = {}
    for key_node, value_node in node.value:
        at = _mark(key_node)
        if key_node.tag == _TAG + "merge":
            for source in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                if isinstance(source, yaml.MappingNode):
                    locations.count(path, depth=depth + 1)  # as it may merge itself
                    merged = _pairs(source, path, locations, depth + 1) | merged
                else:
                    got = shown(source.tag.removeprefix(_TAG))
                    locations.report(path, f"expected mappings after '<<', got {got}")
        elif not isinstance(key := _scalar(key_node, path, locations), Key):
            locations.report(path, f"expected text or a number as a key, got {shown(key)}", at=at)
        elif key in own:
            message = f"the key {shown(key)} is given twice, the first time in line {own[key][0].start_mark.line + 1}"
            locations.report((*path, key), message, at=at)
        else:
            own[key] = (key_node, value_node)
    return merged | own
