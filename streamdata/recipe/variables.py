"""``${variables:x}`` and ``${dynamic_objs:x}`` → the caller's values, before OmegaConf sees the tree.

Rewriting the tree instead of registering resolvers keeps OmegaConf's global state untouched, so that two recipes may be
built at once. A value is a literal: a ``${`` in it means nothing. What OmegaConf cannot hold (objects, tuples, the text
``???``) travels through it as a marker, and comes back by identity, also through ``${a.b}``.
"""

import pathlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamdata.errors import did_you_mean, listing, shown, text_of
from streamdata.recipe.interpolation import Interpolation, LiteralPart, Part, closing, join, parsing_cost, split
from streamdata.recipe.limits import DEFAULT_RECIPE_LIMITS
from streamdata.recipe.locations import UNKNOWN, Key, Locations, Path, Unknown, UnreadableError
from streamdata.recipe.yaml_tree import MAX_DEPTH, read_yaml

# An even number of backslashes leaves `${` an opening: OmegaConf reads each two as one.
_OPENING = re.compile(r"(?<!\\)(?:\\\\)*(\$\{\s*(?:variables|dynamic_objs)\s*:)")
_REFERENCE = re.compile(r"\$\{\s*(variables|dynamic_objs)\s*:(.*)\}", re.DOTALL)
_MISSING_SPELLING = re.compile(r"\\*\?\?\?")
_GRAMMAR_SAFE = re.compile(r"[\w.+\-/@%|?* ]*")
_RETURNED = re.compile("instead returned `.*")
_MAX_LINE = 300
_SCALARS = (int, float, bool, bytes, type(None))


@dataclass(frozen=True, eq=False)
class Dynamic:
    """One use of an object that the caller passed.

    Attributes:
        name: Its name in ``dynamic_objs``.
        value: The object itself.
    """

    name: str
    value: object


@dataclass(frozen=True)
class _Reference:
    kind: str
    name: str
    default: str | None


def quotes_value(error: BaseException) -> bool:
    """Whether the text of an error of OmegaConf's has a value in it."""
    return _RETURNED.search(text_of(error)) is not None


def first_line(error: BaseException) -> str:
    """Returns the first line of an error of OmegaConf's, values left out; the others repeat the path."""
    return _RETURNED.sub("instead returned another value", text_of(error).partition("\n")[0])[:_MAX_LINE]


class References:
    """The values that a recipe may refer to, and which of them it used.

    Args:
        variables: Scalars, paths, lists, tuples and dicts by name.
        dynamic_objs: Any objects by name; None accepts every name, with an unknown object.
    """

    def __init__(self, variables: Mapping[str, Any], dynamic_objs: Mapping[str, object] | None) -> None:
        self.left_to_parse = DEFAULT_RECIPE_LIMITS.expression_chars
        self.variables = variables
        self.dynamic_objs = dynamic_objs
        self.used: set[str] = set()
        self.missing: set[tuple[str, str]] = set()
        """Kinds and names of those that are not given: each is one problem, however often the recipe names it."""
        self._held: list[object] = []
        # A marker must not be writable in a recipe, or a recipe could name an object that it was not given.
        self._token = f"\0{secrets.token_hex(8)}:"

    def unused(self) -> list[str]:
        """Returns the variables that no rewritten file referred to, defaults or not."""
        return sorted(set(self.variables) - self.used)

    def hold(self, value: object) -> str:
        """Returns the marker that stands for a value while OmegaConf resolves the rest."""
        self._held.append(value)
        return f"{self._token}{len(self._held) - 1}\0"

    def release(self, text: str) -> object:
        """Returns the value behind a marker, or a text without any as it is.

        Raises:
            ValueError: A marker stands inside a longer text.
        """
        if self._token not in text:
            return str(text)  # OmegaConf may return a private subclass of str
        number = text.removeprefix(self._token).removesuffix("\0")
        held = re.findall(rf"{self._token}(\d+)\0", text)
        if any(self._held[int(one)] is UNKNOWN for one in held):
            return UNKNOWN
        if not number.isdecimal():
            raise ValueError("an object, a tuple or '???' must be the whole value, got it inside a longer text")
        return self._held[int(number)]

    def rewrite(self, tree: Any, locations: Locations) -> Any:
        """Returns a tree without references, for OmegaConf.

        Args:
            tree: As `read_yaml` returned it.
            locations: Of its nodes. What is missing, unsuitable or malformed is reported to it.
        """
        return _Rewriting(self, locations).node(tree, ())


