"""Runs of the next windows, decoded in a thread while the present one is delivered."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from threading import Event

from streamdata.run.per_process import open_files
from streamdata.shards.parquet.decoded_runs import DecodedRun, GroupRun

Decode = Callable[[Sequence[GroupRun], Callable[[], object]], Mapping[GroupRun, DecodedRun]]
"""Decodes runs together; the second argument is called where that goes on without Python's lock."""


class DecodeAhead:
    """A thread of this process. What it decoded is held until it is taken, or other runs are asked for.

    One keeps up with what is made of the rows, and of two on two cores the reader would wait for its turn.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._thread: ThreadPoolExecutor | None = None
        self._coming: dict[GroupRun, Future[Mapping[GroupRun, DecodedRun]]] = {}

    def ask(self, kept: Sequence[GroupRun], tasks: Sequence[Sequence[GroupRun]], decode: Decode) -> None:
        """Decode runs, and return when the thread is at it; let go of all that is neither of these nor kept."""
        if self._pid != os.getpid():  # in a fork there is no such thread, and what it was asked for does not come
            self._pid, self._thread, self._coming = os.getpid(), None, {}
        wanted = {*kept, *chain.from_iterable(tasks)}
        dropped = [self._coming.pop(run) for run in list(self._coming) if run not in wanted]
        for task in {*dropped}.difference(self._coming.values()):
            task.cancel()
        new = [left for runs in tasks if (left := [run for run in runs if run not in self._coming])]
        if new and self._thread is None:
            self._thread = ThreadPoolExecutor(1, "streamdata-decode", _keep_few_files)
        is_busy = any(not coming.done() for coming in self._coming.values())
        begun = [self._submit(runs, decode) for runs in new]
        # A thread gets Python's lock from one that computes only after 5 ms, in which a window may be delivered.
        if begun and not is_busy:
            begun[0].wait()

    def _submit(self, runs: Sequence[GroupRun], decode: Decode) -> Event:
        assert self._thread is not None, "there is a thread before it is asked"
        begun = Event()

        def work() -> Mapping[GroupRun, DecodedRun]:
            try:
                return decode(runs, begun.set)
            finally:
                begun.set()

        coming = self._thread.submit(work)
        self._coming.update(dict.fromkeys(runs, coming))
        return begun

    def take(self, run: GroupRun) -> DecodedRun | None:
        """What comes of a run that was asked for; None if it was not, was taken, or has to be decoded by itself."""
        coming = self._coming.pop(run, None) if self._pid == os.getpid() else None
        return None if coming is None else coming.result().get(run)

    def __reduce__(self) -> tuple[type["DecodeAhead"], tuple[()]]:
        return DecodeAhead, ()


def _keep_few_files() -> None:
    open_files.is_helping = True
