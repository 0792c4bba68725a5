"""A target's dotted name → the object that it names, authorised on the way.

The name is judged before anything is imported, each module that the name passes through as soon as it is reached, and
the object in the end: by where it was defined, not by the name that led to it.

The standard library is refused, for it can run anything, except:

    builtins.bool, dict, float, frozenset, int, len, list, set, str, tuple
    collections.OrderedDict, datetime.timedelta, fractions.Fraction, functools.partial, pathlib.Path

Of streamdata itself the names in `TARGETS` are accepted, and on what they build the attributes listed there: a writer,
a helper or a private class would let a recipe do more than read. Any other importable target is accepted unless the
caller narrows with ``allow``, which no recipe can widen. streamdata's own recipe and command rooms are never targets:
they would build another recipe under other rules.
"""

import functools
import importlib
import inspect
import pkgutil
import sys
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from streamdata.errors import did_you_mean, shown, text_of

OWN: Final = "streamdata"
MIXTURE: Final = f"{OWN}.MergedDataset"
_SOURCE: Final = (
    "name", "percent", "holdout", "length", "length_divisor", "length_multiplier", "max_bad", "max_epochs", "part",
    "process_fn", "single_process_fn", "weight_field",
)  # fmt: skip
_PARTS: Final = ("parts", "parts_by")
_MAP_STYLE: Final = (*_SOURCE, *_PARTS, "records_per_block")

_TABLE: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    ("name", "percent", "max_bad"): ("MergedDataset",),
    _SOURCE: ("CsvDataset", "JsonlIterableDataset", "MetaDistributedWebDataset", "ParquetDataset", "PreferenceDataset"),
    _MAP_STYLE: (
        "BlendableDataset", "BlendableDataset.from_megatron", "DPODataset", "DatasetFactory.load", "GRPODataset",
        "ImageFolderDataset", "ImageJsonlDataset", "SFTChatDataset", "SFTDataset", "SeqDataset",
    ),
    (*_SOURCE, *_PARTS): ("RLHFDataset",),  # it says itself how many of its items belong together
    (): (
        "make_blendable_dataset",
        # stores, to read
        "H5Store", "MegatronStore", "MmapStore", "StoreFactory.create",
        # process functions, and builders of them
        "DecodeImages", "GroupByLength", "ImageJsonlProcessFnBuilder", "ImageTextPairProcessFnBuilder", "PackTokens",
        "TextJsonlProcessFnBuilder",
        # what rows cost a model
        "Cost", "Cost.of_model",
        # what a DataLoader is given beside the dataset; verl calls the collate of prompts collate_fn
        "Pad", "GroupCollate", "ResumableDistributedSampler", "TensorCollate", "collate_fn", "dpo_collate",
        "grpo_collate", "mixed_collate", "prompt_collate",
    ),
}  # fmt: skip
TARGETS: Final[Mapping[str, tuple[str, ...]]] = {
    f"{OWN}.{name}": attributes for attributes, names in _TABLE.items() for name in names
}
"""The targets, and the attributes that a recipe may set on what each builds."""


def is_own(name: str) -> bool:
    """Whether a dotted name lies in streamdata."""
    return name.partition(".")[0] == OWN


def public_name(origin: str) -> str | None:
    """Returns the public target for a name in streamdata, also for the place of its definition; else None."""
    if not is_own(origin):
        return None
    return next((name for name in TARGETS if origin.endswith(name.removeprefix(OWN))), None)


def _refusal_of_own(name: str) -> str | None:
    """Returns why a name in streamdata is refused as a target's, or None."""
    if name in TARGETS:
        return None
    public = public_name(name)
    if public is not None:
        return f"{shown(name)} is refused: a recipe names what is public\n  Write {shown(public)}."
    tails = [target.removeprefix(f"{OWN}.") for target in TARGETS]
    guess = did_you_mean(name.removeprefix(f"{OWN}."), tails)
    return (
        f"{shown(name)} is refused: expected one of streamdata's targets{guess}\n"
        f"  For another recipe write 'include'. Targets are, after 'streamdata.': {', '.join(sorted(tails))}."
    )


class TargetError(Exception):
    """A target is refused or cannot be imported; the message says why, for `RecipeError` to say where."""


