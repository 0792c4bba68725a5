"""Runs of the next window, decoded in a thread while the present one is delivered."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from streamdata.shards.decoded_runs import DecodedRun, GroupRun


class DecodeAhead:
    """One thread of this process. What it decoded is held until it is taken, or other runs are asked for."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._thread: ThreadPoolExecutor | None = None
        self._coming: dict[GroupRun, Future[DecodedRun | None]] = {}

    def ask(
        self, kept: Sequence[GroupRun], runs: Sequence[GroupRun], decode: Callable[[GroupRun], DecodedRun | None]
    ) -> None:
        """Decode runs, one after the other; let go of all that was asked for and is neither of these nor kept."""
        if self._pid != os.getpid():  # in a fork there is no such thread, and what it was asked for does not come
            self._pid, self._thread, self._coming = os.getpid(), None, {}
        wanted = {*kept, *runs}
        for run in [run for run in self._coming if run not in wanted]:
            self._coming.pop(run).cancel()
        if runs and self._thread is None:
            self._thread = ThreadPoolExecutor(1, "streamdata-decode")
        for run in runs:
            if self._thread is not None and run not in self._coming:
                self._coming[run] = self._thread.submit(decode, run)

    def take(self, run: GroupRun) -> "Future[DecodedRun | None] | None":
        """What comes of a run that was asked for; None if it was not, or was taken."""
        return self._coming.pop(run, None) if self._pid == os.getpid() else None

    def __reduce__(self) -> tuple[type["DecodeAhead"], tuple[()]]:
        return DecodeAhead, ()
