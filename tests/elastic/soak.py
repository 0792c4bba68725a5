"""Random jobs, as many steps as are asked for: `python -m tests.elastic.soak --steps 100000 --seed 0`.

A step is what a job does next: deliver some batches, save, crash, go on with another topology, other weights or other
sources. At the first thing that does not hold it stops with the seed of that job: `--only SEED` runs that one alone.
"""

import argparse
import logging
import time
from collections import Counter

from tests.elastic.driver import run_walk

_STEPS = 80


def main() -> None:
    """Run them, and print how often each thing was done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument("--sets", action="store_true", help="set weights while jobs go on, too")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # one for each source that leaves or returns
    if arguments.only is not None:
        run_walk(arguments.only, _STEPS, sets=arguments.sets)
        return
    counts: Counter[str] = Counter()
    begin, jobs = time.monotonic(), 0
    while counts["steps"] < arguments.steps:
        walk = run_walk(arguments.seed * 1_000_000 + jobs, _STEPS, sets=arguments.sets)
        jobs += 1
        counts += walk.counts + Counter(walk.totals())
    minutes = (time.monotonic() - begin) / 60
    print(f"{jobs} random jobs, {counts.pop('steps')} steps in {minutes:.1f} minutes, seed {arguments.seed}:")
    print(", ".join(f"{count} {name}" for name, count in counts.most_common()))


if __name__ == "__main__":
    main()
