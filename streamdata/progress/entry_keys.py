"""The keys of states: whose an entry is."""

from typing import NamedTuple

from streamdata.errors import shown
from streamdata.progress.cursor_table import Group

_MAX_DIGITS = 16
"""Of a number in a key: counts are below 2**53."""


class Owner(NamedTuple):
    """Whose an entry is."""

    generation: int
    rank: int | None
    """None of a header."""


class CursorKey(NamedTuple):
    """What the key of a cursor says."""

    group: Group
    rank: int
    worker: int

    def __str__(self) -> str:
        group = self.group
        return f"cursor/{group.generation}/{group.epoch_pass}/{self.rank}/{self.worker}/{group.path}"


def owner_of(key: str) -> Owner:
    """Whose an entry is.

    Raises:
        ValueError: It is not a key of states.
    """
    # Without the path: a name of a source may contain a slash, or be a number.
    kind, *parts = key.split("/", 5)
    match kind, [key_number(part) for part in parts[:4]]:
        case (("generation" | "deal"), [generation]):
            return Owner(generation, None)
        case "idle", [generation, rank]:
            return Owner(generation, rank)
        case (("worker" | "lane" | "drawn" | "cursor"), [generation, _, rank, *_]):
            return Owner(generation, rank)
    raise ValueError(f"not a key of states: {shown(key)}")


def cursor_key(key: object) -> CursorKey | None:
    """What the key of a cursor says; None if it is not one."""
    if not isinstance(key, str) or not key.startswith("cursor/"):
        return None
    # At most five times: what follows the lane's numbers is the path, and names of sources may contain a slash.
    _, *parts = key.split("/", 5)
    try:
        generation, epoch_pass, rank, worker = map(key_number, parts[:4])
        (path,) = parts[4:]
    except ValueError:
        return None
    return CursorKey(Group(generation, epoch_pass, path), rank, worker)


def key_number(text: str) -> int:
    """A number of a key, written as `to_state` writes it: else two keys could mean the same entry.

    Raises:
        ValueError: It is not one.
    """
    number = int(text) if len(text) <= _MAX_DIGITS else -1
    if str(number) != text or number < 0:
        raise ValueError(f"expected a count, got {shown(text)}")
    return number
