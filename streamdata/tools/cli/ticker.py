"""A line of text that is renewed while something goes on."""

import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from streamdata.errors import one_line

LIVE_INTERVAL_S = 0.2


class Ticker:
    """Shows the present line: in place on a terminal, else as plain lines.

    Args:
        console: Where to.
        clock: Returns the time in seconds.
        plain_interval_s: How often it writes a plain line.
    """

    def __init__(
        self, console: Console, clock: Callable[[], float] = time.monotonic, *, plain_interval_s: float = 1.0
    ) -> None:
        in_place = console.file.isatty() and not console.is_dumb_terminal
        self._live = Live(console=console, auto_refresh=False, transient=True) if in_place else None
        self._interval = LIVE_INTERVAL_S if in_place else plain_interval_s
        self._console, self._clock = console, clock
        self._next = clock() + self._interval

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def tick(self, make_line: Callable[[], str]) -> None:
        """Show what `make_line` returns, if it is time."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + self._interval
        if self._live is not None:
            self._live.update(Text(one_line(make_line()), no_wrap=True, overflow="ellipsis"), refresh=True)
        else:
            print(one_line(make_line()), file=self._console.file, flush=True)
