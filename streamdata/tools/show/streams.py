"""Samples of a mixture that are shown: `dataset, states, rank, step, source → samples, as delivered → a page`."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

from streamdata.errors import SourceError, listing, shown
from streamdata.fields import DATASET_NAME
from streamdata.mixing import MergedDataset
from streamdata.mixing.tree import tree_of
from streamdata.sources.source import Sample
from streamdata.tools.show.page import Page, groups_of
from streamdata.tools.show.views.mixture import mixture_facts, mixture_view
from streamdata.tools.show.views.model import SampleView
from streamdata.tools.show.views.samples import SampleViews
from streamdata.tools.trace.trace import Trace


class Delivered(NamedTuple):
    """A sample, and the step that delivered it, where that is known."""

    sample: Sample
    step: int | None


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where in a run to begin.

    Attributes:
        step: The first step that is shown; None for the beginning, or for what comes after the states.
        rank: Whose samples.
        dp_size: How many ranks there are; None for as many as in the states, or 1.
        batch: Samples of a rank in a step; None for as in the states, or 1.
        states: Of the run, oldest first; none of one that has not begun.
        source: The path of the source whose samples are shown; "" for all.
    """

    step: int | None = None
    rank: int = 0
    dp_size: int | None = None
    batch: int | None = None
    states: Sequence[Mapping[str, Any]] = ()
    source: str = ""


def delivered(dataset: MergedDataset, place: Place) -> Iterator[Delivered]:
    """The samples of a rank from a place on. The dataset is used up by it.

    Raises:
        SourceError: There is no such source.
        StateError: The states are not of this dataset.
    """
    paths = [node.path for node in tree_of(dataset).walk() if node.path]
    if place.source and place.source not in paths:
        raise SourceError(f"source {shown(place.source)}: expected one of {listing(paths)}")
    if place.step is None and not place.states:
        dataset.set_data_parallel(place.dp_size or 1, place.rank)
        if place.source:
            _leave_out_others(dataset, [place.source])
        return (Delivered(sample, None) for sample in dataset if _is_of(sample, place.source))
    return _traced(dataset, place)


def _traced(dataset: MergedDataset, place: Place) -> Iterator[Delivered]:
    trace = Trace(dataset, place.states, batch=place.batch, dp_size=place.dp_size or 1)
    first = trace.num_steps + 1 if place.step is None else place.step
    for step, samples in trace.batches(first, place.rank):
        for sample in samples:
            if _is_of(sample, place.source):
                yield Delivered(sample, step)


def source_paths(dataset: MergedDataset) -> list[str]:
    """The paths of a mixture's sources, in the order of the recipe."""
    return [node.path for node in tree_of(dataset).leaves()]


def _is_of(sample: Sample, source: str) -> bool:
    path = str(sample.get(DATASET_NAME, ""))
    return not source or path == source or path.startswith(f"{source}.")


def some_of_each(dataset: MergedDataset, place: Place, sources: Collection[str], count: int) -> Iterator[Delivered]:
    """The first samples of each of some sources in a rank, about so many of each. The dataset is used up by it."""
    dataset.set_data_parallel(place.dp_size or 1, place.rank)
    _leave_out_others(dataset, sources)
    seen: Counter[str] = Counter()
    for sample in islice(dataset, 2 * count * len(sources)):
        source = str(sample.get(DATASET_NAME, ""))
        seen[source] += 1
        if seen[source] <= count:
            yield Delivered(sample, None)


def _leave_out_others(dataset: MergedDataset, sources: Collection[str]) -> None:
    """Let the stream be of some sources, equally, each in the order that it has: that depends on its path alone."""
    nodes = list(tree_of(dataset).walk())
    below = {
        node.path: sum(each == node.path or each.startswith(f"{node.path}.") for each in sources)
        or any(node.path.startswith(f"{each}.") for each in sources)
        for node in nodes
    }
    for node in nodes:
        if node.path:
            node.dataset.percent = int(below[node.path])


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
    # Views before samples: what makes them watches the functions that make these.
    num_read = count if place.source else max(count, _DRAWS)
    drawn = _read(SampleViews(dataset), islice(delivered(dataset, place), num_read), tick)
    if place.source:
        return Page(title=title, about=_about(drawn, place), groups=groups_of(drawn, sources))
    shown = [*_chosen(drawn, count)]
    missing = [source for source in sources if source not in {view.source for view in shown}]
    if missing and place.step is None and not place.states:  # else all that lies between would be read
        dataset = make_dataset()
        some = some_of_each(dataset, place, missing, _OF_EACH if len(missing) <= _FEW else 1)
        shown += _read(SampleViews(dataset), some, tick)
    mixture = mixture_view(facts, drawn)
    return Page(title=title, about=_about(shown, place), groups=groups_of(shown, sources), mixture=mixture)


def _read(views: SampleViews, samples: Iterable[Delivered], tick: Tick) -> list[SampleView]:
    shown = []
    for number, (sample, step) in enumerate(samples):
        shown.append(views.view(sample, number, step))
        tick(number + 1)
    return shown


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
