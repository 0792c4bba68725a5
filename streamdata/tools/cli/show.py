"""`streamdata show`: samples of a recipe, or records of a store, in a terminal, as JSON, or in an HTML file."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.console import Console

from streamdata.prepare.preview import Shown
from streamdata.tools.cli.messages import say
from streamdata.tools.cli.ticker import Ticker
from streamdata.tools.show.as_json import sample_json
from streamdata.tools.show.terminal import SamplePrinter
from streamdata.tools.show.views.limits import IN_TERMINAL, ON_PAGE, Limits
from streamdata.tools.show.views.model import SampleView
from streamdata.tools.show.views.stored import StoredViews, tokens_fields
from streamdata.tools.show.views.token_texts import TokenTexts

if TYPE_CHECKING:
    from streamdata.tools.show.browser.browse import BrowseOptions

_RECIPES: Final = (".yaml", ".yml")
_PROGRESS_AFTER_S: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """What of a recipe or a store is shown, and how."""

    count: int = 20
    source: str = ""
    step: int | None = None
    rank: int = 0
    dp_size: int | None = None
    batch: int | None = None
    states: Sequence[Path] = ()
    tokenizer: str | None = None
    dtype: str | None = None
    as_json: bool = False
    html: Path | None = None
    include_roots: Sequence[str] = ()
    browser: bool = False
    port: int = 0
    opens: bool = True

    @property
    def limits(self) -> Limits:
        """How much of a sample."""
        return IN_TERMINAL if self.html is None and not self.as_json else ON_PAGE


def show_target(target: Path, variables: Mapping[str, Any], allow: Sequence[str] | None, options: ShowOptions) -> None:
    """Show a recipe or a store.

    Raises:
        typer.BadParameter: There is nothing, or an option is not for it.
        Exception: What reading it raised.
    """
    if options.as_json + options.browser + (options.html is not None) > 1:
        raise typer.BadParameter("expected one of them", param_hint="--json, --html, --browser")
    is_recipe = target.suffix.lower() in _RECIPES
    is_there = target.exists() or (not is_recipe and target.with_name(f"{target.name}.idx").exists())
    if not is_there:
        raise typer.BadParameter(f"'{target}' does not exist", param_hint="RECIPE|STORE")
    if is_recipe:
        show_recipe(target, variables, allow, options)
    else:
        show_store(target, options)


def show_recipe(recipe: Path, variables: Mapping[str, Any], allow: Sequence[str] | None, options: ShowOptions) -> None:
    """Show samples of a recipe.

    Raises:
        RecipeError: It cannot be built.
        Exception: What the stream raised.
    """
    from streamdata.states.loading import read_states
    from streamdata.tools.cli.run import build_mixture
    from streamdata.tools.show.streams import Place, delivered, source_paths
    from streamdata.tools.show.views.samples import SampleViews

    if not options.states and options.rank >= (options.dp_size or 1):
        raise typer.BadParameter(f"expected a rank below --dp, got {options.rank}", param_hint="--rank")

    def make() -> Any:
        return build_mixture(recipe, variables, allow, options.include_roots)

    if options.browser:
        browse_recipe(make(), recipe.name, options)
        return
    place = Place(
        step=options.step,
        rank=options.rank,
        dp_size=options.dp_size,
        batch=options.batch,
        states=[read.states for read in read_states(options.states)],
        source=options.source,
    )
    if options.html is not None:
        _write_recipe(str(recipe), make, place, options)
        return
    dataset = make()
    sources = source_paths(dataset)
    views = SampleViews(dataset, options.limits)
    found = islice(delivered(dataset, place), options.count)
    shown = (views.view(sample, number, step) for number, (sample, step) in enumerate(found))
    _show(_collected(shown, options.count), sources, options)


def _write_recipe(title: str, make_dataset: Callable[[], Any], place: Any, options: ShowOptions) -> None:
    from streamdata.tools.show.page import write_page
    from streamdata.tools.show.recipe_page import recipe_page

    with Ticker(Console(stderr=True), plain_interval_s=_PROGRESS_AFTER_S) as ticker:
        page = recipe_page(
            title, make_dataset, place, options.count, lambda number: ticker.tick(lambda: f"{number:,} samples read")
        )
    assert options.html is not None, "it was asked for"
    write_page(page, options.html)
    _say_written(options.html, sum(len(group.views) for group in page.groups))


def show_store(path: Path, options: ShowOptions) -> None:
    """Show records of a store, without torch.

    Raises:
        StoreError: It is not a store, or is damaged.
        FileNotFoundError: There is nothing.
    """
    if options.browser:
        browse_store(path, options)
        return
    views = StoredViews(path, options.tokenizer, options.limits, options.dtype)
    first = options.step or 0
    if first >= len(views):
        raise typer.BadParameter(f"expected a record of {len(views):,}, from 0, got {first}", param_hint="--step")
    numbers = range(first, min(first + options.count, len(views)))
    shown = _collected(map(views.view, numbers), options.count)
    if options.html is None:
        _show(shown, [], options)
        return
    from streamdata.tools.show.page import Page, groups_of, write_page

    about = f"records {first:,} to {numbers.stop - 1:,} of {len(views):,}"
    page = Page(title=str(path), about=about, groups=groups_of(shown, ()))
    write_page(page, options.html)
    _say_written(options.html, len(shown))


def _say_written(path: Path, count: int) -> None:
    say(f"{path}: {count:,} samples, {path.stat().st_size / 1e6:.1f} MB; open it in a browser")


def browse_recipe(dataset: Any, name: str, options: ShowOptions) -> None:
    """Serve a recipe's stream to a browser, until Ctrl-C.

    Raises:
        StateError: The states are not of one run of it.
        ValueError: The port is taken.
        KeyboardInterrupt: Ctrl-C.
    """
    from streamdata.states.loading import read_states
    from streamdata.tools.show.browser.browse import browsed_mixture, serve_pages

    read = [(path, states) for path in options.states for states in read_states([path])]
    states = [(found.origin.partition(",")[0] or path.name, found.states) for path, found in read]
    browsed = browsed_mixture(dataset, name, _browse_options(options, states))
    serve_pages(browsed, options.port, opens=options.opens)


def browse_store(path: Path, options: ShowOptions) -> None:
    """Serve the records of a store to a browser, until Ctrl-C.

    Raises:
        StoreError: It is not a store, or is damaged.
        ValueError: The port is taken.
        KeyboardInterrupt: Ctrl-C.
    """
    from streamdata.tools.show.browser.browse import browsed_store, serve_pages

    browsed = browsed_store(path, options.tokenizer, options.dtype, _browse_options(options, []))
    serve_pages(browsed, options.port, opens=options.opens)


def _browse_options(options: ShowOptions, states: Sequence[tuple[str, Mapping[str, Any]]]) -> "BrowseOptions":
    from streamdata.tools.show.browser.browse import BrowseOptions

    return BrowseOptions(
        states=states,
        batch=options.batch,
        dp_size=options.dp_size,
        step=options.step,
        rank=options.rank,
        source=options.source,
        per_page=options.count,
    )


def _collected(views: Iterable[SampleView], count: int) -> list[SampleView]:
    """All of them; where that takes long, with a line that says how far it is."""
    shown: list[SampleView] = []
    with Ticker(Console(stderr=True), plain_interval_s=_PROGRESS_AFTER_S) as ticker:
        for view in views:
            shown.append(view)
            ticker.tick(lambda: f"{len(shown):,} of {count:,} samples")
    return shown


def _show(views: Sequence[SampleView], sources: Sequence[str], options: ShowOptions) -> None:
    if options.as_json:
        document = {"sources": [{"name": name} for name in sources], "samples": [sample_json(view) for view in views]}
        typer.echo(json.dumps(document))  # in ASCII: what would steer a terminal is written by its number
        return
    printer = SamplePrinter(Console(highlight=False))
    for view in views:
        printer.print_sample(view)


def show_prepared(records: Iterable[Shown], tokenizer: Any) -> None:
    """Show what records would become in a store."""
    printer, texts = SamplePrinter(Console(highlight=False)), TokenTexts(tokenizer)
    for name, keys in groupby(records, key=lambda shown: shown.name):
        fields = tuple(field for shown in keys for field in tokens_fields(shown, texts, IN_TERMINAL))
        printer.print_sample(SampleView(number=0, source="", where=name, fields=fields))
