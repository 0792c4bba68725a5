"""Limits of a recipe's data, and of the commands, urls and directories that its parameters may name.

`limits: {line_bytes: …}` → numbers; a path → a regular file; a command, a url, a directory → why it is refused, or
None. A recipe sets the limits of its sources, which bound what its data may be. Those of the recipe itself are its
caller's alone. A file that a user names is opened at once or refused: whoever opens a fifo waits for its writer, and a
device may have no end.

Commands run only where the environment permits them, with or without a recipe. A recipe that is built under ``allow``
is one that the caller does not fully trust: its parameters may not choose where files are written either, except in
directories that the caller's variables name. These functions only decide; they are called where a command is started,
a url is recognised and a cache is opened.
"""

import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias, TypeVar

from streamdata.errors import did_you_mean, one_line, shown, without_secrets


class ShardLimits(NamedTuple):
    """Bounds of one record of a shard.

    Attributes:
        line_bytes: A line of JSON Lines or CSV, or of a sidecar; blank lines in a row.
        member_bytes: A member of a tar archive.
    """

    line_bytes: int = 64 << 20
    member_bytes: int = 1 << 30


DEFAULT_LIMITS = ShardLimits()


class RecipeLimits(NamedTuple):
    """Bounds of a recipe.

    Attributes:
        file_bytes: Size of each file.
        num_nodes: Mappings, lists and values of all files, each file as often as it is included, and with what aliases
            and interpolations add. A file counts 10, and one more for each 1,000 bytes; a text that interpolations
            write, one more for each 100 characters; a text that OmegaConf's parser reads, since it has nested
            interpolations, quotes or other resolvers, three more for each character, times the number of ``${``.
    """

    file_bytes: int = 1 << 20
    num_nodes: int = 100_000


DEFAULT_RECIPE_LIMITS = RecipeLimits()


Limits: TypeAlias = Mapping[str, int] | ShardLimits | None
"""Limits as a source is given them."""

_Kind = TypeVar("_Kind", ShardLimits, RecipeLimits)


def read_limits(value: Any, kind: type[_Kind], who: str) -> _Kind:
    """Reads limits; those that are not given have their defaults.

    Args:
        value: A mapping of names to positive integers; None for the defaults.
        kind: Which limits.
        who: Whose they are, for errors.

    Raises:
        ValueError: It is not such a mapping.
    """
    if value is None or isinstance(value, kind):
        return value or kind()
    if refusal := refusal_of_limits(value, kind):
        raise ValueError(f"{who}: limits: {refusal}")
    return kind(**{name: int(limit) for name, limit in value.items()})


def refusal_of_limits(value: Any, kind: type[ShardLimits | RecipeLimits] = ShardLimits) -> str | None:
    """Returns why a value is not a mapping of these limits, or None."""
    names = kind._fields
    if value is not None and not isinstance(value, Mapping):
        return f"expected a mapping, got {type(value).__name__}\n  Write limits: {{{names[0]}: 1_000_000}}."
    for name, limit in (value or {}).items():
        if name not in names:
            return f"unknown limit {shown(name)}{did_you_mean(str(name), names)}\n  It takes: {', '.join(names)}."
        # 1e9 is how a large number is often written, and YAML reads it as a float.
        is_whole = isinstance(limit, int | float) and not isinstance(limit, bool) and limit % 1 == 0
        if not is_whole or limit < 1:
            return f"{name}: expected a whole number, at least 1, got {shown(limit)}\n  One GiB is 1_073_741_824."
    return None


_KINDS: Final = {"d": "a directory", "p": "a fifo", "c": "a device", "b": "a device", "s": "a socket"}
"""By the letter that `ls -l` begins with."""


def open_regular(path: str | os.PathLike[str], error: type[Exception]) -> BinaryIO:
    """Opens a regular file to be read.

    Args:
        path: The file.
        error: What is raised where it is not a regular file.

    Raises:
        OSError: It cannot be opened.
    """
    check_regular(path, error)
    # One that takes its place now and is a fifo would else make who opens it wait for its writer.
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")


