"""The errors that a user can cause, and the lists and guesses in their messages.

Each message says who, where, what was expected, what was found, and what to do.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Final

_MAX_LISTED: Final = 30


class StreamdataError(Exception):
    """Any error that streamdata itself raises."""


class RecipeError(StreamdataError, ValueError):
    """A recipe cannot be read or built; the message gives file, line, column and path."""


class ShardError(StreamdataError, ValueError):
    """A shard, its sidecar or its index is damaged or has changed; the message gives file and position."""


class StoreError(StreamdataError, ValueError):
    """A token store is damaged, or lacks what is asked of it; the message gives file and key."""


class StateError(StreamdataError, ValueError):
    """States do not belong to this dataset, seed or topology, or are not states at all."""


class SourceError(StreamdataError, RuntimeError):
    """A source cannot deliver, such as one whose records were all dropped."""


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


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Returns ``, did you mean 'x'?`` for the nearest candidate, or an empty string."""
    close = get_close_matches(name, list(candidates), n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def listing(names: Iterable[str]) -> str:
    """Shows names in a message, sorted, as many as a reader takes in."""
    known = sorted(names)
    more = f" and {len(known) - _MAX_LISTED} more" if len(known) > _MAX_LISTED else ""
    return (", ".join(known[:_MAX_LISTED]) or "none") + more