def import_target(name: str, allow: Collection[str] | None = None) -> object:
    """Imports the object with a dotted name: an attribute of a module, or of a class in one.

    Raises:
        TargetError: The name or the object is refused, there is no such name, or the import failed (with its cause).
    """
    if refusal := refusal_of_name(name, allow):
        raise TargetError(refusal)
    first, *rest = name.split(".")
    obj: object = _import(first)
    if obj is None:
        guess, remedy = did_you_mean(first, [OWN]), "Install it, or put its directory on PYTHONPATH."
        raise TargetError(f"no module {shown(first)} was found{guess}\n  {remedy}")
    reached, holder = first, None
    for part in rest:
        if isinstance(obj, types.ModuleType):
            permitted = any(target.startswith(obj.__name__ + ".") for target in PERMITTED)
            if refusal := _refusal_of_package(obj.__name__, allow, permitted=permitted):
                raise TargetError(refusal)
        holder, obj = obj, _attribute(obj, part, reached)
        reached = f"{reached}.{part}"
    if refusal := refusal_of_object(obj, allow, holder=holder):
        raise TargetError(f"{shown(name)} leads elsewhere: {refusal}")
    return obj


def _import(name: str) -> types.ModuleType | None:
    """Imports a module; None if there is no such module."""
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a script ends so: its code must not be the trainer's
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            return None
        raise TargetError(f"importing {shown(name)} failed with {type(error).__name__}: {text_of(error)}") from error


def _attribute(obj: Any, part: str, reached: str) -> object:
    """An attribute, or else a submodule: the order in which Python itself sees them."""
    try:
        return getattr(obj, part)
    except AttributeError as error:
        is_module = isinstance(obj, types.ModuleType)
        submodule = _import(f"{obj.__name__}.{part}") if is_module and hasattr(obj, "__path__") else None
        if submodule is not None:
            return submodule
        kind = "module" if is_module else type(obj).__name__
        known = [name for name in dir(obj) if not name.startswith("_")]
        raise TargetError(f"{kind} {shown(reached)} has no {shown(part)}{did_you_mean(part, known)}") from error
    except (Exception, SystemExit) as error:
        raise TargetError(
            f"reading {shown(part)} of {shown(reached)} failed with {type(error).__name__}: {text_of(error)}"
        ) from error


def callable_of(target: object) -> Callable[..., Any] | None:
    """Returns what to call with ``params``, or None if the target cannot be called.

    ``functools.partial`` takes its function by position, which params cannot give: here it is the parameter ``func``.
    A stage of webdataset takes the parameter ``args`` by position, and its records later.
    """
    if target is functools.partial:
        return _partial
    if not is_stage(target):
        return target if callable(target) else None
    stage: Any = target
    signature = inspect.signature(stage)

    def build(args: list[Any] | None = None, **keywords: Any) -> Any:
        if not isinstance(args, list | None):
            raise TypeError(f"expected a list as args, got {shown(args)}")
        signature.bind(None, *(args or ()), **keywords)  # None for its data, which it is given when it is read
        return stage(*(args or ()), **keywords)

    return build


def _partial(func: Callable[..., Any], **keywords: Any) -> "functools.partial[Any]":
    return functools.partial(func, **keywords)


def is_stage(target: object) -> bool:
    """Whether an object is a stage of a webdataset pipeline, such as `webdataset.decode`."""
    # Not by import: who has one has imported it.
    return (type(target).__module__, type(target).__name__) == ("webdataset.filters", "RestCurried")


_STANDARD = sys.stdlib_module_names | set(sys.builtin_module_names) | {"test", "distutils"}
_BUILTINS = ("bool", "dict", "float", "frozenset", "int", "len", "list", "set", "str", "tuple")
_OTHERS = ("collections.OrderedDict", "datetime.timedelta", "fractions.Fraction", "functools.partial", "pathlib.Path")
PERMITTED: Final[dict[str, object]] = {
    name: pkgutil.resolve_name(name) for name in (*(f"builtins.{name}" for name in _BUILTINS), *_OTHERS)
}
"""The standard library's targets that a recipe may name."""

_BOUND = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)
_MAX_WRAPPERS = 20
_PLAIN_CALLABLES = (types.FunctionType, type(functools.lru_cache(len)))


