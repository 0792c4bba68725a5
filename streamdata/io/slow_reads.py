"""Whether local files are slow: whether who reads them waits for a disk, or a network, longer than it copies."""

from resource import RUSAGE_THREAD, getrusage
from time import perf_counter
from typing import Any, Final

_LEAST: Final = 0.02
"""Seconds of waiting that make files slow."""
_TIMES: Final = 4
"""How many times as long as it computes must a reader wait: for what is in the page cache it never does."""
_NUM_WINDOWS: Final = 32
"""So long are files slow that were waited for once: that the kernel was told before shows as no wait."""


class SlowReads:
    """How long the latest reads of some files took, and how long of that they waited."""

    def __init__(self) -> None:
        self._waited = self._computed = 0.0
        self._num_slow = 0

    def begin(self) -> tuple[float, Any]:
        """When a read begins, for `end`."""
        return perf_counter(), getrusage(RUSAGE_THREAD)

    def end(self, began: tuple[float, Any]) -> None:
        """Note the read that began then."""
        after, before = getrusage(RUSAGE_THREAD), began[1]
        computed = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.note(perf_counter() - began[0], computed, after.ru_nvcsw - before.ru_nvcsw)

    def note(self, took: float, computed: float, gave_up: int) -> None:
        """Note a read.

        Args:
            took: Seconds of wall-clock time.
            computed: Seconds of a processor.
            gave_up: How many times it gave its processor up; where it was only taken away, others were busy.
        """
        self._computed += computed
        if gave_up:
            self._waited += max(0.0, took - computed)

    def judge(self) -> bool:
        """Whether the next window is of slow files; asked once for each window."""
        if self._waited > _LEAST and self._waited > _TIMES * self._computed:
            self._num_slow = _NUM_WINDOWS
        elif self._num_slow:
            self._num_slow -= 1
        if self._waited + self._computed > _LEAST:  # what was long ago tells nothing
            self._waited = self._computed = 0.0
        return self._num_slow > 0
