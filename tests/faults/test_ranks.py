"""Ranks with uneven tails or nothing at all, and worlds of other sizes."""

import pytest
import torch
from torch import distributed

from streamdata import MergedDataset, StreamLoader, named
from tests.elastic.job import Job
from tests.elastic.worlds import Config, Leaf, Mix


def trained(uneven: str, num_records: int) -> list[int] | str:
    """The records that this rank trains on, with a collective in each step as of gradients; or the error."""
    dataset = MergedDataset([named(list(range(num_records)), name="n", percent=1)], cyclic=False, seed=4)
    values: list[int] = []
    try:
        for batch in StreamLoader(dataset, 2, uneven=uneven):
            distributed.all_reduce(torch.ones(1))
            real = ~batch["__padding__"] if "__padding__" in batch else slice(None)
            values += batch["data"][real].tolist()
    except ValueError as error:
        return str(error)
    distributed.barrier()
    return values


def trained_by_each_rule(rank: int) -> dict[str, list[int] | str]:
    """Of nine records rank 0 has five; of one record rank 1 has nothing."""
    return {f"{rule} {size}": trained(rule, size) for size in (9, 1) for rule in ("drop", "pad", "error")}


def test_uneven_ranks_end_together_over_gloo(on_ranks) -> None:
    """41: none waits for another, whatever the rule; what cannot be done is refused on both alike."""
    first, second = on_ranks(trained_by_each_rule)
    assert (len(first["drop 9"]), len(second["drop 9"])) == (4, 4)
    assert sorted(first["pad 9"] + second["pad 9"]) == list(range(9))
    assert first["drop 1"] == second["drop 1"] == []
    assert "got none for rank 1" in first["pad 1"]
    assert "rank 1 has 2 batches left and rank 0 has 3" in first["error 9"]
    assert all(first[rule] == second[rule] for rule in ("pad 1", "error 1", "error 9"))


@pytest.mark.parametrize("kind", ["map", "jsonl", "tar"])
def test_worlds_of_four_then_three_then_eight_deliver_each_record_once(kind) -> None:
    """42: ranks save at different steps, one before its first; `finish` compares what all worlds delivered."""
    job = Job(Mix((Leaf("a", 90, kind), Leaf("b", 11)), cyclic=False), Config(dp_size=4))
    for size, steps in ((3, (3, 1, 2, 0)), (8, (1, 4, 2))):
        for rank, count in enumerate(steps):
            job.deliver(rank, count)
        job.save()
        job.change(dp_size=size)
    job.finish()