class _Rewriting:
    """Rewrites the references of one file."""

    def __init__(self, references: References, locations: Locations) -> None:
        self.references = references
        self.locations = locations
        self.report = locations.report
        self._is_lost = False

    def node(self, node: Any, path: Path) -> Any:
        if isinstance(node, dict):
            return {self._key(key, path): self.node(child, (*path, key)) for key, child in node.items()}
        if isinstance(node, list):
            return [self.node(child, (*path, index)) for index, child in enumerate(node)]
        return self._bounded_text(node, path) if isinstance(node, str) and "${" in node else node

    def _bounded_text(self, text: str, path: Path) -> Any:
        """The value of a text, if it and what is left of it to OmegaConf do not take too long."""
        self._expect_room(len(text) // 4, path)
        if any(part.text.count("${") > MAX_DEPTH for part in split(text) if isinstance(part, Interpolation)):
            return self.references.hold(self.report(path, f"expected at most {MAX_DEPTH} interpolations within one"))
        value = self._text(text, path)
        if isinstance(value, str) and "${" in value:
            cost = parsing_cost(value)
            self._expect_room(cost, path)
            self.references.left_to_parse -= cost
        return value

    def _expect_room(self, cost: int, path: Path) -> None:
        if cost > self.references.left_to_parse:
            message = "interpolations of all files are longer than they may be together (expression_chars)"
            raise self.locations.unreadable(path, message)

    def _key(self, key: Key, path: Path) -> Key:
        if isinstance(key, str) and _OPENING.search(key):
            self.report((*path, key), "expected a plain key, got a reference, which only works in values", key=True)
        return key

    def _text(self, text: str, path: Path) -> Any:
        """The value of a text: typed where the whole text is one reference."""
        parts = split(text)
        if len(parts) == 1 and (reference := self._reference(parts[0], path)):
            return self._whole(reference, path)
        self._is_lost = False
        value = join([part for old in parts for part in self._part(old, path)])
        return self.references.hold(UNKNOWN) if self._is_lost else value

    def _reference(self, part: Part, path: Path) -> _Reference | None:
        if not isinstance(part, Interpolation):
            return None
        match = _REFERENCE.fullmatch(part.text)
        if match is None:
            if _OPENING.match(part.text):
                self.report(path, "expected '}' at the end of the reference")
            return None
        name, comma, default = match[2].partition(",")
        if "${" in name:
            self.report(path, f"expected a plain name after '{match[1]}:', got an interpolation")
        return _Reference(match[1], name.strip(), default.strip() if comma else None)

    def _whole(self, reference: _Reference, path: Path) -> Any:
        if reference.kind == "dynamic_objs":
            return self.references.hold(self._dynamic(reference, path))
        if self._is_given(reference):
            return self._literal(self.references.variables[reference.name], path, reference.name)
        if reference.default is None:
            return self.references.hold(self._missing(reference, path))
        return self._default(reference, reference.default, path)

    def _is_given(self, reference: _Reference) -> bool:
        self.references.used.add(reference.name)
        return reference.name in self.references.variables

    def _default(self, reference: _Reference, default: str, path: Path) -> Any:
        """A default is YAML, or text with interpolations."""
        if "${" not in default:
            return self._literal(self._yaml(reference, default, path), path, reference.name)
        if default[0] in "[{\"'":
            message = f"the default of {shown(reference.name)} mixes YAML and interpolation"
            self.report(path, f"{message}\n  Write the list, mapping or text beside it, and let the default name it.")
        return self._text(default, path)

    def _yaml(self, reference: _Reference, default: str, path: Path) -> Any:
        try:
            return read_yaml(default.encode(), Locations(self.locations.file, on_problem=self.locations.on_problem))
        except UnreadableError as error:
            message = f"the default of {shown(reference.name)} is {error.problem.message}"
            self.report(path, message, cause=error)
            return None

    def _dynamic(self, reference: _Reference, path: Path) -> object:
        given = self.references.dynamic_objs
        if reference.default is not None:
            self.report(path, f"${{dynamic_objs:{reference.name}}} takes no default")
        elif given is not None and reference.name not in given:
            return self._missing(reference, path)
        return Dynamic(reference.name, UNKNOWN if given is None else given.get(reference.name, UNKNOWN))

    def _missing(self, reference: _Reference, path: Path) -> Unknown:
        self._is_lost, named = True, (reference.kind, reference.name)
        if named in self.references.missing:
            return UNKNOWN
        self.references.missing.add(named)
        dynamic = reference.kind == "dynamic_objs"
        given = (self.references.dynamic_objs if dynamic else self.references.variables) or {}
        what = "dynamic object" if dynamic else "variable"
        remedy = "" if dynamic else f", or write a default: ${{variables:{reference.name},…}}"
        return self.report(
            path,
            f"no {what} {shown(reference.name)} was given{did_you_mean(reference.name, given)}; "
            f"given: {listing(given)}\n"
            f"  Pass {reference.kind}={{{shown(reference.name)}: …}}{remedy}.",
        )

    def _part(self, part: Part, path: Path) -> list[Part]:
        """What a part of a longer text becomes."""
        if isinstance(part, LiteralPart):
            return [part]
        reference = self._reference(part, path)
        if reference is None:
            return [Interpolation(self._inside(part.text, path))]
        if reference.kind == "dynamic_objs":
            self.report(path, f"${{dynamic_objs:{reference.name}}} must be the whole value, got a longer text")
            return []
        if self._is_given(reference):
            value = self.references.variables[reference.name]
            self._literal(value, path, reference.name)
            return [LiteralPart(str(value))]
        if reference.default is None:
            self._missing(reference, path)
            return []
        return self._default_part(reference, reference.default, path)

    def _default_part(self, reference: _Reference, default: str, path: Path) -> list[Part]:
        if "${" in default:
            return [new for old in split(default) for new in self._part(old, path)]
        value = self._yaml(reference, default, path)
        return [LiteralPart(value if isinstance(value, str) else default)]

    def _inside(self, text: str, path: Path) -> str:
        """Replaces the references inside an interpolation of OmegaConf's, such as ``${oc.env:A,${variables:b}}``."""
        done, index = text[:2], 2
        while match := _OPENING.search(text, index):
            start = match.start(1)
            end = closing(text, start) or len(text)
            reference = self._reference(Interpolation(text[start:end]), path)
            alone = (done + text[index:start]).rstrip()[-1:] in (",", ":") and text[end:].lstrip()[:1] in (",", "}")
            done += text[index:start] + (self._argument(reference, alone, path) if reference else text[start:end])
            index = end
        return done + text[index:]

    def _argument(self, reference: _Reference, alone: bool, path: Path) -> str:
        if reference.kind == "dynamic_objs":
            self.report(path, f"${{dynamic_objs:{reference.name}}} must be the whole value, got an interpolation")
            return "null"
        if self._is_given(reference):
            return self._grammar_text(self.references.variables[reference.name], alone, path, reference.name)
        if reference.default is None:
            self._missing(reference, path)
            return "null"
        return self._inside("${" + reference.default, path)[2:]

    def _grammar_text(self, value: Any, alone: bool, path: Path, name: str) -> str:
        """Writes a value in OmegaConf's grammar; ``alone`` says that it is a whole argument of a resolver."""
        if value is None:
            return "null"
        if isinstance(value, bool | int | float):
            return str(value).lower()
        if isinstance(value, str | pathlib.Path) and alone:
            quoted = join([LiteralPart(str(value))]).replace("'", "\\'")
            if "\\" not in str(value):
                return f"'{quoted}'"
        if isinstance(value, str | pathlib.Path) and _GRAMMAR_SAFE.fullmatch(str(value)):
            return str(value)
        self.report(
            path,
            f"the variable {shown(name)} cannot stand inside another interpolation, got {type(value).__name__}",
        )
        return "null"

    def _literal(self, value: Any, path: Path, name: str, depth: int = 0) -> Any:
        """A value as OmegaConf must see it to give it back unchanged."""
        if depth > MAX_DEPTH:
            self.report(path, f"the variable {shown(name)} is nested deeper than {MAX_DEPTH} levels")
        elif type(value) is dict and all(type(key) in (str, int, float, bool) for key in value):
            return {key: self._literal(child, path, name, depth + 1) for key, child in value.items()}
        elif type(value) is list:
            return [self._literal(child, path, name, depth + 1) for child in value]
        elif type(value) is tuple:
            for child in value:
                self._literal(child, path, name, depth + 1)
            return self.references.hold(value)
        elif type(value) is str:
            return self.references.hold(value) if _MISSING_SPELLING.fullmatch(value) else join([LiteralPart(value)])
        elif type(value) in _SCALARS or isinstance(value, pathlib.Path):
            return value
        else:
            got = f"{type(value).__module__}.{type(value).__qualname__}"
            self.report(
                path,
                f"expected text, a number, a path, a list or a dict in the variable {shown(name)}, got {got}\n"
                f"  Pass an object as dynamic_objs={{{shown(name)}: …}} and write ${{dynamic_objs:{name}}}.",
            )
        return self.references.hold(UNKNOWN)
