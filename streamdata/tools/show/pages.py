"""Templates → HTML: one environment for the file and for the browser, in which whatever is filled in is escaped."""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from streamdata.tools.show.characters import in_one_line, visible


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
    """What an expression gives, before it is escaped; what is markup already came through here part by part."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
