"""Runs of the next window, decoded in threads while the present one is delivered."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

from streamdata.shards.decoded_runs import DecodedRun, GroupRun

_THREADS = 2

Decode = Callable[[GroupRun, Callable[[], object]], DecodedRun | None]
"""Decodes a run; the second argument is called where that goes on without Python's lock."""


class DecodeAhead:
    """Threads of this process. What they decoded is held until it is taken, or other runs are asked for."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._threads: ThreadPoolExecutor | None = None
        self._coming: dict[GroupRun, Future[DecodedRun | None]] = {}

    def ask(self, kept: Sequence[GroupRun], runs: Sequence[GroupRun], decode: Decode) -> None:
        """Decode runs, and return when that has begun; let go of all that is neither of these nor kept."""
        if self._pid != os.getpid():  # in a fork there are no such threads, and what they were asked for does not come
            self._pid, self._threads, self._coming = os.getpid(), None, {}
        wanted = {*kept, *runs}
        for run in [run for run in self._coming if run not in wanted]:
            self._coming.pop(run).cancel()
        new = [run for run in runs if run not in self._coming]
        if new and self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "streamdata-decode")
        begun = [self._submit(run, decode) for run in new]
        # A thread gets Python's lock from one that computes only after 5 ms, in which a window may be delivered.
        for event in begun[:_THREADS]:
            event.wait()

    def _submit(self, run: GroupRun, decode: Decode) -> Event:
        assert self._threads is not None, "there are threads before they are asked"
        begun = Event()

        def work() -> DecodedRun | None:
            try:
                return decode(run, begun.set)
            finally:
                begun.set()

        self._coming[run] = self._threads.submit(work)
        return begun

    def take(self, run: GroupRun) -> "Future[DecodedRun | None] | None":
        """What comes of a run that was asked for; None if it was not, or was taken."""
        return self._coming.pop(run, None) if self._pid == os.getpid() else None

    def __reduce__(self) -> tuple[type["DecodeAhead"], tuple[()]]:
        return DecodeAhead, ()
