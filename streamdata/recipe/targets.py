"""A dotted name → the object that it names, authorised on the way.

The name is judged before anything is imported, each module that the name passes through as soon as it is reached,
and the object in the end.
"""

import functools
import importlib
import types
from collections.abc import Callable, Collection
from typing import Any, TypeGuard

from streamdata.errors import did_you_mean, shown, text_of
from streamdata.recipe.stages import is_stage, stage_builder
from streamdata.recipe.trust import refusal_of_module, refusal_of_name, refusal_of_object


class TargetError(Exception):
    """A target is refused or cannot be imported; the message says why, for `RecipeError` to say where."""


def import_target(name: str, allow: Collection[str] | None = None) -> object:
    """Imports what a dotted name says: an attribute of a module, or of a class in one.

    Raises:
        TargetError: The name or the object is refused, there is no such name, or the import failed (with its cause).
    """
    _raise_if(refusal_of_name(name, allow))
    first, *rest = name.split(".")
    obj: object = _import(first)
    if obj is None:
        raise TargetError(f"no module {shown(first)} was found\n  Install it, or put its directory on PYTHONPATH.")
    reached = first
    holder: object = None
    for part in rest:
        if isinstance(obj, types.ModuleType):
            _raise_if(refusal_of_module(obj.__name__, allow))
        holder, obj = obj, _attribute(obj, part, reached)
        reached = f"{reached}.{part}"
    refusal = refusal_of_object(obj, allow, holder=holder)
    _raise_if(refusal and f"{shown(name)} leads elsewhere: {refusal}")
    return obj


def _raise_if(refusal: str | None) -> None:
    if refusal:
        raise TargetError(refusal)


def _import(name: str) -> types.ModuleType | None:
    """Imports a module; None if there is no such module."""
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a script ends so: its code must not be the trainer's
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            return None
        raise TargetError(f"importing {shown(name)} failed with {type(error).__name__}: {text_of(error)}") from error


def _attribute(obj: object, part: str, reached: str) -> object:
    """An attribute, or else a submodule: the order in which Python itself sees them."""
    try:
        return getattr(obj, part)
    except AttributeError as error:
        submodule = _import(f"{obj.__name__}.{part}") if _is_package(obj) else None
        if submodule is not None:
            return submodule
        kind = "module" if isinstance(obj, types.ModuleType) else type(obj).__name__
        known = [name for name in dir(obj) if not name.startswith("_")]
        raise TargetError(f"{kind} {shown(reached)} has no {shown(part)}{did_you_mean(part, known)}") from error
    except (Exception, SystemExit) as error:
        raise TargetError(
            f"reading {shown(part)} of {shown(reached)} failed with {type(error).__name__}: {text_of(error)}"
        ) from error


def _is_package(obj: object) -> TypeGuard[types.ModuleType]:
    return isinstance(obj, types.ModuleType) and hasattr(obj, "__path__")


def callable_of(target: object) -> Callable[..., Any] | None:
    """Returns what to call with ``params``, or None if the target cannot be called.

    ``functools.partial`` takes its function by position, which params cannot give: here it is the parameter ``func``.
    A stage of webdataset takes the parameter ``args`` by position, and its records later.
    """
    if target is functools.partial:
        return _partial
    if is_stage(target):
        return stage_builder(target)
    return target if callable(target) else None


def _partial(func: Callable[..., Any], **keywords: Any) -> "functools.partial[Any]":
    return functools.partial(func, **keywords)
