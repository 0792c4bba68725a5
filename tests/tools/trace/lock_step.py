"""Random jobs in lock step, compared with what `trace` and `report` say: `python -m tests.tools.trace.lock_step`.

Ranks and workers change, weights, sizes of batches, saves that are given up, and `uneven`. By the states of all resumes
each step is exact; by some of them exact or refused; what `report` counts is what the loops logged. Of functions over
all sources `packed.py` compares that after each step.
"""

import argparse
import logging
import random
import sys
import time
from collections import Counter
from itertools import chain

from streamdata import StateError, StreamLoader, mixed_collate, report
from streamdata.fields import PADDING
from streamdata.states.progress import Progress
from streamdata.tools.trace.era import record_of
from streamdata.tools.trace.trace import Trace
from tests.elastic.worlds import Config, Mix
from tests.tools.trace.jobs import SteppedJob, random_leaf, random_weights
from tests.tools.trace.packed import check_packed

UNEVEN = ("drop", "pad")


class LockStepJob(SteppedJob):
    """Logs what each step was made of, and how often each source filled up; some of its legs are evened out."""

    def __init__(self, mix, config):
        super().__init__(mix, config)
        self.padded = Counter()
        """What filled up, by source."""
        self.padded_then = []
        """The same at the end of each leg."""
        self.has_given_up = self.has_set = False

    def note(self, ranks):
        """Note the states of all ranks and the batches of each."""
        super().note(ranks)
        self.padded_then.append(Counter(self.padded))

    def give_up(self, number):
        """Go back to where it was after so many legs."""
        super().give_up(number)
        self.has_given_up = True
        self.padded = Counter(self.padded_then[number - 1])

    def set_weights(self, rng):
        """Set the weights of some sources from the next leg on."""
        dataset = self.mix.build(self.config)
        dataset.set_dataloader_states(self.states)
        weights = {path: rng.choice([0.05, 0.3, 1, 4]) for path in rng.sample([*self.mix.paths()], 2)}
        time = dataset.time(self.config.num_workers, Progress(self.states))
        self.setting, self.has_set = (weights, time), True

    def go_evenly(self, steps, uneven, **changes):
        """Go on in loaders that even ranks out."""
        self.change(**changes | {"num_workers": 0})
        padded = Counter()
        ranks = [self._evened(rank, steps, uneven, padded) for rank in range(self.config.dp_size)]
        self.padded += padded
        self.note(ranks)

    def _evened(self, rank, steps, uneven, padded):
        dataset = self.mix.build(self.config)
        dataset.set_data_parallel(self.config.dp_size, rank)
        loader = StreamLoader(dataset, self.config.batch_size, collate=mixed_collate, uneven=uneven)
        loader.load_state_dict(self.states)
        batches = []
        while len(batches) < steps:
            for batch in loader:
                samples = [sample for sample in batch if not sample.get(PADDING, False)]
                padded.update(sample["__datasetname__"] for sample in batch if sample.get(PADDING, False))
                batches.append([record_of(sample) for sample in samples])
                if len(batches) == steps:
                    break
        return dict(loader.state_dict()), batches

    def check_steps(self, states, *, is_all, one_of=1):
        """Each step, or one of so many and the last, as logged; or, where not all states are given, refused.

        Returns how many were compared, and how many of them were refused.
        """
        steps = list(enumerate(self.steps, 1))[::-one_of]
        is_all = is_all and not self.has_set  # what came before weights that were set, later states do not tell
        try:
            trace, refused = Trace(self.mix.build(self.config), states), 0
        except StateError as error:
            if self.has_given_up and ("went back from" in str(error) or "not of one run" in str(error)):
                return len(steps), len(steps)  # some were saved and given up for a run that went another way
            raise
        assert not is_all or self.has_given_up or trace.num_steps == len(self.steps)
        for step, want in steps:
            try:
                got = trace.at(step)
            except StateError as error:
                if is_all or "do not say where rank" not in str(error):
                    raise
                refused += 1
            else:
                assert got.records == want, f"step {step} by {got.how} from {got.origin}"
        return len(steps), refused

    def check_report(self):
        """Delivered, filled up and steps, by the states of all ranks."""
        found, logged = report(self.states), Counter(record["source"] for record in chain(*self.steps))
        assert found["steps"] == len(self.steps)
        assert found["samples"] == sum(logged.values())
        for path, _ in self.mix.leaves():
            assert found.get(f"samples/{path}", 0) == logged[path], path
            assert found.get(f"padded/{path}", 0) == self.padded[path], path


