"""`streamdata verify`: is a finished store what was written."""

from pathlib import Path

import typer

from streamdata.prepare.verify import verify


def show_problems(store: Path) -> bool:
    """Check a store, show what is wrong with it, and return whether nothing is."""
    problems = verify(store)
    for problem in problems:
        typer.echo(f"error: {problem}", err=True)
    typer.echo(f"{store}: {len(problems) or 'no'} problem{'' if len(problems) == 1 else 's'}")
    return not problems