def check_regular(path: str | os.PathLike[str], error: type[Exception]) -> None:
    """Checks that a file which a library will open is regular.

    Raises:
        OSError: There is no such file.
    """
    check_mode(path, os.stat(path).st_mode, error)


def check_mode(path: str | os.PathLike[str], mode: int, error: type[Exception]) -> None:
    """Checks that a file's mode is that of a regular file."""
    if not stat.S_ISREG(mode):
        got = _KINDS.get(stat.filemode(mode)[0], "something else")
        raise error(f"file '{one_line(path)}': expected a regular file, got {got}\n  Name a file of data.")


class RefusedFileError(Exception):
    """A file may not be read; the message says why, and what to do."""


def read_bounded(path: str | os.PathLike[str], max_bytes: int, *, is_regular: bool) -> bytes:
    """Reads all bytes of a file.

    Args:
        path: The file.
        max_bytes: A larger one is not read.
        is_regular: Whether it must be a regular file.

    Raises:
        RefusedFileError: It is too large, or no regular file.
        OSError: It cannot be read.
    """
    with open_regular(path, RefusedFileError) if is_regular else open(path, "rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise RefusedFileError(f"expected at most {max_bytes} bytes, got more\n  Split it, or pass larger limits.")
    return content


_COMMANDS: Final = "STREAMDATA_ALLOW_PIPES"
PIPE: Final = "pipe:"
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)(://|::)")
SCHEMES: Final = (
    "abfs", "abfss", "adl", "az", "file", "ftp", "gcs", "gs", "hf", "http", "https", "local", "memory", "oci", "s3",
    "s3a", "sftp",
)  # fmt: skip
"""Schemes of file systems that only read, from a place that the url alone names."""

_writable: ContextVar[tuple[str, ...] | None] = ContextVar("where a recipe under allow may write", default=None)


@contextmanager
def under_allow(allow: Collection[str] | None, variables: Mapping[str, Any]) -> Iterator[None]:
    """Refuses, while a recipe is built or checked under ``allow``, what that takes from its parameters."""
    named = [value for value in variables.values() if isinstance(value, str | os.PathLike) and os.fspath(value)]
    token = _writable.set(None if allow is None else tuple(map(_real, named)))
    try:
        yield
    finally:
        _writable.reset(token)


def _real(path: str | os.PathLike[str]) -> str:
    return os.path.realpath(os.path.expanduser(path))


def refusal_of_command(url: str) -> str | None:
    """Returns why a ``pipe:`` url may not be run, or None."""
    if os.environ.get(_COMMANDS) == "1":
        return None
    return (
        f"shards: expected files, got '{without_secrets(url)}', a command that would be run\n"
        f"  If you trust it, set {_COMMANDS}=1 in the environment."
    )


def refusal_of_url(url: str) -> str | None:
    """Returns why a url may not be read under ``allow``, or None: some file systems write, or run what a file says."""
    match = _SCHEME.match(url)
    if _writable.get() is None or match is None or (match[1].lower() in SCHEMES and "::" not in url):
        return None
    return (
        f"shards: expected a url of {', '.join(SCHEMES)}, got '{without_secrets(url)}' in a recipe that is "
        "built under allow\n"
        "  Name the file itself, or build the recipe without allow if you trust it."
    )


def refusal_of_directory(directory: str | os.PathLike[str], *others: str | os.PathLike[str]) -> str | None:
    """Returns why a recipe under ``allow`` may not write in a directory, or None.

    Args:
        directory: Where it would write.
        others: Directories where it may, whatever the variables are.
    """
    writable = _writable.get()
    if writable is None:
        return None
    real = _real(directory)  # a link inside a permitted directory may lead out of it
    if any(os.path.commonpath([real, allowed]) == allowed for allowed in (*writable, *map(_real, others))):
        return None
    return (
        f"expected a directory in the cache, or in one that a variable names, got '{os.fspath(directory)}' in a recipe "
        "that is built under allow\n"
        "  Leave it out and set STREAMDATA_CACHE in the environment, or build the recipe without allow if you trust it."
    )
