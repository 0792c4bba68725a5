"""Views → HTML: the templates' environment, and one file that needs no network and no script."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from streamdata.run.publish import publish
from streamdata.tools.show.views.model import SampleView, in_one_line, visible

if TYPE_CHECKING:
    from streamdata.tools.show.views.mixture import MixtureView  # it imports torch, which stores do without


def make_environment() -> Environment:
    """Over `show/web/`: all that a template fills in is escaped, control characters are shown as such."""
    environment = Environment(
        loader=PackageLoader("streamdata.tools.show", "web"),
        autoescape=True,  # whatever a template is called
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["in_one_line"] = in_one_line
    environment.filters["number"] = lambda number: f"{number:,}"
    return environment


def _shown(value: Any) -> Any:
    """Make text visible before it is escaped; markup came through here part by part already."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@dataclass(frozen=True, kw_only=True)
class SampleGroup:
    """Samples that stand together: those of a source, or the records of a store."""

    name: str
    views: tuple[SampleView, ...]


@dataclass(frozen=True, kw_only=True)
class Page:
    """The contents of the file.

    Attributes:
        title: What is shown.
        about: What of it.
        groups: The samples.
        mixture: Of a recipe.
    """

    title: str
    about: str
    groups: tuple[SampleGroup, ...]
    mixture: "MixtureView | None" = None


def groups_of(views: Sequence[SampleView], sources: Sequence[str]) -> tuple[SampleGroup, ...]:
    """Samples by source, in the order of the sources."""
    names = dict.fromkeys([*sources, *(view.source for view in views)])
    groups = [(name, tuple(view for view in views if view.source == name)) for name in names]
    return tuple(SampleGroup(name=name, views=some) for name, some in groups if some)


def page_html(page: Page) -> str:
    """The file's text."""
    style = stylesheet()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    template = make_environment().get_template("page.html.jinja")
    # Ours, and the only thing that is filled in without being escaped; it has no `</`.
    return template.render(page=page, style=Markup(style), style_hash=f"sha256-{digest}")  # noqa: S704


def write_page(page: Page, path: Path) -> None:
    """Write the file, all of it or nothing.

    Raises:
        OSError: It cannot be written.
    """
    publish(path, [page_html(page).encode()])


@cache
def stylesheet() -> str:
    """The style sheet of samples and mixtures."""
    return files("streamdata.tools.show").joinpath("web", "samples.css").read_text(encoding="utf-8")
