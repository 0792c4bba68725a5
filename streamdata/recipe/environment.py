"""Values of the environment that a recipe names by ``${oc.env:NAME}``: no message of its building quotes them."""

import json
import re
import traceback
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from streamdata.errors import shown

_SHORTEST: Final = 8  # shorter ones are words of any text
_HEAD: Final = 16  # what a message that cuts a value leaves of it, at least


class EnvironmentValues:
    """What the interpolations of a recipe took from the environment.

    Where a path or a url is not found its user needs the text itself: they stay, and a url's secrets are left out of
    every message anyhow.
    """

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._forms: dict[str, set[str]] = defaultdict(set)

    def add(self, name: str, value: str) -> None:
        """Note a value and its lines; one that is short, a path from the root or the home, or a url may be told."""
        if len(value) >= _SHORTEST:
            self._values[name] = value
            self._add_text(name, value)

    def _add_text(self, name: str, value: str) -> None:
        for text in {value, *map(str.strip, [value, *value.splitlines()])}:
            if len(text) >= _SHORTEST and not text.startswith(("/", "~")) and "://" not in text:
                self._forms[name] |= _forms(text)

    def add_decoded(self, text: str, value: Any) -> None:
        """Note the texts that `oc.decode` made of one that quotes a value."""
        for name in [name for name, quoted in self._values.items() if quoted in text]:
            for part in _texts(value):
                self._add_text(name, part)

    def without(self, text: str) -> str:
        """A text that names variables where it quoted their values: whole, a line of them, escaped, or cut."""
        for name, forms in self._forms.items():
            wholes = [re.escape(form) for form in sorted(forms, key=len, reverse=True)]
            heads = [rf"{re.escape(form[:_HEAD])}[^\s'\"]*" for form in sorted(forms)]
            told = f"${{oc.env:{name}}}".replace("\\", r"\\")
            text = re.sub("|".join(wholes + heads), told, text, flags=re.IGNORECASE)
        return text

    def are_told_by(self, error: BaseException) -> bool:
        """Whether an error, its notes, or one that it was raised because of quotes a value."""
        told = "".join(traceback.format_exception(error)) if self._forms else ""
        return self.without(told) != told


def _forms(text: str) -> set[str]:
    """A text as it is, and as Python and JSON write it; Python escapes one kind of quote where there are both."""
    written = (repr(text)[1:-1], repr("'\"" + text)[4:-1], shown(text)[1:-1])
    return {text, *written, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for child in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _texts(child)
