"""Threads that fetch for the page cache: `task → a thread that is idle, or a new one`."""

import queue
import threading
from collections.abc import Callable


class DaemonThreads:
    """Threads that do not keep a process from its end: what one of them leaves is what a kill leaves."""

    def __init__(self, most: int) -> None:
        self._most, self._started = most, 0
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)

    def submit(self, task: Callable[[], None]) -> None:
        """Let one of them do a task, which raises nothing."""
        self._tasks.put(task)
        if not self._idle.acquire(blocking=False) and self._started < self._most:
            self._started += 1
            threading.Thread(target=self._work, name="streamdata cache", daemon=True).start()

    def _work(self) -> None:
        while True:
            self._tasks.get()()
            self._idle.release()
