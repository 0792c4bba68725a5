"""What is wrong with data: faults by kind, the first of each kind and source with their places."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, Self, get_args

from streamdata.errors import StreamdataError, one_line, text_of, without_secrets

Kind = Literal["damaged", "key given twice", "sidecar", "image", "function", "process died"]
MAX_LISTED: Final = 100
"""Faults of one kind that are listed of each shard; the others are counted."""


_MAX_CHARS: Final = 100
"""Of the message of an error of somebody else's code."""
_MAX_OUR_CHARS: Final = 1000
"""Of one of streamdata's own classes, which has places and what to do in it; a function may raise these too."""


class Fault(NamedTuple):
    """Something that is wrong.

    Attributes:
        kind: What kind of thing.
        source: The dotted name of the source.
        message: Where it is, what was expected and what was found.
    """

    kind: Kind
    source: str
    message: str


@dataclass
class Findings:
    """What was read, and what was wrong with it.

    Attributes:
        num_records: Records that could be read.
        num_dropped: Those of them of which a function made nothing.
        faults: Those that are listed.
        counts: How many there are of each kind, listed or not.
    """

    num_records: int = 0
    num_dropped: int = 0
    faults: list[Fault] = field(default_factory=list)
    counts: Counter[Kind] = field(default_factory=Counter)

    def add(self, kind: Kind, source: str, message: str) -> Fault | None:
        """Note a fault, and return it if it is listed."""
        self.counts[kind] += 1
        if self.counts[kind] > MAX_LISTED:
            return None
        self.faults.append(Fault(kind, source, without_secrets(message)))
        return self.faults[-1]

    def join(self, other: "Findings") -> None:
        """Add what was found elsewhere."""
        self.num_records += other.num_records
        self.num_dropped += other.num_dropped
        self.faults += other.faults
        self.counts += other.counts

    def mark(self, at: str) -> str:
        """What is counted, and where, as a text that may lose its end."""
        kinds = (self.counts.get(kind, 0) for kind in get_args(Kind))
        return " ".join(map(str, (self.num_records, self.num_dropped, *kinds, at)))

    @classmethod
    def from_mark(cls, text: str) -> tuple[Self, str]:
        """What a mark says; an empty one, that there is nothing yet."""
        if not text:
            return cls(), ""
        records, dropped, *counts, at = text.split(" ", 2 + len(get_args(Kind)))
        kinds = zip(get_args(Kind), map(int, counts), strict=True)
        return cls(int(records), int(dropped), counts=Counter({kind: count for kind, count in kinds if count})), at


def described(error: BaseException) -> str:
    """What an error of somebody else's code is: its type, its message in one line, cut where it is long, and its notes.

    The notes say where it was: the image, or the file and row.
    """
    text, is_ours = text_of(error), isinstance(error, StreamdataError)
    most = _MAX_OUR_CHARS if is_ours else _MAX_CHARS
    cut = text[:most] + ("…" if len(text) > most else "")
    notes = "".join(f"; {one_line(str(note).strip())[:_MAX_OUR_CHARS]}" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {cut if is_ours else one_line(cut)}{notes}"
