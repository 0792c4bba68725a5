"""How commands end and what they tell meanwhile: one message for what is wrong, signals, a line or bar of progress."""

import contextlib
import os
import re
import select
import shutil
import signal
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import dropwhile
from types import FrameType
from typing import Any, Final, Self, TypeVar

import typer
from rich.console import Console
from rich.progress import Progress, ProgressColumn, TextColumn
from rich.table import Column

from streamdata.errors import StreamdataError, one_line, printable, text_of, without_secrets

_T = TypeVar("_T")

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

_CELLS: Final = re.compile(r"\S {2,}\S")
"""Between two cells of a table."""

_MAX_LINES = 10
"""Lines of a message; the place where it was raised, and the hint to see the rest, are two more."""

_OURS: Final = re.compile(r"expected |\n  ")
"""In a message that says what was expected, or what to do: of a library's we cannot know."""

_FRAME = re.compile(r'  File "(.*)", line (\d+), in (.*)')

_LIVE_INTERVAL_S: Final = 0.2


def say(text: str, *, err: bool = False) -> None:
    """Print a text without passwords, of which a terminal obeys nothing: names in it may come from data.

    Where somebody reads along, on a terminal or as `COLUMNS` says, lines are wrapped at spaces; rows of tables are not.
    """
    text = without_secrets(printable(text))
    stream = sys.stderr if err else sys.stdout
    if stream.isatty() or os.environ.get("COLUMNS"):
        width = shutil.get_terminal_size().columns
        wrap = partial(textwrap.fill, width=width, break_long_words=False, break_on_hyphens=False)
        indents = ((line, "  " + " " * (len(line) - len(line.lstrip()))) for line in text.split("\n"))
        text = "\n".join(
            line if len(line) <= width or _CELLS.search(line) else wrap(line, subsequent_indent=indent)
            for line, indent in indents
        )
    typer.echo(text, err=err)


@contextlib.contextmanager
def messages(*, with_traceback: bool | None) -> Iterator[None]:
    """End with an error's message where a recipe or its data is wrong; other errors keep their traceback.

    Args:
        with_traceback: Whether every error keeps it; None for a command in which no functions of users run, so that
            other errors than the expected ones are its own.
    """
    try:
        yield
    except (typer.Exit, typer.BadParameter):
        raise  # how a command ends by itself, though these are exceptions, too
    except Exception as error:
        # What the user named or lacks: a path, an optional library.
        is_own = with_traceback is None and not isinstance(error, StreamdataError | OSError | ImportError | ValueError)
        if with_traceback or is_own or (isinstance(error, BrokenPipeError) and _is_reader_gone()):
            raise  # typer ends quietly where nobody reads on, as of `… | head -1`
        # Messages of the system and ours say who, where and what.
        says_all = isinstance(error, OSError) or _OURS.search(text_of(error)) is not None
        is_told = isinstance(error, StreamdataError) or (with_traceback is None and says_all)
        hint = [] if is_told or with_traceback is None else ["  --traceback shows how it came there."]
        say("\n".join(["error: " + _text(error, with_place=not is_told), *hint]), err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        is_terminated = isinstance(error, TerminatedError)
        typer.echo("terminated" if is_terminated else "interrupted", err=True)
        # The exit code that shells expect after a signal.
        raise typer.Exit(128 + (signal.SIGTERM if is_terminated else signal.SIGINT)) from error


def _is_reader_gone() -> bool:
    """Whether what is printed goes into a pipe from which nobody reads any more."""
    output = select.poll()
    output.register(1, 0)
    return any(event & select.POLLERR for _, event in output.poll(0))


def _text(error: Exception, *, with_place: bool) -> str:
    """The message and its notes; of what may come from anywhere, its type and where it was raised."""
    message = text_of(error)
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith("<frozen ")]
    place = f"{frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name}" if frames else ""
    lines = message.splitlines() if message.startswith("Caught ") else []
    if found := [(number, frame) for number, line in enumerate(lines) if (frame := _FRAME.fullmatch(line))]:
        number, frame = found[-1]  # the last one of a worker's traceback, which torch gives as a message
        rest = dropwhile(lambda line: line.startswith("    "), filter(None, lines[number + 1 :]))  # the frame's source
        message, place = "\n".join(rest).partition(": ")[2], f"{frame[1]}:{frame[2]}, in {frame[3]}"
    if with_place:
        message = f"{type(error).__name__}: {message}"
    text = "\n".join([message, *getattr(error, "__notes__", ())])
    lines = without_secrets(printable(text)).splitlines()  # whatever error it is, a terminal obeys nothing of it
    if len(lines) > _MAX_LINES:
        lines = [*lines[: _MAX_LINES - 1], f"… and {len(lines) - _MAX_LINES + 1} lines more"]
    return "\n".join([*lines, f"  Raised at {place}."] if with_place and place else lines)


