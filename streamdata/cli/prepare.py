"""`streamdata prepare`: raw records → a store, and what came of it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from streamdata.cli.ticker import Ticker
from streamdata.cli.tokens_text import show
from streamdata.prepare import Pipeline, PrepareConfig, load_config, merge
from streamdata.prepare.manifest import summary
from streamdata.prepare.preview import first_records
from streamdata.text.tokenizer import load_tokenizer


def show_schema() -> None:
    """Print the JSON schema of configs."""
    typer.echo(json.dumps(PrepareConfig.model_json_schema(), indent=2))


def make_pipeline(config: Path, tokenizer: str, store_format: str | None) -> Pipeline:
    """The pipeline of a config file.

    Raises:
        RecipeError: The config has errors.
    """
    settings = load_config(config).model_dump(exclude_unset=True)
    return Pipeline(settings if store_format is None else settings | {"format": store_format}, tokenizer)


def run_pipeline(pipeline: Pipeline, inputs: Sequence[str], output: Path, **options: Any) -> None:
    """Run, show how far it is, and what came of it.

    Raises:
        PrepareError: It cannot go on; what is finished is kept.
    """
    with Ticker(Console(stderr=True)) as ticker:
        manifest = pipeline.run(list(inputs), output, progress=lambda progress: ticker.tick(progress.line), **options)
    typer.echo(summary(manifest))


def show_first(pipeline: Pipeline, inputs: Sequence[str], count: int) -> None:
    """Show what the first records become."""
    tokenizer = load_tokenizer(pipeline.tokenizer)
    show(first_records(pipeline.config, tokenizer, list(inputs), count), tokenizer)


def merge_parts(parts: Sequence[Path], output: Path, *, overwrite: bool) -> None:
    """Join the parts, and show what they are together."""
    typer.echo(summary(merge(parts, output, overwrite=overwrite)))
