"""The errors that a user can cause, and the lists and guesses in their messages.

Each message says who, where, what was expected, what was found, and what to do.
"""

import re
import reprlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, Final, Self

_MAX_LISTED: Final = 30
_MAX_SHOWN: Final = 100
_MAX_COMPARED: Final = 1000  # characters of a name that a guess is made for


_BEGIN = r"(://|\bhttps?:/*)"  # also of a url with a slash too few
_QUOTE = r"['\"](?![\s:,;.)\]}]|\Z)"  # one that ends no text: it is part of a password
_USER = re.compile(
    # Up to the last @ before a path; where no port follows the colon, the password has a slash, ? or #, and ends later.
    rf"{_BEGIN}(?:(?:[^/?#\s'\"]|{_QUOTE})*@|(?!/)[^/@?#:\[\s'\"]+:(?![\s:/?#'\",;.)\]}}]|\d+(?!\w)|\Z)\S{{0,999}}@)",
    re.IGNORECASE,
)
"""Who asks, before the host of a url in any text: its first group is what comes before."""
_QUERY = re.compile(
    # Elsewhere than in the web a question mark may be a glob's. Quotes are its own, but those that end a text.
    r"(\bhttps?:/*[^\s?]{0,4096}\?|://[^\s?]{0,4096}\?(?=[^\s?]*=))\S+?(?=(?:['\"][^\w\s]{0,9})?(?:\s|\Z))",
    re.IGNORECASE,
)
_HAS_URL = re.compile(_BEGIN, re.IGNORECASE)
_MAX_LOOKED_AT: Final = 10_000  # characters of a value, most of which are cut off


class StreamdataError(Exception):
    """Base of all errors that streamdata raises. Messages are safe to print, and free of passwords."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(without_secrets(printable(arg)) if isinstance(arg, str) else arg for arg in args))


class RecipeError(StreamdataError, ValueError):
    """A recipe cannot be read or built; the message gives file, line, column and path."""


class ShardError(StreamdataError, ValueError):
    """A shard, its sidecar or its index is damaged or has changed; the message gives file and position."""


class StoreError(StreamdataError, ValueError):
    """A token store is damaged, or lacks what is asked of it; the message gives file and key."""

    @classmethod
    def mismatch(cls, who: str, expected: str, got: object, remedy: str = "Copy it again.") -> Self:
        """Make the error for something in a store that is not as expected."""
        return cls(f"{who}: expected {expected}, got {got}\n  {remedy}")


class PrepareError(StreamdataError, ValueError):
    """A run of `prepare` cannot continue because of its output directory, an input, a worker, or a bad record."""


class StateError(StreamdataError, ValueError):
    """States do not belong to this dataset, seed or topology, or are not states at all."""


class SourceError(StreamdataError, RuntimeError):
    """A source cannot deliver, such as one whose records were all dropped."""


class StaleAttempt(StreamdataError, ValueError):  # noqa: N818  an answer that comes too late is no mistake
    """A prompt's attempt is no longer open: it was settled, is retried, is another client's, or of before a load."""


@contextmanager
def needs(package: str, extra: str, who: str) -> Iterator[None]:
    """Says what to install where an import fails that only an extra of ours brings.

    Raises:
        ImportError: It failed.
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(f"{who} needs the package {package}\n  pip install torch-streamdata[{extra}]") from error


@contextmanager
def place_of_io(file: object, begin: int | None = None, end: int | None = None) -> Iterator[None]:
    """Says of an error of the disk or its file system, which keeps its type, what was read."""
    try:
        yield
    except OSError as error:
        note_place(error, file, begin, end)
        raise


def note_place(error: OSError, file: object, begin: int | None = None, end: int | None = None) -> None:
    """Adds to such an error which bytes of a file were read."""
    span = f" bytes {begin} to {end} of" if begin is not None else ""
    error.add_note(without_secrets(printable(f"  reading{span} '{file}'")))


