"""The time line of a run: where its states lie, and where the page is."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from streamdata.tools.show.browser.steps import PagePlace, StepsPage

_LEFT: Final = 10
_WIDTH: Final = 980
"""In units of the drawing, which is 1,000 wide."""
_LEAST: Final = 4
_EDGE: Final = 0.08


class StepMark(NamedTuple):
    """A step that has a name, such as that of saved states, from which a run resumed or would."""

    step: int
    name: str


class MarkDrawn(NamedTuple):
    """A mark on the line, a link."""

    x: float
    anchor: str
    name: str
    about: str
    href: str


class LineDrawn(NamedTuple):
    """What the template draws."""

    about: str
    here: float
    width: float
    marks: Sequence[MarkDrawn]


class TimeLine:
    """From the run's first step to the furthest that is known.

    Args:
        num_steps: How far it goes.
        marks: What is marked.
    """

    def __init__(self, num_steps: int, marks: Sequence[StepMark]) -> None:
        self._end = max([num_steps, 1, *(mark.step for mark in marks)])
        self._marks = marks

    def drawn(self, page: StepsPage, unit: str, href: Callable[[PagePlace], str]) -> LineDrawn:
        """The line with a page on it."""
        first = page.place.step
        end = first if page.last is None else page.last + 1
        here, unit, rank = self._x(first), unit.lower(), page.place.rank
        return LineDrawn(
            about=f"{unit} {first:,} of {self._end:,}",
            here=here,
            width=max(_LEAST, self._x(end) - here),
            marks=[self._mark(mark, unit, href(PagePlace(step=mark.step, rank=rank))) for mark in self._marks],
        )

    def _mark(self, mark: StepMark, unit: str, href: str) -> MarkDrawn:
        part = mark.step / self._end
        anchor = "start" if part < _EDGE else "end" if part > 1 - _EDGE else "middle"
        at = f"{unit} {mark.step:,}"
        about = mark.name if mark.name == at else f"{mark.name}, {at}"
        return MarkDrawn(self._x(mark.step), anchor, mark.name, about, href)

    def _x(self, step: int) -> float:
        return round(_LEFT + _WIDTH * min(1, step / self._end), 2)
