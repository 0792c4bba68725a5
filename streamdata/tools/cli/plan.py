"""`streamdata plan`: what a run of a recipe will do."""

import json
import os
import sys
import time
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from streamdata.tools.cli.messages import say
from streamdata.tools.cli.run import build_mixture
from streamdata.tools.plan.make_plan import HURTS, MIND, Amount, Progressed, make_plan
from streamdata.tools.plan.plan_text import plan_json, plan_text

_QUIET_S: Final = 2.0
"""So long nothing is shown of how far it is."""
_PLAIN_INTERVAL_S: Final = 10.0
_COLOURS: Final = {HURTS: typer.colors.RED, MIND: typer.colors.YELLOW}


def show_plan(
    recipe: Path,
    variables: Mapping[str, Any],
    allow: Collection[str] | None,
    amount: Amount,
    *,
    num_sampled: int,
    num_draws: int,
    as_json: bool,
    include_roots: Sequence[str] = (),
) -> None:
    """Build a recipe, and show what a run of it will do.

    Raises:
        RecipeError: It cannot be built.
        SourceError: A source has no records, or tokens are asked for that nobody knows.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        dataset = build_mixture(recipe, variables, allow, include_roots)
        with bar() as progressed:
            plan = make_plan(dataset, amount, num_sampled=num_sampled, num_draws=num_draws, progressed=progressed)
    for warning in caught:
        typer.echo(f"warning: {warning.message}", err=True)
    typer.echo(json.dumps(plan_json(plan), allow_nan=False) if as_json else plan_text(plan, _paint))


def has_colours() -> bool:
    """Whether what is printed may have colours: it goes to a terminal, and nobody has said NO_COLOR."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _paint(text: str, level: str) -> str:
    colour = _COLOURS.get(level)
    return typer.style(text, fg=colour) if colour is not None and has_colours() else text


@contextmanager
def bar() -> Iterator[Progressed]:
    """A bar on a terminal, else a line every ten seconds, of what takes longer than two."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task("", visible=False, total=None)
        # A timer's, since the first step may take long.
        timer = Timer(_QUIET_S, partial(shown.update, task, visible=True))
        timer.daemon = True
        last = time.monotonic()

        def progressed(what: str, done: int, total: int) -> None:
            nonlocal last
            now = time.monotonic()
            shown.update(task, description=what, completed=done, total=total)
            if not console.is_terminal and now > last + _PLAIN_INTERVAL_S:
                last = now
                say(f"{what}: {done:,} of {total:,}", err=True)

        timer.start()
        try:
            yield progressed
        finally:
            timer.cancel()
