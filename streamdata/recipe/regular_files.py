"""Files that a user names, opened at once or refused: they are regular.

Whoever opens a fifo waits for its writer, and a device may have no end.
"""

import errno
import os
import stat
from typing import BinaryIO, Final

from streamdata.errors import one_line

_KINDS: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a fifo",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: str | os.PathLike[str], error: type[Exception]) -> BinaryIO:
    """Open a file to be read.

    Args:
        path: The file.
        error: What is raised where it is not a regular file.

    Raises:
        OSError: It cannot be opened.
    """
    return os.fdopen(regular_fd(path, error), "rb")


def regular_fd(path: str | os.PathLike[str], error: type[Exception]) -> int:
    """As `open_regular`, its descriptor."""
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
    return fd


def check_regular(path: str | os.PathLike[str], error: type[Exception]) -> None:
    """As `open_regular`, of a file that a library will open.

    Raises:
        OSError: There is no such file.
    """
    check_mode(path, os.stat(path).st_mode, error)


def check_mode(path: str | os.PathLike[str], mode: int, error: type[Exception]) -> None:
    """As `check_regular`, of a file whose mode is known."""
    if not stat.S_ISREG(mode):
        got = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise error(f"file '{one_line(path)}': expected a regular file, got {got}\n  Name a file of data.")
