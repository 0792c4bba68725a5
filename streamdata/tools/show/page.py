"""Samples, as shown → HTML, of one set of templates: a file without network and script, or pages of a browser.

Errors of the data are pages, too.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from streamdata.errors import one_line, shown, text_of
from streamdata.run.publish import publish
from streamdata.tools.show.model import Page, visible
from streamdata.tools.show.reading import BrowseSteps, PagePlace
from streamdata.tools.show.server import PageAnswer

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
