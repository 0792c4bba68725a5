"""Loaders that divide a stream among ranks once more: Accelerate's, and HF Trainer's through them."""

import os
from collections import Counter
from functools import partial
from unittest.mock import patch

import pytest
import torch
from torch.utils.data import DataLoader

from streamdata import MergedDataset, TensorCollate
from tests.streams import Numbers

EPOCH = Counter(range(24))


def make() -> MergedDataset:
    """As many records as each rank takes whole batches of."""
    return MergedDataset([Numbers("a", 24)], cyclic=False, seed=4)


def values(samples: list) -> torch.Tensor:
    """A collate function whose batches Accelerate can cut and send."""
    return torch.tensor([sample["value"] for sample in samples])


def read(loader) -> list | str:
    """All values of a loader, or why there are none."""
    try:
        return [value for batch in loader for value in batch.tolist()]
    except ValueError as error:
        return str(error)


def environment(rank: int) -> dict:
    """What a launcher sets, and Accelerate asks for."""
    of_rank = {"LOCAL_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    return {**of_rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "OMP_NUM_THREADS": "1"}


def through_accelerate(rank: int) -> dict:
    """What each way of wrapping gives; `whole` is with every rank reading the whole stream, `unchecked` as it was."""
    os.environ |= environment(rank)
    from accelerate import Accelerator, DataLoaderConfiguration

    found = {}
    for dispatches in (True, False):
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatches))
        for workers, method in ((0, None), (2, "fork"), (2, "forkserver")):
            options = {"num_workers": workers, "multiprocessing_context": method, "collate_fn": values}
            key = (dispatches, workers, method)
            found["refused", *key] = read(accelerator.prepare(DataLoader(make(), 2, **options)))
            if method == "forkserver":
                continue
            whole = make()
            whole.set_data_parallel(1, 0)
            found["whole", *key] = read(accelerator.prepare(DataLoader(whole, 2, **options)))
            with patch("streamdata.mixing.merged.check_not_wrapped"):
                found["unchecked", *key] = read(accelerator.prepare(DataLoader(make(), 2, **options)))
    return found


def through_trainer(folder: str, rank: int) -> dict:
    """What HF Trainer makes of a dataset that it is given."""
    os.environ |= environment(rank)
    from transformers import Trainer, TrainingArguments

    settings = TrainingArguments(folder, use_cpu=True, per_device_train_batch_size=2, report_to=[], max_steps=4)
    trainer = Trainer(torch.nn.Linear(1, 1), settings, train_dataset=make(), data_collator=values)
    return {"refused": read(trainer.get_train_dataloader())}


def test_accelerate_must_not_divide_what_is_divided(on_ranks):
    """It lost half of the data without a word; where every rank reads the whole stream, it divides that rightly."""
    found = on_ranks(through_accelerate)
    for (kind, dispatches, *_), results in {key: [of_rank[key] for of_rank in found] for key in found[0]}.items():
        if kind == "refused":
            name = "DataLoaderDispatcher" if dispatches else "IterableDatasetShard"
            assert all(name in text and "Write StreamLoader(dataset" in text for text in results), results
            continue
        counts = Counter(value for values_of_rank in results for value in values_of_rank)
        assert (counts == EPOCH) == (kind == "whole")
        assert kind == "whole" or len(counts) <= 16


def test_trainer_must_not_divide_what_is_divided(tmp_path, on_ranks):
    """It wraps by Accelerate, and says what to write."""
    for found in on_ranks(partial(through_trainer, str(tmp_path / "out"))):
        assert "get_train_dataloader" in found["refused"]


def test_one_process_may_be_wrapped():
    """Nothing is divided then."""
    from accelerate.data_loader import IterableDatasetShard

    samples = IterableDatasetShard(make(), batch_size=2, num_processes=1)
    assert Counter(sample["value"] for sample in samples) == EPOCH


def test_the_dataset_is_named_also_where_only_iter_is_called():
    """In a worker that was spawned, say."""
    from accelerate.data_loader import IterableDatasetShard

    dataset = make()
    dataset.set_data_parallel(2, 0)
    with pytest.raises(ValueError, match="keeps one batch of 2 of each rank's own share"):
        next(iter(IterableDatasetShard(dataset, batch_size=2, num_processes=2)))
    assert len(list(DataLoader(dataset, 2, collate_fn=TensorCollate()))) == 6
