"""Views → one HTML file that needs nothing else: no network, no script, styles by their hash alone."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup

from streamdata.run.publish import publish
from streamdata.tools.show.pages import make_environment
from streamdata.tools.show.views.mixture import MixtureView
from streamdata.tools.show.views.model import SampleView


@dataclass(frozen=True, kw_only=True)
class SampleGroup:
    """Samples that stand together: those of a source, or the records of a store."""

    name: str
    views: tuple[SampleView, ...]


@dataclass(frozen=True, kw_only=True)
class Page:
    """What stands in the file.

    Attributes:
        title: What is shown.
        about: What of it.
        groups: The samples.
        mixture: Of a recipe.
    """

    title: str
    about: str
    groups: tuple[SampleGroup, ...]
    mixture: MixtureView | None = None


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
    """What samples and mixtures look like."""
    return files("streamdata.tools.show").joinpath("web", "samples.css").read_text(encoding="utf-8")
