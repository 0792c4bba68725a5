"""How long a process does what: `a timer's signal, some hundred times a second → seconds by source and stage`.

The signal comes to the main thread between two of its steps, and in place of none of them: what it reads, draws and
delivers stays what it is. Each moment counts for the time since the one before, so that all stages together are the
time that passed. A thread would not do: it is let in where the main thread waits, and would see it waiting there.
"""

import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, Final, Self

from streamdata.tools.profile.stages import IDLE, SEND, Doing, doing, is_sending

INTERVAL_S: Final = 0.002
"""Between two moments, on average."""
_LEAST_S: Final = 1e-4
_WRITTEN_S: Final = 0.2
"""So often a worker writes what it has: it is ended without being asked."""

Seconds = Mapping[Doing, float]


class StageTimes:
    """Observes the main thread of a process; in Python's main thread alone, as all signal handlers.

    Args:
        path: Where a worker writes what it has so far.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.seconds: defaultdict[Doing, float] = defaultdict(float)
        self._path, self._last, self._random = path, 0.0, Random(0)
        self._written = 0.0

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGALRM, self._note)
        self._last = self._written = time.perf_counter()
        self._set_timer()
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

    def _set_timer(self) -> None:
        # Without memory, as radioactive decay: however the process has come to be where it was seen last, each later
        # moment is as likely. Even intervals come in step with functions by turns, and with a scheduler that puts the
        # process aside. Of a generator of its own: a run's are not to be drawn from.
        signal.setitimer(signal.ITIMER_REAL, max(_LEAST_S, self._random.expovariate(1 / INTERVAL_S)))

    def _note(self, signal_number: int, frame: FrameType | None) -> None:
        del signal_number
        now = time.perf_counter()
        passed = now - self._last
        main = doing(frame)
        others = (other for other in sys._current_frames().values() if other is not frame)  # noqa: SLF001
        # A worker's queue has a thread that pickles batches, and writes them to the trainer's pipe.
        if any(map(is_sending, others)):
            # Both want the one lock of the interpreter: each is taken to have had half of the time.
            share = 1.0 if main.stage == IDLE else 0.5
            self.seconds[Doing("", SEND)] += passed * share
            passed -= passed * share
        if passed:
            self.seconds[main] += passed
        if self._path is not None and now > self._written + _WRITTEN_S:
            self._written = now
            self._write(self._path)
        # What this itself takes passes where the process is: it may even be put aside meanwhile.
        self._last = time.perf_counter()
        self.seconds[main] += self._last - now
        self._set_timer()

    def _write(self, path: Path) -> None:
        rows = [[*each, seconds] for each, seconds in self.seconds.items()]
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(rows))
        temporary.replace(path)


class InWorker:
    """A DataLoader's `worker_init_fn` that observes worker 0.

    Args:
        path: Where it writes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, worker: int) -> None:
        """Observe this process until it ends, if it is the first."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's
        if worker == 0:
            StageTimes(self._path).__enter__()


def read_times(path: Path) -> Seconds:
    """What a worker has written; nothing where it came to none."""
    if not path.exists():
        return {}
    rows: list[list[Any]] = json.loads(path.read_text())
    return {Doing(source, stage, function): seconds for source, stage, function, seconds in rows}
