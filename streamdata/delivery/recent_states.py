"""The states after each of the last batches that a trainer received."""

from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from streamdata.errors import StateError, shown
from streamdata.states.table import LoadedStates, StatesTable
from streamdata.states.to_state import States

NUM_KEPT: Final = 256
"""Batches whose states are kept. A trainer asks for one that it has trained on, some batches behind what it pulled."""


class RecentStates:
    """What was resumed from, and what each batch since said.

    Args:
        loaded: What was resumed from.
        num_batches: How many batches were received before these, of which nothing is kept.
    """

    def __init__(self, loaded: StatesTable, num_batches: int = 0) -> None:
        self._loaded = loaded
        self._forgotten: States = {}
        self._kept: deque[Mapping[str, Any]] = deque()
        self.num_batches = num_batches
        """Received since the resume."""

    def add(self, states: Mapping[str, Any]) -> None:
        """Note what `to_state` gave of the next batch."""
        self._kept.append(states)
        self.num_batches += 1
        if len(self._kept) > NUM_KEPT:
            self._forgotten.update(self._kept.popleft())

    def forget_last(self, count: int) -> None:
        """Let the last batches not have been received."""
        for _ in range(count):
            self._kept.pop()
        self.num_batches -= count

    def amend(self, states: Mapping[str, Any]) -> None:
        """Note what `to_state` gave of what came after the last batch, and is none."""
        if self._kept:
            self._kept[-1] = {**self._kept[-1], **states}
        else:
            self._forgotten.update(states)

    def after(self, num_batches: int) -> LoadedStates:
        """The states after so many batches since the resume; after 0 what was resumed from.

        Raises:
            StateError: More than were received, or fewer than are kept.
        """
        first = self.num_batches - len(self._kept)
        if type(num_batches) is not int or not first <= num_batches <= self.num_batches:
            raise StateError(
                f"state_after: expected a number of batches from {first} to {self.num_batches}, got "
                f"{shown(num_batches)}\n"
                "  Count the batches, not the optimizer's steps, that were received since the states were loaded; the "
                f"states after the last {NUM_KEPT} are kept."
            )
        states = LoadedStates(self._loaded)
        for part in (self._forgotten, *islice(self._kept, num_batches - first)):
            states.update(part)
        return states