def random_job(rng):
    """A tree, and some legs of a run over it, of which some are given up."""
    is_finite = rng.random() < 0.5
    leaves = [random_leaf(rng, name) for name in "abcd"[: rng.randint(2, 4)]]
    stop = rng.choice(["all_exhausted", "first_exhausted"])
    children = leaves
    if rng.random() < 0.4:
        children = [leaves[0], Mix(tuple(leaves[1:]), "inner", cyclic=not is_finite, stop=stop, seed=3)]
    mix = Mix(tuple(children), cyclic=not is_finite, stop=stop, shuffle=rng.random() < 0.8)
    job = LockStepJob(mix, Config(rng.randint(1, 3), rng.randint(0, 2), rng.randint(1, 4), random_weights(rng, mix)))
    setting = random.Random(repr(mix))  # of its own, so that the other choices of a seed stay
    for number in range(rng.randint(1, 5)):
        changes = {"dp_size": rng.randint(1, 3), "num_workers": rng.randint(0, 3)} if rng.random() < 0.6 else {}
        changes |= {"weights": random_weights(rng, mix)} if rng.random() < 0.3 else {}
        changes |= {"batch_size": rng.randint(1, 4)} if rng.random() < 0.3 else {}
        if not number:
            changes = {}
        if number and rng.random() < 0.2:
            job.give_up(rng.randint(1, len(job.saved)))
        uneven = rng.choice(UNEVEN) if is_finite and rng.random() < 0.6 else None
        steps = rng.randint(1, 12)
        if number and not uneven and not changes.keys() & {"dp_size", "num_workers"} and setting.random() < 0.3:
            job.set_weights(setting)
        try:
            if uneven:
                job.go_evenly(steps, uneven, **changes)
            else:
                job.go(steps, **changes)
        except (StateError, ValueError) as error:  # a rank without a share, say: the job could not have gone on so
            job.refusals.append(str(error))
            break
        job.setting = None
    return job


def check(seed, one_of=1):
    """Compare each step of one job, or one of so many; return how many, and how many of them were refused."""
    rng = random.Random(seed)
    job = random_job(rng)
    if not job.steps:
        return 0, 0
    job.check_report()
    some = [states for states in job.saved[:-1] if rng.random() < 0.5]
    done = [
        job.check_steps(job.saved, is_all=True, one_of=one_of),
        job.check_steps([*some, job.states], is_all=False, one_of=one_of),
        job.check_steps([job.states], is_all=False, one_of=one_of),
    ]
    return sum(compared for compared, _ in done), sum(refused for _, refused in done)


def main():
    """Compares random jobs, and says how many steps there were."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    began, compared, refused, packed = time.monotonic(), 0, 0, 0
    for seed in range(arguments.seed, arguments.seed + arguments.jobs):
        try:
            of_job = check(seed)
            packed += check_packed(seed)
        except Exception as error:
            error.add_note(f"job {seed}")
            raise
        compared, refused = compared + of_job[0], refused + of_job[1]
    seconds = time.monotonic() - began
    sys.stdout.write(
        f"{arguments.jobs} jobs: {compared:,} steps compared, of which {refused:,} were refused; {packed:,} samples "
        f"in outputs of functions over all sources, counted after each step, in {seconds:.0f} s\n"
    )


if __name__ == "__main__":
    main()
