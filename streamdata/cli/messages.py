"""How a command ends: with its message where the user's input is wrong, else with a traceback."""

import contextlib
from collections.abc import Iterator

import typer

from streamdata.errors import StreamdataError

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells expect: 128 + SIGINT."""


@contextlib.contextmanager
def messages(*more: type[Exception]) -> Iterator[None]:
    """End with an error's message where a recipe or its data is wrong; other errors keep their traceback.

    Args:
        more: Errors that are messages too.
    """
    shown: tuple[type[Exception], ...] = (StreamdataError, *more)
    try:
        yield
    except shown as error:
        typer.echo("\n".join(["error: " + str(error), *getattr(error, "__notes__", ())]), err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from error
