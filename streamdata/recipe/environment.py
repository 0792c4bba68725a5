"""Values of the environment that a recipe names by ``${oc.env:NAME}``: no message of its building quotes them."""

import re
import traceback
from typing import Final

from streamdata.errors import shown

_SHORTEST: Final = 8  # shorter ones are words of any text
_HEAD: Final = 16  # what a message that cuts a value leaves of it, at least


class EnvironmentValues:
    """What the interpolations of a recipe took from the environment.

    Where a path or a url is not found its user needs the text itself: they stay, and a url's secrets are left out of
    every message anyhow.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def add(self, name: str, value: str) -> None:
        """Note a value; one that is short, a path from the root or the home directory, or a url may be told."""
        if len(value) >= _SHORTEST and not value.startswith(("/", "~")) and "://" not in value:
            self._names[value] = name

    def without(self, text: str) -> str:
        """A text that names variables where it quoted their values, whole, escaped or cut."""
        for value, name in self._names.items():
            for form in (value, repr(value)[1:-1], shown(value)[1:-1]):
                text = text.replace(form, f"${{oc.env:{name}}}")
            text = re.sub(rf"{re.escape(value[:_HEAD])}[^\s'\"]*", f"${{oc.env:{name}}}", text)
        return text

    def are_told_by(self, error: BaseException) -> bool:
        """Whether an error, its notes, or one that it was raised because of quotes a value."""
        told = "".join(traceback.format_exception(error)) if self._names else ""
        return self.without(told) != told
