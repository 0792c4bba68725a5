"""`streamdata verify`: is a finished store what was written."""

from pathlib import Path

import typer

from streamdata.prepare.verify import verify, without_sums, write_sums


def show_problems(store: Path, *, add_sums: bool) -> bool:
    """Check a store, show what is wrong with it, and return whether nothing is.

    Args:
        store: A store, or the output of a run.
        add_sums: Write the sums of files that have none, once nothing is wrong.
    """
    problems = verify(store)
    for problem in problems:
        typer.echo(f"error: {problem}", err=True)
    typer.echo(f"{store}: {len(problems) or 'no'} problem{'' if len(problems) == 1 else 's'}")
    if not problems:
        _show_sums(store, add_sums=add_sums)
    return not problems


def _show_sums(store: Path, *, add_sums: bool) -> None:
    files = without_sums(store)
    if add_sums:
        write_sums(files)
        typer.echo(f"files that got sums: {len(files)}")
    elif files:
        typer.echo(f"files without sums, in which damage is read in silence: {len(files)}; --write-sums adds them")
