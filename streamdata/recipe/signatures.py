"""The parameters of targets, and their types: `dotted name → import → signature`, also in a child process.

streamdata's own targets are imported where they are asked for. Those of others are imported in a child process, with
the caller's permission alone, and what is known of them comes back.
"""

import contextlib
import inspect
import os
import pathlib
import re
import types
import typing
from collections import abc
from collections.abc import Collection, Mapping
from functools import partial
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from streamdata.errors import did_you_mean, shown
from streamdata.recipe.targets import TargetError, callable_of, import_target, origin_of, public_name
from streamdata.run.processes import ProcessError, processes

if TYPE_CHECKING:  # a child process that describes targets needs no YAML
    from streamdata.recipe.yaml_tree import Locations, Path


class PlainKind(NamedTuple):
    """One kind of plain data that a parameter takes.

    Attributes:
        name: As messages show it.
        classes: Names of the classes of a recipe's values that are taken: a recipe has no tuples and sets, but lists.
        choices: The values of a `Literal`, of which one is taken.
        inner: The type of a list's elements; None for any.
    """

    name: str
    classes: tuple[str, ...] = ()
    choices: tuple[Any, ...] = ()
    inner: "Type" = None


Type: TypeAlias = list[PlainKind] | None
"""Alternatives. None takes anything, as does a class that is no plain data."""

_NULL: Final = PlainKind("null", ("NoneType",))
_KINDS: Final[dict[Any, PlainKind]] = {
    None: _NULL,
    type(None): _NULL,
    bool: PlainKind("true or false", ("bool",)),
    int: PlainKind("an integer", ("int", "bool")),
    float: PlainKind("a number", ("float", "int", "bool")),
    str: PlainKind("text", ("str",)),
    abc.Callable: PlainKind("a function"),
    **dict.fromkeys((pathlib.Path, os.PathLike), PlainKind("a path", ("str",))),
    **dict.fromkeys((list, tuple, set, frozenset, abc.MutableSequence), PlainKind("a list", ("list",))),
    **dict.fromkeys((dict, abc.Mapping, abc.MutableMapping), PlainKind("a mapping", ("dict",))),
    **dict.fromkeys((abc.Sequence, abc.Iterable, abc.Collection), PlainKind("a list", ("list", "str", "dict"))),
}
_PLAIN: Final = (str, int, float, bool, list, dict, type(None))
_NUMBER: Final = re.compile(r"[-+]?[\d_.]+(e[-+]?\d+)?|true|false|null|none", re.IGNORECASE)


