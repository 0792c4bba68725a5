"""The memory of this process, as Linux counts it, in bytes.

Not `ru_maxrss`: of a process that was started it begins with what its parent had, and it never goes down again, so that
in one that was large before, nothing is seen.
"""

from pathlib import Path


def begin_peak() -> int:
    """Let the highest mark begin anew; what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak() -> int:
    """The most that was resident since, or since the process began."""
    return _status("VmHWM")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) << 10
