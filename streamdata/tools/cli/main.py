"""The `streamdata` command: its commands, and what holds for all of them."""

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from streamdata.tools.cli.data import index, prepare, verify
from streamdata.tools.cli.options import Command, CommandGroup
from streamdata.tools.cli.recipes import check, init, schema
from streamdata.tools.cli.runs import plan, profile, run, state, trace
from streamdata.tools.cli.show import show

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a plain traceback is shorter, and has the notes that say source, url and key
    help="One YAML recipe in, one endless stream of training samples out.",
)
app.add_typer(prepare, name="prepare")
for command in (init, verify, run, check, plan, profile, index, state, show, trace, schema):
    app.command(cls=Command)(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"streamdata {version('torch-streamdata')}")
        raise typer.Exit


_Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
]


@app.callback()
def _streamdata(_: _Version = False) -> None:
    # Targets may lie in the directory where the command is run; last, so that they shadow nothing.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    # It would show each attempt to reach the hub, before the one message that says it cannot be reached.
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
