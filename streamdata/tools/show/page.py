"""Samples, as shown → HTML, of one set of templates: a file without network and script, or pages of a browser.

A browser's pages are read through a stream, so many samples at a time, for one request at a time. Errors of the data
are pages, too.
"""

import base64
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from streamdata.errors import one_line, shown, text_of
from streamdata.fields import DATASET_NAME
from streamdata.run.publish import publish
from streamdata.tools.show.model import Page, ShownSample, visible
from streamdata.tools.show.server import PageAnswer

Sample = Mapping[str, Any]
ReadSteps = Callable[[int, int], Iterator[tuple[int, Sequence[Sample]]]]
"""A step and a rank → from there on, each step with its batch."""
ShowSample = Callable[[Sample, int, int], ShownSample]
"""A sample, its number on the page, and its step → what is shown of it."""

_MAX_KEPT: Final = 500
"""Samples that are kept, of all pages: an image takes up to 300 KB."""
_PATIENCE_S: Final = 2.0
"""How long a page looks for samples of one source before it shows what it has."""


def is_of(sample: Sample, source: str) -> bool:
    """Whether a sample is of a source, or of what is below it; "" stands for all."""
    return not source or f"{sample.get(DATASET_NAME, '')}.".startswith(f"{source}.")


class PagePlace(NamedTuple):
    """A place in the stream: a step, how many of its samples come before, a rank, and a source or "" for all."""

    step: int
    at: int = 0
    rank: int = 0
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class StepsPage:
    """A page.

    Attributes:
        place: Where it begins.
        samples: What it shows.
        last: The step that was read last, be it that nothing of it is shown; None where there is none.
        after: What comes after its last sample; None where the stream has ended.
        before: Where the page before it begins: the one that was shown, else as many steps earlier as it has; None of
            the first one.
        is_cut: Whether time was up before the page was full.
    """

    place: PagePlace
    samples: tuple[ShownSample, ...]
    last: int | None
    after: PagePlace | None
    before: PagePlace | None
    is_cut: bool


