"""Reading for pages: forth and back through a stream, so many samples at a time, for one request at a time."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any, Final, NamedTuple

from streamdata.fields import DATASET_NAME
from streamdata.tools.show.model import ShownSample

Sample = Mapping[str, Any]
ReadSteps = Callable[[int, int], Iterator[tuple[int, Sequence[Sample]]]]
"""A step and a rank → from there on, each step with its batch."""
ShowSample = Callable[[Sample, int, int], ShownSample]
"""A sample, its number on the page, and its step → what is shown of it."""

_MAX_KEPT: Final = 500
"""Samples that are kept, of all pages: an image takes up to 300 KB."""
_MORE: Final = 4
"""How many times more steps are read back for the samples of one source."""
_PATIENCE_S: Final = 2.0
"""How long a page looks for samples of one source before it shows what it has."""


def is_of(sample: Sample, source: str) -> bool:
    """Whether a sample is of a source, or of what is below it; "" stands for all."""
    return not source or f"{sample.get(DATASET_NAME, '')}.".startswith(f"{source}.")


class PagePlace(NamedTuple):
    """A place in the stream: a step, how many of its samples come before, a rank, and a source or "" for all."""

    step: int
    at: int = 0
    rank: int = 0
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class StepsPage:
    """A page.

    Attributes:
        place: Where it begins.
        samples: What it shows.
        last: The step that was read last, be it that nothing of it is shown; None where there is none.
        after: What comes after its last sample; None where the stream has ended.
        is_cut: Whether time was up before the page was full.
    """

    place: PagePlace
    samples: tuple[ShownSample, ...]
    last: int | None
    after: PagePlace | None
    is_cut: bool = False


class BrowseSteps:
    """Reads pages, in one thread at a time: others wait, and find what was read meanwhile.

    Args:
        read: Reads the stream from a step on, of one rank.
        show: Makes what is shown of a sample.
        per_page: Samples on a page, unless the stream ends.
        first: The number of the first step.
    """

    def __init__(self, read: ReadSteps, show: ShowSample, per_page: int, first: int) -> None:
        self._read, self._show, self._per_page, self.first = read, show, per_page, first
        self._reading = threading.Lock()
        self._kept: dict[PagePlace, StepsPage] = {}
        """Pages, the one that was shown last at the end."""
        self._open: Iterator[tuple[PagePlace, Sample | None, PagePlace]] = iter(())
        self._next: PagePlace | None = None
        """The place that comes next from there; None where nothing is open."""

    def page(self, place: PagePlace) -> StepsPage:
        """The page that begins at a place.

        Raises:
            Exception: What the stream raises.
        """
        with self._reading:
            return self._kept_page(self._at(place))

    def _at(self, place: PagePlace) -> StepsPage:
        return self._kept.get(place) or self._read_page(place)

    def _kept_page(self, page: StepsPage) -> StepsPage:
        """Keep a page as the one that was shown last."""
        self._kept.pop(page.place, None)
        self._kept[page.place] = page
        while len(self._kept) > max(1, _MAX_KEPT // self._per_page):
            del self._kept[next(iter(self._kept))]
        return page

    def _read_page(self, place: PagePlace) -> StepsPage:
        samples: list[ShownSample] = []
        deadline = time.monotonic() + _PATIENCE_S
        if self._next != place:
            self._open = self._found(place)
        self._next = last = None  # an error, or the end, leaves nothing open
        for (last, *_), sample, after in self._open:
            if sample is not None:
                samples.append(self._show(sample, len(samples), last))
            if len(samples) == self._per_page or (place.source and time.monotonic() > deadline):
                self._next = after
                break
        is_cut = self._next is not None and len(samples) < self._per_page
        return StepsPage(place=place, samples=tuple(samples), last=last, after=self._next, is_cut=is_cut)

    def _found(self, place: PagePlace) -> Iterator[tuple[PagePlace, Sample | None, PagePlace]]:
        """The samples of a source from a place on, None where a step has none of it: each with what comes after it."""
        for step, batch in self._read(place.step, place.rank):
            begin = place.at if step == place.step else 0
            own = [at for at in range(begin, len(batch)) if is_of(batch[at], place.source)]
            places = [place._replace(step=step, at=at) for at in own or [0]]
            for found, after in pairwise([*places, place._replace(step=step + 1, at=0)]):
                yield found, batch[found.at] if own else None, after

    def page_before(self, place: PagePlace) -> StepsPage:
        """The page that ends before a place: the one that was shown, or else as many samples; the first is a whole one.

        Raises:
            Exception: What the stream raises.
        """
        with self._reading:
            shown = next((page for page in reversed(self._kept.values()) if page.after == place), None)
            return self._kept_page(shown or self._read_back(place))

    def _read_back(self, place: PagePlace) -> StepsPage:
        """Read the steps before a place, of one source more of them; it may come in none."""
        width = self._per_page * (_MORE if place.source else 1)
        begin = place._replace(step=max(self.first, place.step - width), at=0)
        found = takewhile(lambda each: each[0] < place, self._found(begin))
        before = deque(((at, sample) for at, sample, _ in found if sample is not None), self._per_page)
        is_cut = len(before) < self._per_page
        if is_cut and begin.step == self.first:
            return self._at(begin)
        return StepsPage(
            place=begin if is_cut else before[0][0],
            samples=tuple(self._show(sample, number, at.step) for number, (at, sample) in enumerate(before)),
            last=before[-1][0].step if before else None,
            after=place,
            is_cut=is_cut,
        )
