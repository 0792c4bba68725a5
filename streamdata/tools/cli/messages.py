"""How a command ends: with one message where a recipe, its data or a function of it is wrong, else with a traceback."""

import contextlib
import re
import select
import traceback
from collections.abc import Iterator

import typer

from streamdata.errors import StreamdataError, printable, text_of, without_secrets
from streamdata.tools.cli.interrupt import INTERRUPTED, TERMINATED, TerminatedError, ends_by_signals

_MAX_LINES = 10
"""Of a message; where it was raised, and what shows the rest, are two more."""

_FRAME = re.compile(r'  File "(.*)", line (\d+), in (.*)')


def say(text: str, *, err: bool = False) -> None:
    """Print a text without passwords, of which a terminal obeys nothing: names in it may come from data."""
    typer.echo(without_secrets(printable(text)), err=err)


@contextlib.contextmanager
def messages(*more: type[Exception], with_traceback: bool = False) -> Iterator[None]:
    """End with an error's message where a recipe or its data is wrong; other errors keep their traceback.

    Args:
        more: Errors that are messages too; `Exception` where functions of users run, who did not write the rest.
        with_traceback: Let every error keep it.
    """
    shown: tuple[type[Exception], ...] = (StreamdataError, *more)
    try:
        with ends_by_signals():
            yield
    except (typer.Exit, typer.BadParameter):
        raise  # how a command ends by itself, though these are exceptions, too
    except shown as error:
        if with_traceback or (isinstance(error, BrokenPipeError) and _is_reader_gone()):
            raise  # typer ends quietly where nobody reads on, as of `… | head -1`
        typer.echo("error: " + "\n".join(_lines(error, is_expected=not _is_of_functions(error, more))), err=True)
        raise typer.Exit(1) from error
    except TerminatedError as error:
        typer.echo("terminated", err=True)
        raise typer.Exit(TERMINATED) from error
    except KeyboardInterrupt as error:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from error


def _is_reader_gone() -> bool:
    """Whether what is printed goes into a pipe from which nobody reads any more."""
    output = select.poll()
    output.register(1, 0)
    return any(event & select.POLLERR for _, event in output.poll(0))


def _is_of_functions(error: Exception, more: tuple[type[Exception], ...]) -> bool:
    """Whether nothing but `Exception` says that it is a message: it may come from anywhere."""
    return not isinstance(error, (StreamdataError, *(kind for kind in more if kind is not Exception)))


def _lines(error: Exception, *, is_expected: bool) -> list[str]:
    """The message and its notes; of what may come from anywhere, its type and where it was raised."""
    message, frames = text_of(error), traceback.extract_tb(error.__traceback__)
    place = (frames[-1].filename, str(frames[-1].lineno), frames[-1].name) if frames else None
    if message.startswith("Caught ") and " in DataLoader worker process " in message:
        message, place = _of_worker(message)
    if not is_expected:
        message = f"{type(error).__name__}: {message}"
    text = "\n".join([message, *getattr(error, "__notes__", ())])
    lines = without_secrets(printable(text)).splitlines()  # whatever error it is, a terminal obeys nothing of it
    if len(lines) > _MAX_LINES:
        lines = [*lines[: _MAX_LINES - 1], f"… and {len(lines) - _MAX_LINES + 1} lines more"]
    if not is_expected:
        if place:
            lines.append(f"  Raised at {place[0]}:{place[1]}, in {place[2]}.")
        lines.append("  --traceback shows how it came there.")
    return lines


def _of_worker(text: str) -> tuple[str, tuple[str, str, str] | None]:
    """What torch raises for a worker has the traceback there as its text: the error below it, and its last frame."""
    lines = text.splitlines()
    frames = [(number, found) for number, line in enumerate(lines) if (found := _FRAME.fullmatch(line))]
    if not frames:
        return text, None
    number, frame = frames[-1]
    rest = [line for line in lines[number + 1 :] if line]
    while rest and rest[0].startswith("    "):  # the source of the frame, and what marks a part of it
        rest.pop(0)
    return "\n".join(rest).partition(": ")[2], (frame[1], frame[2], frame[3])
