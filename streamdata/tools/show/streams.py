"""Which samples of a mixture are shown: `dataset, states, rank, step, source → samples, in the order of delivery`."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from streamdata.errors import SourceError, listing, shown
from streamdata.fields import DATASET_NAME
from streamdata.mixing import MergedDataset
from streamdata.mixing.tree import tree_of
from streamdata.sources.source import Sample
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
    if place.source:
        _check_source(dataset, place.source)
    if place.step is None and not place.states:
        dataset.set_data_parallel(place.dp_size or 1, place.rank)
        if place.source:
            _leave_out_others(dataset, [place.source])
        return (Delivered(sample, None) for sample in dataset if _is_of(sample, place.source))
    return _traced(dataset, place)


def _traced(dataset: MergedDataset, place: Place) -> Iterator[Delivered]:
    trace = Trace(dataset, place.states, batch=place.batch, dp_size=place.dp_size or 1)
    first = trace.num_steps if place.step is None else place.step
    for step, samples in trace.batches(first, place.rank):
        for sample in samples:
            if _is_of(sample, place.source):
                yield Delivered(sample, step)


def source_paths(dataset: MergedDataset) -> list[str]:
    """The paths of a mixture's sources, in the order of the recipe."""
    return [node.path for node in tree_of(dataset).walk() if not node.is_mixture]


def _is_of(sample: Sample, source: str) -> bool:
    path = str(sample.get(DATASET_NAME, ""))
    return not source or path == source or path.startswith(f"{source}.")


def _check_source(dataset: MergedDataset, source: str) -> None:
    nodes = [node.path for node in tree_of(dataset).walk() if node.path]
    if source not in nodes:
        raise SourceError(f"source {shown(source)}: expected one of {listing(nodes)}")


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
