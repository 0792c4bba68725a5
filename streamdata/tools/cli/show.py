"""`streamdata show`: samples of a recipe, of files or of a store → a terminal, JSON, an HTML file or a browser."""

import json
import math
import os
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from streamdata.errors import counted, shortened
from streamdata.tools.cli.messages import Ticker, say
from streamdata.tools.cli.options import MAX_RANKS, GivenRecipe, Json, count, option, takes_recipe

if TYPE_CHECKING:
    from streamdata.prepare import Pipeline

_RECIPES: Final = (".yaml", ".yml")
_TARGET: Final = "RECIPE|FILES|STORE"
_A_URL: Final = "expected a local path, got a url: write a recipe, streamdata init 's3://bucket/web/*.tar', and show it"


@takes_recipe
def show(
    target: Annotated[GivenRecipe, typer.Argument(metavar=_TARGET, help="Files: JSONL, CSV, parquet, tars, images.")],
    source: Annotated[str, option("Only samples of this source or mixture, by its path of names.")] = "",
    number: Annotated[int, count("How many samples.", "-n", "--samples")] = 20,
    full: Annotated[bool, option("Show the whole of each sample.", "--full")] = False,
    step: Annotated[int | None, count("Begin at this step of the run, counted from 1.")] = None,
    rank: Annotated[int, count("The rank whose samples are shown.", least=0, most=MAX_RANKS - 1)] = 0,
    ranks: Annotated[int | None, count("Data-parallel ranks; by default as in the states.", most=MAX_RANKS)] = None,
    batch: Annotated[int | None, count("Samples in a batch of one rank; by default as in the states.")] = None,
    states: Annotated[list[Path] | None, option("As `state` takes them.", metavar="FILE", exists=True)] = None,
    tokenizer: Annotated[str | None, option("The tokenizer of tokens whose store names none.")] = None,
    dtype: Annotated[str | None, option("The dtype of a store's tokens, for a file that does not say it.")] = None,
    as_json: Json = False,
    html: Annotated[Path | None, option("Write a page that needs no network.", dir_okay=False)] = None,
    browser: Annotated[bool, option("Serve pages of -n samples until Ctrl-C; print the url.", "--browser")] = False,
    port: Annotated[int, option("The port of the pages; 0 takes a free one.", min=0, max=65535)] = 0,
) -> None:
    """Look at samples: fields, tokens with what is trained of them, images, and the raw records."""
    path = target.path
    if as_json + browser + (html is not None) > 1:
        raise typer.BadParameter("expected one of them", param_hint="--json, --html, --browser")
    is_recipe = path.suffix.lower() in _RECIPES
    if not path.exists() and (is_recipe or not path.with_name(f"{path.name}.idx").exists()):
        told = f"'{path}' does not exist" if ":/" not in str(path) else _A_URL
        raise typer.BadParameter(told, param_hint=_TARGET)
    if not states and rank >= (ranks or 1):
        raise typer.BadParameter(f"expected a rank below --ranks, got {rank}", param_hint="--rank")
    from streamdata.states.loading import read_states
    from streamdata.tools.show.model import IN_TERMINAL, ON_PAGE, WHOLE
    from streamdata.tools.show.streams import MixtureSamples, Place, dataset_at

    limits = WHOLE if full else ON_PAGE if as_json or browser or html else IN_TERMINAL
    dataset = target.build() if is_recipe else dataset_at(path, dtype)
    groups = [[path] for path in states or ()] if browser else [states or []]  # a time line marks each
    saved = [found.states for group in groups for found in read_states(group)]
    place = Place(step=step, rank=rank, dp_size=ranks, batch=batch, states=saved, source=source)
    shown = MixtureSamples(dataset, place, limits, tokenizer)
    if browser:
        from streamdata.tools.show.server import PageServer

        with PageServer(shown.browsed(path.name, number), port) as server:
            typer.echo(server.url)
            # Without a screen it would be a browser in the terminal.
            if any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))):
                webbrowser.open(server.url)
            server.serve_forever(poll_interval=0.1)
    with Ticker(plain_interval_s=math.inf) as ticker:
        page = shown.page(str(path), number, lambda done: ticker.count("samples", done, number))
    if html is not None:
        from streamdata.tools.show.page import write_page

        write_page(page, html)
        samples, megabytes = counted(len(page.samples), "sample"), html.stat().st_size / 1e6
        facts = f": {samples}, {megabytes:.1f} MB; open it in a browser"
        say(shortened(str(html), Console().width - len(facts)) + facts)
    elif as_json:
        from streamdata.tools.show.model import as_json as plain

        document = {"sources": [{"name": name} for name in page.sources], "samples": [*map(plain, page.samples)]}
        typer.echo(json.dumps(document))  # in ASCII: what would steer a terminal is written by its number
    else:
        from streamdata.tools.show.terminal import SamplePrinter

        printer = SamplePrinter(Console(highlight=False))
        for sample in page.samples:
            printer.print_sample(sample)


def show_prepared(pipeline: "Pipeline", inputs: list[str], number: int) -> None:
    """Show what the first records would become in a store."""
    from streamdata.prepare.preview import first_records
    from streamdata.text.tokenizer import load_tokenizer
    from streamdata.tools.show.fields import FieldRenderer
    from streamdata.tools.show.model import IN_TERMINAL, ShownSample
    from streamdata.tools.show.terminal import SamplePrinter
    from streamdata.tools.show.tokens import TokenTexts

    tokenizer, printer = load_tokenizer(pipeline.tokenizer), SamplePrinter(Console(highlight=False))
    renderer = FieldRenderer(IN_TERMINAL, TokenTexts(tokenizer))
    for name, record in first_records(pipeline.config, tokenizer, inputs, number):
        printer.print_sample(ShownSample(number=0, where=name, fields=renderer.of(record)))
