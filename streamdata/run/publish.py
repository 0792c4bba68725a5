"""Publishing so that readers see all or nothing: temporary file or directory → fsync → rename → fsync of the parent."""

import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path


def publish(path: Path, parts: Sequence[bytes], *, is_checked: bool = False) -> None:
    """Write the joined `parts` to `path` atomically: the last writer wins, and no reader sees a mixture.

    Args:
        path: Where.
        parts: Of the content.
        is_checked: Whether readers compare sums, and make it again where they do not fit. It is then not waited for
            until it is on the disk: of 10,000 small files that would take minutes, and a power cut costs little.

    Raises:
        OSError: The directory cannot be written.
    """

    def write(temporary: Path) -> None:
        # x: a file that is there is another process's, and must not be written into.
        with temporary.open("xb") as file:
            file.writelines(parts)

    publish_made(path, write, is_checked=is_checked)


def publish_made(path: Path, make: Callable[[Path], object], *, is_checked: bool = False) -> None:
    """Let `make` write a temporary file, then rename it to `path` atomically; a failed one leaves nothing."""
    temporary = temporary_beside(path)
    try:
        make(temporary)
        if is_checked:
            temporary.replace(path)
        else:
            publish_written(temporary, path)
    except BaseException as error:  # Ctrl-C too: nobody would look for the file again
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a full disk is met in writing, which does not know its file's name
        raise


def make_directory(path: Path) -> None:
    """Create a directory and its parents, and sync them to disk. It may exist.

    Raises:
        OSError: The directory cannot be made.
    """
    # Of several processes that want it, one makes it and syncs its name; the others' files are there no sooner.
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)


def temporary_beside(path: Path) -> Path:
    """A new name in the folder of `path`; it begins with a dot, so that readers skip it.

    Not tempfile's: what that makes is readable by its owner only, and a data set is shared.
    """
    return path.with_name(f".{path.name.removeprefix('.')}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


def publish_written(temporary: Path, path: Path) -> None:
    """Move a complete file, or directory of files, to the path where readers look.

    Raises:
        OSError: A directory that is not empty is at `path`, or it cannot be written. What is `temporary` stays.
    """
    # Content before name: after a power cut a name that reached the disk first would stand for an empty file.
    for file in sorted(temporary.iterdir()) if temporary.is_dir() else [temporary]:
        sync(file)
    if temporary.is_dir():
        sync(temporary)
    temporary.replace(path)
    # The name is content of the directory: until that is on the disk, a power cut may bring the old file back.
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a directory, are on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
