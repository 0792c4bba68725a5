"""Jobs of several sizes, each going on from the states of all ranks: `python -m tests.elastic.lives --jobs 5000`.

At the end of each life these are joined, saved and loaded, compacted, collected in a fresh dict, or a
StatefulDataLoader's. By every way the rest of a finite pass must be the same, and all that was not delivered; one of
them goes on. At the end all that was begun is delivered: each record once. At the first thing that does not hold it
stops with the seed of that job: `--only SEED` runs that one alone.
"""

import argparse
import copy
import logging
import random
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from streamdata import mixed_collate, to_state
from tests.elastic.driver import KINDS
from tests.elastic.functions import FUNCTIONS, tokens_of
from tests.elastic.ledger import Ledger
from tests.elastic.rests import SIZES, WAYS, Held, Lanes, Rest, by_every_way
from tests.elastic.worlds import Config, Leaf, Mix

WEIGHTS = (1, 1, 0.5, 0.1, 0.1, 0.03)
"""Of sources but the first; where all are plain, these are rare."""
LARGE = tuple(name for name in FUNCTIONS if name not in ("plain", "packer", "echo"))
"""Functions that may give nothing of a record, or one sample of several."""
_MANY = 0.04
"""The share of jobs of up to 30 changes, most of them soon after the one before."""


def random_leaf(rng: random.Random, name: str) -> Leaf:
    """A tiny source of any kind; as the soak's, but small, so that most of a job is changes."""
    kind, function = rng.choice(KINDS), rng.choice(("packer", "echo", *LARGE)) if rng.random() < 0.35 else "plain"
    # In each epoch of each lane something must come out, or it is an error.
    size = 60 if function in LARGE else rng.choice((1, 2, 5, 12, 30, 90) if kind in ("map", "ahead") else (12, 30))
    if function.partition(",")[0] in ("split", "wanted", "failing", "sift", "brittle"):
        kind, size = rng.choice(("map", "ahead", "jsonl")), 120
    block_size = 3 if kind == "copies" else rng.choice((1, 3))
    return Leaf(name, size, kind, function, block_size, rng.choice((0, 6, 12)))


def random_mix(rng: random.Random, *, is_plain: bool) -> Mix:
    """One to four sources; of any kind, or all of them plain records."""
    names = "abcd"[: rng.randint(1 + is_plain, 4 - is_plain)]
    leaves = tuple(Leaf(name, rng.choice((30, 90))) if is_plain else random_leaf(rng, name) for name in names)
    cyclic = rng.random() < (0.2 if is_plain else 0.35)
    return Mix(leaves, cyclic=cyclic, shuffle=rng.random() < 0.9, seed=rng.randrange(99))


class Trainer:
    """A rank in one life of a job.

    Args:
        job: Whose it is.
        rank: Its number.
        states: Of all ranks.
        fresh: What its dict without these begins with.
    """

    def __init__(self, job: "LivesJob", rank: int, states: Mapping[str, Any], fresh: Mapping[str, Any]) -> None:
        self.config, self.ledger = job.config, job.ledger
        self.dataset = job.mix.build(job.config)
        self.dataset.set_data_parallel(job.config.dp_size, rank)
        self.dataset.set_dataloader_states(states)
        # What `load_states` gives stays what it is: no dict, until a trainer makes one of it.
        self.states, self.fresh = copy.deepcopy(states), dict(fresh)
        self.num_batches, self.has_ended = 0, False
        self._begin()

    def _begin(self) -> None:
        self.has_ended = False
        self.lanes = Lanes(self.dataset, self.config.num_workers, self.config.batch_size)

    def deliver(self) -> None:
        """The next batch; where the pass ends instead, the next one begins with the next call."""
        if self.has_ended:
            self._begin()
        batch = next(self.lanes, None)
        if batch is None:
            self.has_ended = True
            return
        state = to_state(mixed_collate(batch))
        self.states.update(state)
        self.fresh.update(state)
        self.num_batches += 1
        for sample in batch:
            self.ledger.add(tokens_of(sample))

    def held(self) -> Held:
        """What it may save."""
        return Held(self.states, self.fresh, self.lanes.state_dict)


