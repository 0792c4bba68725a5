"""The parameters of targets, and their types: `dotted name → import → signature`, also in a child process.

streamdata's own targets are imported where they are asked for. Those of others are imported in a child process, with
the caller's permission alone, and what is known of them comes back as JSON: `python -m streamdata.recipe.signatures`.
"""

import contextlib
import inspect
import json
import os
import pathlib
import re
import subprocess
import sys
import types
import typing
from collections import abc
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from streamdata.errors import did_you_mean, shown
from streamdata.recipe.targets import TargetError, callable_of, import_target, origin_of

if TYPE_CHECKING:  # a child process that describes targets needs no YAML
    from streamdata.recipe.yaml_tree import Locations, Path

Type: TypeAlias = list[tuple[str, Any]] | None
"""Alternatives, as JSON: kinds of plain data, each with the type of its elements or the values of a `literal`. None
takes anything, as does a class that is no plain data."""

_KINDS: Final[dict[Any, str]] = {
    None: "null", type(None): "null", bool: "bool", int: "int", float: "float", str: "str",
    abc.Callable: "function", pathlib.Path: "path", os.PathLike: "path",
    **dict.fromkeys((list, tuple, set, frozenset, abc.MutableSequence), "list"),
    **dict.fromkeys((dict, abc.Mapping, abc.MutableMapping), "mapping"),
    **dict.fromkeys((abc.Sequence, abc.Iterable, abc.Collection), "sequence"),
}  # fmt: skip

_NUMBER: Final = re.compile(r"[-+]?[\d_.]+(e[-+]?\d+)?|true|false|null|none", re.IGNORECASE)


def type_of(annotation: Any) -> Type:
    """Returns which plain data an annotation takes."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        members = [type_of(argument) for argument in arguments]
        return None if None in members else [one for member in members for one in member or ()]
    if origin in (typing.Annotated, typing.Final):
        return type_of(arguments[0])
    if origin is typing.Literal:
        return [("literal", list(arguments))]
    kind = _KINDS.get(origin or annotation) if isinstance(origin or annotation, abc.Hashable) else None
    inner = [argument for argument in arguments if argument is not ...]
    if kind in ("list", "sequence") and len(inner) == 1:  # of a tuple's several, each stands for one place
        return [(kind, type_of(inner[0]))]
    return None if kind is None else [(kind, None)]


_TAKEN: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "null": ((type(None),), "null"),
    "bool": ((bool,), "true or false"),
    "int": ((int,), "an integer"),
    "float": ((int, float), "a number"),
    "str": ((str,), "text"),
    "function": ((), "a function"),
    "path": ((str,), "a path"),
    "list": ((list,), "a list"),
    "mapping": ((dict,), "a mapping"),
    "sequence": ((list, str, dict), "a list"),
}
"""The plain data that each kind takes, and its name in messages. A recipe has no tuples and sets, but lists."""
_PLAIN: Final = (str, int, float, bool, list, dict, type(None))


def refusal_of_value(value: Any, type_: Type) -> str | None:
    """Returns why a value of a recipe is certainly not of a type, or None; what is to be built passes."""
    if type_ is None or _takes(value, type_):
        return None
    names = list(dict.fromkeys(_named(one) for one in type_))
    refusal = f"expected {' or '.join(names)}, got {shown(value)}"
    if "a function" in names:
        target = value if isinstance(value, str) and "." in value else "my_pkg.my_function"
        return f"{refusal}\n  Write {{target: {target}}}; with params it is called, and its result is the function."
    if isinstance(value, str) and {"an integer", "a number", "true or false"}.intersection(names):
        return f"{refusal}\n  {'Write it without quotes.' if _NUMBER.fullmatch(value) else 'Write the value itself.'}"
    return refusal


def _takes(value: Any, type_: Type) -> bool:
    is_built = isinstance(value, dict) and ("target" in value or "include" in value)
    return type_ is None or is_built or not isinstance(value, _PLAIN) or any(_takes_one(value, *one) for one in type_)


def _takes_one(value: Any, kind: str, inner: Any) -> bool:
    if kind == "literal":
        return any(type(value) is type(choice) and value == choice for choice in inner)
    taken = _TAKEN[kind][0]
    if (isinstance(value, bool) and int in taken) or (type(value) is int and value in (0, 1) and bool in taken):
        return True
    if not isinstance(value, taken):
        return False
    return not isinstance(value, list) or all(_takes(one, inner) for one in value)


def _named(one: tuple[str, Any]) -> str:
    kind, inner = one
    if kind == "literal":
        return " or ".join(map(repr, inner))
    named = _TAKEN[kind][1]
    return f"{named} of {' or '.join(dict.fromkeys(map(_named, inner)))}" if inner and named == "a list" else named


@dataclass(frozen=True)
class Parameters:
    """The parameters of a callable, as far as a call by keywords is concerned.

    Attributes:
        required: Those without a default.
        optional: Those with one.
        positional: Those without a default that cannot be given by name.
        accepts_any: Whether there is a ``**kwargs``.
        types: By name, for a check; empty otherwise.
    """

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    positional: tuple[str, ...] = ()
    accepts_any: bool = False
    types: Mapping[str, Type] = field(default_factory=dict, compare=False, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters that can be given by name."""
        return (*self.required, *self.optional)

    def check(self, params: Collection[str], path: "Path", locations: "Locations", target: str) -> None:
        """Reports how the ``params`` of the target at a path differ from these."""
        for name, message in self.mismatches(params):
            at = path if name is None else (*path, "params", name)
            locations.report(at, message, key=name is not None, target=target)

    def mismatches(self, given: Collection[str]) -> Iterator[tuple[str | None, str]]:
        """Yields (name, message) for each unknown parameter, then (None, message) for the missing ones."""
        for name in given:
            if name not in self.names and not self.accepts_any:
                guess = did_you_mean(name, [other for other in self.names if other not in given])
                yield name, f"unknown parameter {shown(name)}{guess}\n  It takes: {', '.join(self.names) or 'nothing'}."
        if self.positional:
            yield None, f"the parameters {', '.join(self.positional)} cannot be given by name, as a recipe does"
        missing = [name for name in self.required if name not in given]
        if missing:
            yield None, f"missing parameters: {', '.join(missing)}; given: {', '.join(given) or 'none'}"


