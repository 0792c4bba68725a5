"""The pages of a browser: `path and query → what is read → templates → HTML`; errors of the data are pages, too."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from http import HTTPStatus
from importlib.resources import files
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from streamdata.errors import shown, text_of
from streamdata.tools.show.browser.reading import BrowseJobs, BrowseSteps, PagePlace, StepsPage, StillReadingError
from streamdata.tools.show.browser.server import PageAnswer
from streamdata.tools.show.page import make_environment

_FILES: Final = {"samples.css": "text/css", "browser.css": "text/css", "browser.js": "text/javascript"}
_MAX_STEP: Final = 2**53
_MAX_DIGITS: Final = 16
"""Digits of the largest step."""
_MAX_FOUND: Final = 200
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
    """The time line as the template draws it."""

    about: str
    here: float
    width: float
    marks: Sequence[MarkDrawn]


@dataclass(frozen=True, kw_only=True)
class Browsed:
    """A stream or a store that is looked at.

    Attributes:
        name: Of the recipe or store.
        steps: Its pages.
        jobs: Where they are read.
        begin: The place that is shown first.
        sources: The paths of its sources; none of a store.
        ranks: How many there are.
        unit: What a step is called: Step, or Record of a store.
        marks: Steps with a name, such as those of saved states.
        first: The number of the first step.
        num_steps: Up to where the run has come; of a store its records.
        find: From what was typed in, the steps at which a record comes; None where nothing can be looked for.
        mixture: Makes the fields of the mixture's page; None where there is no mixture.
    """

    name: str
    steps: BrowseSteps
    jobs: BrowseJobs
    begin: PagePlace
    sources: Sequence[str] = ()
    ranks: int = 1
    unit: str = "Step"
    marks: Sequence[StepMark] = ()
    first: int = 0
    num_steps: int = 0
    find: Callable[[str], Sequence[int]] | None = None
    mixture: Callable[[], object] | None = None


class BrowsePages:
    """Answers what a browser asks for.

    Args:
        browsed: What is looked at.
    """

    def __init__(self, browsed: Browsed) -> None:
        self._browsed = browsed
        self._environment = make_environment()
        self._furthest = browsed.num_steps
        self._mixture = cache(browsed.mixture) if browsed.mixture else None
        self._paths = {"": self._samples, "mixture": self._show_mixture, "find": self._find}

    def __call__(self, path: str, query: Mapping[str, str]) -> PageAnswer | None:
        """The answer to a request; None where there is no such page."""
        if path in _FILES:
            return PageAnswer(_static(path), f"{_FILES[path]}; charset=utf-8")
        page = self._paths.get(path)
        if page is None:
            return None
        try:
            return page(query)
        except StillReadingError as error:
            return self._rendered("reading", "Reading …", progress=str(error), again=_again(path, query))
        except Exception as error:  # of the data, a process function or a store: the other pages can still be read
            lines = [f"{type(error).__name__}: {text_of(error)}", *getattr(error, "__notes__", ())]
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            fields = {"message": "\n".join(lines), "again": _again(path, query)}
            return self._rendered("problem", "This cannot be read", status, **fields)

    def _samples(self, query: Mapping[str, str]) -> PageAnswer:
        place = self._place(query)
        steps = self._browsed.steps
        is_before = "before" in query
        read = steps.page_before if is_before else steps.page
        page = None if is_before else steps.kept(place)
        page = page or self._browsed.jobs.result((place, is_before), partial(read, place))
        self._furthest = max(self._furthest, page.place.step, (page.last or 0) + 1)
        return self._rendered(
            "samples",
            self._heading(page),
            shown=page,
            back=self._href(page.place, before=True) if page.place.step > self._browsed.first else None,
            forth=None if page.after is None else self._href(replace(page.place, step=page.after)),
            ranks=self._browsed.ranks,
            notice=self._notice(page),
            line=_line(self._furthest, self._browsed.marks, page, self._browsed.unit, self._href),
        )

    def _place(self, query: Mapping[str, str]) -> PagePlace:
        """The place that a query asks for.

        Raises:
            ValueError: There is nothing like that.
        """
        begin = self._browsed.begin
        if not query:
            return begin
        first = self._browsed.first
        step = _whole(query.get("before", query.get("step", str(first))), self._browsed.unit.lower(), _MAX_STEP, first)
        rank = _whole(query.get("rank", str(begin.rank)), "rank", self._browsed.ranks)
        source = query.get("source", "")
        if source and not any(f"{path}.".startswith(f"{source}.") for path in self._browsed.sources):
            raise ValueError(f"source: expected one of {', '.join(self._browsed.sources)}, got {shown(source)}")
        return PagePlace(step=step, rank=rank, source=source)

    def _heading(self, page: StepsPage) -> str:
        first, last, unit = page.place.step, page.last or 0, self._browsed.unit
        steps = f"{unit}s {first:,} to {last:,}" if last > first else f"{unit} {first:,}"
        of_rank = f", rank {page.place.rank}" if self._browsed.ranks > 1 else ""
        return f"{steps}{of_rank}{f', {page.place.source}' if page.place.source else ''}"

    def _notice(self, page: StepsPage) -> str:
        unit = self._browsed.unit.lower()
        if page.is_cut:
            return f"No more of this source up to {unit} {page.after:,}; Forth goes on looking."
        return "" if page.after is not None else "Here the stream ends."

    def _href(self, place: PagePlace, *, before: bool = False) -> str:
        query: dict[str, Any] = {"before" if before else "step": place.step}
        if self._browsed.ranks > 1:
            query["rank"] = place.rank
        if place.source:
            query["source"] = place.source
        return f"./?{urlencode(query)}"

    def _find(self, query: Mapping[str, str]) -> PageAnswer | None:
        record, find = query.get("record", ""), self._browsed.find
        if find is None:
            return None
        steps = self._browsed.jobs.result(("find", record), partial(find, record))
        shown = [(f"{self._browsed.unit} {step:,}", self._href(PagePlace(step=step))) for step in steps[:_MAX_FOUND]]
        heading = f"It comes {len(steps):,} times" if len(steps) > 1 else "It comes once" if steps else "Not found"
        return self._rendered("found", heading, record=record, steps=shown, more=len(steps) - len(shown))

    def _show_mixture(self, query: Mapping[str, str]) -> PageAnswer | None:
        del query
        if self._mixture is None:
            return None
        view = self._browsed.jobs.result("mixture", self._mixture)
        return self._rendered("mixture", "The mixture", view=view)

    def _rendered(self, page: str, heading: str, status: HTTPStatus = HTTPStatus.OK, **fields: object) -> PageAnswer:
        template = self._environment.get_template(f"browser_{page}.html.jinja")
        always = {
            "page": page,
            "heading": heading,
            "name": self._browsed.name,
            "unit": self._browsed.unit,
            "sources": self._browsed.sources,
            "has_mixture": self._mixture is not None,
            "has_find": self._browsed.find is not None,
            "record": "",
        }
        text = template.render(always | fields)
        return PageAnswer(text.encode("utf-8", "replace"), status=status)


def _again(path: str, query: Mapping[str, str]) -> str:
    return f"./{path}?{urlencode(query)}"


@cache
def _static(name: str) -> bytes:
    return files("streamdata.tools.show").joinpath("web", name).read_bytes()


def _whole(text: str, what: str, bound: int, first: int = 0) -> int:
    """A whole number from the first one to below a bound.

    Raises:
        ValueError: It is something else.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS) or not first <= int(text) < bound:
        raise ValueError(f"{what}: expected a whole number from {first} to {bound - 1:,}, got {shown(text)}")
    return int(text)


def _line(
    end: int, marks: Sequence[StepMark], page: StepsPage, unit: str, href: Callable[[PagePlace], str]
) -> LineDrawn:
    """The time line, from the run's first step to the furthest that is known, with marks and a page on it."""
    end, unit = max([end, 1, *(mark.step for mark in marks)]), unit.lower()

    def x(step: int) -> float:
        return round(_LEFT + _WIDTH * min(1, step / end), 2)

    drawn = []
    for mark in marks:
        part, at = mark.step / end, f"{unit} {mark.step:,}"
        anchor = "start" if part < _EDGE else "end" if part > 1 - _EDGE else "middle"
        about = mark.name if mark.name == at else f"{mark.name}, {at}"
        link = href(PagePlace(step=mark.step, rank=page.place.rank))
        drawn.append(MarkDrawn(x(mark.step), anchor, mark.name, about, link))
    first = page.place.step
    width = max(_LEAST, x(first if page.last is None else page.last + 1) - x(first))
    return LineDrawn(f"{unit} {first:,} of {end:,}", x(first), width, drawn)
