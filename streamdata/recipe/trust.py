"""Which targets a recipe may name: the name is judged before import, the object after.

The standard library is refused, for it can run anything, except:

    builtins.bool, dict, float, frozenset, int, len, list, set, str, tuple
    collections.OrderedDict, datetime.timedelta, fractions.Fraction, functools.partial, pathlib.Path

Of streamdata itself the names in `own_targets` are accepted. Any other importable target is accepted unless the caller
narrows with ``allow``, which no recipe can widen. streamdata's own recipe and command rooms are never targets: they
would build another recipe under other rules.
"""

import builtins
import collections
import datetime as dt
import fractions
import functools
import inspect
import pathlib
import sys
import types
from collections.abc import Collection, Iterator
from typing import Any

from streamdata.errors import shown
from streamdata.recipe.own_targets import OWN, is_own, public_name, refusal_of_own

_STANDARD = sys.stdlib_module_names | set(sys.builtin_module_names) | {"test", "distutils"}
_OWN_REFUSED = ("streamdata.recipe", "streamdata.cli", "streamdata.instantiate_from_yaml")

PERMITTED: dict[str, object] = {
    **{
        f"builtins.{name}": getattr(builtins, name)
        for name in ("bool", "dict", "float", "frozenset", "int", "len", "list", "set", "str", "tuple")
    },
    "collections.OrderedDict": collections.OrderedDict,
    "datetime.timedelta": dt.timedelta,
    "fractions.Fraction": fractions.Fraction,
    "functools.partial": functools.partial,
    "pathlib.Path": pathlib.Path,
}
"""The standard library's targets that a recipe may name."""

_BOUND = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)
_MAX_WRAPPERS = 20
_PLAIN_CALLABLES = (types.FunctionType, type(functools.lru_cache(len)))


def validated_allow(allow: Collection[str] | None) -> Collection[str] | None:
    """Returns ``allow`` if it is None or a collection of package names.

    Raises:
        ValueError: It is a single text, or holds something else than dotted names.
    """
    if allow is None:
        return None
    if isinstance(allow, str) or not all(isinstance(name, str) and _is_dotted(name) for name in allow):
        raise ValueError(f"allow: expected a list of package names, got {shown(allow)}\n  Write allow=['my_pkg'].")
    return allow


def is_standard(name: str) -> bool:
    """Whether a dotted name belongs to the standard library."""
    return name.partition(".")[0] in _STANDARD


def refusal_of_name(name: str, allow: Collection[str] | None = None) -> str | None:
    """Returns why a target's name is refused, or None; imports nothing."""
    if not _is_dotted(name) or "." not in name:
        return f"expected a dotted name such as 'my_pkg.MyDataset', got {shown(name)}"
    if any(part.startswith("__") for part in name.split(".")):
        return f"{shown(name)} is refused: a part that begins with '__' reaches into Python itself"
    refusal = _refusal_of_package(name, allow, permitted=name in PERMITTED)
    return refusal or (refusal_of_own(name) if is_own(name) else None)


def refusal_of_origin(name: str, allow: Collection[str] | None = None, *, permitted: bool = False) -> str | None:
    """Returns why a class or function is refused, by the dotted name of where it is defined, or None.

    Args:
        name: Such as ``streamdata.sources.jsonl.JsonlIterableDataset``.
        allow: The packages that the caller accepts.
        permitted: Whether it is one of `PERMITTED`.
    """
    refusal = _refusal_of_package(name, allow, permitted=permitted)
    return refusal or (refusal_of_own(name) if is_own(name) and public_name(name) is None else None)


def refusal_of_module(name: str, allow: Collection[str] | None = None) -> str | None:
    """Returns why a module may not be passed through on the way to a target, or None."""
    permitted = any(target.startswith(name + ".") for target in PERMITTED)
    return _refusal_of_package(name, allow, permitted=permitted)


