"""`streamdata profile`: where a worker's time goes."""

import json
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from streamdata.tools.cli.messages import say
from streamdata.tools.cli.plan import bar
from streamdata.tools.cli.run import build_mixture
from streamdata.tools.profile.make_profile import make_profile, profile_json, profile_text


def show_profile(
    recipe: Path,
    variables: Mapping[str, Any],
    allow: Collection[str] | None,
    *,
    seconds: float,
    workers: Sequence[int] | None,
    batch_size: int,
    step_time_s: float | None,
    as_json: bool,
    include_roots: Sequence[str] = (),
) -> None:
    """Build a recipe, stream it with more and more workers, and show where their time goes.

    Raises:
        RecipeError: It cannot be built.
        Exception: What the stream raised.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        dataset = build_mixture(recipe, variables, allow, include_roots)
    for warning in caught:
        say(f"warning: {warning.message}", err=True)
    with bar() as progressed:
        profile = make_profile(
            dataset,
            seconds=seconds,
            workers=workers,
            batch_size=batch_size,
            step_time_s=step_time_s,
            progressed=progressed,
        )
    typer.echo(json.dumps(profile_json(profile), allow_nan=False) if as_json else profile_text(profile))
