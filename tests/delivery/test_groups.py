import json
import pickle
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from streamdata import GroupByLength, GroupCollate, MergedDataset, mixed_collate, to_state
from tests.streams import Numbers


def made(record: dict[str, Any]) -> dict[str, Any]:
    """A process function."""
    return {"input_ids": torch.full((record["value"] % 7 + 1,), record["value"]), "value": record["value"]}


def stream(place: str) -> MergedDataset:
    """Two sources, in groups of at most 12 tokens."""
    function = GroupByLength(12, lookahead=9)
    own = {"process_fn": function} if place == "process_fn" else {}
    sources = [Numbers(name, 50, 1, single_process_fn=made, **own) for name in "ab"]
    return MergedDataset(sources, customized_yield_fn=None if own else function)


def batches(dataset: MergedDataset, num_workers: int, collate: Any) -> Any:
    """Of a stock DataLoader, a group each."""
    return DataLoader(dataset, batch_size=1, num_workers=num_workers, collate_fn=collate)


def values(batch: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Which samples they are."""
    return [(sample["__datasetname__"], sample["value"]) for sample in batch]


@pytest.mark.each_value
@pytest.mark.parametrize("place", ["process_fn", "customized_yield_fn"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_is_a_group_and_its_state_that_of_the_group(place: str, num_workers: int) -> None:
    """The states are those of the groups themselves, and a resume gives the batches that follow."""
    collate = GroupCollate(mixed_collate)
    groups = list(islice(batches(stream(place), num_workers, mixed_collate), 9))
    whole = list(islice(batches(stream(place), num_workers, collate), 9))
    assert list(map(values, whole)) == [values(group[0]["samples"]) for group in groups]
    assert [to_state(batch) for batch in whole] == [to_state(group) for group in groups]
    assert all(len(batch) * max(len(sample["input_ids"]) for sample in batch) <= 12 for batch in whole)
    states: dict[str, Any] = {}
    for batch in whole[:4]:
        states.update(to_state(batch))
    again = stream(place)
    again.set_dataloader_states(json.loads(json.dumps(states)))
    assert list(map(values, islice(batches(again, num_workers, collate), 5))) == list(map(values, whole[4:]))


def test_any_collate_gets_the_samples() -> None:
    """What is made of them is the batch; it may be pickled to a worker."""
    collate = pickle.loads(pickle.dumps(GroupCollate(len)))
    groups = list(islice(stream("process_fn"), 2))
    assert collate(groups) == sum(len(group["samples"]) for group in groups)


def test_a_collate_that_cannot_be_called_is_an_error() -> None:
    """When it is made."""
    with pytest.raises(ValueError, match="GroupCollate: collate is 'mixed_collate', expected a collate function\n"):
        GroupCollate("mixed_collate")  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", [[{"input_ids": [1]}], [{"samples": []}], [3], [{"samples": 3}]])
def test_what_is_no_group_is_an_error(batch: Any) -> None:
    """It says what makes groups."""
    with pytest.raises(ValueError, match=r"GroupCollate: expected groups .*\n  Let GroupByLength be"):
        GroupCollate()(batch)
