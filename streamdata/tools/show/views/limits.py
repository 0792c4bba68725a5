"""How much of a long value is shown."""

from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much is shown at most.

    Attributes:
        tokens: Of a sequence.
        chars: Of a text.
        frames: Of a video or a list of images.
        items: Of lists: messages, sequences, fields.
        records: Raw records of a sample.
    """

    tokens: int
    chars: int
    frames: int
    items: int
    records: int

    @property
    def of_records(self) -> "Limits":
        """Of raw records, which stand beside a sample: a part of it."""
        return replace(self, chars=self.chars // 2)


IN_TERMINAL: Final = Limits(tokens=240, chars=800, frames=4, items=12, records=2)
ON_PAGE: Final = Limits(tokens=600, chars=3000, frames=8, items=40, records=6)
MAX_NAME: Final = 100
"""Characters of the name of a field, or of who says a message."""


def short_name(name: str) -> str:
    """A name, cut where it is long: data may call a field anything."""
    return name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}… {len(name) - MAX_NAME:,} more characters"
