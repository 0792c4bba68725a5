"""Reading for pages, one job at a time: whoever asks is answered soon, with what was read or with how far it is."""

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from typing import Any, Final, TypeVar

_Result = TypeVar("_Result")

_PATIENCE_S: Final = 2.0
"""How long a request waits for its job."""
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
        """What a function returns; asked again with the same key, of the job that runs since.

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
