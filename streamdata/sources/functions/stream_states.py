"""What an iterable said of where it was, after each record from which a resume may go on."""

from collections import deque
from collections.abc import Iterator
from typing import Any

from streamdata.states.cursor import Cursor, PlainCursor, Position

_FIELDS = Cursor()
_Taken = tuple[int, int, int]
"""A position without its part: the outputs of a record have one state, that before it."""


class StreamStates:
    """The states of one source's iterable in one lane, since the start of its open burst.

    Args:
        epoch_pass: The pass.
        start: Where the lane begins to read.
        state: Of the iterable there, None where it said nothing.
    """

    def __init__(self, epoch_pass: int, start: Position, state: list[Any] | None) -> None:
        self.epoch_pass = epoch_pass
        self._held: deque[tuple[_Taken, list[Any] | None]] = deque([(start[:3], state)])

    def beginning(self, taken: _Taken) -> list[Any] | None:
        """The state with which the lane begins to read there, if that is where it began."""
        at, state = self._held[0]
        return state if at == taken else None

    def note(self, taken: _Taken, state: list[Any] | None) -> None:
        """Keep what the iterable says after a record."""
        if state is not None:
            self._held.append((taken, state))

    def join(self, pairs: Iterator[tuple[dict[str, Any], PlainCursor]]) -> Iterator[tuple[dict[str, Any], PlainCursor]]:
        """Each sample with its cursor, to which the state there is added."""
        for sample, cursor in pairs:
            state = self._at(cursor[:3])
            yield sample, cursor if state is None else _with_stream(cursor, state)

    def _at(self, taken: _Taken) -> list[Any] | None:
        held = self._held
        # Cursors only go on, so what lies before one is never asked for again.
        while len(held) > 1 and held[0][0] < taken:
            held.popleft()
        at, state = held[0]
        return state if at == taken else None


def _with_stream(cursor: PlainCursor, state: list[Any]) -> PlainCursor:
    return (*cursor, *_FIELDS[len(cursor) : -1], state)
