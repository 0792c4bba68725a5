"""What is left of finite passes: by every way in which the states of a job may go on, it is one and the same."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from streamdata import MergedDataset, from_stateful, load_states, merge_states, save_states
from streamdata.states.table import table_of
from tests.elastic.functions import tokens_of
from tests.elastic.ledger import Ledger
from tests.elastic.worlds import Config, Mix
from tests.streams import in_lane, loaded, through_json

WAYS = ("joined", "saved", "compacted", "fresh", "stateful")
"""In which a job may go on."""
SIZES = ((1, 0), (2, 0), (1, 2), (3, 0))
"""Ranks and workers under which rests are read, where the job has others."""
RAM = Path("/dev/shm")  # noqa: S108  (files of tests, each in a folder of its own)
"""Where files are written that need not outlive the process, if it is there: each is synced."""


class Lanes(Iterator[list[dict]]):
    """The batches of a DataLoader, simulated as `loaded` does, which also tells what a StatefulDataLoader would save.

    Args:
        dataset: Of one rank.
        num_workers: 0 and 1 are one lane.
        batch_size: The last batch of a lane may have fewer.
    """

    def __init__(self, dataset: MergedDataset, num_workers: int, batch_size: int) -> None:
        self._has_workers, self._batch_size = num_workers > 0, batch_size
        workers = range(max(1, num_workers))
        self._lanes = [iter(in_lane(dataset, at, num_workers) if num_workers else dataset) for at in workers]
        self._turns, self._last = list(workers), 0

    def __next__(self) -> list[dict]:
        while self._turns:
            worker = self._turns.pop(0)
            batch = list(islice(self._lanes[worker], self._batch_size))
            if len(batch) == self._batch_size:
                self._turns.append(worker)
            if batch:
                self._last = worker
                return batch
        raise StopIteration

    def state_dict(self) -> dict[str, Any]:
        """What `StatefulDataLoader.state_dict()` would give, as far as states go; as JSON has it."""
        of_lanes = [{"fetcher_state": {"dataset_iter_state": lane.state_dict()}} for lane in self._lanes]
        if not self._has_workers:
            return through_json(of_lanes[0])
        workers = {f"worker_{number}": state for number, state in enumerate(of_lanes)}
        snapshot = {"_worker_snapshots": workers, "_last_yielded_worker_id": self._last}
        return through_json({"_snapshot": snapshot, "_steps_since_snapshot": 0})


@dataclass(frozen=True)
class Held:
    """What the trainer of one rank may save."""

    states: Mapping[str, Any]
    """What it has loaded, updated since."""
    fresh: Mapping[str, Any]
    """The same from batches alone, since the topology changed: what it had loaded then was not carried on."""
    stateful: Callable[[], Mapping[str, Any]]
    """Gives the state of its StatefulDataLoader."""


def by_every_way(ranks: Sequence[Held], names: Sequence[str] = WAYS) -> dict[str, Mapping[str, Any]]:
    """The states of all ranks, as the next size of the job may be given them, by the name of the way.

    Args:
        ranks: All of one topology, at least one of which has delivered something since the job began.
        names: Those that are wanted.
    """
    ways = {
        "joined": lambda: merge_states(*(rank.states for rank in ranks)),
        "saved": lambda: saved([rank.states for rank in ranks]),
        "compacted": lambda: merge_states(merge_states(*(rank.states for rank in ranks))),
        "fresh": lambda: merge_states(*(rank.fresh for rank in ranks)),
        "stateful": lambda: merge_states(*(from_stateful(rank.stateful()) for rank in ranks)),
    }
    has_fresh = any(rank.fresh for rank in ranks)
    return {name: ways[name]() for name in names if has_fresh or name != "fresh"}


def saved(states: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """What all ranks have written, as it is loaded."""
    with tempfile.TemporaryDirectory(dir=RAM if RAM.is_dir() else None) as folder:
        for rank, own in enumerate(states):
            save_states(folder, own, step=1, rank=rank, size=len(states))
        return load_states(folder)


class Rest:
    """What comes of the passes that a job has begun, if it goes on under another size.

    Args:
        mix: The finite mixture.
        config: Of the job; rests are read with all of its sources.
        ledger: What it has delivered.
        held: Of which topology the states are, where nothing was delivered under the present one.
        sets_epoch: Whether the trainers call set_epoch.
    """

    def __init__(
        self, mix: Mix, config: Config, ledger: Ledger, held: tuple[int, int] | None, *, sets_epoch: bool = False
    ) -> None:
        self._mix, self._ledger, self._old, self._sets_epoch = mix, ledger, config, sets_epoch
        self._passes = sorted({number for _, number in ledger.newest()})
        sizes = (replace(config, dp_size=ranks, num_workers=workers, absent=frozenset()) for ranks, workers in SIZES)
        others = [size for size in sizes if size.topology not in (config.topology, held)]
        self.config = others[len(ledger.delivered) % len(others)]

    def read(self, states: Mapping[str, Any]) -> Counter:
        """The tokens of all ranks, up to the newest pass of which something was delivered."""
        datasets = [self._mix.build(self.config) for _ in range(self.config.dp_size)]
        for rank, dataset in enumerate(datasets):
            dataset.set_data_parallel(self.config.dp_size, rank)
            dataset.set_dataloader_states(states)
            dataset.live = {}  # none of them is stopped
        left: Counter = Counter()
        # Where set_epoch is not called, one more at either end: a pass of which nothing is left may still have to end.
        for number in self._passes if self._sets_epoch else [None] * (self._passes[-1] + 2):
            came = self._one_pass(datasets, number)
            left += came
            if number is None and any(self._pass_of(token) >= self._passes[-1] for token in came):
                break
        return left

    def _one_pass(self, datasets: Sequence[MergedDataset], number: int | None) -> Counter:
        came: Counter = Counter()
        for dataset in datasets:
            if number is not None:
                dataset.set_epoch(number)
            for batch in loaded(dataset, self.config.num_workers):
                came.update(token for sample in batch for token in tokens_of(sample))
        return came

    def _pass_of(self, token: tuple) -> int:
        return self._ledger.epoch_of(token)[1]

    def check(self, ways: Mapping[str, Mapping[str, Any]], *, is_whole: bool) -> None:
        """It must be the same by every way, and all that was not delivered.

        Args:
            ways: States, by the name of the way.
            is_whole: Whether nothing may be missing.

        Raises:
            AssertionError: It is not.
        """
        # Equal states have equal rests, and most ways give equal ones: these are read once.
        digests = {name: _digest(states) for name, states in ways.items()}
        one_of_each = {digest: name for name, digest in digests.items()}
        read = {digest: self.read(ways[name]) for digest, name in one_of_each.items()}
        rests = {name: read[digest] for name, digest in digests.items()}
        first = next(iter(rests))
        for name, left in rests.items():
            what = f"{self._old.topology} → {self.config.topology}: {name}"
            self._check_complete(what, left, is_whole=is_whole)
            more, less = (self._told(some) for some in (left - rests[first], rests[first] - left))
            assert left == rests[first], f"{what}: beyond what is left by {first}: {more}; without {less}"

    def _check_complete(self, what: str, left: Counter, *, is_whole: bool) -> None:
        delivered = self._ledger.delivered
        again = Counter({token: count - (not delivered[token]) for token, count in left.items()})
        allowed = self._old.lanes * self._mix.repeated() * len(self._passes)
        allowed += self._ledger.allowed_repeats - self._ledger.repeats
        assert (+again).total() <= allowed, f"{what}: of what is left again {self._told(+again)}"
        owed = {(path, number): 0 for path in self._ledger.leaves for number in self._passes}
        missing = Counter(token for token in self._ledger.missing(owed) if token not in left)
        assert not missing or not is_whole, f"{what}: of what is left never {self._told(missing)}"

    def _told(self, tokens: Counter) -> str:
        return f"{tokens.total()}: {[self._ledger.told(token) for token in sorted(tokens)[:4]]}"


def _digest(states: Mapping[str, Any]) -> str:
    """Of all that a resume under another size reads: which ranks were idle it only tells."""
    table = table_of(states).present()
    return replace(table, others={key: v for key, v in table.others.items() if not key.startswith("idle/")}).digest


def check_rests(job: Any) -> None:
    """The rule for what all ranks of a job of the soak have just saved, where its passes end.

    Raises:
        AssertionError: What is left of its passes depends on the way of its states, or is not what was not delivered.
    """
    mixtures = list(job.mix.mixtures())
    if not job.ledger.delivered or any(part.cyclic for part in mixtures):
        return
    is_whole = not job.ended_without and all(part.stop == "all_exhausted" for part in mixtures)
    rest = Rest(job.mix, job.config, job.ledger, job.held, sets_epoch=job.sets_epoch)
    # Where a pass ends with its first source, what comes of the others depends on the clocks; and an iterator of a
    # later pass does not say how much a lane had drawn of one that it has ended, which moves them.
    is_cut_short = any(part.stop == "first_exhausted" for part in mixtures)
    names = [name for name in WAYS if name != "stateful" or not is_cut_short]
    rest.check(by_every_way([rank.held() for rank in job.ranks], names), is_whole=is_whole)
    job.num_rests += 1


def left_in_lanes(
    make: Callable[[], MergedDataset], states: Mapping[str, Any], dp_size: int, num_workers: int = 0
) -> dict[str, list[int]]:
    """How many samples of each source the lanes of a size still have in the pass, lane by lane."""
    lanes, workers = [], max(1, num_workers)
    for rank in range(dp_size):
        dataset = make()
        dataset.set_data_parallel(dp_size, rank)
        dataset.set_dataloader_states(states)
        came = Counter((s["__workerid__"], s["__datasetname__"]) for (s,) in loaded(dataset, num_workers))
        lanes += [Counter({name: n for (at, name), n in came.items() if at == worker}) for worker in range(workers)]
    return {name: [lane[name] for lane in lanes] for name in set().union(*lanes)}


def assert_even(lanes: Sequence[int], block: int, whole: int = 0) -> None:
    """Lanes must have equally many samples left of a source, within an eighth of a lane's stretch and a block.

    Args:
        lanes: How many each has.
        block: Records that are dealt out together.
        whole: The largest run beside these that nobody can divide: an open burst, a shard read from its start.

    Raises:
        AssertionError: One has less than another by more than that.
    """
    most = sum(lanes) / len(lanes) / 8 + block + whole
    assert max(lanes) - min(lanes) <= most, f"left in lanes: {list(lanes)}; they may differ by {most:.1f}"
