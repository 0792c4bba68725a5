"""Where an index is published: beside its shard, or in the cache; and who builds it."""

import errno
import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from streamdata.errors import ShardError
from streamdata.run.publish import publish

logger = logging.getLogger(__name__)
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
            publish(beside, parts, is_checked=True)
            return beside
        except OSError as error:  # tried, not asked: access bits say little about root and network mounts
            if error.errno not in _NOT_ALLOWED:
                raise
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        publish(cached, parts, is_checked=True)
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


@contextmanager
def locked(*names: str) -> Iterator[None]:
    """Let no other process of this node do what these names say meanwhile.

    Where the cache cannot be written there is no lock, which is said: each process then does it for itself.
    """
    digest = hashlib.blake2b("\n".join(names).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    path = cache_directory() / "locks" / digest
    fd = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
        _lock(fd, names[0])
    except OSError as error:
        logger.warning("%s: no lock in '%s' (%s), so that each process of this node may work on its own; set "
                       "STREAMDATA_CACHE to a directory that can be written", names[0], path.parent, error)  # fmt: skip
    try:
        yield
    finally:
        # The kernel unlocks when a process dies, however it dies; whoever deleted the file could let two hold one.
        if fd is not None:
            os.close(fd)


def _lock(fd: int, what: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.info("%s: another process of this node is at it; waiting", what)
        fcntl.flock(fd, fcntl.LOCK_EX)
