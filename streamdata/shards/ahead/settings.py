"""How much a process reads ahead, and over how many connections: `recipe, environment, topology → AheadSettings`."""

import os
from typing import Any, Final, NamedTuple

from streamdata.errors import shown
from streamdata.io.remote.network import MAX_CONNECTIONS, connections_of_process

_BYTES: Final = 256 << 20
_VARIABLE: Final = "STREAMDATA_READ_AHEAD_BYTES"


class AheadSettings(NamedTuple):
    """Of one process."""

    read_ahead_bytes: int = _BYTES
    """Of shards in memory at most, current windows included. With 0 nothing is read before it is needed."""
    connections: int = MAX_CONNECTIONS
    """Requests that are under way at the same time, at most."""


def ahead_settings(read_ahead_bytes: int | None, connections: int | None) -> AheadSettings:
    """What holds for this process.

    Args:
        read_ahead_bytes: What the recipe says, if it does; then the environment is not asked.
        connections: Likewise, of a node.

    Raises:
        ValueError: A value is out of range.
    """
    return AheadSettings(checked_bytes(read_ahead_bytes), connections_of_process(connections))


def checked_bytes(read_ahead_bytes: Any) -> int:
    """How much is read ahead by what a recipe says, or the environment.

    Raises:
        ValueError: It is not a whole number of at least 0.
    """
    who, value = "read_ahead_bytes", read_ahead_bytes
    if value is None and (text := os.environ.get(_VARIABLE)):
        who, value = f"{_VARIABLE} in the environment", int(text) if text.isdecimal() else text
    if value is None:
        return _BYTES
    if type(value) is not int or value < 0:
        raise ValueError(
            f"{who}: expected a whole number of at least 0, got {shown(value)}\n  Leave it out to have the "
            "default: 256 MiB."
        )
    return value
