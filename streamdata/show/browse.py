"""`--browser`: a stream or a store in the browser of whoever started it."""

import os
import sys
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from streamdata.mixing import MergedDataset
from streamdata.mixing.tree import tree_of
from streamdata.show.browse_line import StepMark
from streamdata.show.browse_pages import Browsed, BrowsePages
from streamdata.show.browse_steps import BrowseSteps, Place
from streamdata.show.sample_views import SampleViews
from streamdata.show.server import PageServer


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """What is shown first.

    Attributes:
        step: The first step; of a store the first record.
        rank: Whose.
        source: The only source that is shown; "" for all.
        per_page: Samples on a page.
    """

    step: int = 0
    rank: int = 0
    source: str = ""
    per_page: int = 20

    @property
    def place(self) -> Place:
        """Without how many."""
        return Place(step=self.step, rank=self.rank, source=self.source)


class TracedRun(Protocol):
    """What is needed of a `Trace`."""

    num_steps: int
    dp_size: int

    def batches(self, step: int, rank: int) -> Iterator[tuple[int, Sequence[Mapping[str, Any]]]]:
        """From a step on, each with a rank's batch."""

    def find(self, record: str) -> Sequence[int]:
        """The steps at which a record comes."""


def browsed_mixture(
    dataset: MergedDataset,
    name: str,
    run: Callable[[MergedDataset], TracedRun],
    begin: Beginning,
    marks: Sequence[StepMark] = (),
) -> Browsed:
    """A mixture's stream.

    Args:
        dataset: The top, which was not iterated yet.
        name: Of its recipe.
        run: Makes what reads its steps.
        begin: What is shown first.
        marks: Steps with a name.
    """
    views = SampleViews(dataset)  # before anything is read
    traced = run(dataset)
    return Browsed(
        name=name,
        steps=BrowseSteps(traced.batches, views.view, begin.per_page),
        begin=begin.place,
        sources=[node.path for node in tree_of(dataset).walk() if not node.is_mixture],
        ranks=traced.dp_size,
        marks=marks,
        num_steps=traced.num_steps,
        find=traced.find,
    )


def serve_pages(browsed: Browsed, port: int, *, opens: bool) -> None:
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
