"""`${…}` in a tree → values, by OmegaConf's grammar over plain dicts and lists.

The resolvers ``variables`` and ``dynamic_objs`` are known here alone: nothing is registered with OmegaConf, so that two
recipes may be built at once. A value that takes the place of an interpolation is final: a ``${`` in it means nothing.
Each node is resolved once, when it is first named or reached.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from omegaconf import Container, DictConfig, OmegaConf
from omegaconf.errors import GrammarParseError, InterpolationResolutionError
from omegaconf.grammar_parser import parse
from omegaconf.grammar_visitor import GrammarVisitor
from omegaconf.resolvers import oc

from streamdata.errors import RecipeError, did_you_mean, listing, shown, text_of
from streamdata.recipe.yaml_tree import UNKNOWN, Locations, Path, UnreadableError, children, plain_tree, read_yaml

_PLAIN: Final = re.compile(
    r"\$\{(?:(variables|dynamic_objs):([^${}\\]*)|oc\.env:(\w+)|(\.*[\w\-]+(?:\.[\w\-]+|\[[\w\-]+\])*))\}"
)
"""Interpolations that need no parser, which takes half a millisecond for each."""
_ONE_NODE_CHARS: Final = 100
_NODES_OF_CHAR: Final = 3
"""The price of OmegaConf's parser for a character, and once more for each level that its interpolation is nested."""
_MAX_LINE: Final = 300


@dataclass(frozen=True, eq=False)
class Dynamic:
    """One use, in a recipe, of an object that the caller passed."""

    value: object
    """The object itself."""


class References:
    """The values that a recipe may refer to, with a record of those it used.

    Attributes:
        variables: Scalars, paths, lists, tuples and dicts by name.
        dynamic_objs: Any objects by name; None accepts every name, with an unknown object.
        used: The variables that any file referred to, defaults or not.
        missing: Kinds and names of those that are not given: each is one problem, however often the recipe names it.
    """

    def __init__(self, variables: Mapping[str, Any], dynamic_objs: Mapping[str, object] | None) -> None:
        self.variables, self.dynamic_objs = variables, dynamic_objs
        self.used: set[str] = set()
        self.missing: set[tuple[str, str]] = set()


class _RefusedError(Exception):
    """An interpolation has no value; the message says why. Without one, that was told where the cause is.

    Attributes:
        how: What else `Locations.report` is given.
    """

    def __init__(self, message: str = "", **how: Any) -> None:
        super().__init__(message)
        self.how = how


_ENDLESS: Final = "expected interpolations that end: do they name one another?"


def resolve(tree: Any, references: References, locations: Locations) -> Any:
    """Returns a tree with its interpolations resolved; parts of the result may be shared.

    Args:
        tree: A dict or list as `read_yaml` returns it.
        references: The values that it may refer to.
        locations: Of the nodes. What does not resolve is reported to it and becomes `UNKNOWN`.

    Raises:
        UnreadableError: The interpolations expand beyond the bounds.
    """
    return _Resolution(tree, references, locations).node(tree, ())


