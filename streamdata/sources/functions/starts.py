"""The starts of a stream function: each is given a copy that holds nothing of what an earlier one held.

`the function of the recipe → fresh → the function of one lane, from one start to its end`

An iterator that is left early leaves its function with records in hand, and two lanes of one process run side by side.
So what a function collects in is its own at each start: lists, dicts, sets and deques, wherever they were made. All
other objects stay shared, since a tokenizer is too large to copy and an open file cannot be. What a function holds in
such an object is found where the function says so: a stateful one must say the same at every start.
"""

import copy
import functools
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_COLLECTIONS: Final = (list, dict, set, deque)
_ATOMS: Final = frozenset({int, str, float, bool, bytes, type(None)})
"""Types that long collections hold most often, and that need not be looked into."""

_first_states: dict[int, str] = {}
"""State of each stateful function of this process at its first start, by its id."""

_kept: list[Any] = []
"""The functions that cannot be weakly referenced, whose ids must not become another's."""


def fresh(function: Function, who: str) -> Function:
    """Copy a stream function, for one start of a stream.

    Args:
        function: The recipe's function; it is never called itself.
        who: The function's name in messages.

    Raises:
        ValueError: The function is stateful, and the copy holds records of an earlier start.
    """
    # Not copy.deepcopy: a tokenizer or an open file within it would be copied too, or could not be.
    twin: Function = _twin(function, {})
    if is_stateful(twin):
        _check_holds_nothing(function, twin, who)
    return twin


def is_stateful(function: Any) -> bool:
    """Whether a stream function or iterable has `state_dict` and `load_state_dict`."""
    return callable(getattr(function, "state_dict", None)) and callable(getattr(function, "load_state_dict", None))


def _twin(value: Any, memo: dict[int, Any]) -> Any:
    """Copy the function, or a collection in it, with collections of its own at any depth.

    Args:
        value: What to copy. Of a method, this is its object; of a partial function, the function too.
        memo: The copies made so far, by the id of what they are copies of.
    """
    if isinstance(value, types.MethodType):
        return types.MethodType(value.__func__, _twin(value.__self__, memo))
    if isinstance(value, functools.partial):
        return _partial(value, _twin(value.func, memo), memo)
    twin = memo[id(value)] = _shallow(value)
    if twin is value:  # a plain function, or a class
        return value
    for index, part in _items(value):
        if type(part) not in _ATOMS and (own := _own(part, memo)) is not part:
            twin[index] = own
    for name, part in _attributes(value):
        if (own := _own(part, memo)) is not part:
            object.__setattr__(twin, name, own)
    return twin


def _shallow(value: Any) -> Any:
    """Like `copy.copy`, but with what a class leaves out of its pickles: a lock or a tokenizer is shared."""
    if isinstance(value, _COLLECTIONS):
        return copy.copy(value)
    try:
        twin = object.__new__(type(value))
    except TypeError:  # a plain function, a class, or made in C
        return copy.copy(value)
    for name, part in _attributes(value):
        object.__setattr__(twin, name, part)  # of a frozen dataclass too
    return twin


def _own(value: Any, memo: dict[int, Any]) -> Any:
    """Copy a collection; share anything else, but what is bound to the function is bound to its copy."""
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, _COLLECTIONS):
        return _twin(value, memo)
    if isinstance(value, tuple):
        parts = [_own(part, memo) for part in value]
        changed = any(own is not part for own, part in zip(parts, value, strict=True))
        return tuple.__new__(type(value), parts) if changed else value
    if isinstance(value, types.MethodType) and id(value.__self__) in memo:
        return types.MethodType(value.__func__, memo[id(value.__self__)])
    if isinstance(value, functools.partial):
        return _partial(value, _own(value.func, memo), memo)
    return value


def _partial(value: Any, function: Any, memo: dict[int, Any]) -> Any:
    return type(value)(function, *_own(value.args, memo), **_own(value.keywords, memo))


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list | deque) else ()


def _attributes(value: Any) -> Iterable[tuple[str, Any]]:
    """Names and values, those in slots too."""
    state = object.__getstate__(value)
    for attributes in state if isinstance(state, tuple) else (state,):
        yield from (attributes or {}).items()


def _check_holds_nothing(function: Any, twin: Any, who: str) -> None:
    try:
        state = twin.state_dict()
    except Exception:  # it makes what it holds when called; a real error is raised at the first burst
        return
    held = repr(state)  # a snapshot, in which a NaN equals a NaN
    if id(function) not in _first_states:
        _first_states[id(function)] = held
        try:
            weakref.finalize(function, _first_states.pop, id(function), None).atexit = False
        except TypeError:
            _kept.append(function)
    first = _first_states[id(function)]
    if held != first or (isinstance(state, dict) and state.get("rewind")):
        raise ValueError(
            f"{who} says at a start that it holds {held}, expected {first if held != first else 'no records'}\n"
            "  It kept this from an earlier start, in an object that all its starts share. Make such objects in\n"
            "  __call__; lists, dicts, sets and deques may be made in __init__, each start has its own."
        )
