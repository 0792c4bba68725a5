"""Seconds of CPU, as a quiet processor counts them.

Neighbours on a machine make each of its seconds worth less, by a half and more. So where a limit is missed, the time
counts by what a fixed piece of Python takes just then.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_ROUNDS: Final = 500_000
_QUIET_SECONDS: Final = 0.05  # that the rounds take on the machine that the limits are for
_MEASUREMENTS: Final = 3  # of which the slowest counts: neighbours come and go


@contextmanager
def cpu_within(seconds: float) -> Iterator[None]:
    """What happens takes less than so many seconds of CPU."""
    began = time.process_time()
    yield
    took = time.process_time() - began
    assert took < seconds or took / _slowness() < seconds


def _slowness() -> float:
    return max(1, *(_seconds_of_rounds() / _QUIET_SECONDS for _ in range(_MEASUREMENTS)))


def _seconds_of_rounds() -> float:
    began, length = time.process_time(), 0
    for number in range(_ROUNDS):
        length += len(str(number))
    return time.process_time() - began
