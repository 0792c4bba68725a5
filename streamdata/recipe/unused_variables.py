"""Which variables no recipe of this process has used, each said once: one dict of them may serve several recipes."""

from collections.abc import Collection, Mapping
from typing import Any

_used: set[tuple[str, str]] = set()
"""Names with their values: by the same name another recipe may be given something else."""
_said: set[str] = set()


def newly_unused(given: Mapping[str, Any], used: Collection[str]) -> list[str]:
    """The variables to speak of after a recipe that was given some and used some."""
    _used.update(_key(name, given[name]) for name in used if name in given)
    unused = sorted(name for name, value in given.items() if name not in _said and _key(name, value) not in _used)
    _said.update(unused)
    return unused


def _key(name: str, value: Any) -> tuple[str, str]:
    return name, repr(value)[:1000]
