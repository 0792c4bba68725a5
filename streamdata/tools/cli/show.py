"""`streamdata show`: samples of a recipe or records of a store → a terminal, JSON, an HTML file or a browser."""

import json
from collections.abc import Iterable, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer
from rich.console import Console

from streamdata.tools.cli.messages import Ticker, messages, say
from streamdata.tools.cli.options import (
    MAX_COUNT,
    MAX_RANKS,
    Allow,
    GivenRecipe,
    IncludeRoot,
    Json,
    Traceback,
    Variables,
    given_recipe,
)

if TYPE_CHECKING:
    from streamdata.prepare.preview import Shown
    from streamdata.tools.show.page import Page
    from streamdata.tools.show.views.model import SampleView

_RECIPES: Final = (".yaml", ".yml")
_PROGRESS_AFTER_S: Final = 2.0


class _Output(NamedTuple):
    """Where samples go: to a browser, into an HTML file, or to stdout as JSON or text; and how many."""

    num_samples: int
    as_json: bool
    html: Path | None
    browser: bool
    port: int
    opens: bool


def show(
    target: Annotated[
        Path,
        typer.Argument(metavar="RECIPE|STORE", help="A recipe, a store, or what prepare wrote.", show_default=False),
    ],
    source: Annotated[str, typer.Option(help="Samples of this source or mixture alone, by its path of names.")] = "",
    number: Annotated[int, typer.Option("-n", min=1, max=MAX_COUNT, help="How many samples.")] = 20,
    step: Annotated[
        int | None,
        typer.Option(min=0, max=MAX_COUNT, help="Begin at this step of the run, or at this record of a store."),
    ] = None,
    rank: Annotated[int, typer.Option(min=0, max=MAX_RANKS - 1, help="Whose samples.")] = 0,
    dp: Annotated[
        int | None, typer.Option("--dp", min=1, max=MAX_RANKS, help="How many ranks; by default as in the states.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, max=MAX_COUNT, help="Samples of a rank in a step; by default as in the states.")
    ] = None,
    states: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="The run's states; as of `state`.", exists=True)
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Of a store that does not say its own.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of a store's tokens, for a file that does not say it.")] = None,
    as_json: Json = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page, which needs no network.", dir_okay=False),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser", help="Serve pages at 127.0.0.1 until Ctrl-C, -n samples each; print the url.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the pages; 0 takes one that is free.")] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not start a browser.")] = False,
    var: Variables = None,
    allow: Allow = None,
    include_root: IncludeRoot = None,
    traceback: Traceback = False,
) -> None:
    """Look at samples: fields, tokens with what is trained of them, images, and the raw records."""
    given = given_recipe(target, var, allow, include_root)
    with messages(Exception, with_traceback=traceback):
        output = _Output(number, as_json, html, browser, port, not no_open)
        if as_json + browser + (html is not None) > 1:
            raise typer.BadParameter("expected one of them", param_hint="--json, --html, --browser")
        is_recipe = target.suffix.lower() in _RECIPES
        if not target.exists() and (is_recipe or not target.with_name(f"{target.name}.idx").exists()):
            raise typer.BadParameter(f"'{target}' does not exist", param_hint="RECIPE|STORE")
        if not is_recipe:
            _show_store(target, tokenizer, dtype, step or 0, output)
            return
        if not states and rank >= (dp or 1):
            raise typer.BadParameter(f"expected a rank below --dp, got {rank}", param_hint="--rank")
        _show_recipe(given, states or [], output, step=step, rank=rank, dp_size=dp, batch=batch, source=source)


