"""Reading for pages: through a stream, so many samples at a time, for one request at a time."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
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
        before: Where the page before it begins: the one that was shown, else as many steps earlier as it has; None of
            the first one.
        is_cut: Whether time was up before the page was full.
    """

    place: PagePlace
    samples: tuple[ShownSample, ...]
    last: int | None
    after: PagePlace | None
    before: PagePlace | None
    is_cut: bool


class BrowseSteps:
    """Reads pages, in one thread at a time: others wait, and find what was read meanwhile.

    Args:
        read: Reads the stream from a step on, of one rank.
        show: Makes what is shown of a sample.
        per_page: Samples on a page, unless the stream ends.
    """

    def __init__(self, read: ReadSteps, show: ShowSample, per_page: int) -> None:
        self._read, self._show, self._per_page = read, show, per_page
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
            if place in self._kept:
                self._kept[place] = page = self._kept.pop(place)
                return page
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
            shown = (page.place for page in reversed(self._kept.values()) if page.after == place)
            earlier = max(1, place.step - (1 if last is None else last - place.step + 1))
            self._kept[place] = page = StepsPage(
                place=place,
                samples=tuple(samples),
                last=last,
                after=self._next,
                before=next(shown, place._replace(step=earlier, at=0)) if (place.step, place.at) > (1, 0) else None,
                is_cut=self._next is not None and len(samples) < self._per_page,
            )
            while len(self._kept) > max(1, _MAX_KEPT // self._per_page):
                del self._kept[next(iter(self._kept))]
            return page

    def _found(self, place: PagePlace) -> Iterator[tuple[PagePlace, Sample | None, PagePlace]]:
        """The samples of a source from a place on, None where a step has none of it: each with what comes after it."""
        for step, batch in self._read(place.step, place.rank):
            begin = place.at if step == place.step else 0
            own = [at for at in range(begin, len(batch)) if is_of(batch[at], place.source)]
            places = [place._replace(step=step, at=at) for at in own or [0]]
            for found, after in pairwise([*places, place._replace(step=step + 1, at=0)]):
                yield found, batch[found.at] if own else None, after
