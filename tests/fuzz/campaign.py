"""Many cases of a kind, in child processes: `kind, seed → cases → outcomes counted, and what was found`.

A child has a bound on its memory above what is imported, and one on the CPU time of a case. It says in shared memory
which case it is at, so that the parent knows what it died of and goes on behind it.
"""

import faulthandler
import json
import mmap
import os
import resource
import signal
import struct
import sys
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.fuzz.case import Kind, outcome_of

MAX_BYTES = 256 << 20
MAX_SECONDS = 1.0
_KILL_SECONDS = 2.0
_CASES_PER_CHILD = 2000
_SLACK = 32 << 20
"""Of address space that a library takes and does not use."""
_AT = struct.Struct("<q")
_PACKAGE = "/streamdata/"


@dataclass
class Report:
    """What a campaign found.

    Attributes:
        outcomes: How many cases ended how.
        found: The cases of each finding, by what it is.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    found: dict[str, list[int]] = field(default_factory=dict)

    def add(self, outcome: str, case: int, what: str = "") -> None:
        """Take in how a case ended."""
        self.outcomes[outcome] += 1
        if what:
            self.found.setdefault(what, []).append(case)


def random_of(kind: Kind, seed: int, case: int) -> Random:
    """The random numbers of a case, which is so the same alone."""
    return Random(f"{kind.name}/{seed}/{case}")


def run(kind: Kind, cases: range, seed: int, folder: Path) -> Report:
    """Read all cases."""
    kind.made()
    report, first = Report(), cases.start
    at = mmap.mmap(-1, _AT.size)
    while first < cases.stop:
        some = range(first, min(first + _CASES_PER_CHILD, cases.stop))
        first = _run_child(kind, some, seed, folder, at, report)
    return report


def _run_child(kind: Kind, cases: range, seed: int, folder: Path, at: mmap.mmap, report: Report) -> int:
    """Read cases in a child; the one to go on with."""
    reading, writing = os.pipe()
    _AT.pack_into(at, 0, cases.start)
    with warnings.catch_warnings(
        action="ignore", category=DeprecationWarning
    ):  # of threads: the child uses none of them
        child = os.fork()
    if not child:
        os.close(reading)
        os._exit(_child(kind, cases, seed, folder, at, writing))
    os.close(writing)
    with os.fdopen(reading) as lines:
        for line in lines:
            report.add(*json.loads(line))
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
        return cases.stop
    (case,) = _AT.unpack_from(at)
    died = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
    is_slow = died in ("SIGPROF", "SIGALRM")
    report.add("slow" if is_slow else "crash", case, f"{'slow' if is_slow else 'crash'}: {died}")
    return int(case) + 1


def _child(kind: Kind, cases: range, seed: int, folder: Path, at: mmap.mmap, writing: int) -> int:
    try:
        _bound()
        with os.fdopen(writing, "w") as lines:
            for case in cases:
                _AT.pack_into(at, 0, case)
                signal.setitimer(signal.ITIMER_PROF, _KILL_SECONDS)  # whose signal ends the process
                signal.setitimer(signal.ITIMER_REAL, 30 * _KILL_SECONDS)
                outcome, what = _tried(kind, seed, case, folder)
                lines.write(json.dumps([outcome, case, what]) + "\n")
                lines.flush()
        return 0
    except BaseException:  # nothing of the child may go on as if it were the parent
        traceback.print_exc()
        return 1


def _bound() -> None:
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # the threads that it had stayed with the parent
    faulthandler.disable()
    warnings.simplefilter("error")
    used = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MAX_BYTES + _SLACK,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.setrecursionlimit(1000)


def _tried(kind: Kind, seed: int, case: int, folder: Path) -> tuple[str, str]:
    rng = random_of(kind, seed, case)
    files = kind.case(rng)
    began = time.process_time()
    try:
        outcome, what = outcome_of(kind, folder / f"{kind.name}-{case}", files), ""
    except MemoryError as error:
        outcome, what = "memory", f"memory: {_place(error)}"
    except BaseException as error:
        outcome, what = "fault", f"{type(error).__name__}: {str(error)[:200]!r} {_place(error)}"
    if (took := time.process_time() - began) > MAX_SECONDS:
        return "slow", f"slow: {took:.1f} s, {outcome} {what}"
    return outcome, what


def _place(error: BaseException) -> str:
    """Where in the package an error comes from."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _PACKAGE in frame.filename]
    return " < ".join(f"{Path(frame.filename).stem}:{frame.lineno} {frame.name}" for frame in frames[:-4:-1])
