"""What a recipe's parameters may not do by themselves: `a command, a url, a directory → why it is refused, or None`.

Commands run only where the environment permits them, with or without a recipe. A recipe that is built under ``allow``
is one that the caller does not fully trust: its parameters may not choose where files are written either, except in
directories that the caller's variables name. These functions only decide; they are called where a command is started,
a url is recognised and a cache is opened.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from streamdata.errors import without_secrets

_COMMANDS: Final = "STREAMDATA_ALLOW_PIPES"
PIPE: Final = "pipe:"
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)(://|::)")
SCHEMES: Final = (
    "abfs", "abfss", "adl", "az", "file", "ftp", "gcs", "gs", "hf", "http", "https", "local", "memory", "oci", "s3",
    "s3a", "sftp",
)  # fmt: skip
"""What only reads, where what it reads from is named by the url alone."""

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


def refusal_of_text(text: str) -> str | None:
    """Returns why a text that names shards is refused, or None; commas part several, but a command has its own."""
    parts = [text] if text.startswith(PIPE) else [part.strip() for part in text.split(",")]
    refusals = (refusal_of_command(part) if part.startswith(PIPE) else refusal_of_url(part) for part in parts)
    return next(filter(None, refusals), None)