def parameters_of(target: object, *, with_types: bool = False) -> Parameters | None:
    """Returns the parameters of a callable, or None where Python does not know them."""
    try:
        signature = inspect.signature(target)  # type: ignore[arg-type]  # it raises TypeError itself
    except (TypeError, ValueError):
        return None
    if isinstance(target, type) and next(iter(signature.parameters), None) == "self":
        return None  # written by hand in an extension's docstring, where `self` shows that nobody checked it
    found = signature.parameters.values()
    required: list[str] = []
    optional: list[str] = []
    positional: list[str] = []
    for parameter in found:
        is_needed = parameter.default is Parameter.empty
        if parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
            (required if is_needed else optional).append(parameter.name)
        elif parameter.kind is Parameter.POSITIONAL_ONLY and is_needed:
            positional.append(parameter.name)
    accepts_any = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in found)
    types_ = _types_of(target, found) if with_types else {}
    return Parameters(tuple(required), tuple(optional), tuple(positional), accepts_any, types_)


def _types_of(target: Any, parameters: Iterable[Parameter]) -> dict[str, Type]:
    """The types of parameters, as far as their annotations can be evaluated; a default of None is taken, too."""
    with contextlib.suppress(Exception):  # of whatever a name in an annotation leads to
        parameters = inspect.signature(target, eval_str=True).parameters.values()
    found = {parameter.name: type_of(parameter.annotation) for parameter in parameters}
    with_none = {parameter.name for parameter in parameters if parameter.default is None}
    return {name: [*type_, ("null", None)] if type_ and name in with_none else type_ for name, type_ in found.items()}


@dataclass(frozen=True)
class Description:
    """A target as its signature and class describe it, without a call.

    Attributes:
        refusal: Why it is refused, or cannot be imported; None where it can.
        origin: The dotted name of where it is defined.
        parameters: What it takes, with `Type`s; None where Python does not know.
        sets: Of a class: the names of what its objects may have; None of anything else.
    """

    refusal: str | None = None
    origin: str = ""
    parameters: Parameters | None = None
    sets: Collection[str] | None = None


def describe(name: str, allow: Collection[str] | None) -> Description:
    """Imports a target, and says what is known of it."""
    try:
        target = import_target(name, allow)
    except TargetError as error:
        return Description(str(error))
    called = callable_of(target)
    parameters = parameters_of(called, with_types=True) if called else None
    return Description(None, origin_of(target), parameters, _names_of(target))


def _names_of(target: object) -> list[str] | None:
    """The names of what a class has, or one of its methods sets or reads."""
    if not isinstance(target, type):
        return None
    held = [item for cls in target.__mro__[:-1] for item in vars(cls).items()]
    codes = [getattr(inspect.unwrap(value), "__code__", None) for _, value in held if callable(value)]
    return sorted({name for name, _ in held}.union(*(code.co_names for code in codes if code)))


@cache
def own_description(name: str) -> Description:
    """Describes a target of streamdata's own or of the standard library: these never change while a process runs."""
    return describe(name, None)


def describe_elsewhere(names: Collection[str], allow: Collection[str] | None) -> dict[str, Description]:
    """Describes targets of others, which a child process imports.

    Where it ends before it has answered, each has a refusal that says so.
    """
    if not names:
        return {}
    request = json.dumps({"names": list(names), "allow": None if allow is None else list(allow), "path": sys.path})
    command = [sys.executable, "-m", "streamdata.recipe.signatures"]
    own = str(pathlib.Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([own, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, input=request, capture_output=True, text=True, check=False, env=environment)  # noqa: S603
    try:
        found = json.loads(done.stdout.rpartition("\n")[2])
    except ValueError:
        ended = f"the process that imports it ended with exit code {done.returncode}"
        return dict.fromkeys(names, Description(f"expected to import it, but {ended}"))
    return {name: _read(answer) for name, answer in found.items()}


def _read(answer: dict[str, Any]) -> Description:
    parameters = answer["parameters"]
    return Description(**{**answer, "parameters": Parameters(**parameters) if parameters else None})


def _answer() -> None:
    """Describes the targets that standard input names; what their modules print goes to standard error."""
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    with contextlib.redirect_stdout(sys.stderr):
        found = {name: asdict(describe(name, request["allow"])) for name in request["names"]}
    sys.stdout.write("\n" + json.dumps(found, default=repr))
    sys.stdout.flush()
    os._exit(0)  # no thread or exit handler of theirs is waited for, or prints


if __name__ == "__main__":
    _answer()
