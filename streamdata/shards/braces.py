"""How many paths a brace expression stands for, counted before it is expanded: `{0..999999999999}` fills no memory."""

import re
from typing import Final, NamedTuple

from streamdata.errors import shown
from streamdata.io.remote import bare_url

MAX_PATHS: Final = 1_000_000
_MAX_CHARS: Final = 1 << 28  # of all of them together
_MAX_LEVELS: Final = 10
_MAX_DIGITS: Final = 18
_NUMBERS: Final = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?$")
_LETTERS: Final = re.compile(r"[A-Za-z]\.\.[A-Za-z](?:\.\.-?\d+)?$")


class _Size(NamedTuple):
    """How many texts there are, and how many characters they have together."""

    num: int
    chars: int

    def then(self, other: "_Size") -> "_Size":
        """Each of these, followed by each of the others."""
        return _Size(self.num * other.num, self.chars * other.num + other.chars * self.num)

    def beside(self, other: "_Size") -> "_Size":
        """These, and the others."""
        return _Size(self.num + other.num, self.chars + other.chars)


_ONE: Final = _Size(1, 0)
_CHARACTER: Final = _Size(1, 1)
_ENDLESS: Final = _Size(MAX_PATHS + 1, 0)


class _Open:
    """A brace that was not closed yet: the alternatives before its last comma, and what follows that."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.before: _Size | None = None
        self.size = _ONE

    def all(self) -> _Size:
        """All that was met since the brace opened."""
        return self.size if self.before is None else self.before.beside(self.size)


def check_braces(pattern: str) -> None:
    """Check that a pattern stands for no more paths than can be read, by the rules of `braceexpand`.

    Raises:
        ValueError: It does not, or its braces are not in pairs.
    """
    opened, at, unopened = [_Open(0)], 0, 0
    while at < len(pattern):
        character, inner = pattern[at], opened[-1]
        if character == "{" and not unopened:
            opened.append(_Open(at + 1))
        elif character == "}" and len(opened) > 1:
            opened.pop()
            opened[-1].size = opened[-1].size.then(_closed(inner, pattern[inner.start : at]))
        elif character == "," and len(opened) > 1:
            inner.before, inner.size = inner.all(), _ONE
        else:
            unopened += (character == "}") - (character == "{")
            inner.size = inner.size.then(_CHARACTER)
            at += character == "\\"
        _check_size(pattern, opened[-1].all(), len(opened) - 1)
        at += 1
    if len(opened) > 1 or unopened:
        raise ValueError(
            f"shards: pattern {shown(bare_url(pattern))}: expected braces in pairs, got one without the other\n"
            "  Close it."
        )


def _check_size(pattern: str, size: _Size, num_levels: int) -> None:
    if size.num > MAX_PATHS or size.chars > _MAX_CHARS:
        raise ValueError(
            f"shards: pattern {shown(bare_url(pattern))}: its braces stand for too many paths, expected at most "
            f"{MAX_PATHS} of {_MAX_CHARS >> 20} MiB together\n  Name the folder of the shards, or write a glob."
        )
    if num_levels > _MAX_LEVELS:
        raise ValueError(
            f"shards: pattern {shown(bare_url(pattern))}: expected at most {_MAX_LEVELS} braces within one another, "
            "got more\n  Name the folder of the shards, or write a glob."
        )


def _closed(brace: _Open, text: str) -> _Size:
    """What a brace with this text in it stands for."""
    if brace.before is not None:
        return brace.all()
    if match := _NUMBERS.match(text):
        first, last, step = match.groups()
        width = max(len(first), len(last))
        if max(width, len(step or "")) > _MAX_DIGITS:
            return _ENDLESS
        count = abs(int(last) - int(first)) // (int(step or 1) or 1) + 1
        return _Size(count, count * width)
    if _LETTERS.match(text):
        return _Size(52, 52)  # at most
    return _CHARACTER.then(brace.size).then(_CHARACTER)  # the braces stand for themselves