def _show_recipe(given: GivenRecipe, paths: Sequence[Path], output: _Output, **place_options: Any) -> None:
    """Show samples of a recipe from a place on, which the options of `Place` say."""
    from streamdata.states.loading import read_states
    from streamdata.tools.show.streams import Place, delivered, source_paths
    from streamdata.tools.show.views.model import IN_TERMINAL, ON_PAGE
    from streamdata.tools.show.views.samples import SampleViews

    groups = [[path] for path in paths] if output.browser else [paths]  # the time line has a mark for each
    read = [(group, found) for group in groups for found in read_states(group)]
    place = Place(states=[found.states for _, found in read], **place_options)
    if output.browser:
        from streamdata.tools.show.browser.browse import browsed_mixture, serve_pages

        names = [found.origin.partition(",")[0] or group[0].name for group, found in read]
        browsed = browsed_mixture(given.build(), given.path.name, place, names, output.num_samples)
        serve_pages(browsed, output.port, opens=output.opens)
    elif output.html is not None:
        from streamdata.tools.show.streams import recipe_page

        with Ticker(Console(stderr=True), plain_interval_s=_PROGRESS_AFTER_S) as ticker:
            page = recipe_page(
                str(given.path),
                given.build,
                place,
                output.num_samples,
                lambda number: ticker.tick(lambda: f"{number:,} samples read"),
            )
        _write(page, output.html)
    else:
        dataset = given.build()
        sources = source_paths(dataset)
        views = SampleViews(dataset, ON_PAGE if output.as_json else IN_TERMINAL)
        found = islice(delivered(dataset, place), output.num_samples)
        shown = _collected((views.view(sample, number, step) for number, (sample, step) in enumerate(found)), output)
        _print(shown, sources, as_json=output.as_json)


def _show_store(path: Path, tokenizer: str | None, dtype: str | None, first: int, output: _Output) -> None:
    """Show records of a store, without torch."""
    from streamdata.tools.show.views.model import IN_TERMINAL, ON_PAGE
    from streamdata.tools.show.views.stored import StoredViews

    is_page = output.browser or output.html is not None
    views = StoredViews(path, tokenizer, ON_PAGE if is_page or output.as_json else IN_TERMINAL, dtype)
    if output.browser:
        from streamdata.tools.show.browser.browse import browsed_store, serve_pages

        serve_pages(browsed_store(views, path.name, first, output.num_samples), output.port, opens=output.opens)
        return
    if first >= len(views):
        raise typer.BadParameter(f"expected a record of {len(views):,}, from 0, got {first}", param_hint="--step")
    numbers = range(first, min(first + output.num_samples, len(views)))
    shown = _collected(map(views.view, numbers), output)
    if output.html is None:
        _print(shown, [], as_json=output.as_json)
        return
    from streamdata.tools.show.page import Page, groups_of

    about = f"records {first:,} to {numbers.stop - 1:,} of {len(views):,}"
    _write(Page(title=str(path), about=about, groups=groups_of(shown, ())), output.html)


def _collected(views: Iterable["SampleView"], output: _Output) -> list["SampleView"]:
    """All of them; where that takes long, with a line that says how far it is."""
    shown: list[SampleView] = []
    with Ticker(Console(stderr=True), plain_interval_s=_PROGRESS_AFTER_S) as ticker:
        for view in views:
            shown.append(view)
            ticker.tick(lambda: f"{len(shown):,} of {output.num_samples:,} samples")
    return shown


def _print(views: Sequence["SampleView"], sources: Sequence[str], *, as_json: bool) -> None:
    from streamdata.tools.show.as_json import sample_json
    from streamdata.tools.show.terminal import SamplePrinter

    if as_json:
        document = {"sources": [{"name": name} for name in sources], "samples": [sample_json(view) for view in views]}
        typer.echo(json.dumps(document))  # in ASCII: what would steer a terminal is written by its number
        return
    printer = SamplePrinter(Console(highlight=False))
    for view in views:
        printer.print_sample(view)


def _write(page: "Page", path: Path) -> None:
    from streamdata.tools.show.page import write_page

    write_page(page, path)
    count = sum(len(group.views) for group in page.groups)
    say(f"{path}: {count:,} samples, {path.stat().st_size / 1e6:.1f} MB; open it in a browser")


def show_prepared(records: Iterable["Shown"], tokenizer: Any) -> None:
    """Show what records would become in a store."""
    from streamdata.tools.show.terminal import SamplePrinter
    from streamdata.tools.show.views.model import IN_TERMINAL, SampleView
    from streamdata.tools.show.views.stored import tokens_fields
    from streamdata.tools.show.views.token_sequence import TokenTexts

    printer, texts = SamplePrinter(Console(highlight=False)), TokenTexts(tokenizer)
    for name, keys in groupby(records, key=lambda shown: shown.name):
        fields = tuple(field for shown in keys for field in tokens_fields(shown, texts, IN_TERMINAL))
        printer.print_sample(SampleView(number=0, source="", where=name, fields=fields))
