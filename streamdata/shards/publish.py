"""Where an index is published: beside its shard, or in the cache."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from streamdata.errors import ShardError
from streamdata.run.publish import publish

_NOT_ALLOWED = (errno.EROFS, errno.EACCES, errno.EPERM)


def publish_beside_or_cached(beside: Path | None, cached: Path, parts: Sequence[bytes]) -> Path:
    """Publish at `beside`, or at `cached` if that is None or cannot be written.

    Returns:
        Where the file is now.

    Raises:
        ShardError: The cache cannot be written either.
    """
    if beside is not None:
        try:
            publish(beside, parts)
            return beside
        except OSError as error:  # tried, not asked: access bits say little about root and network mounts
            if error.errno not in _NOT_ALLOWED:
                raise
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        publish(cached, parts)
    except OSError as error:
        raise ShardError(
            f"index '{cached}': cannot be written, neither beside its shard ({beside}) nor in the cache: {error}\n"
            "  Set STREAMDATA_CACHE to a directory that can be written."
        ) from error
    return cached


def cache_directory() -> Path:
    """$STREAMDATA_CACHE, by default ~/.cache/streamdata."""
    named = os.environ.get("STREAMDATA_CACHE")
    return Path(named) if named else Path("~/.cache/streamdata").expanduser()