class LivesJob:
    """One random job.

    Args:
        seed: Decides all of it.
        ways: Those in which it may go on, and which are compared.
    """

    def __init__(self, seed: int, ways: tuple[str, ...] = WAYS) -> None:
        self.rng = rng = random.Random(f"lives {seed}")
        is_plain = rng.random() < 0.5
        self.mix, self.ways = random_mix(rng, is_plain=is_plain), ways
        paths = [path for path, _ in self.mix.leaves()]
        self.weights = {path: rng.choice(WEIGHTS[3 * is_plain :]) for path in paths} | {paths[0]: 1}
        self.many = rng.random() < _MANY
        self.num_lives = rng.randint(7, 30) if self.many else rng.randint(2, 6)
        self.ledger, self.states = Ledger(self.mix), {}
        self.held: tuple[int, int] | None = None
        self.fresh: list[Mapping[str, Any]] = []
        """Of each rank of the size that delivered last."""
        self.has_idle, self.barred = False, None
        """Whether of that a rank delivered nothing; where only files would tell, it is refused as the next size."""
        self.trace: list[str] = []
        self.counts: Counter[str] = Counter()
        self.config = self._random_config()

    def _random_config(self) -> Config:
        rng = self.rng
        size = {"dp_size": rng.choice((1, 1, 2, 2, 3, 4, 5)), "num_workers": rng.choice((0, 0, 0, 0, 1, 2, 3))}
        return Config(**size, batch_size=rng.choice((1, 2, 3, 8)), weights=self.weights)

    def _next_config(self) -> Config:
        if self.rng.random() < 0.1 and self.config.topology != self.barred:
            return self.config
        configs = iter(self._random_config, None)
        return next(config for config in configs if config.topology != self.barred)

    def run(self) -> None:
        """All its lives, and the rest of what these have begun.

        Raises:
            AssertionError: Something does not hold; a note says how to see it again.
        """
        try:
            for _ in range(self.num_lives):
                self._live()
            self._finish()
        except Exception as error:
            error.add_note("\n  ".join([f"{self.mix}", f"weights {self.weights}", *self.trace]))
            raise

    def _begin(self) -> list[Trainer]:
        goes_on = self.config.topology == self.held
        fresh = self.fresh if goes_on else [{}] * self.config.dp_size
        return [Trainer(self, rank, self.states, fresh[rank]) for rank in range(self.config.dp_size)]

    def _live(self) -> None:
        """Some batches of each rank; the next life has another size, or the same."""
        config, ranks = self.config, self._begin()
        batches = [self.rng.choice((0, 1, 1, 2) if self.many else (0, 1, 2, 2, 4, 8)) for _ in ranks]
        size = f"{config.dp_size} x {config.num_workers}, batches of {config.batch_size}: {batches}"
        self.trace.append(size)
        turns = [rank for rank, count in zip(ranks, batches, strict=True) for _ in range(count)]
        self.rng.shuffle(turns)
        for rank in turns:
            rank.deliver()
        if self.ledger.delivered:
            self._save(ranks)
        self.config = self._next_config()

    def _save(self, ranks: list[Trainer]) -> None:
        """The states of all ranks, by every way; one of them goes on."""
        self.ledger.topology_ends(self.config.lanes, 0)
        ways = by_every_way([rank.held() for rank in ranks], self.ways)
        if not ways:  # a fresh dict has nothing yet: it goes on from what it was given
            return
        way = self.rng.choice(list(ways))
        if any(rank.num_batches for rank in ranks):
            self.held, self.fresh = self.config.topology, [rank.fresh for rank in ranks]
            self.has_idle = not all(rank.num_batches for rank in ranks)
            self.barred = None if way == "saved" or not self.has_idle else self.held
        elif self.has_idle:
            self.barred = self.held
        if not self.mix.cyclic:
            Rest(self.mix, self.config, self.ledger, self.held).check(ways, is_whole=True)
            self.counts["rests compared"] += 1
        self.trace[-1] += f", {way}"
        self.counts[way] += 1
        self.states = ways[way]

    def _finish(self) -> None:
        newest = self.ledger.newest()
        self.ledger.owed = set(self.ledger.missing(newest))
        # A rare source of an endless stream would take long, and so do many lanes to begin.
        weights = {} if self.mix.cyclic else self.weights
        configs = [Config(*size, self.rng.choice((1, 3)), weights) for size in SIZES]
        self.config = self.rng.choice([config for config in configs if config.topology != self.barred])
        self.trace.append(f"to the end: {self.config.dp_size} x {self.config.num_workers}")
        ranks = self._begin()
        for _ in range(20_000 // self.config.lanes):
            if not self.ledger.owed:
                break
            for rank in ranks:
                rank.deliver()
        owed = sorted(map(self.ledger.told, self.ledger.owed))
        assert not owed, f"never came: {owed[:5]} … {len(owed)} in all"
        self.ledger.check_known()


def run_job(seed: int, ways: tuple[str, ...] = WAYS) -> Counter[str]:
    """A random job from its start to its end; how often what was done.

    Raises:
        AssertionError: Something does not hold; a note says how to see it again.
    """
    job = LivesJob(seed, ways)
    try:
        job.run()
    except Exception as error:
        error.add_note(f"python -m tests.elastic.lives --only {seed}")
        raise
    samples = job.ledger.delivered.total()
    return job.counts + Counter({"sizes": job.num_lives + 1, "tokens delivered": samples})


def main() -> None:
    """Run them, and print how many they were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the seed of one job, as a failure names it")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="by default all")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # one for each change of size
    if arguments.only is not None:
        print(run_job(arguments.only, tuple(arguments.ways)))
        return
    begin, counts = time.monotonic(), Counter()
    for number in range(arguments.jobs):
        counts += run_job(arguments.seed * 1_000_000 + number, tuple(arguments.ways))
    seconds = time.monotonic() - begin
    rate = arguments.jobs / seconds
    print(f"{arguments.jobs} jobs, seed {arguments.seed}, in {seconds:.0f} s ({rate:.1f} per second):")
    print(", ".join(f"{count} {name}" for name, count in counts.most_common()))


if __name__ == "__main__":
    main()
