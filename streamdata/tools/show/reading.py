"""Reading for pages: forth and back through a stream, so many samples at a time, in one job at a time."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, kw_only=True)
class PagePlace:
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


class FoundSample(NamedTuple):
    """A sample at its place, or None where a step has none of the source; and what comes after it."""

    place: tuple[int, int]
    sample: Sample | None
    after: tuple[int, int]


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
        self._kept: OrderedDict[PagePlace, StepsPage] = OrderedDict()
        self._open: Iterator[FoundSample] = iter(())
        self._next: PagePlace | None = None
        """The place that comes next from there; None where nothing is open."""

    def page(self, place: PagePlace) -> StepsPage:
        """The page that begins at a place.

        Raises:
            Exception: What the stream raises.
        """
        page = self._kept.get(place) or self._read_page(place)
        self._kept[place] = page
        self._kept.move_to_end(place)
        while len(self._kept) > 1 and sum(len(kept.samples) for kept in self._kept.values()) > _MAX_KEPT:
            self._kept.popitem(last=False)
        return page

    def _read_page(self, place: PagePlace) -> StepsPage:
        samples: list[ShownSample] = []
        deadline = time.monotonic() + _PATIENCE_S
        if self._next != place:
            self._open = self._found(place)
        self._next = last = after = None  # an error, or the end, leaves nothing open
        for found in self._open:
            last = found.place[0]
            if found.sample is not None:
                samples.append(self._show(found.sample, len(samples), last))
            if len(samples) == self._per_page or (place.source and time.monotonic() > deadline):
                after = replace(place, step=found.after[0], at=found.after[1])
                break
        self._next = after
        is_cut = after is not None and len(samples) < self._per_page
        return StepsPage(place=place, samples=tuple(samples), last=last, after=after, is_cut=is_cut)

    def _found(self, place: PagePlace) -> Iterator[FoundSample]:
        """The samples of a source from a place on."""
        for step, batch in self._read(place.step, place.rank):
            begin = place.at if step == place.step else 0
            own = [at for at in range(begin, len(batch)) if is_of(batch[at], place.source)]
            afters = [*((step, at) for at in own[1:]), (step + 1, 0)]
            for at, after in zip(own or [0], afters, strict=True):
                yield FoundSample((step, at), batch[at] if own else None, after)

    def page_before(self, place: PagePlace) -> StepsPage:
        """The page that ends before a place: the one that was shown, or else as many samples.

        Raises:
            Exception: What the stream raises.
        """
        shown = next((page.place for page in reversed(self._kept.values()) if page.after == place), None)
        if shown is not None:
            return self.page(shown)
        end, width, before = (place.step, place.at), self._per_page, list[tuple[int, int]]()
        deadline = time.monotonic() + _PATIENCE_S
        while end > (self.first, 0) and len(before) < self._per_page and time.monotonic() < deadline:
            begin, earlier = max(self.first, end[0] - width), list[tuple[int, int]]()
            for found in self._found(replace(place, step=begin, at=0)):
                if found.place >= end:
                    break
                earlier += [] if found.sample is None else [found.place]
            before, end, width = [*earlier, *before], (begin, 0), 2 * width
        step, at = before[-self._per_page] if len(before) >= self._per_page else end
        return self.page(replace(place, step=step, at=at))


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
            job = self._jobs.get(key)
            if job is None:
                job = self._jobs[key] = _Job()
                threading.Thread(target=self._run, args=(job, read), daemon=True).start()
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