def type_of(annotation: Any) -> Type:
    """Returns which plain data an annotation takes."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        members = [type_of(argument) for argument in arguments]
        return None if None in members else [one for member in members for one in member or ()]
    if origin is typing.Annotated:
        return type_of(arguments[0])
    if origin is typing.Literal:
        choices = tuple(choice for choice in arguments if isinstance(choice, _PLAIN))  # no recipe has an enum's
        return [PlainKind(" or ".join(map(repr, arguments)), choices=choices)]
    kind = _KINDS.get(origin or annotation) if isinstance(origin or annotation, abc.Hashable) else None
    inner = [argument for argument in arguments if argument is not ...]
    if kind and "list" in kind.classes and len(inner) == 1:  # of a tuple's several, each stands for one place
        elements = type_of(inner[0])
        names = f"a list of {_names(elements)}" if elements else kind.name
        return [kind._replace(name=names, inner=elements)]
    return [kind] if kind else None


def _names(type_: list[PlainKind]) -> str:
    return " or ".join(dict.fromkeys(kind.name for kind in type_))


def refusal_of_value(value: Any, type_: Type) -> str | None:
    """Returns why a value of a recipe is certainly not of a type, or None; what is to be built passes."""
    is_built = isinstance(value, dict) and ("target" in value or "include" in value)
    if type_ is None or is_built or not isinstance(value, _PLAIN):
        return None
    for kind in type_:
        is_choice = any(type(value) is type(choice) and value == choice for choice in kind.choices)
        is_flag = "bool" in kind.classes and type(value) is int and value in (0, 1)
        elements = value if isinstance(value, list) else []
        is_taken = is_choice or is_flag or type(value).__name__ in kind.classes
        if is_taken and not any(refusal_of_value(one, kind.inner) for one in elements):
            return None
    names = [kind.name for kind in type_]
    refusal = f"expected {_names(type_)}, got {shown(value)}"
    if "a function" in names:
        target = value if isinstance(value, str) and "." in value else "my_pkg.my_function"
        return f"{refusal}\n  Write {{target: {target}}}; with params it is called, and its result is the function."
    if isinstance(value, str) and {"an integer", "a number", "true or false"}.intersection(names):
        return f"{refusal}\n  {'Write it without quotes.' if _NUMBER.fullmatch(value) else 'Write the value itself.'}"
    return refusal


class Parameters(NamedTuple):
    """The parameters of a callable, as far as a call by keywords is concerned.

    Attributes:
        needed: Those that can be given by name, and whether they have no default.
        positional: Those without a default that cannot be given by name.
        accepts_any: Whether there is a ``**kwargs``.
        types: By name, for a check; empty otherwise.
    """

    needed: Mapping[str, bool] = {}
    positional: tuple[str, ...] = ()
    accepts_any: bool = False
    types: Mapping[str, Type] = {}

    def check(self, params: Collection[str], path: "Path", locations: "Locations", target: str) -> None:
        """Reports each of the ``params`` of the target at a path that is unknown, then what is missing."""
        for name in params:
            if name not in self.needed and not self.accepts_any:
                guess = did_you_mean(name, [other for other in self.needed if other not in params])
                message = f"unknown parameter {shown(name)}{guess}\n  It takes: {', '.join(self.needed) or 'nothing'}."
                locations.report((*path, "params", name), message, key=True, target=target)
        if self.positional:
            message = f"the parameters {', '.join(self.positional)} cannot be given by name, as a recipe does"
            locations.report(path, message, target=target)
        missing = [name for name, is_needed in self.needed.items() if is_needed and name not in params]
        if missing:
            message = f"missing parameters: {', '.join(missing)}; given: {', '.join(params) or 'none'}"
            locations.report(path, message, target=target)


def parameters_of(target: Any, *, with_types: bool = False) -> Parameters | None:
    """Returns the parameters of a callable, or None where Python does not know them.

    Args:
        target: The callable.
        with_types: Whether to tell their types, as far as their annotations can be evaluated.
    """
    found: list[Parameter] | None = None
    for is_evaluated in (with_types, False):
        with contextlib.suppress(Exception):  # of whatever a name in an annotation leads to
            found = found or list(inspect.signature(target, eval_str=is_evaluated).parameters.values())
    if found is None or (isinstance(target, type) and [one.name for one in found[:1]] == ["self"]):
        return None  # the latter are written by hand in an extension's docstring, and nobody checked them
    types_: dict[str, Type] = {}
    for one in found if with_types else ():
        type_ = type_of(one.annotation)
        types_[one.name] = [*type_, _NULL] if type_ and one.default is None else type_
    by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    needed = {one.name: one.default is Parameter.empty for one in found if one.kind in by_name}
    unnamed = [one for one in found if one.kind is Parameter.POSITIONAL_ONLY]
    return Parameters(
        needed,
        tuple(one.name for one in unnamed if one.default is Parameter.empty),
        any(one.kind is Parameter.VAR_KEYWORD for one in found),
        types_,
    )


class Description(NamedTuple):
    """A target as its signature describes it, without a call.

    Attributes:
        refusal: Why it is refused, or cannot be imported; None where it can.
        origin: The dotted name of where it is defined; of streamdata's own, its public name.
        parameters: What it takes, with `Type`s; None where Python does not know.
    """

    refusal: str | None = None
    origin: str = ""
    parameters: Parameters | None = None


def describe(name: str, allow: Collection[str] | None) -> Description:
    """Imports a target, and says what is known of it."""
    try:
        target = import_target(name, allow)
    except TargetError as error:
        return Description(str(error))
    origin = origin_of(target)
    return Description(None, public_name(origin) or origin, parameters_of(callable_of(target), with_types=True))


def describe_elsewhere(names: Collection[str], allow: Collection[str] | None) -> dict[str, Description]:
    """Describes targets of others, which a child process imports.

    Where it ends before it has answered, each has a refusal that says so.
    """
    if not names:
        return {}
    try:
        with processes(partial(_described, allow=allow), 1) as team:
            ((_, found),) = team.run([names])
            return found
    except ProcessError as error:
        failed = Description(f"expected to import it, but the process that imports it failed: {error}")
        return dict.fromkeys(names, failed)


def _described(names: Collection[str], _: object, allow: Collection[str] | None) -> dict[str, Description]:
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # what their modules print is no answer of a command
        os.dup2(silent, stream)
    return {name: describe(name, allow) for name in names}
