"""How long a process does what: `wrapped calls of sources, functions and collate → seconds by source and stage`.

While a lane is read in this process, the calls with which a stage begins are wrapped: each stops the clock of the stage
before it, and lets it go on at its end. So all stages together are the time that passed, and what is read, drawn and
delivered stays what it is.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final, NamedTuple, Self

from streamdata.mixing import leaf, mixture
from streamdata.run.lane_link import network_counts
from streamdata.sources.functions import process_functions
from streamdata.sources.functions.process_functions import Feed
from streamdata.sources.order.dealt_lane import DealtLane

READ: Final = "read"
"""Records are read and decoded."""
WAIT: Final = "wait"
"""A store is waited for."""
PROCESS: Final = "process"
PACK: Final = "pack"
"""Samples are made a batch."""
MIXING: Final = "mixing"
"""Clocks, orders, states: what is left."""
STAGES: Final = (READ, WAIT, PROCESS, PACK, MIXING)


class Doing(NamedTuple):
    """The activity of a process at a moment."""

    source: str
    """The path of the source that it is for; empty where it is for none."""
    stage: str
    function: str = ""
    """The attribute of the source with the function of `process`; empty of other stages."""


class StageTimes(ExitStack):
    """Times the stages of a stream that is begun and read in this process, while the context is open."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: defaultdict[Doing, float] = defaultdict(float)
        self._doing, self._since = Doing("", MIXING), 0.0

    def __enter__(self) -> Self:
        segments, pull = DealtLane.segments, Feed.__next__

        def call_per_record(function: Any, records: Any, skip: int, tally: Any, start_of: Any) -> Any:
            timed = self.timed(function, Doing(tally.name, PROCESS, "single_process_fn"))
            return process_functions.call_per_record(timed, records, skip, tally, start_of)

        def run_bursts(function: Any, feed: Any, state: Any) -> Any:
            outputs = process_functions.run_bursts(function, feed, state)
            return self._each(outputs, Doing(feed.tally.name, PROCESS, feed.what))

        def read_segments(lane: DealtLane, task: Any, position: Any) -> Any:
            reading = Doing(task.name, READ)
            return ((given, self._each(records, reading)) for given, records in segments(lane, task, position))

        self._replace(leaf, "call_per_record", call_per_record)
        self._replace(leaf, "run_bursts", run_bursts)
        self._replace(mixture, "run_bursts", run_bursts)
        self._replace(DealtLane, "segments", read_segments)
        self._replace(Feed, "__next__", lambda feed: self.timed(pull, Doing(feed.tally.name, MIXING))(feed))
        self.callback(self._begin, self._doing)
        self._since = time.perf_counter()
        return self

    def timed(self, function: Callable[..., Any], doing: Doing) -> Callable[..., Any]:
        """Wrap a function, all of whose time is of an activity, but for what is timed within it."""

        def call(*args: Any) -> Any:
            before = self._begin(doing)
            try:
                return function(*args)
            finally:
                self._begin(before)

        return call

    def _replace(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        self.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, wrapper)

    def _begin(self, doing: Doing) -> Doing:
        """Begin an activity, and return the one that it interrupts."""
        now, before = time.perf_counter(), self._doing
        self.seconds[before] += now - self._since
        self._since, self._doing = now, doing
        return before

    def _each(self, items: Iterator[Any], doing: Doing) -> Iterator[Any]:
        pull, counts, waiting = self.timed(iter(items).__next__, doing), network_counts(), doing._replace(stage=WAIT)
        while True:
            waited = counts.waited
            try:
                item = pull()
            except StopIteration:
                return
            if doing.stage == READ and counts.waited != waited:
                self.seconds[waiting] += counts.waited - waited
                self.seconds[doing] -= counts.waited - waited
            yield item