def refusal_of_object(obj: object, allow: Collection[str] | None = None, *, holder: object = None) -> str | None:
    """Returns why what a target's name resolved to is refused, or None.

    An object is judged by where it was defined, not by the name that led to it: by its own module, by what it is bound
    to, and by what it wraps.

    Args:
        obj: What the name resolved to.
        allow: The packages that the caller accepts.
        holder: What it was read from: a class answers for a static method that says nothing of itself.
    """
    if isinstance(holder, type) and isinstance(obj, types.BuiltinFunctionType) and not (obj.__module__ or obj.__self__):
        return _refusal_of_part(holder, allow)
    refusals = (_refusal_of_part(part, allow) for part in _parts(obj))
    return next(filter(None, refusals), None)


def _parts(obj: object) -> Iterator[object]:
    """An object and the functions that it wraps, by ``functools.partial`` or ``functools.wraps``."""
    for _ in range(_MAX_WRAPPERS + 1):
        if isinstance(obj, functools.partial):
            obj = obj.func
            continue
        yield obj
        # Not `getattr`: an object that answers to every name would seem to wrap something.
        obj = inspect.getattr_static(obj, "__wrapped__", None)
        if obj is None:
            return


def _refusal_of_part(obj: object, allow: Collection[str] | None) -> str | None:
    if isinstance(obj, types.ModuleType):
        return f"it is the module {shown(obj.__name__)}, expected something inside a module"
    permitted = any(obj is known for known in PERMITTED.values())
    if permitted or isinstance(obj, type):
        return refusal_of_origin(origin_of(obj), allow, permitted=permitted)
    if isinstance(obj, _BOUND):
        return _refusal_of_bound(obj, allow)
    # A method of a class in C, such as `str.format`: it has no module, but its class has.
    owner = getattr(obj, "__objclass__", None)
    if isinstance(owner, type):
        return refusal_of_origin(origin_of(owner), allow)
    return _refusal_of_callable(obj, allow) if callable(obj) else _refusal_of_data(obj, allow)


def _refusal_of_bound(method: Any, allow: Collection[str] | None) -> str | None:
    """A method or builtin function: judged by its owner, and by its own module, which may be that of a base class."""
    owner = method.__self__
    if owner is not None and not isinstance(owner, types.ModuleType):
        refusal = _refusal_of_package(origin_of(owner if isinstance(owner, type) else type(owner)), allow)
        if refusal or not isinstance(method.__module__, str):
            return refusal
    return refusal_of_origin(origin_of(method), allow)


def _refusal_of_callable(obj: object, allow: Collection[str] | None) -> str | None:
    """A function, or an instance that can be called; a standard type of instance could call anything."""
    cls = type(obj)
    if isinstance(obj, _PLAIN_CALLABLES):
        return refusal_of_origin(origin_of(obj), allow)
    return _refusal_of_package(origin_of(cls if is_standard(cls.__module__) else obj), allow)


def _refusal_of_data(obj: object, allow: Collection[str] | None) -> str | None:
    return None if is_standard(type(obj).__module__) else _refusal_of_package(origin_of(type(obj)), allow)


def origin_of(obj: object) -> str:
    """Returns the dotted name of where a class or function is defined; of another object, of its class."""
    module = getattr(obj, "__module__", None)
    if not isinstance(module, str):
        module = type(obj).__module__
    return f"{module}.{getattr(obj, '__qualname__', type(obj).__qualname__)}"


def _refusal_of_package(name: str, allow: Collection[str] | None, *, permitted: bool = False) -> str | None:
    if _is_inside(name, _OWN_REFUSED):
        return f"{shown(name)} is refused: it would build another recipe under other rules\n  Use 'include: file.yaml'."
    if is_standard(name) and not permitted:
        return f"{shown(name)} is refused: of the standard library only these are targets: {', '.join(PERMITTED)}"
    if allow is not None and not _is_inside(name, [*allow, OWN]):
        return f"{shown(name)} is refused: the caller allows only {', '.join(sorted({*allow, OWN}))}"
    return None


def _is_inside(name: str, packages: Collection[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))
