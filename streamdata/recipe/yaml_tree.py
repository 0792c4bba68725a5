"""YAML text → plain dicts, lists and scalars, each with its line and column.

Values are read as OmegaConf reads them (``1e-3`` is a float, dates stay text), except that ``12:30`` stays text too
instead of becoming the number 750. Loading is safe: no tag builds an object, a key given twice is an error, aliases may
neither form a cycle nor multiply the document, and nesting is bounded.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import yaml
from omegaconf import Container, OmegaConf
from yaml.constructor import SafeConstructor

from streamdata.errors import shown
from streamdata.recipe.locations import MAX_DEPTH, Key, Locations, Path, UnreadableError

_TAG = "tag:yaml.org,2002:"
_QUOTED = re.compile(r"'[^'<>]{3,}'")
"""In PyYAML's messages: names out of the file; but not what it expected, such as '<block end>' or ':'."""
# PyYAML follows YAML 1.1, where `1e-3` is text and `12:30` the number 750.
_FLOAT = re.compile(
    r"""[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
             |[0-9][0-9_]*[eE][-+]?[0-9]+
             |\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
             |\.(?:inf|Inf|INF))$
      |\.(?:nan|NaN|NAN)$""",
    re.VERBOSE,
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
    node = _composed(content, locations)
    if isinstance(node, UnreadableError):
        raise node
    return None if node is None else _TreeBuilder(locations).value(node, ())


def _composed(content: bytes, locations: Locations) -> yaml.Node | UnreadableError | None:
    """The graph of nodes, or what is to be raised outside of here: PyYAML's errors quote lines, also as its context."""
    try:
        text = content.decode("utf-8-sig")
        _expect_room(text, locations)
        return yaml.compose(text, _RecipeLoader)
    except UnreadableError as error:
        return error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        locations.values[()] = (line, error.start - content.rfind(b"\n", 0, error.start))
        return locations.unreadable((), f"expected UTF-8, got byte 0x{content[error.start]:02x}")
    except yaml.YAMLError as error:
        return locations.unreadable((), _yaml_message(error, locations))


def _expect_room(text: str, locations: Locations) -> None:
    """Raises where a text has too many nodes or levels: its events tell, at a tenth of the price."""
    left, depth = locations.budget.left, 0
    for event in yaml.parse(text, _RecipeLoader):
        left -= isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if left < 0 or depth > MAX_DEPTH:
            locations.values[()] = _mark(event)
            if depth > MAX_DEPTH:
                raise locations.unreadable((), f"nested deeper than {MAX_DEPTH} levels")
            locations.count((), locations.budget.left + 1)


def plain_tree(value: Any, locations: Locations, path: Path = ()) -> Any:
    """Returns what a dict or DictConfig holds as `read_yaml` would: dicts, lists and scalars of its own.

    Raises:
        UnreadableError: It holds what no YAML file can, or nests too deeply.
    """
    locations.count(path)
    if len(path) > MAX_DEPTH:
        raise locations.unreadable(path, f"nested deeper than {MAX_DEPTH} levels")
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


def _yaml_message(error: yaml.YAMLError, locations: Locations) -> str:
    """Says what PyYAML found, and lets the root's location point there."""
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        locations.values[()] = (mark.line + 1, mark.column + 1)
    said = [getattr(error, "context", None), getattr(error, "problem", None)]
    text = " ".join(part for part in said if part) or str(error).partition("\n")[0]
    return "not valid YAML: " + _QUOTED.sub("…", text)


_Node = TypeVar("_Node", bound=yaml.Node)
_Read = TypeVar("_Read")
_Pairs = dict[Key, tuple[yaml.Node, yaml.Node]]


def _mark(node: Any) -> tuple[int, int]:
    """The line and column where a node or an event starts."""
    return node.start_mark.line + 1, node.start_mark.column + 1


class _TreeBuilder:
    """Turns PyYAML's graph of nodes, where an alias is the same node again, into a tree."""

    def __init__(self, locations: Locations) -> None:
        self.locations, self.report = locations, locations.report
        self.constructor = SafeConstructor()
        self.open: set[int] = set()

    def value(self, node: yaml.Node, path: Path) -> Any:
        """Builds one node and what is below it."""
        self.locations.values[path] = _mark(node)
        return self._inside(node, path, "an alias to a node that holds it", self._content)

    def _inside(self, node: _Node, path: Path, cycle: str, read: Callable[[_Node, Path], _Read]) -> _Read | None:
        """Reads what a node holds; None within itself, where it would be read without end."""
        self.locations.count(path)
        if len(path) > MAX_DEPTH:
            raise self.locations.unreadable(path, f"nested deeper than {MAX_DEPTH} levels")
        if id(node) in self.open:
            self.report(path, f"expected a tree, got {cycle} (a cycle)")
            return None
        self.open.add(id(node))
        try:
            return read(node, path)
        finally:
            self.open.remove(id(node))

    def _content(self, node: yaml.Node, path: Path) -> Any:
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.value(child, (*path, index)) for index, child in enumerate(node.value)]
        return self._scalar(node, path)

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

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[Key, Any]:
        result = {}
        for key, (key_node, value_node) in self._pairs(node, path).items():
            self.locations.keys[(*path, key)] = _mark(key_node)
            result[key] = self.value(value_node, (*path, key))
        return result

    def _pairs(self, node: yaml.MappingNode, path: Path) -> _Pairs:
        """A mapping's keys and values, with those that it merges and does not override."""
        own: _Pairs = {}
        merged: _Pairs = {}
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                for source in self._merge_sources(value_node, path):
                    pairs = self._inside(source, path, "a merge of a mapping into itself", self._pairs)
                    merged = (pairs or {}) | merged
            else:
                self._add(own, key_node, value_node, path)
        return merged | own

    def _merge_sources(self, node: yaml.Node, path: Path) -> Iterator[yaml.MappingNode]:
        """The mappings that ``<<`` names; the first that has a key wins."""
        for source in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if isinstance(source, yaml.MappingNode):
                yield source
            else:
                self.report(path, f"expected mappings after '<<', got {shown(source.tag.removeprefix(_TAG))}")

    def _add(self, pairs: _Pairs, key_node: yaml.Node, value_node: yaml.Node, path: Path) -> None:
        key = self._scalar(key_node, path)
        at = _mark(key_node)
        if not isinstance(key, Key):
            self.report(path, f"expected text or a number as a key, got {shown(key)}", at=at)
        elif key in pairs:
            first = pairs[key][0].start_mark.line + 1
            self.report((*path, key), f"the key {shown(key)} is given twice, the first time in line {first}", at=at)
        else:
            pairs[key] = (key_node, value_node)
