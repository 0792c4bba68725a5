"""`streamdata prepare` and `verify`: raw records → a store, and what is in it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from streamdata.errors import RecipeError
from streamdata.prepare import Pipeline, PrepareConfig, load_config, merge
from streamdata.prepare.config import config_path
from streamdata.prepare.finished_runs import summary, verify, without_sums, write_sums
from streamdata.prepare.preview import first_records
from streamdata.prepare.run_directory import RunDirectory
from streamdata.text.tokenizer import load_tokenizer
from streamdata.tools.cli.messages import say
from streamdata.tools.cli.show import show_prepared
from streamdata.tools.cli.ticker import Ticker


def show_schema() -> None:
    """Print the JSON schema of configs."""
    typer.echo(json.dumps(PrepareConfig.model_json_schema(), indent=2))


def make_pipeline(config: str, tokenizer: str, store_format: str | None) -> Pipeline:
    """The pipeline of a config file or preset.

    Raises:
        RecipeError: The config has errors.
        typer.BadParameter: It is neither.
    """
    try:
        path = config_path(config)
    except RecipeError as error:
        raise typer.BadParameter(str(error), param_hint="--config") from error
    settings = load_config(path).model_dump(exclude_unset=True)
    return Pipeline(settings if store_format is None else settings | {"format": store_format}, tokenizer)


def run_pipeline(pipeline: Pipeline, inputs: Sequence[str], output: Path, **options: Any) -> None:
    """Run, show how far it is, and what came of it.

    Raises:
        PrepareError: It cannot go on; what is finished is kept.
    """
    with Ticker(Console(stderr=True)) as ticker:
        manifest = pipeline.run(list(inputs), output, progress=lambda progress: ticker.tick(progress.line), **options)
    say(summary(manifest) + RunDirectory(output).first_bad())


def show_first(pipeline: Pipeline, inputs: Sequence[str], count: int) -> None:
    """Show what the first records become."""
    tokenizer = load_tokenizer(pipeline.tokenizer)
    show_prepared(first_records(pipeline.config, tokenizer, list(inputs), count), tokenizer)


def merge_parts(parts: Sequence[Path], output: Path, *, overwrite: bool) -> None:
    """Join the parts, and show what they are together."""
    say(summary(merge(parts, output, overwrite=overwrite)) + RunDirectory(output).first_bad())


def show_problems(store: Path, *, add_sums: bool) -> bool:
    """Check a store, show its problems, and return whether there are none.

    Args:
        store: A store, or the output of a run.
        add_sums: Write the sums of files that have none, once nothing is wrong.
    """
    problems = verify(store)
    for problem in problems:
        say(f"error: {problem}", err=True)
    say(f"{store}: {len(problems) or 'no'} problem{'' if len(problems) == 1 else 's'}")
    files = [] if problems else without_sums(store)
    if add_sums and not problems:
        write_sums(files)
        say(f"files that got sums: {len(files)}")
    elif files:
        say(f"files without sums, in which damage is read in silence: {len(files)}; --write-sums adds them")
    return not problems