class _Shortened(reprlib.Repr):
    """Representations that stop early, however much there is to show."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = _MAX_SHOWN
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = 20

    def repr_str(self, x: str, level: int) -> str:
        return super().repr_str(without_secrets(x[:_MAX_LOOKED_AT]), level)


_shortened = _Shortened()


def shown(value: object) -> str:
    """Shows a value or a name out of data in a message: as Python writes it, cut to 100 characters.

    Of a url, who asks and with which signature is left out. Python escapes what a terminal or a log would obey: control
    characters, line ends, marks that turn text around, and lone surrogates, which could not be encoded.
    """
    if isinstance(value, str):
        value = without_secrets(value[:_MAX_LOOKED_AT])
    if isinstance(value, str | bytes):
        text = repr(value if len(value) <= _MAX_SHOWN else value[:_MAX_SHOWN])
        is_whole = len(value) <= _MAX_SHOWN and len(text) <= _MAX_SHOWN + 3
        return text if is_whole else f"{text[: _MAX_SHOWN - 1]}…{text[-1]}"
    try:
        text = _shortened.repr(value)
    except (Exception, SystemExit):  # an integer with more digits than Python prints, or what a class does in its place
        text = f"a {type(value).__name__}"
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"


def text_of(error: BaseException) -> str:
    """The text of an error of somebody else's class, whose `__str__` may fail itself: then what it was made with."""
    try:
        return str(error)
    except (Exception, SystemExit) as failure:
        why = f"no text, since its __str__ raised {type(failure).__name__}"
    # What torch hands on of a worker stands there, too, with the place of the error.
    return " ".join([f"({why})", *(arg for arg in error.args if isinstance(arg, str))])


def without_secrets(text: str) -> str:
    """A text without what urls in it have before their host, and in their query: passwords, tokens, signatures."""
    return _QUERY.sub(r"\1…", _USER.sub(r"\1…@", text)) if _HAS_URL.search(text) else text


def names_text(names: Iterable[object]) -> str:
    """Lists the fields of a record, or the keys of a file, in a message: sorted, as Python writes a list."""
    known = [shown(name) for name in sorted(map(str, names))]
    more = f", … {len(known) - _MAX_LISTED} more" if len(known) > _MAX_LISTED else ""
    return f"[{', '.join(known[:_MAX_LISTED])}{more}]"


def one_line(value: object) -> str:
    """A text without what a terminal or a log would obey, line ends too: a name may not steer either."""
    return printable(str(value)).replace("\n", "\\n")


def counted(number: int, noun: str) -> str:
    """A number of things, in words."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shortened(text: str, most: int) -> str:
    """A text of at most so many characters, with `…` in the middle in place of what is left out."""
    if len(text) <= most:
        return text
    head = max(0, most - 1) // 2
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}" if most > 0 else ""


def printable(text: str) -> str:
    """A text of several lines without what a terminal would obey or could not show."""
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Returns ``, did you mean 'x'?`` for the nearest candidate, or an empty string."""
    close = get_close_matches(name, list(candidates), n=1) if len(name) <= _MAX_COMPARED else []
    return f", did you mean {shown(close[0])}?" if close else ""


def one_of_two(who: str, **given: Any) -> Any:
    """Returns the argument that was given under one of its two names.

    Raises:
        TypeError: Neither or both were given.
    """
    found = [value for value in given.values() if value is not None]
    if len(found) != 1:
        raise TypeError(
            f"{who}: expected {' or '.join(given)}, got {'both' if found else 'neither'}\n  Give one of them."
        )
    return found[0]


def positive(what: str, value: Any, remedy: str = "Give it such a number.") -> int:
    """Returns a setting, or raises ValueError where it is no whole number above 0; `what` names it."""
    if type(value) is not int or value < 1:
        raise ValueError(f"{what} is {shown(value)}, expected a whole number of at least 1\n  {remedy}")
    return value


def listing(names: Iterable[str]) -> str:
    """Shows names in a message, sorted, as many as a reader takes in."""
    known = [name if name.isprintable() and len(name) <= _MAX_SHOWN else shown(name) for name in sorted(names)]
    more = f" and {len(known) - _MAX_LISTED} more" if len(known) > _MAX_LISTED else ""
    return (", ".join(known[:_MAX_LISTED]) or "none") + more