class TerminatedError(KeyboardInterrupt):
    """SIGTERM, as schedulers send it: what is cleaned up after Ctrl-C is cleaned up after this."""


class Signals:
    """Ends a command in order at its first signal; by the second, or after some seconds, the process ends at once.

    A context manager. Raises KeyboardInterrupt or TerminatedError, for items that are `held_within` when the next one
    has come: within a batch that would break the worker's connection, which it reports with a traceback of its own.

    Args:
        max_end_s: How long the end may take; a DataLoader waits 5 s for each worker that hangs.
        patience_s: How long a signal is held back at most: a worker that hangs must not hold the command.
    """

    def __init__(self, max_end_s: float = 4.0, patience_s: float = 1.0) -> None:
        self._max_end_s, self._patience_s = max_end_s, patience_s
        self._before: dict[int, Any] = {}
        self._received, self._is_held = 0, False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other one may set handlers
            self._before = {number: signal.signal(number, self._receive) for number in _SIGNALS}
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if self._received:
            # Workers end with their iterator. Frames of the error hold it: it would go after handlers and deadline.
            while error is not None:
                traceback.clear_frames(error.__traceback__)
                error = error.__context__
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._deadline.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def held_within(self, items: Iterable[_T]) -> Iterator[_T]:
        """Yield the items; a signal that comes while one is made is raised after it.

        Raises:
            KeyboardInterrupt: A signal came.
        """
        iterator = iter(items)
        while True:
            self._is_held = True
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                # Also after an error: a signal to all processes ends workers, of which the trainer may hear first.
                self._is_held = False
                self._raise_received()
            yield item

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        # A signal to all processes ends workers, too: torch would raise that within whatever ends them in order.
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._deadline = threading.Timer(self._max_end_s, os._exit, (128 + number,))
        self._deadline.daemon = True
        self._deadline.start()
        self._received = number
        if self._is_held:
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, lambda *_: self._raise_received())
            signal.setitimer(signal.ITIMER_REAL, self._patience_s)
        else:
            self._raise_received()

    def _raise_received(self) -> None:
        if self._received:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise TerminatedError if self._received == signal.SIGTERM else KeyboardInterrupt


def leave_interrupts_to_trainer(_: int) -> None:
    """Ignore Ctrl-C in a worker: it reaches every process of the terminal, and the trainer ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Ticker:
    """Shows the present line: in place on a terminal, where columns follow it, else as plain lines.

    Args:
        console: Where to; by default stderr.
        clock: Returns the time in seconds.
        plain_interval_s: How often it writes a plain line; inf for never.
        columns: Columns that show how much is done.
    """

    def __init__(
        self,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        plain_interval_s: float = 1.0,
        columns: Sequence[ProgressColumn] = (),
    ) -> None:
        self._console, self._clock = console or Console(stderr=True), clock
        self._in_place = self._console.file.isatty() and not self._console.is_dumb_terminal
        line = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
        self._progress = Progress(line, *columns, console=self._console, auto_refresh=False, transient=True)
        self._task = self._progress.add_task("", visible=False)
        self._interval = _LIVE_INTERVAL_S if self._in_place else plain_interval_s
        self._next = clock() + (0.0 if self._in_place else self._interval)

    def __enter__(self) -> Self:
        if self._in_place:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._in_place:
            self._progress.stop()

    def tick(self, make_line: Callable[[], str], done: int = 0, total: int | None = None) -> None:
        """Show what `make_line` returns, and how much is done, if it is time."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + self._interval
        line = one_line(make_line())
        if self._in_place:
            task = self._task
            self._progress.update(task, description=line, completed=done, total=total, visible=True, refresh=True)
        else:
            print(line, file=self._console.file, flush=True)

    def count(self, what: str, done: int, total: int) -> None:
        """Show how many of all things are done, if it is time."""
        self.tick(lambda: f"{what}: {done:,} of {total:,}", done, total)
