"""`--browser`: a stream or a store in the browser of whoever started it."""

import os
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from streamdata.errors import shown
from streamdata.tools.show.browser.pages import Browsed, BrowsePages, StepMark
from streamdata.tools.show.browser.reading import BrowseJobs, BrowseSteps, PagePlace, Sample
from streamdata.tools.show.browser.server import PageServer
from streamdata.tools.show.views.model import SampleView
from streamdata.tools.show.views.stored import StoredViews

if TYPE_CHECKING:
    from streamdata.tools.show.streams import Place

_DRAWS: Final = 200
"""Samples that the mixture's page is of."""


def browsed_mixture(
    dataset: Any, name: str, place: "Place", state_names: Sequence[str] = (), per_page: int = 20
) -> Browsed:
    """A mixture's stream.

    Args:
        dataset: The top, which was not iterated yet.
        name: The recipe's.
        place: Which of its runs, and what is shown first.
        state_names: A name for each of the states of `place`, on the time line.
        per_page: Samples on a page.

    Raises:
        StateError: The states are not of one run of it.
    """
    from streamdata.tools.show.streams import source_paths
    from streamdata.tools.show.views.mixture import (  # they import torch, which stores do without
        mixture_facts,
        mixture_view,
    )
    from streamdata.tools.show.views.samples import SampleViews
    from streamdata.tools.trace import Trace

    facts = mixture_facts(dataset)  # before its functions are watched, and these before anything is read
    views, jobs = SampleViews(dataset), BrowseJobs()
    dp_size = place.dp_size or 1
    trace = Trace(dataset, place.states, place.batch, dp_size)
    trace.on_progress = jobs.note
    marks = [
        StepMark(Trace(dataset, [states], place.batch, dp_size).num_steps, name)
        for name, states in zip(state_names, place.states, strict=True)
    ]
    first = trace.num_steps + 1 if place.step is None else place.step

    def mixture() -> object:
        samples = islice(chain.from_iterable(batch for _, batch in trace.batches(1, 0)), _DRAWS)
        return mixture_view(facts, [views.view(sample, number) for number, sample in enumerate(samples)])

    return Browsed(
        name=name,
        steps=BrowseSteps(trace.batches, views.view, per_page, first=1),
        jobs=jobs,
        begin=PagePlace(step=first, rank=place.rank, source=place.source),
        sources=source_paths(dataset),
        ranks=trace.dp_size,
        marks=marks,
        first=1,
        num_steps=trace.num_steps,
        find=lambda record: trace.find(**_named_record(record)),
        mixture=mixture,
    )


def _named_record(text: str) -> dict[str, Any]:
    """Read the name of a record, URL#KEY or SOURCE#INDEX.

    Raises:
        ValueError: It is neither.
    """
    before, hash_sign, after = text.strip().rpartition("#")
    if not hash_sign or not before or not after:
        raise ValueError(f"record: expected URL#KEY, or SOURCE#INDEX of a map-style source, got {shown(text)}")
    is_index = after.isascii() and after.isdigit() and not any(sign in before for sign in "/\\")
    return {"source": before, "index": int(after)} if is_index else {"url": before, "key": after}


def browsed_store(views: StoredViews, name: str, first: int = 0, per_page: int = 20) -> Browsed:
    """The records of a store.

    Args:
        views: Its records.
        name: The store's.
        first: The record that is shown first.
        per_page: Records on a page.
    """

    def read(record: int, _: int) -> Iterator[tuple[int, Sequence[Sample]]]:
        return ((number, [{}]) for number in range(record, len(views)))

    def view_of(_: Sample, __: int, record: int) -> SampleView:
        return views.view(record)

    return Browsed(
        name=name,
        steps=BrowseSteps(read, view_of, per_page),
        jobs=BrowseJobs(),
        begin=PagePlace(step=first),
        unit="Record",
        num_steps=len(views),
    )


def serve_pages(browsed: Browsed, port: int = 0, *, opens: bool = True) -> None:
    """Print the url, and serve until Ctrl-C.

    Args:
        browsed: What is looked at.
        port: 0 takes one that is free.
        opens: Whether a browser is started, where there is a screen.

    Raises:
        ValueError: The port is taken.
        KeyboardInterrupt: Ctrl-C; nothing is left then.
    """
    server = PageServer(BrowsePages(browsed), port)
    print(server.url, flush=True)  # noqa: T201  what whoever starts it waits for
    if opens and _has_screen():
        webbrowser.open(server.url)
    server.serve()


def _has_screen() -> bool:
    """Without one, a browser in the terminal would be started."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
