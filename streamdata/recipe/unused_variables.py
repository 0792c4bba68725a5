"""Which variables no recipe of this process has used, each said once: one dict of them may serve several recipes."""

from collections.abc import Collection

_used: set[str] = set()
_said: set[str] = set()


def newly_unused(given: Collection[str], used: Collection[str]) -> list[str]:
    """The variables to speak of after a recipe that was given some and used some."""
    _used.update(used)
    unused = sorted(set(given) - _used - _said)
    _said.update(unused)
    return unused
