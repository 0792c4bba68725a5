"""What is read at most, and from what kind of file: `limits: {line_bytes: …}` → numbers; a path → a regular file.

A recipe sets the limits of its sources, which bound what its data may be. Those of the recipe itself are its caller's
alone. A file that a user names is opened at once or refused: whoever opens a fifo waits for its writer, and a device
may have no end.
"""

import errno
import os
import stat
from collections.abc import Mapping
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias, TypeVar

from streamdata.errors import did_you_mean, one_line, shown


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
    if isinstance(value, kind):
        return value
    if refusal := refusal_of_limits(value, kind):
        raise ValueError(f"{who}: limits: {refusal}")
    return kind(**{name: int(limit) for name, limit in (value or {}).items()})


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


_KINDS: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a fifo",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: str | os.PathLike[str], error: type[Exception]) -> BinaryIO:
    """Opens a regular file to be read.

    Args:
        path: The file.
        error: What is raised where it is not a regular file.

    Raises:
        OSError: It cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a fifo would make who opens it wait for its writer
    except OSError as failure:
        if failure.errno == errno.ENXIO:  # a socket
            check_regular(path, error)
        raise
    try:
        check_mode(path, os.fstat(fd).st_mode, error)
    except BaseException:
        os.close(fd)
        raise
    return os.fdopen(fd, "rb")


def check_regular(path: str | os.PathLike[str], error: type[Exception]) -> None:
    """Checks that a file which a library will open is regular.

    Raises:
        OSError: There is no such file.
    """
    check_mode(path, os.stat(path).st_mode, error)


def check_mode(path: str | os.PathLike[str], mode: int, error: type[Exception]) -> None:
    """Checks that a file's mode is that of a regular file."""
    if not stat.S_ISREG(mode):
        got = _KINDS.get(stat.S_IFMT(mode), "something else")
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
