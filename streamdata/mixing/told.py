"""When a yield function drew what it pulled: schedules below it are told these times again on a resume.

All that it pulls for one burst is drawn at one time, that of the draw above it. But it may hold records of bursts
before, which a resume gives it again as well: they were drawn earlier. Two times are kept and not more, so that the
state stays small: as long as it holds a record of the earlier one, its time stands still.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from streamdata.mixing.present import Present


class Moment(NamedTuple):
    """At what time and pace something is drawn; see `Present`."""

    time: float
    unit: float


class Told:
    """The moments of one yield function in one lane, of the open burst.

    Args:
        present: What is told to mixtures below.
        recorded: As states have it, of a burst that is drawn again; empty where a burst begins.
        segment_at: The segment of the mixture's own schedules at a time.
        segment: The one that its clocks were computed for when the open burst began.
    """

    def __init__(
        self, present: Present, recorded: tuple[float, ...], segment_at: Callable[[float], int], segment: int
    ) -> None:
        self._present, self._segment_at = present, segment_at
        self.segment = segment
        now, before = recorded[:2], recorded[2:]
        self._now = self._before = Moment(*now) if now else Moment(0.0, 1.0)
        self._num_before = 0
        """How many records of the burst, the first ones, were drawn before now."""
        if before:
            self._num_before, self._before = int(before[0]), Moment(*before[1:])
        self._pulled = 0 if recorded else -1
        """Records of the burst so far; -1 before the first burst."""

    @property
    def recorded(self) -> tuple[float, ...]:
        """For the cursor: now, and where there are records from before, how many, and their moment."""
        return (*self._now, self._num_before, *self._before) if self._num_before else self._now

    def begin(self, num_held: int, unit: float) -> None:
        """Begin a burst with as many records that were pulled before; `unit` is that of the present draw."""
        last = self._pulled - num_held - 1  # the record before the burst
        if last >= 0:
            self.segment = self._segment_at(self._of(last).time)
        left = self._num_before - max(0, self._pulled - num_held)
        if left > 0:
            self._num_before = left
        else:
            self._before, self._num_before = self._now, num_held
            # Rounded, as it is then told: a cursor must stay small.
            self._now = Moment(float(f"{self._present.time:.12g}"), float(f"{unit:.6g}"))
        self._pulled = num_held

    def is_new(self, num_pulled: int) -> bool:
        """Whether nothing was pulled yet, or a function that failed begins anew with so many records."""
        return num_pulled < self._pulled or self._pulled < 0

    @contextmanager
    def draw(self) -> Iterator[None]:
        """While it lasts, draw the next record of the burst: what is below is told its moment."""
        present, moment = self._present, self._of(self._pulled)
        others = present.time, present.unit, present.weigh
        # What the top weighs is what the function makes of the record.
        present.time, present.unit, present.weigh = *moment, None
        try:
            yield
        finally:
            present.time, present.unit, present.weigh = others
        self._pulled += 1

    def _of(self, record: int) -> Moment:
        return self._before if record < self._num_before else self._now
