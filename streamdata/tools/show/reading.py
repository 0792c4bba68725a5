"""Reading for pages: forth and back through a stream, so many samples at a time, in one job at a time."""

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any, Final, NamedTuple, TypeVar

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
"""How long a request waits for its job, and a page looks for samples of one source before it shows what it has."""


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
    """Reads pages, in one thread at a time.

    Args:
        read: Reads the stream from a step on, of one rank.
        show: Makes what is shown of a sample.
        per_page: Samples on a page, unless the stream ends.
        first: The number of the first step.
    """

    def __init__(self, read: ReadSteps, show: ShowSample, per_page: int, first: int) -> None:
        self._read, self._show, self._per_page, self.first = read, show, per_page, first
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
        page = self._kept.get(place) or self._read_page(place)
        self._kept.pop(place, None)
        self._kept[place] = page
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
        """The page that ends before a place: the one that was shown, or else as many samples.

        Raises:
            Exception: What the stream raises.
        """
        shown = next((page.place for page in reversed(self._kept.values()) if page.after == place), None)
        begin, width = shown or place, self._per_page
        deadline = time.monotonic() + _PATIENCE_S
        # What was not shown is looked for from farther and farther back.
        while shown is None and begin[:2] > (self.first, 0) and time.monotonic() < deadline:
            begin = place._replace(step=max(self.first, place.step - width), at=0)
            found = takewhile(lambda found: found[0] < place, self._found(begin))
            before = [at for at, sample, _ in found if sample is not None]
            if len(before) >= self._per_page:
                begin = before[-self._per_page]
                break
            width *= 2
        return self.page(begin)


_Result = TypeVar("_Result")

_ABANDONED_S: Final = 5.0
"""A page that waits asks every second."""


class StillReadingError(Exception):
    """A job is not done yet; the message says how far it is."""


class AbandonedError(Exception):
    """Nobody asks for this job any more, and another one waits."""


class _Job:
    """A read under way, and when its page asked for it last: one that was left asks no more."""

    def __init__(self) -> None:
        self.future: Future[Any] = Future()
        self.asked_at = time.monotonic()
        self.progress = ""

    @property
    def is_abandoned(self) -> bool:
        return time.monotonic() - self.asked_at > _ABANDONED_S


class BrowseJobs:
    """Runs functions that read, each in a thread of its own that waits for the one before.

    The threads do not hold the process: a read that hangs in a store ends with it.
    """

    def __init__(self) -> None:
        self._jobs: dict[Hashable, _Job] = {}
        self._asking, self._reading = threading.Lock(), threading.Lock()
        self._present = _Job()

    def result(self, key: Hashable, read: Callable[[], _Result]) -> _Result:
        """Return the result of a function; asked again with the same key, that of the job that runs since.

        Raises:
            StillReadingError: It is not done yet: ask again.
            Exception: What the function raised.
        """
        with self._asking:
            for other in [other for other, job in self._jobs.items() if job.future.done() and job.is_abandoned]:
                del self._jobs[other]
            if key not in self._jobs:
                self._jobs[key] = _Job()
                threading.Thread(target=self._run, args=(self._jobs[key], read), daemon=True).start()
            job = self._jobs[key]
            job.asked_at = time.monotonic()
        wait([job.future], _PATIENCE_S)
        job.asked_at = time.monotonic()
        if not job.future.done():
            raise StillReadingError(job.progress)
        self._jobs.pop(key, None)
        found: _Result = job.future.result()
        return found

    def note(self, done: int, total: int) -> None:
        """Say how far the present job is; called by what it reads.

        Raises:
            AbandonedError: It shall end.
        """
        job = self._present
        job.progress = f"{done:,} of {total:,}"
        if job.is_abandoned and any(not other.is_abandoned for other in list(self._jobs.values())):
            raise AbandonedError

    def _run(self, job: _Job, read: Callable[[], Any]) -> None:
        with self._reading:
            self._present = job
            try:
                job.future.set_result(read())
            except BaseException as error:  # it is raised where the result is asked for
                job.future.set_exception(error)
