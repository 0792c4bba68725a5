"""How much a process reads ahead, and over how many connections: `recipe, environment, topology → AheadSettings`."""

import os
from typing import Any, Final, NamedTuple

MAX_CONNECTIONS: Final = 64
"""Of a process at most; by default of all processes of a node together."""
_MIN_CONNECTIONS = 4  # of a process, where many share a node: with fewer, a single slow answer holds up a lane
_BYTES = 256 << 20
_ENVIRONMENT: Final = {"read_ahead_bytes": "STREAMDATA_READ_AHEAD_BYTES", "connections": "STREAMDATA_CONNECTIONS"}


class AheadSettings(NamedTuple):
    """Of one process."""

    read_ahead_bytes: int = _BYTES
    """Of shards in memory at most, current windows included. With 0 nothing is read before it is needed."""
    connections: int = MAX_CONNECTIONS
    """Requests that are under way at the same time, at most."""


def ahead_settings(read_ahead_bytes: int | None, connections: int | None, num_workers: int) -> AheadSettings:
    """What holds for a process that reads one lane.

    Args:
        read_ahead_bytes: What the recipe says, if it does; then the environment is not asked.
        connections: Likewise.
        num_workers: Of each rank.

    Raises:
        ValueError: A value is out of range.
    """
    most_bytes = _checked("read_ahead_bytes", read_ahead_bytes, least=0)
    most = _checked("connections", connections, least=1)
    if most is None:
        processes = (_local_ranks() or 1) * max(1, num_workers)
        most = max(_MIN_CONNECTIONS, MAX_CONNECTIONS // processes)
    return AheadSettings(_BYTES if most_bytes is None else most_bytes, min(most, MAX_CONNECTIONS))


def _local_ranks() -> int | None:
    """How many ranks torchrun started on this node, where it did."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(text) if text.isdecimal() else None


def _checked(name: str, value: Any, least: int) -> int | None:
    who = name
    if value is None and (text := os.environ.get(_ENVIRONMENT[name])):
        who = f"{_ENVIRONMENT[name]} in the environment"
        value = int(text) if text.isdecimal() else text
    if value is not None and (type(value) is not int or value < least):
        raise ValueError(
            f"{who}: expected a whole number of at least {least}, got {value!r}\n"
            "  Leave it out to have the default: 256 MiB, and 64 connections shared by the processes of a node."
        )
    return value