class _Resolution:
    """Resolves one file."""

    def __init__(self, tree: Any, references: References, locations: Locations) -> None:
        self.tree, self.references, self.locations = tree, references, locations
        self.known: dict[Path, Any] = {}
        self.open: set[Path] = set()
        self.parsed: dict[tuple[str, str], Any] = {}
        """OmegaConf's parse trees, by text and rule: many nodes may have the same text."""
        self.root = DictConfig({})
        """The config that OmegaConf hands to an application's resolver, and where it keeps results."""

    def node(self, raw: Any, path: Path) -> Any:
        """Returns the resolved value of a node in the file."""
        if isinstance(raw, str):
            if "${" not in raw:
                return self.locations.report(path, "expected a value instead of '???'") if raw == "???" else raw
        elif not isinstance(raw, dict | list):
            return raw
        if path not in self.known:
            if path in self.open:
                raise _RefusedError(_ENDLESS)
            self.open.add(path)
            try:
                self.known[path] = self._text(raw, path) if isinstance(raw, str) else self._children(raw, path)
            finally:
                self.open.remove(path)
        return self.known[path]

    def _children(self, raw: Any, path: Path) -> Any:
        if isinstance(raw, list):
            return [self.node(child, (*path, index)) for index, child in enumerate(raw)]
        for key in raw:
            if isinstance(key, str) and "${" in key:
                message = "expected a plain key, got an interpolation, which only works in values"
                self.locations.report((*path, key), message, key=True)
        return {key: self.node(child, (*path, key)) for key, child in raw.items()}

    def _text(self, text: str, path: Path) -> Any:
        try:
            value = _Text(self, text, path).value()
        except (UnreadableError, RecipeError):  # of a node that it names
            raise
        except _RefusedError as error:
            refused = error
        except (GrammarParseError, InterpolationResolutionError):  # whose texts quote the recipe's, or a value
            refused = _RefusedError("expected valid interpolations, got one that OmegaConf cannot read")
        except RecursionError:
            refused = _RefusedError(_ENDLESS)
        except Exception as error:  # of a resolver
            said = str(error.args[0]) if isinstance(error, KeyError) and error.args else text_of(error)
            refused = _RefusedError(said.partition("\n")[0][:_MAX_LINE], cause=error)
        else:
            self._take_in(value, path, text, path)
            return value
        if not str(refused):
            return UNKNOWN
        # Not above: no context quotes a value.
        return self.locations.report(path, str(refused), **refused.how)

    def _take_in(self, value: Any, path: Path, text: str, at: Path) -> None:
        """Counts what the interpolations at a path gave, which multiply a file where they name whole nodes."""
        self.locations.count(at, depth=len(path))
        if isinstance(value, str):
            self.locations.written[path] = (value, text)
        for key, child in children(value):
            self._take_in(child, (*path, key), text, at)

    def select(self, key: str, path: Path) -> Any:
        """Returns the value of the node that a key refers to, relative to a path.

        Raises:
            LookupError: The node does not exist.
        """
        num_dots = len(key) - len(key.lstrip("."))
        if num_dots > len(path):
            raise LookupError(key)
        at, node = (path[:-num_dots] if num_dots else ()), self.tree
        for name in at:
            node = node[name]
        is_raw = True  # until an interpolation on the way gives a value
        for name in re.findall(r"[^.\[\]]+", key):
            if is_raw and isinstance(node, str):
                node, is_raw = self.node(node, at), False
            if node is UNKNOWN:
                raise _RefusedError
            if isinstance(node, list) and name.isdecimal():
                at, node = (*at, int(name)), node[int(name)]
            elif isinstance(node, dict):
                at, node = (*at, name), node[name]
            else:
                raise LookupError(name)
        return self.node(node, at) if is_raw else node