class BrowseSteps:
    """Reads pages, in one thread at a time: others wait, and find what was read meanwhile.

    Args:
        read: Reads the stream from a step on, of one rank.
        show: Makes what is shown of a sample.
        per_page: Samples on a page, unless the stream ends.
    """

    def __init__(self, read: ReadSteps, show: ShowSample, per_page: int) -> None:
        self._read, self._show, self._per_page = read, show, per_page
        self._reading = threading.Lock()
        self._kept: dict[PagePlace, StepsPage] = {}
        """Pages, the one that was shown last at the end."""
        self._open: Iterator[tuple[PagePlace, Sample | None, PagePlace]] = iter(())
        self._next: PagePlace | None = None
        """The place that comes next from there; None where nothing is open."""

    def page(self, place: PagePlace) -> StepsPage:
        """The page that begins at a place.

        Raises:
            Exception: What the stream raises.
        """
        with self._reading:
            if place in self._kept:
                self._kept[place] = page = self._kept.pop(place)
                return page
            samples: list[ShownSample] = []
            deadline = time.monotonic() + _PATIENCE_S
            if self._next != place:
                self._open = self._found(place)
            self._next = last = None  # an error, or the end, leaves nothing open
            for (last, *_), sample, after in self._open:
                if sample is not None:
                    samples.append(self._show(sample, len(samples), last))
                if len(samples) == self._per_page or (place.source and time.monotonic() > deadline):
                    self._next = after
                    break
            shown = (page.place for page in reversed(self._kept.values()) if page.after == place)
            earlier = max(1, place.step - (1 if last is None else last - place.step + 1))
            self._kept[place] = page = StepsPage(
                place=place,
                samples=tuple(samples),
                last=last,
                after=self._next,
                before=next(shown, place._replace(step=earlier, at=0)) if (place.step, place.at) > (1, 0) else None,
                is_cut=self._next is not None and len(samples) < self._per_page,
            )
            while len(self._kept) > max(1, _MAX_KEPT // self._per_page):
                del self._kept[next(iter(self._kept))]
            return page

    def _found(self, place: PagePlace) -> Iterator[tuple[PagePlace, Sample | None, PagePlace]]:
        """The samples of a source from a place on, None where a step has none of it: each with what comes after it."""
        for step, batch in self._read(place.step, place.rank):
            begin = place.at if step == place.step else 0
            own = [at for at in range(begin, len(batch)) if is_of(batch[at], place.source)]
            places = [place._replace(step=step, at=at) for at in own or [0]]
            for found, after in pairwise([*places, place._replace(step=step + 1, at=0)]):
                yield found, batch[found.at] if own else None, after


_FILES: Final = {"page.css": "text/css", "page.js": "text/javascript"}
_MAX_STEP: Final = 2**53


@cache
def _environment() -> Environment:
    """Over `show/web/`: all that a template fills in is escaped, control characters are shown as such."""
    environment = Environment(
        loader=PackageLoader("streamdata.tools.show", "web"),
        autoescape=True,  # whatever a template is called
        # Text is made visible before it is escaped; markup came through here part by part already.
        finalize=lambda value: visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["one_line"] = one_line
    environment.filters["number"] = "{:,}".format
    return environment


def _rendered(**fields: Any) -> bytes:
    """A page, as a file or of a browser."""
    template = _environment().get_template("page.html.jinja")
    return template.render(fields).encode("utf-8", "replace")


@cache
def _static(name: str) -> bytes:
    return files("streamdata.tools.show").joinpath("web", name).read_bytes()


def write_page(page: Page, path: Path) -> None:
    """Write the file, all of it or nothing; it loads nothing, and runs no script.

    Raises:
        OSError: It cannot be written.
    """
    style = _static("page.css")
    digest = base64.b64encode(hashlib.sha256(style).digest()).decode()
    # Ours, and the only thing that is filled in without being escaped; it has no `</`.
    fields = {"style": Markup(style.decode()), "style_hash": f"sha256-{digest}"}  # noqa: S704
    fields |= {"heading": page.title, "name": page.title, "about": page.about}
    publish(path, [_rendered(**fields, samples=page.samples)])


@dataclass(kw_only=True)
class BrowsePages:
    """Answers what a browser asks for.

    Attributes:
        title: What is shown.
        steps: Its pages.
        begin: The place that is shown first.
        num_steps: Up to where the run is known to come.
        sources: The paths of its sources.
        ranks: How many there are.
        marks: After how many steps states were saved.
    """

    title: str
    steps: BrowseSteps
    begin: PagePlace
    num_steps: int
    sources: Sequence[str]
    ranks: int
    marks: Sequence[int]

    def __call__(self, path: str, query: Mapping[str, str]) -> PageAnswer | None:
        """The answer to a request; None where there is no such page."""
        if path in _FILES:
            return PageAnswer(_static(path), f"{_FILES[path]}; charset=utf-8")
        if path:
            return None
        status, again = HTTPStatus.OK, f"./?{urlencode(query)}"
        try:
            fields = self._samples(query)
        except Exception as error:  # of the data, a process function or a store: the other pages can still be read
            lines = [f"{type(error).__name__}: {text_of(error)}", *getattr(error, "__notes__", ())]
            fields = {"heading": "This cannot be read", "message": "\n".join(lines), "again": again}
            status = HTTPStatus.INTERNAL_SERVER_ERROR
        return PageAnswer(_rendered(browsed=self, name=self.title, **fields), status=status)

    def _samples(self, query: Mapping[str, str]) -> dict[str, Any]:
        place = self._place(query)
        page = self.steps.page(place)
        last = place.step if page.last is None else page.last
        self.num_steps = max(self.num_steps, last)
        heading = f"Steps {place.step:,} to {last:,}" if last > place.step else f"Step {place.step:,}"
        heading += f", rank {place.rank}" if self.ranks > 1 else ""
        about = "" if page.after else "Here the stream ends."
        if page.is_cut and page.after:
            about = f"No more of this source up to step {page.after.step:,}; Forth goes on looking."
        return {
            "heading": f"{heading}, {place.source}" if place.source else heading,
            "about": about,
            "samples": page.samples,
            "shown": place,
            "last": last,
            "back": page.before and self._href(page.before),
            "forth": page.after and self._href(page.after),
            "marks": [(mark, self._href(PagePlace(step=mark + 1, rank=place.rank))) for mark in self.marks],
        }

    def _place(self, query: Mapping[str, str]) -> PagePlace:
        """The place that a query asks for.

        Raises:
            ValueError: There is nothing like that.
        """
        if not query:
            return self.begin
        source = query.get("source", "")
        if source and not any(f"{path}.".startswith(f"{source}.") for path in self.sources):
            raise ValueError(f"source: expected one of {', '.join(self.sources)}, got {shown(source)}")
        return PagePlace(
            step=_whole(query.get("step", "1"), "step", 1, _MAX_STEP),
            at=_whole(query.get("at", "0"), "at", 0, _MAX_STEP),
            rank=_whole(query.get("rank", str(self.begin.rank)), "rank", 0, self.ranks),
            source=source,
        )

    def _href(self, place: PagePlace) -> str:
        needed = {"rank"} if self.ranks > 1 else set()
        return f"./?{urlencode({key: value for key, value in place._asdict().items() if value or key in needed})}"


def _whole(text: str, what: str, least: int, bound: int) -> int:
    """A whole number from `least` to below a bound.

    Raises:
        ValueError: It is something else.
    """
    if not (text.isascii() and text.isdigit() and least <= int(text) < bound):
        raise ValueError(f"{what}: expected a whole number from {least} to {bound - 1:,}, got {shown(text)}")
    return int(text)
