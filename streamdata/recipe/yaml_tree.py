"""YAML text → plain dicts, lists and scalars, each with its line and column, and what is wrong there.

Values are read as OmegaConf reads them (``1e-3`` is a float, dates stay text), except that ``12:30`` stays text too
instead of becoming the number 750. Loading is safe: no tag builds an object, a key given twice is an error, aliases may
neither form a cycle nor multiply the document, and nesting is bounded.

A *path* leads from the root to a node: keys and list indexes, shown as ``params.datasets[2].params.img_size``.
A *location* is ``file:line:column`` (both from 1).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
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


class UnreadableError(Exception):
    """A file of a recipe cannot be read any further, whether problems are raised or collected.

    Attributes:
        problem: What was found.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


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

    def unreadable(self, path: Path, message: str) -> UnreadableError:
        """Returns the exception to raise where a problem ends the reading of the file."""
        return UnreadableError(Problem(self.of(path), path_text(path), message, chain=self.chain))

    def count(self, path: Path, number: int = 1, depth: int = 0) -> None:
        """Takes nodes from the budget, and looks how deep they are: their path, or more where one stands for many.

        Raises:
            UnreadableError: Nothing is left of it, or they are nested too deeply.
        """
        self.budget.left -= number
        if max(depth, len(path)) > MAX_DEPTH:
            remedy = "Aliases and interpolations count: does one point to a node that holds it?"
            raise self.unreadable(path, f"nested deeper than {MAX_DEPTH} levels\n  {remedy}")
        if self.budget.left < 0:
            message = "the recipe has more nodes than may be (num_nodes), with what aliases and interpolations add"
            raise self.unreadable(path, f"{message}\n  Make it smaller, or pass larger limits.")

    def _shown(self, mark: tuple[int, int]) -> str:
        return f"{self.file}:{mark[0]}:{mark[1]}" if self.has_lines else self.file


_TAG = "tag:yaml.org,2002:"
_QUOTED = re.compile(r"'[^'<>]{3,}'")
"""In PyYAML's messages: names out of the file; but not what it expected, such as '<block end>' or ':'."""
# PyYAML follows YAML 1.1, where `1e-3` is text and `12:30` the number 750.
_FLOAT = re.compile(
    r"[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))$"
    r"|\.(?:nan|NaN|NAN)$"
)
_INT = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)$")


class _RecipeLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # where PyYAML has libyaml
    """PyYAML's safe loader. That in C would overflow its stack on deep nesting, which is looked at before."""


_REPLACED = {_TAG + name for name in ("float", "int", "timestamp")}
_RecipeLoader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_RecipeLoader.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+0123456789."))
_RecipeLoader.add_implicit_resolver(_TAG + "int", _INT, list("-+0123456789"))

_SCALARS = {
    _TAG + kind: getattr(SafeConstructor, f"construct_yaml_{kind}") for kind in ("null", "bool", "int", "float", "str")
}
_SCALARS[_TAG + "value"] = SafeConstructor.construct_yaml_str  # a plain "=", which is text


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
        return None if node is None else _TreeBuilder(locations).value(node, ())
    raise locations.unreadable((), message)  # not above: PyYAML's errors quote lines, also as its context


def plain_tree(value: Any, locations: Locations, path: Path = ()) -> Any:
    """Returns what a dict or DictConfig holds as `read_yaml` would: dicts, lists and scalars of its own.

    Raises:
        UnreadableError: It holds what no YAML file can, or nests too deeply.
    """
    locations.count(path)
    if isinstance(value, Container):
        value = OmegaConf.to_container(value)
    if isinstance(value, Mapping) and all(isinstance(key, Key) for key in value):
        return {key: plain_tree(child, locations, (*path, key)) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [plain_tree(child, locations, (*path, index)) for index, child in enumerate(value)]
    if type(value) in (str, int, float, bool, type(None)):
        return value
    message = f"expected text, numbers, lists and dicts, got {type(value).__name__}"
    raise locations.unreadable(path, f"{message}\n  Pass it as one of dynamic_objs.")


def _mark(node: Any) -> tuple[int, int]:
    """The line and column where a node or an event starts."""
    return node.start_mark.line + 1, node.start_mark.column + 1


_Pairs = dict[Key, tuple[yaml.Node, yaml.Node]]


class _TreeBuilder:
    """Turns PyYAML's graph of nodes, where an alias is the same node again, into a tree."""

    def __init__(self, locations: Locations) -> None:
        self.locations, self.report = locations, locations.report
        self.constructor = SafeConstructor()
        self.open: set[int] = set()

    def value(self, node: yaml.Node, path: Path) -> Any:
        """Builds one node and what is below it."""
        self.locations.values[path] = _mark(node)
        with self._inside(node, path, "an alias to a node that holds it"):
            if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
                pairs = self._pairs(node, path)
                self.locations.keys.update({(*path, key): _mark(pair[0]) for key, pair in pairs.items()})
                return {key: self.value(pair[1], (*path, key)) for key, pair in pairs.items()}
            if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
                return [self.value(child, (*path, index)) for index, child in enumerate(node.value)]
            return self._scalar(node, path)

    @contextmanager
    def _inside(self, node: yaml.Node, path: Path, cycle: str) -> Iterator[None]:
        """Counts a node, and refuses it within itself, where it would be read without end."""
        self.locations.count(path)
        if id(node) in self.open:
            raise self.locations.unreadable(path, f"expected a tree, got {cycle} (a cycle)")
        self.open.add(id(node))
        yield
        self.open.remove(id(node))  # unless an error ends the reading of the file

    def _scalar(self, node: yaml.Node, path: Path) -> Any:
        construct = _SCALARS.get(node.tag)
        if construct is None or not isinstance(node, yaml.ScalarNode):
            self.report(path, f"the YAML tag {shown(node.tag)} is refused, expected plain mappings, lists and scalars")
            return None
        with suppress(KeyError, ValueError):
            return construct(self.constructor, node)
        # Only here, where no error of PyYAML's, which quotes the text, is the context of another.
        self.report(path, f"expected a value of YAML type {node.tag.removeprefix(_TAG)}, got another text")
        return None

    def _pairs(self, node: yaml.MappingNode, path: Path) -> _Pairs:
        """A mapping's keys and values, with those that it merges and does not override; the first source wins."""
        own: _Pairs = {}
        merged: _Pairs = {}
        for key_node, value_node in node.value:
            at = _mark(key_node)
            if key_node.tag == _TAG + "merge":
                for source in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                    if isinstance(source, yaml.MappingNode):
                        with self._inside(source, path, "a merge of a mapping into itself"):
                            merged = self._pairs(source, path) | merged
                    else:
                        got = shown(source.tag.removeprefix(_TAG))
                        self.report(path, f"expected mappings after '<<', got {got}")
            elif not isinstance(key := self._scalar(key_node, path), Key):
                self.report(path, f"expected text or a number as a key, got {shown(key)}", at=at)
            elif key in own:
                first = own[key][0].start_mark.line + 1
                self.report((*path, key), f"the key {shown(key)} is given twice, the first time in line {first}", at=at)
            else:
                own[key] = (key_node, value_node)
        return merged | own
