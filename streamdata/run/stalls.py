"""Records that take too long: `stall_s`, a lane's reading thread → a thread beside it → one warning for each record.

The lane notes only since when it is at a record. Which one that is, and of which source, is asked once it takes too
long, of the variables in the frames of the reading thread: so nothing of it is written down for the others.
"""

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
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
        self._since: float | None = None
        """When the present record began; None while the lane is asked for nothing."""
        self._reader = 0
        """The thread that asks for it."""
        # No Event: a fork could leave its lock locked, and the process that was forked ends its copy of the lane, too.
        self._done = threading.Lock()

    def noting(self, note: Callable[[Any], None] | None) -> Callable[[Any], None]:
        """Returns a function to be called with each record that a process function is given, which calls `note`."""

        def noted(record: Any) -> None:
            self._since = perf_counter()
            if note is not None:
                note(record)

        return noted

    def over(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Pass a lane's samples on; the thread begins with the first one, and ends with the iterator."""
        self._done.acquire()
        threading.Thread(target=self._watch, name="streamdata stalls", daemon=True).start()
        try:
            self._reader, self._since = threading.get_ident(), perf_counter()
            for sample in samples:
                self._since = None
                yield sample
                self._reader, self._since = threading.get_ident(), perf_counter()
        finally:
            self._since = None
            self._done.release()

    def _watch(self) -> None:
        seen = None
        while not self._done.acquire(timeout=min(max(self._stall_s / 4, 0.01), 1.0)):
            since = self._since
            if since is not None and since != seen and perf_counter() - since > self._stall_s:
                seen = since
                self._name(since)

    def _name(self, since: float) -> None:
        walked = traceback.walk_stack(sys._current_frames().get(self._reader))  # noqa: SLF001  what debuggers read
        stack = list(takewhile(lambda one: one[0].f_code is not StallWatch.over.__code__, walked))
        name = printable(_described([frame for frame, _ in stack]))
        # It may have gone on meanwhile: then the stack is of another record.
        if self._since != since or name in _named or len(_named) >= _MOST_NAMED:
            return
        _named.add(name)
        shown_frames = (one for one in reversed(stack) if not _is_of(one[0], "streamdata.mixing."))
        text = "".join(traceback.StackSummary.extract(shown_frames).format()).rstrip()
        took = f"{perf_counter() - since:.3g} s by now (stall_s={self._stall_s:g})"
        lane = f"rank {self._lane.dp_rank}, worker {self._lane.worker}"
        logger.warning("%s: has taken %s on %s, which is at\n%s", name, took, lane, text)


def _described(stack: Sequence[FrameType]) -> str:
    """The source and record that a thread is at, by the variables of ours in its frames, the innermost first."""
    sources: list[str] = []
    records: list[Any] = []
    for frame in stack:
        match dict(frame.f_locals) if _is_of(frame, "streamdata.") else {}:
            case {"self": object(_children=children), "i": int(i)}:
                sources.append(children[i].path)
            case {"feed": object(last=dict(found), tally=tally)}:
                sources.append(tally.name)
                records.append(found)
            case (
                {"url": str(found)} | {"request": object(url=str(found))} | {"file": object(url=str(found))}
                | {"indices": found} | {"index": int(found)} | {"record": dict(found)}
                | {"common": dict(found)} | {"task": object(fields=dict(found))}
            ):  # fmt: skip
                records.append(found)
    found = records[0] if records else {}
    if isinstance(found, dict):
        found = f"{found[URL]}, key {found.get(KEY)}" if URL in found else f"index {found.get(INDEX, 'not known yet')}"
    place = found if isinstance(found, str) else f"index {shown(found)}"
    return f"source {shown(sources[0] if sources else 'the top')}, {place}"


def _is_of(frame: FrameType, prefix: str) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(prefix)
