"""Ctrl-C and SIGTERM: a command ends in order at the first of them, and at once at the second."""

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, Self

INTERRUPTED: Final = 128 + signal.SIGINT
"""Exit code after Ctrl-C, as shells expect it."""
TERMINATED: Final = 128 + signal.SIGTERM

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_MAX_END_S: Final = 4.0
"""An end in order takes no longer: a DataLoader waits 5 s for each worker that hangs."""


class TerminatedError(KeyboardInterrupt):
    """SIGTERM, as schedulers send it: what is cleaned up after Ctrl-C is cleaned up after this."""


@contextmanager
def ends_by_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt or TerminatedError at the first signal; by the second, or 4 s later, the process ends."""
    if threading.current_thread() is not threading.main_thread():  # no other one may set handlers
        yield
        return
    deadlines: list[threading.Timer] = []

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        _end_at_next()
        # A signal to all processes ends workers, too: torch would raise that within whatever ends them in order.
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        deadline = threading.Timer(_MAX_END_S, os._exit, (128 + number,))
        deadline.daemon = True
        deadlines.append(deadline)
        deadline.start()
        raise TerminatedError if number == signal.SIGTERM else KeyboardInterrupt

    before: dict[int, Any] = {number: signal.signal(number, end) for number in _SIGNALS}
    try:
        yield
    finally:
        for deadline in deadlines:
            deadline.cancel()
        _restore(before)


def _end_at_next() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def _restore(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


class Interrupt:
    """Holds the first signal back until the batch under way has come; the second ends the process at once.

    A KeyboardInterrupt while a batch is received breaks the worker's connection, which it reports with a traceback of
    its own. Works in the main thread alone, as all signal handlers do.

    Args:
        patience_s: How long it holds a signal back at most: a worker that hangs must not hold the command.
    """

    def __init__(self, patience_s: float = 1.0) -> None:
        self._patience_s = patience_s
        self._held = 0

    def __enter__(self) -> Self:
        self._handlers: dict[int, Any] = {number: signal.getsignal(number) for number in (*_SIGNALS, signal.SIGALRM)}
        for number in _SIGNALS:
            signal.signal(number, self._hold)
        return self

    def __exit__(self, *_: object) -> None:
        # Also after an error: a signal to all processes ends the workers, and the trainer may hear of that first.
        self.check()
        _restore(self._handlers)

    def check(self) -> None:
        """Pass on the signal that is held, if there is one, to who handled signals before.

        Raises:
            KeyboardInterrupt: As that does mostly.
        """
        if self._held:
            number, self._held = self._held, 0
            signal.setitimer(signal.ITIMER_REAL, 0)
            _restore(self._handlers)
            signal.raise_signal(number)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._held = number
        _end_at_next()
        signal.signal(signal.SIGALRM, lambda *_: self.check())
        signal.setitimer(signal.ITIMER_REAL, self._patience_s)


def leave_interrupts_to_trainer(_: int) -> None:
    """Ignore Ctrl-C in a worker: it reaches every process of the terminal, and the trainer ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
