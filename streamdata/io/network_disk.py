"""Whether a path lies on a network file system: `path → its kind, or None`."""

import os
import re
from pathlib import Path
from typing import Final

_MOUNTS: Final = Path("/proc/self/mountinfo")
_KINDS: Final = frozenset((
    "9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "orangefs", "panfs",
    "pvfs2", "smb3", "smbfs", "vastnfs", "wekafs",
))  # fmt: skip
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
_LOCAL_FUSE: Final = ("fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.ntfs", "fuse.ntfs-3g", "fuse.exfat")


def network_disk_of(path: str, mounts: str | None = None) -> str | None:
    """The type of the network file system on which a path lies; None for others, and where nobody knows.

    Args:
        path: A directory that exists.
        mounts: What is mounted, in the format of /proc/self/mountinfo (see proc_pid_mountinfo(5)); by default that.
    """
    try:
        text = _MOUNTS.read_text("utf-8", "surrogateescape") if mounts is None else mounts
    except OSError:  # not Linux
        return None
    real = os.path.realpath(path)
    best, found = -1, ""
    for line in text.splitlines():
        mount, _, after = line.partition(" - ")
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), mount.split(" ")[4])
        if len(point) >= best and os.path.commonpath([real, point]) == point:
            best, found = len(point), after.split(" ")[0]  # the last one mounted at a point hides the others
    is_network = found in _KINDS or (found.startswith("fuse.") and found not in _LOCAL_FUSE)
    return found if is_network else None
