"""A line of text that is renewed while something goes on."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

LIVE_INTERVAL_S = 0.2
PLAIN_INTERVAL_S = 1.0


class Ticker:
    """Shows the present line: in place on a terminal, else as one plain line a second.

    Args:
        console: Where to.
        clock: Gives the time in seconds.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        in_place = console.file.isatty() and not console.is_dumb_terminal
        self._live = Live(console=console, auto_refresh=False, transient=True) if in_place else None
        self._interval = LIVE_INTERVAL_S if in_place else PLAIN_INTERVAL_S
        self._console, self._clock = console, clock
        self._next = clock() + self._interval

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def tick(self, make_line: Callable[[], str]) -> None:
        """Show what `make_line` gives, if it is time."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + self._interval
        if self._live is not None:
            self._live.update(Text(make_line(), no_wrap=True, overflow="ellipsis"), refresh=True)
        else:
            print(make_line(), file=self._console.file, flush=True)
