"""Records that take too long: `stall_s`, a lane's reading thread → a thread beside it → one warning for each record.

The lane notes what it is at in one attribute: a source that is being read, an index that a dataset was asked for, or a
record that a function was given. Nothing is wrapped, and nothing noted, where `stall_s` is not set.
"""

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from itertools import takewhile
from time import perf_counter
from types import FrameType
from typing import Any, Final

from streamdata.errors import printable, shown
from streamdata.fields import INDEX, KEY, URL
from streamdata.run.topology import Lane

logger = logging.getLogger("streamdata")

_MOST_NAMED: Final = 32
_named: set[str] = set()
"""Records that this process has named, at most so many."""


class StallWatch:
    """Names the records of a lane that take longer than `stall_s` to be read, or in a process function.

    Args:
        stall_s: Seconds.
        lane: Who reads.
    """

    def __init__(self, stall_s: float, lane: Lane) -> None:
        self._stall_s, self._lane = stall_s, lane
        self._at: tuple[float, str, Any] | None = None
        """Since when the lane is at what: a source, and a record, an index or several of it, None of what is being read
        and not known yet. None while the lane is asked for nothing."""
        self._reader = 0
        """The thread that asks for it."""
        # No Event: a fork could leave its lock locked, and the process that was forked ends its copy of the lane, too.
        self._done = threading.Lock()

    def noting(self, source: str, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function that notes a record, or an index, of a source before it is called."""

        def noted(what: Any) -> Any:
            self._at = (perf_counter(), source, what)
            return call(what)

        return noted

    def reading(self, source: str, records: Iterator[Any]) -> Iterator[Any]:
        """Pass a source's records on, each of which is being read until it comes."""
        self._at = (perf_counter(), source, None)
        for record in records:
            yield record
            self._at = (perf_counter(), source, None)

    def over(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Pass a lane's samples on; the thread begins with the first one, and ends with the iterator."""
        self._done.acquire()
        threading.Thread(target=self._watch, name="streamdata stalls", daemon=True).start()
        try:
            self._reader, self._at = threading.get_ident(), (perf_counter(), "the top", None)
            for sample in samples:
                self._at = None
                yield sample
                self._reader, self._at = threading.get_ident(), (perf_counter(), "the top", None)
        finally:
            self._at = None
            self._done.release()

    def _watch(self) -> None:
        seen = None
        while not self._done.acquire(timeout=min(max(self._stall_s / 4, 0.01), 1.0)):
            at = self._at
            if at is not None and at is not seen and perf_counter() - at[0] > self._stall_s:
                seen = at
                self._name(at)

    def _name(self, at: tuple[float, str, Any]) -> None:
        walked = traceback.walk_stack(sys._current_frames().get(self._reader))  # noqa: SLF001  what debuggers read
        stack = list(takewhile(lambda one: one[0].f_code is not StallWatch.over.__code__, walked))
        since, source, what = at
        if what is None:  # the file that it reads: the url that some object of ours has in the innermost frames
            readers = (frame for frame, _ in stack if _is_of(frame, "streamdata.io.", "streamdata.shards."))
            urls = (getattr(value, "url", None) for frame in readers for value in frame.f_locals.values())
            what = next((url for url in urls if isinstance(url, str)), None)
        name = printable(f"source {shown(source)}, {_place(what)}")
        # It may have gone on meanwhile: then the stack is of another record.
        if self._at is not at or name in _named or len(_named) >= _MOST_NAMED:
            return
        _named.add(name)
        shown_frames = (one for one in reversed(stack) if not _is_of(one[0], "streamdata.mixing.", __name__))
        text = "".join(traceback.StackSummary.extract(shown_frames).format()).rstrip()
        took = f"{perf_counter() - since:.3g} s by now (stall_s={self._stall_s:g})"
        lane = f"rank {self._lane.dp_rank}, worker {self._lane.worker}"
        logger.warning("%s: has taken %s on %s, which is at\n%s", name, took, lane, text)


def _place(what: Any) -> str:
    if isinstance(what, dict):
        return f"{what[URL]}, key {what.get(KEY)}" if URL in what else f"index {what.get(INDEX, 'not known')}"
    return "record not known yet" if what is None else what if isinstance(what, str) else f"index {shown(what)}"


def _is_of(frame: FrameType, *prefixes: str) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(prefixes)
