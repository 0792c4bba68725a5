"""What a mixture's parameters say for all sources below it: `its params → in force while these are built`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final

FOR_ALL: Final = ("storage_options",)
"""Parameters of a mixture that are those of its sources, where these have none of their own."""

_in_force: ContextVar[Mapping[str, Any]] = ContextVar("what mixtures say for all", default=MappingProxyType({}))


@contextmanager
def for_all(params: Mapping[str, Any]) -> Iterator[None]:
    """Puts in force what the parameters of a mixture say for all, until it is built."""
    said = {name: params[name] for name in FOR_ALL if params.get(name) is not None}
    token = _in_force.set({**_in_force.get(), **said})
    try:
        yield
    finally:
        _in_force.reset(token)


def default_of(name: str) -> Any:
    """Returns what the mixtures above say, the nearest first; None where they do not."""
    assert name in FOR_ALL, name
    return _in_force.get().get(name)
