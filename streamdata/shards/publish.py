"""Publishing so that readers see all or nothing: temporary file or directory → fsync → rename → fsync of the parent."""

import errno
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from streamdata.errors import ShardError

_NOT_ALLOWED = (errno.EROFS, errno.EACCES, errno.EPERM)


def publish(path: Path, parts: Sequence[bytes]) -> None:
    """Write the joined `parts` to `path` in one step; whoever publishes last wins, and no reader sees a mixture.

    Raises:
        OSError: The directory cannot be written.
    """

    def write(temporary: Path) -> None:
        with temporary.open("xb") as file:
            file.writelines(parts)

    publish_made(path, write)


def publish_made(path: Path, make: Callable[[Path], object]) -> None:
    """Let `make` write a temporary file, which then becomes `path` in one step; nothing stays of one that fails."""
    temporary = temporary_beside(path)
    try:
        make(temporary)
        publish_written(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def temporary_beside(path: Path) -> Path:
    """A new name beside `path` that readers pass over, since it begins with a dot.

    Not tempfile's: what that makes is readable by its owner only, and a data set is shared.
    """
    return path.with_name(f".{path.name.removeprefix('.')}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


def publish_written(temporary: Path, path: Path) -> None:
    """Bring a file, or a directory of files, that is written in full to where readers look.

    Raises:
        OSError: A directory that is not empty is at `path`, or it cannot be written. What is `temporary` stays.
    """
    for file in sorted(temporary.iterdir()) if temporary.is_dir() else [temporary]:
        _sync(file)
    if temporary.is_dir():
        _sync(temporary)
    temporary.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


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
