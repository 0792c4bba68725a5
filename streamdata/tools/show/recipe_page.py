"""A recipe → its page: the first samples of the stream, some of each source, and how they are mixed."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from streamdata.mixing import MergedDataset
from streamdata.tools.show.page import Page, groups_of
from streamdata.tools.show.streams import Delivered, Place, delivered, some_of_each, source_paths
from streamdata.tools.show.views.limits import ON_PAGE
from streamdata.tools.show.views.mixture import mixture_facts, mixture_view
from streamdata.tools.show.views.model import SampleView
from streamdata.tools.show.views.samples import SampleViews

_DRAWS: Final = 200
"""Samples that shares and lengths are of, at least."""
_OF_EACH: Final = 3
"""Samples of each source, at least, however seldom it is drawn."""
_FEW: Final = 100
"""Where more sources were not drawn, each has one sample."""

Tick = Callable[[int], None]


def recipe_page(
    title: str, make_dataset: Callable[[], MergedDataset], place: Place, count: int, tick: Tick = lambda _: None
) -> Page:
    """The page of a recipe.

    Args:
        title: What it is called.
        make_dataset: Builds the mixture, each time anew.
        place: Where in the run to begin.
        count: How many samples of the stream are shown.
        tick: Called with the number of samples that were read.

    Raises:
        Exception: What building and reading it raised.
    """
    dataset = make_dataset()
    facts, sources = mixture_facts(dataset), source_paths(dataset)
    if place.source:
        shown = list(_ticked(first_views(dataset, place, count), tick))
        return Page(title=title, about=_about(shown, place), groups=groups_of(shown, sources))
    drawn = list(_ticked(first_views(dataset, place, max(count, _DRAWS)), tick))
    shown = [*_chosen(drawn, count)]
    missing = [source for source in sources if source not in {view.source for view in shown}]
    if missing and place.step is None and not place.states:  # else all that lies between would be read
        dataset = make_dataset()
        some = some_of_each(dataset, place, missing, _OF_EACH if len(missing) <= _FEW else 1)
        shown += _ticked(_views(SampleViews(dataset, ON_PAGE), some), tick)
    mixture = mixture_view(facts, drawn)
    return Page(title=title, about=_about(shown, place), groups=groups_of(shown, sources), mixture=mixture)


def first_views(dataset: MergedDataset, place: Place, count: int) -> Iterator[SampleView]:
    """The views of the first samples from a place on."""
    yield from _views(SampleViews(dataset, ON_PAGE), islice(delivered(dataset, place), count))


def _views(views: SampleViews, samples: Iterable[Delivered]) -> Iterator[SampleView]:
    for number, (sample, step) in enumerate(samples):
        yield views.view(sample, number, step)


def _ticked(views: Iterable[SampleView], tick: Tick) -> Iterator[SampleView]:
    for number, view in enumerate(views, 1):
        tick(number)
        yield view


def _chosen(drawn: Sequence[SampleView], count: int) -> Iterator[SampleView]:
    """The first ones, and the first of each source."""
    seen: Counter[str] = Counter()
    for number, view in enumerate(drawn):
        seen[view.source] += 1
        if number < count or seen[view.source] <= _OF_EACH:
            yield view


def _about(shown: Sequence[SampleView], place: Place) -> str:
    where = "" if place.step is None else f", from step {place.step:,}"
    ranks = "" if place.dp_size is None else f" of {place.dp_size}"
    return f"{len(shown):,} samples of rank {place.rank}{ranks}{where}, in the order of delivery"
