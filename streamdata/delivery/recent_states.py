"""The states after each of the last batches that a loader received."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from streamdata.delivery.even_ranks import NUM_KEPT
from streamdata.errors import StateError, shown
from streamdata.states.cursor import States
from streamdata.states.table import LoadedStates, StatesTable, table_of


class RecentStates:
    """The states that a loader resumed from, and those after each of its recent batches.

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
        """Keep the states of the next batch."""
        self._kept.append(states)
        self.num_batches += 1
        if len(self._kept) > NUM_KEPT:
            self._forgotten.update(self._kept[0])  # before it goes: another thread may look on
            self._kept.popleft()

    def entries(self, num_batches: int) -> Mapping[str, Any]:
        """The states that one batch brought, with those that came after it; of batch 0, those that came before any.

        Args:
            num_batches: Its number, one of the last two.
        """
        first = self.num_batches - len(self._kept)
        return self._kept[num_batches - first - 1] if num_batches > first else self._forgotten

    def forget_last(self, count: int) -> None:
        """Drop the states of the last `count` batches, as if they had not been received."""
        for _ in range(count):
            self._kept.pop()
        self.num_batches -= count

    def amend(self, states: Mapping[str, Any]) -> None:
        """Add states that came after the last batch without a batch, as where a pass ends."""
        if self._kept:
            self._kept[-1] = {**self._kept[-1], **states}
        else:
            self._forgotten.update(states)

    def forget_old(self) -> None:
        """Leave out what weights set since have made needless, so that any number of them takes little room."""
        self._loaded = table_of(LoadedStates(self._loaded, self._forgotten)).present()
        self._forgotten = {}

    def after(self, num_batches: int) -> LoadedStates:
        """The states after `num_batches` batches since the resume; 0 gives those that were resumed from.

        Raises:
            StateError: Fewer batches were received, or the states so far back are no longer kept.
        """
        kept = tuple(self._kept)  # at once: another thread may look on while batches come
        first = self.num_batches - len(kept)
        if type(num_batches) is not int or not first <= num_batches <= self.num_batches:
            raise StateError(
                f"state_after: expected a number of batches from {first} to {self.num_batches}, got "
                f"{shown(num_batches)}\n"
                "  Count the batches, not the optimizer's steps, that were received since the states were loaded; the "
                f"states after the last {NUM_KEPT} are kept."
            )
        states = LoadedStates(self._loaded)
        for part in (self._forgotten, *kept[: num_batches - first]):
            states.update(part)
        return states
