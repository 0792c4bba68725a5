"""Reading for pages, one job at a time: whoever asks is answered soon, with what was read or with how far it is."""

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from typing import Any, Final, TypeVar

_Result = TypeVar("_Result")

_PATIENCE_S: Final = 2.0
"""How long a request waits for its job."""


class StillReadingError(Exception):
    """A job is not done yet; the message says how far it is."""


class BrowseJobs:
    """Runs functions that read, each in a thread of its own that waits for the one before.

    The threads do not hold the process: a read that hangs in a store ends with it.
    """

    def __init__(self) -> None:
        self._jobs: dict[Hashable, Future[Any]] = {}
        self._asking = threading.Lock()
        self._reading = threading.Lock()
        self._progress = ""

    def result(self, key: Hashable, read: Callable[[], _Result]) -> _Result:
        """What a function returns; asked again with the same key, of the job that runs since.

        Raises:
            StillReadingError: It is not done yet: ask again.
            Exception: What the function raised.
        """
        with self._asking:
            job = self._jobs.get(key)
            if job is None:
                self._jobs[key] = job = Future()
                threading.Thread(target=self._run, args=(job, read), daemon=True).start()
        wait([job], _PATIENCE_S)
        if not job.done():
            raise StillReadingError(self._progress)
        self._jobs.pop(key, None)
        found: _Result = job.result()
        return found

    def note(self, done: int, total: int) -> None:
        """Say how far the present job is."""
        self._progress = f"{done:,} of {total:,}"

    def _run(self, job: "Future[Any]", read: Callable[[], Any]) -> None:
        with self._reading:
            self._progress = ""
            try:
                job.set_result(read())
            except BaseException as error:  # it is raised where the result is asked for
                job.set_exception(error)
