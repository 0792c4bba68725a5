"""`python -m tests.fuzz --cases N --seed S [KIND…]`: damaged files of each kind are read, in child processes.

Prints how many cases of a kind were read (fine), ended in an error of ours (error), in another (fault), in the death of
the process (crash), in more than 1 s of CPU (slow) or in more than 256 MiB (memory); and of what was found the first
case. `--only CASE` reads one case alone, in this process. Ends with 1 if our own parsers did any of the last four.
"""

import argparse
import logging
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

OUTCOMES = ("fine", "error", "fault", "crash", "slow", "memory")
_WRONG = OUTCOMES[2:]


def main() -> int:
    """Run the campaigns that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="all, if none is named")
    parser.add_argument("--cases", type=int, default=1000, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, metavar="CASE", help="one case of one kind, with its traceback")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="with --only: where its files are written, too")
    arguments = parser.parse_args()
    # Before anything is imported that reads them.
    os.environ |= {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: S108
    with TemporaryDirectory(dir=memory) as folder:
        os.environ["STREAMDATA_CACHE"] = f"{folder}/cache"
        return _run(arguments, Path(folder))


def _run(arguments: argparse.Namespace, folder: Path) -> int:
    from tests.fuzz.campaign import random_of, run
    from tests.fuzz.case import outcome_of, write_files
    from tests.fuzz.kinds import KINDS

    if unknown := set(arguments.kinds) - KINDS.keys():
        print(f"unknown: {', '.join(sorted(unknown))}; the kinds are {', '.join(KINDS)}", file=sys.stderr)
        return 2
    logging.disable(logging.CRITICAL)
    chosen = [KINDS[name] for name in arguments.kinds or KINDS]
    if arguments.only is not None:
        files = chosen[0].case(random_of(chosen[0], arguments.seed, arguments.only))
        if arguments.keep:
            write_files(arguments.keep, files)
        print(outcome_of(chosen[0], folder / "case", files))
        return 0
    print(f"seed {arguments.seed}, {arguments.cases} cases of each kind")
    print(f"{'':18}" + "".join(f"{name:>8}" for name in OUTCOMES) + f"{'ms/case':>9}")
    is_wrong = False
    for kind in chosen:
        began = time.perf_counter()
        report = run(kind, range(arguments.cases), arguments.seed, folder)
        took = (time.perf_counter() - began) * 1000 / max(1, arguments.cases)
        counts = "".join(f"{report.outcomes[name]:8}" for name in OUTCOMES)
        print(f"{kind.name:18}{counts}{took:9.2f}", flush=True)
        for what, cases in sorted(report.found.items(), key=lambda item: -len(item[1])):
            print(f"  {len(cases)} times, such as --only {cases[0]}: {what}", flush=True)
        is_wrong |= not kind.is_foreign and any(report.outcomes[name] for name in _WRONG)
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
