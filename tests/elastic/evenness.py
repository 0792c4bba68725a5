"""How evenly a job goes on after changes of topology: shares of sources, and shards within a lane."""

from collections.abc import Iterator, Mapping
from itertools import islice
from statistics import median
from typing import Any

import numpy as np

from streamdata import MergedDataset, merge_states, to_state
from streamdata.sources.files.shard_source import BlockSource, ShardDataset
from tests.elastic.figures import Figure, States, Topology, resumed
from tests.streams import Numbers, in_lane


class FakeShards:
    """Indexed shards of equal sizes, of which nothing is stored."""

    has_remote, cache = False, None

    def __init__(self, shards: int, records: int) -> None:
        self.urls = [f"{shard:05}.fake" for shard in range(shards)]
        self.num_records = np.full(shards, records, np.int64)
        self.sizes = self.num_records * 2000

    def identity(self) -> list[tuple[str, int]]:
        """Names and sizes."""
        return [(url, int(count)) for url, count in zip(self.urls, self.num_records, strict=True)]

    def is_slow(self) -> bool:
        """Never."""
        return False

    def anomalies(self) -> dict[str, int]:
        """None."""
        return {}

    def window(self, shards: Any, firsts: Any, counts: Any) -> "FakeWindow":
        """Runs of records."""
        return FakeWindow(np.repeat(shards, counts))


class FakeWindow:
    """Records that know their shard."""

    look_ahead = 64

    def __init__(self, shards: Any) -> None:
        self._shards = shards

    def __len__(self) -> int:
        return len(self._shards)

    def take(self, positions: Any, common: Mapping[str, Any], held: Any = None) -> Iterator[dict[str, Any]]:
        """Them."""
        for shard in self._shards[positions].tolist():
            yield {"shard": shard, **common}


class FakeDataset(ShardDataset):
    """A source of them."""

    def __init__(self, shards: int, records: int) -> None:
        super().__init__("fake", 1)
        self.process_fn = self.single_process_fn = None
        self.source = BlockSource("fake", FakeShards(shards, records), np.full(shards, 64), 1000)


def distances() -> Iterator[Figure]:
    """How far apart two records of one shard are in a lane, before and after a change."""

    def make() -> MergedDataset:
        return MergedDataset([FakeDataset(500, 200_000)], seed=5)

    def distance(topology: Topology, states: States, rank: int) -> float:
        stream = in_lane(resumed(make, topology, rank, states), 0, topology.num_workers)
        last: dict[int, int] = {}
        found = []
        for at, sample in enumerate(islice(stream, 10_000)):
            if sample["shard"] in last:
                found.append(at - last[sample["shard"]])
            last[sample["shard"]] = at
        return median(found)

    old, new = Topology(32, 2), Topology(24, 2)
    parts = []
    for rank in range(old.dp_size):
        states: dict[str, Any] = {}
        lanes = [in_lane(resumed(make, old, rank, {}), worker, old.num_workers) for worker in range(old.num_workers)]
        # Each lane in another window, and in the middle of it; the earlier ones are those of the workers before.
        for lane in lanes:
            states.update(to_state(list(islice(lane, 1500 + 371 * rank))))
        parts.append(states)
    merged = merge_states(*parts)
    before = median(distance(old, {}, rank) for rank in range(0, 24, 6))
    after = median(distance(new, merged, rank) for rank in range(0, 24, 6))
    yield Figure(
        "median distance of two records of a shard, a lane's first 10^4 after a change to before",
        "≥ 0.8",
        f"{after / before:.2f} ({after:.0f} and {before:.0f} records)",
        after / before >= 0.8,
    )


WEIGHTINGS = {".7 .2 .1": [0.7, 0.2, 0.1], ".5 .3 .2": [0.5, 0.3, 0.2], ".5 and 25 x .02": [0.5, *[0.02] * 25]}


class Lockstep:
    """A job whose ranks deliver the same number of samples each, by turns of their workers.

    Args:
        weights: Of the sources.
        topology: The first.
    """

    def __init__(self, weights: list[float], topology: Topology) -> None:
        self.weights, self.topology, self.states = np.array(weights) / sum(weights), topology, {}
        self.counts = np.zeros(len(weights), np.int64)

    def make(self) -> MergedDataset:
        """The mixture."""
        return MergedDataset([Numbers(f"s{k:02}", 10**7, w) for k, w in enumerate(self.weights.tolist())], seed=9)

    def run(self, steps: int, samples: int) -> np.ndarray:
        """Shares of the sources in each global batch; batches of a rank come from its workers by turns."""
        parts, drawn = [], np.zeros((steps, len(self.weights)), np.int64)
        for rank in range(self.topology.dp_size):
            states = dict(self.states)
            dataset = resumed(self.make, self.topology, rank, self.states)
            lanes = [in_lane(dataset, worker, self.topology.num_workers) for worker in range(self.topology.num_workers)]
            for step in range(steps):
                batch = list(islice(lanes[step % len(lanes)], samples))
                np.add.at(drawn[step], [int(sample["__datasetname__"][1:]) for sample in batch], 1)
                states.update(to_state(batch))
            parts.append(states)
        self.states = merge_states(*parts)
        self.counts += drawn.sum(axis=0)
        return drawn / drawn.sum(axis=1, keepdims=True)

    @property
    def excess(self) -> float:
        """How far the job's totals are from its shares, in samples, at worst."""
        return float(np.abs(self.counts - self.counts.sum() * self.weights).max())


def evenness() -> Iterator[Figure]:
    """The job's shares after changes of topology, and those of its global batches."""
    for name, weights in WEIGHTINGS.items():
        by_change = np.mean([_excess_by_change(weights, seed) for seed in range(4)], axis=0)
        early, late = float(by_change[:3].mean()), float(by_change[-3:].mean())
        what = f"samples by which a job's totals are off its shares {name}, after 18 to 20 changes and after 1 to 3"
        # A fresh job is closer to its shares than any that has changed, so the first changes begin with less: of shares
        # .5 .3 .2 the mean of 24 jobs is 0.7 after one change, 1.0 after five, and 1.0 after twenty.
        yield Figure(
            what, "no further, by half a sample", f"{late:.1f} and {early:.1f}", late <= max(1.25 * early, early + 0.5)
        )
    for name, weights in WEIGHTINGS.items():
        job = Lockstep(weights, Topology(64, 1))
        before = _deviation(job.run(150, 2), job.weights)
        job.topology = Topology(48, 2)
        job.run(37, 2)
        job.topology = Topology(64, 1)
        after = _deviation(job.run(150, 2), job.weights)
        what = f"sd of the worst source's share in global batches, 64 ranks x 2 samples, {name}, before and after"
        yield Figure(what, "≤ 0.01", f"{before:.3f}, {after:.3f}", max(before, after) <= 0.01)


def _excess_by_change(weights: list[float], seed: int) -> list[float]:
    """The excess soon after each of 20 changes to random topologies, after legs of random lengths."""
    rng = np.random.default_rng(seed)
    job, found = Lockstep(weights, Topology(5, 2)), []
    for _ in range(20):
        job.run(int(rng.integers(5, 15)), 3)
        job.topology = Topology(int(rng.integers(2, 9)), int(rng.integers(1, 4)))
        job.run(1, 2)
        found.append(job.excess)
    return found


def _deviation(shares: np.ndarray, weights: np.ndarray) -> float:
    return float(np.sqrt(((shares - weights) ** 2).mean(axis=0)).max())