class _NoConfig:
    """Stands for the ``_parent_`` and ``_node_`` that a resolver may ask OmegaConf for."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError("a resolver in a recipe is given no _parent_ and no _node_")


class _Text(GrammarVisitor):
    """Evaluates one text.

    Args:
        file: The file that it stands in.
        text: The text, with interpolations in it.
        path: Its place.
    """

    def __init__(self, file: _Resolution, text: str, path: Path) -> None:
        super().__init__(self._node, self._resolved, memo=None)
        self.file, self.text, self.path = file, text, path
        self.parts = [False]
        """Whether each interpolation that is open is a part of a longer text, outermost first."""

    def value(self) -> Any:
        """Returns the resolved text; a text that is one single interpolation gives a value of any type.

        Raises:
            Exception: An interpolation has no value.
        """
        found = list(_PLAIN.finditer(self.text))
        if len(found) == self.text.count("${") and "\\" not in self.text:
            if len(found) == 1 and len(found[0][0]) == len(self.text):
                return self._plain(found[0], is_part=False)
            return _PLAIN.sub(lambda match: self._part(self._plain(match, is_part=True)), self.text)
        return self._parsed(self.text, "configValue", "DEFAULT_MODE")

    def _plain(self, match: re.Match[str], *, is_part: bool) -> Any:
        kind, argument, variable, key = match.groups()
        if key:
            return self._selected(key)
        if variable:
            return self._resolved("oc.env", (variable,), ())
        name, comma, default = argument.partition(",")
        return self._referenced(kind, name.strip(), default.strip() if comma else None, UNKNOWN, is_part)

    def _parsed(self, text: str, rule: str, mode: str) -> Any:
        if (text, rule) not in self.file.parsed:
            self.file.locations.count(self.path, len(text) * max(1, text.count("${")) * _NODES_OF_CHAR)
            self.file.parsed[text, rule] = parse(text, parser_rule=rule, lexer_mode=mode)
        value = self.visit(self.file.parsed[text, rule])
        return str(value) if isinstance(value, str) else value  # OmegaConf has private classes of text

    # OmegaConf's visitor: whether an interpolation is a part of a text, and what takes its place.
    def visitInterpolation(self, ctx: Any) -> Any:  # noqa: N802
        self.parts.append(False)
        value = super().visitInterpolation(ctx)
        self.parts.pop()
        return self._part(value) if self.parts[-1] else value

    def _unescape(self, seq: Any) -> Any:
        self.parts.append(True)
        text = super()._unescape(seq)
        self.parts.pop()
        return text

    def _part(self, value: Any) -> str:
        """The text of a value inside a longer text."""
        if value is UNKNOWN:
            raise _RefusedError
        if isinstance(value, dict | list | tuple | Dynamic):
            got = "an object" if isinstance(value, Dynamic) else f"a {type(value).__name__}"
            message = f"expected text or a number inside a longer text, got {got}"
            raise _RefusedError(f"{message}\n  It must be the whole value.")
        text = str(value)
        self.file.locations.count(self.path, len(text) // _ONE_NODE_CHARS)
        return text

    def _node(self, key: Any, _: Any) -> Any:
        return self._selected(key if isinstance(key, str) else key.raw)  # of OmegaConf 2.3 a str

    def _selected(self, key: str, *default: Any) -> Any:
        try:
            return self.file.select(key, self.path)
        except LookupError:
            if default:
                return default[0]
        raise _RefusedError(f"Interpolation key {shown(key if key in self.text else self.text)} not found")

    def _resolved(self, name: str, args: tuple[Any, ...], args_str: tuple[str, ...]) -> Any:
        """The value of a resolver."""
        if name in ("variables", "dynamic_objs"):
            default = ",".join(args_str[1:]) if args_str[1:] else None
            first, last = (str(args[0]), args[-1]) if args else ("", None)
            return self._referenced(name, first, default, last, self.parts[-2])
        if any(argument is UNKNOWN for argument in args):
            raise _RefusedError
        own: dict[str, Callable[..., Any]] = {
            "oc.env": oc.env,
            "oc.decode": self._decoded,
            "oc.select": lambda key, default=None: self._selected(key, default),
            "oc.create": lambda value: (
                self._read(value.encode(), read_yaml, "text of oc.create") if isinstance(value, str) else value
            ),
            "oc.dict.keys": lambda key: list(self._mapping(key)),
            "oc.dict.values": lambda key: list(self._mapping(key).values()),
        }
        if name in own:
            return own[name](*args)
        resolver = OmegaConf._get_resolver(name)  # noqa: SLF001  (it has no other way to call one)
        if name.startswith("oc."):
            raise _RefusedError(f"Unsupported interpolation type {name}\n  Known are {', '.join(own)}.")
        if resolver is None:
            remedy = "Register it with OmegaConf before the recipe is built."
            raise _RefusedError(f"Unsupported interpolation type {name}\n  {remedy}", kind="not checked")
        nothing: Any = _NoConfig()
        value = resolver(self.file.root, nothing, nothing, args, args_str)
        return OmegaConf.to_container(value) if isinstance(value, Container) else value

    def _decoded(self, text: str | None) -> Any:
        if not isinstance(text, str | None):
            raise _RefusedError("oc.decode: expected text, got another value")
        return None if text is None else self._parsed(text, "singleElement", "VALUE_MODE")

    def _mapping(self, key: str) -> dict[Any, Any]:
        value = self._selected(key)
        if value is UNKNOWN:
            raise _RefusedError
        if not isinstance(value, dict):
            raise _RefusedError("expected the name of a mapping, got that of another node")
        return value

    def _referenced(self, kind: str, name: str, default: str | None, evaluated: Any, is_part: bool) -> Any:
        """The value of a variable or of a dynamic object; a default is YAML, or holds interpolations."""
        references, is_object = self.file.references, kind == "dynamic_objs"
        given = references.dynamic_objs if is_object else references.variables
        if is_object and default is not None:
            raise _RefusedError(f"${{dynamic_objs:{name}}} takes no default")
        if not is_object:
            references.used.add(name)
        if given is None or name in given:
            value = UNKNOWN if given is None else given[name]
            read = partial(plain_tree, is_final=True)
            return Dynamic(value) if is_object else self._read(value, read, f"variable {shown(name)}")
        if default is None:
            if (kind, name) in references.missing:
                raise _RefusedError
            references.missing.add((kind, name))
            what = "dynamic object" if is_object else "variable"
            remedy = "" if is_object else f" (commands: --var {name}=…), or write a default: ${{variables:{name},…}}"
            raise _RefusedError(
                f"no {what} {shown(name)} was given{did_you_mean(name, given)}; given: {listing(given)}\n"
                f"  Pass {kind}={{{shown(name)}: …}}{remedy}."
            )
        if "${" in default:
            return evaluated
        value = self._read(default.encode(), read_yaml, f"default of {shown(name)}")
        return default if is_part and not isinstance(value, str) else value

    def _read(self, value: Any, read: Callable[[Any, Locations], Any], what: str) -> Any:
        own = Locations(self.file.locations.file, budget=self.file.locations.budget)
        try:
            return read(value, own)
        except (UnreadableError, ValueError) as error:
            message = error.problem.message if isinstance(error, UnreadableError) else "not plain data"
        raise _RefusedError(f"in the {what}: {message}")  # not above: no context quotes a value
