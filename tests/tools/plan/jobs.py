"""What a whole job delivers, sample by sample: what a plan of it must say beforehand."""

from collections.abc import Callable, Iterator

from streamdata import MergedDataset
from streamdata.tools.plan.make_plan import Amount, Planner, RunPlan
from tests.streams import identity, loaded

MakeDataset = Callable[[], MergedDataset]


def delivered_by_job(make: MakeDataset, amount: Amount) -> Iterator[dict]:
    """The samples of the job in the order of steps, ranks, delivery."""
    ranks = []
    for rank in range(amount.dp_size):
        dataset = make()
        dataset.set_data_parallel(amount.dp_size, rank)
        ranks.append(iter(loaded(dataset, amount.num_workers, amount.batch_size)))
    while ranks:
        for rank in list(ranks):
            batch = next(rank, None)
            if batch is None:
                ranks.remove(rank)
            else:
                yield from batch


def repeats_of(samples: list[dict], source: str) -> list[int]:
    """The numbers of the samples, from 1, whose record came before."""
    seen: set = set()
    found = []
    for number, sample in enumerate(samples, 1):
        if sample["__datasetname__"] == source:
            found += [number] if identity(sample) in seen else []
            seen.add(identity(sample))
    return found


def second_epoch_of(samples: list[dict], source: str) -> int:
    """The number, from 1, of the first sample that is of a later epoch than the first."""
    epochs = (next(entry[3][0] for entry in sample["__cursor__"] if entry[0].path == source)
              if sample["__datasetname__"] == source else 0 for sample in samples)  # fmt: skip
    return next(number for number, epoch in enumerate(epochs, 1) if epoch)


def planned(dataset: MergedDataset, samples: float | None = None, **options: float) -> RunPlan:
    """A plan, by the names that the command has."""
    sampled, draws = int(options.pop("sample", 0)), int(options.pop("draws", 0))
    amount = Amount(samples, options.pop("tokens", None), *(int(options.pop(n, d)) for n, d in _TOPOLOGY))
    return Planner(dataset, amount, sampled).plan(draws)


_TOPOLOGY = (("dp", 1), ("workers", 0), ("batch", 1))
