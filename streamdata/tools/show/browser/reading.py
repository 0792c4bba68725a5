"""Reading for pages: forth and back through a stream, a page of steps at a time, in one job at a time."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from streamdata.fields import DATASET_NAME
from streamdata.tools.show.views.model import SampleView

Sample = Mapping[str, Any]
ReadSteps = Callable[[int, int], Iterator[tuple[int, Sequence[Sample]]]]
"""A step and a rank → from there on, each step with its batch."""
ViewOf = Callable[[Sample, int, int], SampleView]
"""A sample, its number on the page, and its step → its view."""

_MAX_KEPT: Final = 500
"""Samples that are kept, of all pages: an image takes up to 300 KB."""
_PATIENCE_S: Final = 2.0
"""How long a request waits for its job, and a page looks for samples of one source before it shows what it has."""


@dataclass(frozen=True, kw_only=True)
class PagePlace:
    """A place in the stream: a step, a rank and, unless it is empty, a source or all that is below it."""

    step: int
    rank: int = 0
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class StepsPage:
    """A page.

    Attributes:
        place: Where it begins.
        views: Of its samples.
        last: The step that was read last, be it that nothing of it is shown; None where there is none.
        after: The step after its last one; None where the stream has ended.
        is_cut: Whether time was up before the page was full.
    """

    place: PagePlace
    views: tuple[SampleView, ...]
    last: int | None
    after: int | None
    is_cut: bool = False


class BrowseSteps:
    """Reads pages, in one thread at a time.

    Args:
        read: Reads the stream from a step on, of one rank.
        view_of: Makes the view of a sample.
        per_page: Samples on a page at least, unless the stream ends; a step is never divided.
        first: The number of the first step.
    """

    def __init__(self, read: ReadSteps, view_of: ViewOf, per_page: int, first: int = 0) -> None:
        self._read, self._view_of, self._per_page, self._first = read, view_of, per_page, first
        self._kept: OrderedDict[PagePlace, StepsPage] = OrderedDict()
        self._begins: dict[PagePlace, PagePlace] = {}
        """Where the page began that ended before a place."""
        self._open: Iterator[tuple[int, Sequence[Sample]]] = iter(())
        self._next: tuple[int, int] | None = None
        """The step that comes next from there, and the rank; None where nothing is open."""

    def kept(self, place: PagePlace) -> StepsPage | None:
        """The page that begins at a place, if it was read and is still there; asked in any thread."""
        return self._kept.get(place)

    def page(self, place: PagePlace) -> StepsPage:
        """The page that begins at a place.

        Raises:
            Exception: What the stream raises.
        """
        page = self._kept.get(place) or self._read_page(place)
        self._keep(page)
        return page

    def page_before(self, place: PagePlace) -> StepsPage:
        """The page that ends before a place: the one that was shown, or else as many samples.

        Raises:
            Exception: What the stream raises.
        """
        return self.page(self._begins.get(place) or self._look_back(place))

    def _read_page(self, place: PagePlace) -> StepsPage:
        views: list[SampleView] = []
        deadline = time.monotonic() + _PATIENCE_S
        if self._next != (place.step, place.rank):
            self._open = self._read(place.step, place.rank)
        self._next = last = None  # an error, or the end, leaves nothing open
        for step, batch in self._open:
            samples = enumerate(_of_source(batch, place.source), len(views))
            views += [self._view_of(sample, number, step) for number, sample in samples]
            last = step
            is_full = len(views) >= self._per_page
            if is_full or time.monotonic() > deadline:
                self._next = step + 1, place.rank
                return StepsPage(place=place, views=tuple(views), last=last, after=step + 1, is_cut=not is_full)
        return StepsPage(place=place, views=tuple(views), last=last, after=None)

    def _look_back(self, place: PagePlace) -> PagePlace:
        """Where as many samples begin as fill a page."""
        begin, num_steps, found = place.step, self._per_page, [place.step]
        deadline = time.monotonic() + _PATIENCE_S
        while begin > self._first and len(found) <= self._per_page and time.monotonic() < deadline:
            end, begin = begin, max(self._first, begin - num_steps)
            found = [*self._steps_of_samples(begin, end, place), *found]
            num_steps *= 2
        first = found[-1 - self._per_page] if len(found) > self._per_page else begin
        return PagePlace(step=first, rank=place.rank, source=place.source)

    def _steps_of_samples(self, begin: int, end: int, place: PagePlace) -> Iterator[int]:
        """The step of each sample of the source, from one step to before another."""
        for step, batch in self._read(begin, place.rank):
            if step >= end:
                return
            yield from (step for _ in _of_source(batch, place.source))

    def _keep(self, page: StepsPage) -> None:
        self._kept[page.place] = page
        self._kept.move_to_end(page.place)
        if page.after is not None:
            after = PagePlace(step=page.after, rank=page.place.rank, source=page.place.source)
            self._begins[after] = page.place
        while len(self._kept) > 1 and sum(len(kept.views) for kept in self._kept.values()) > _MAX_KEPT:
            self._kept.popitem(last=False)


def _of_source(batch: Sequence[Sample], source: str) -> Iterator[Sample]:
    """The samples of a source, or of all that is below it."""
    for sample in batch:
        path = str(sample.get(DATASET_NAME, ""))
        if not source or path == source or path.startswith(f"{source}."):
            yield sample


_Result = TypeVar("_Result")

_ABANDONED_S: Final = 5.0
"""A page that waits asks every second."""


class StillReadingError(Exception):
    """A job is not done yet; the message says how far it is."""


class AbandonedError(Exception):
    """Nobody asks for this job any more, and another one waits."""


class BrowseJob:
    """A function that reads, and who asks for it."""

    def __init__(self, read: Callable[[], Any]) -> None:
        self.read = read
        self.future: Future[Any] = Future()
        self.asked_at = time.monotonic()
        self.progress = ""

    @property
    def is_abandoned(self) -> bool:
        """Whether its page was left: that would ask again and again."""
        return time.monotonic() - self.asked_at > _ABANDONED_S


class BrowseJobs:
    """Runs functions that read, each in a thread of its own that waits for the one before.

    The threads do not hold the process: a read that hangs in a store ends with it.
    """

    def __init__(self) -> None:
        self._jobs: dict[Hashable, BrowseJob] = {}
        self._asking = threading.Lock()
        self._reading = threading.Lock()
        self._present: BrowseJob | None = None

    def result(self, key: Hashable, read: Callable[[], _Result]) -> _Result:
        """Return the result of a function; asked again with the same key, that of the job that runs since.

        Raises:
            StillReadingError: It is not done yet: ask again.
            Exception: What the function raised.
        """
        job = self._job(key, read)
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
        if job is not None:
            job.progress = f"{done:,} of {total:,}"
            if job.is_abandoned and any(not other.is_abandoned for other in list(self._jobs.values())):
                raise AbandonedError

    def _job(self, key: Hashable, read: Callable[[], Any]) -> BrowseJob:
        with self._asking:
            for other in [other for other, job in self._jobs.items() if job.future.done() and job.is_abandoned]:
                del self._jobs[other]
            job = self._jobs.get(key)
            if job is None:
                self._jobs[key] = job = BrowseJob(read)
                threading.Thread(target=self._run, args=(job,), daemon=True).start()
            job.asked_at = time.monotonic()
            return job

    def _run(self, job: BrowseJob) -> None:
        with self._reading:
            self._present = job
            try:
                job.future.set_result(job.read())
            except BaseException as error:  # it is raised where the result is asked for
                job.future.set_exception(error)
