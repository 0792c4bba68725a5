"""`--browser`: a stream or a store in the browser of whoever started it."""

import os
import sys
import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

from streamdata.errors import shown
from streamdata.tools.show.browser.jobs import BrowseJobs
from streamdata.tools.show.browser.line import StepMark
from streamdata.tools.show.browser.pages import Browsed, BrowsePages
from streamdata.tools.show.browser.server import PageServer
from streamdata.tools.show.browser.steps import BrowseSteps, PagePlace, Sample
from streamdata.tools.show.views.limits import ON_PAGE
from streamdata.tools.show.views.model import SampleView

_DRAWS: Final = 200
"""Samples that the mixture's page is of."""


@dataclass(frozen=True, kw_only=True)
class BrowseOptions:
    """Of which run, and what is shown first.

    Attributes:
        states: Of the run, with a name each, oldest first; none of one that has not begun.
        batch: Samples of a rank in a step; None for as in the states, or 1.
        dp_size: How many ranks there are; None for as many as in the states, or 1.
        step: The first step, or the first record of a store; None for what comes after the states, or for 0.
        rank: Whose samples.
        source: The only source that is shown; "" for all.
        per_page: Samples on a page.
    """

    states: Sequence[tuple[str, Mapping[str, Any]]] = ()
    batch: int | None = None
    dp_size: int | None = None
    step: int | None = None
    rank: int = 0
    source: str = ""
    per_page: int = 20

    def begin(self, first: int) -> PagePlace:
        """What is shown first, where nothing else is said from a step on."""
        return PagePlace(step=first if self.step is None else self.step, rank=self.rank, source=self.source)


def browsed_mixture(dataset: Any, name: str, options: BrowseOptions) -> Browsed:
    """A mixture's stream.

    Args:
        dataset: The top, which was not iterated yet.
        name: Of its recipe.
        options: Which of its runs.

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
    dp_size, batch = options.dp_size or 1, options.batch
    trace = Trace(dataset, [states for _, states in options.states], batch, dp_size)
    trace.on_progress = jobs.note
    marks = [StepMark(Trace(dataset, [states], batch, dp_size).num_steps, name) for name, states in options.states]

    def mixture() -> object:
        samples = islice(chain.from_iterable(batch for _, batch in trace.batches(0, 0)), _DRAWS)
        return mixture_view(facts, [views.view(sample, number) for number, sample in enumerate(samples)])

    return Browsed(
        name=name,
        steps=BrowseSteps(trace.batches, views.view, options.per_page),
        jobs=jobs,
        begin=options.begin(trace.num_steps),
        sources=source_paths(dataset),
        ranks=trace.dp_size,
        marks=marks,
        num_steps=trace.num_steps,
        find=lambda record: trace.find(**_named_record(record)),
        mixture=mixture,
    )


def _named_record(text: str) -> dict[str, Any]:
    """What to find, of URL#KEY, or of SOURCE#INDEX.

    Raises:
        ValueError: It is neither.
    """
    before, hash_sign, after = text.strip().rpartition("#")
    if not hash_sign or not before or not after:
        raise ValueError(f"record: expected URL#KEY, or SOURCE#INDEX of a map-style source, got {shown(text)}")
    is_index = after.isascii() and after.isdigit() and not any(sign in before for sign in "/\\")
    return {"source": before, "index": int(after)} if is_index else {"url": before, "key": after}


def browsed_store(path: Path, tokenizer: str | None, dtype: str | None, options: BrowseOptions) -> Browsed:
    """The records of a store.

    Args:
        path: Of the store.
        tokenizer: A directory or a name; None for that of the run which wrote it.
        dtype: Of the tokens, for a file that does not say it; None for others.
        options: What is shown first.

    Raises:
        StoreError: It is not a store, or is damaged.
    """
    from streamdata.tools.show.views.stored import StoredViews

    views = StoredViews(path, tokenizer, ON_PAGE, dtype)

    def read(record: int, _: int) -> Iterator[tuple[int, Sequence[Sample]]]:
        return ((number, [{}]) for number in range(record, len(views)))

    def view_of(_: Sample, __: int, record: int) -> SampleView:
        return views.view(record)

    return Browsed(
        name=path.name,
        steps=BrowseSteps(read, view_of, options.per_page),
        jobs=BrowseJobs(),
        begin=options.begin(0),
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
