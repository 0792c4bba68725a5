"""Ctrl-C as a request, met between two batches."""

import signal
from types import FrameType
from typing import Self


class Interrupt:
    """Holds Ctrl-C back until the batch under way has come; a second Ctrl-C is not held back.

    A KeyboardInterrupt while a batch is received breaks the worker's connection, which it reports with a traceback of
    its own. Works in the main thread alone, as all signal handlers do.

    Args:
        patience_s: How long it holds Ctrl-C back at most: a worker that hangs must not hold the command.
    """

    def __init__(self, patience_s: float = 1.0) -> None:
        self._patience_s = patience_s
        self._requested = False

    def __enter__(self) -> Self:
        self._handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)}
        signal.signal(signal.SIGINT, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        self._end_patience()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def requested(self) -> bool:
        """Whether Ctrl-C was pressed; from then on it is up to the caller to stop."""
        if self._requested:
            self._end_patience()
        return self._requested

    def _request(self, signal_number: int, frame: FrameType | None) -> None:
        del signal_number, frame
        self._requested = True
        for number in (signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, self._patience_s)

    def _end_patience(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)


def leave_interrupts_to_trainer(_: int) -> None:
    """Ignore Ctrl-C in a worker: it reaches every process of the terminal, and the trainer ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
