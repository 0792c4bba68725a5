"""Processes that a script starts and ends: which are theirs, how long they live on, and what they leave in memory."""

import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # what is left there is what is looked for
_TAG = "STREAMDATA_STARTED"


def tagged() -> dict[str, str]:
    """An environment that all processes inherit that one started with it starts, however far below."""
    return {**os.environ, _TAG: uuid.uuid4().hex}


def alive(environment: dict[str, str]) -> dict[int, str]:
    """The processes of this environment that have not ended, each with its command line."""
    tag, found = f"{_TAG}={environment[_TAG]}".encode(), {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if tag in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:  # it has ended, or is somebody else's
            continue
    return {pid: command for pid, command in found.items() if pid != os.getpid()}


def in_shared_memory() -> set[str]:
    """What lies there; on a machine where others work too, some of it is theirs."""
    return set(os.listdir(SHARED_MEMORY))


def seconds_until(is_so: Callable[[], bool], within_s: float = 20.0) -> float:
    """How long it takes until something is so; infinite where it is not in time."""
    began = time.monotonic()
    while not is_so():
        if time.monotonic() > began + within_s:
            return float("inf")
        time.sleep(0.005)
    return time.monotonic() - began