def validated_allow(allow: Collection[str] | None, who: str = "allow") -> Collection[str] | None:
    """Returns ``allow`` (called ``who`` in messages) if it is None or a collection of package names; else raises.

    Raises:
        ValueError: `allow` is a single string, or holds something other than dotted names.
    """
    if allow is None:
        return None
    if isinstance(allow, str) or not all(isinstance(name, str) and _is_dotted(name) for name in allow):
        raise ValueError(f"{who}: expected a list of package names, got {shown(allow)}\n  Write {who}=['my_pkg'].")
    return allow


def _is_standard(name: str) -> bool:
    """Whether a dotted name belongs to the standard library."""
    return name.partition(".")[0] in _STANDARD


def refusal_of_name(name: str, allow: Collection[str] | None = None) -> str | None:
    """Returns why the name of a target is refused, or None; imports nothing."""
    if not _is_dotted(name) or "." not in name:
        return f"expected a dotted name such as 'my_pkg.MyDataset', got {shown(name)}"
    if any(part.startswith("__") for part in name.split(".")):
        return f"{shown(name)} is refused: a part that begins with '__' reaches into Python itself"
    refusal = _refusal_of_package(name, allow, permitted=name in PERMITTED)
    return refusal or (_refusal_of_own(name) if is_own(name) else None)


def refusal_of_object(obj: object, allow: Collection[str] | None = None, *, holder: object = None) -> str | None:
    """Returns why an imported target is refused, or None.

    An object is judged by where it was defined, not by the name that led to it: by its own module, by what it is bound
    to, and by what it wraps.

    Args:
        obj: What the name resolved to.
        allow: The packages that the caller accepts.
        holder: What it was read from: a class answers for a static method that says nothing of itself.
    """
    if isinstance(holder, type) and isinstance(obj, types.BuiltinFunctionType) and not (obj.__module__ or obj.__self__):
        obj = holder
    for _ in range(_MAX_WRAPPERS + 1):
        if isinstance(obj, functools.partial):
            obj = obj.func
            continue
        if refusal := _refusal_of_part(obj, allow):
            return refusal
        # Not `getattr`: an object that answers to every name would seem to wrap something.
        obj = inspect.getattr_static(obj, "__wrapped__", None)
        if obj is None:
            return None
    return None


def _refusal_of_part(obj: Any, allow: Collection[str] | None) -> str | None:
    if isinstance(obj, types.ModuleType):
        return f"it is the module {shown(obj.__name__)}, expected something inside a module"
    permitted = any(obj is known for known in PERMITTED.values())
    cls = type(obj)
    if isinstance(obj, _BOUND):
        owner = obj.__self__
        if owner is not None and not isinstance(owner, types.ModuleType):
            refusal = _refusal_of_package(origin_of(owner if isinstance(owner, type) else type(owner)), allow)
            if refusal or not isinstance(obj.__module__, str):
                return refusal
        # Its own module may be that of a base class.
    elif not permitted and not isinstance(obj, (type, *_PLAIN_CALLABLES)):
        # A method of a class in C, such as `str.format`: it has no module, but its class has.
        owner = getattr(obj, "__objclass__", None)
        if not isinstance(owner, type):
            if _is_standard(cls.__module__):  # data may be of any type, but what is called could call anything
                return _refusal_of_package(origin_of(cls), allow) if callable(obj) else None
            return _refusal_of_package(origin_of(obj if callable(obj) else cls), allow)
        obj = owner
    name = origin_of(obj)  # where a class or function is defined
    refusal = _refusal_of_package(name, allow, permitted=permitted)
    return refusal or (_refusal_of_own(name) if is_own(name) and public_name(name) is None else None)


def origin_of(obj: object) -> str:
    """Returns the dotted name of the definition of a class or function; for other objects, of their class."""
    module = getattr(obj, "__module__", None)
    if not isinstance(module, str):
        module = type(obj).__module__
    return f"{module}.{getattr(obj, '__qualname__', type(obj).__qualname__)}"


def _refusal_of_package(name: str, allow: Collection[str] | None, *, permitted: bool = False) -> str | None:
    if _is_standard(name) and not permitted:
        return f"{shown(name)} is refused: of the standard library only these are targets: {', '.join(PERMITTED)}"
    if allow is not None and not is_inside(name, [*allow, OWN]):
        return f"{shown(name)} is refused: the caller allows only {', '.join(sorted({*allow, OWN}))}"
    return None


def is_inside(name: str, packages: Collection[str]) -> bool:
    """Whether a dotted name is one of the packages, or inside one."""
    return any(name == package or name.startswith(package + ".") for package in packages)


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))
