"""Datasets of Grain as sources: one that is read by index, and one that is iterated.

python examples/moving_over/grain_pipeline.py
"""

from itertools import islice

import grain  # pip install grain
from torch.utils.data import DataLoader

from streamdata import MergedDataset, mixed_collate, named


def mixture_of(size: int) -> MergedDataset:
    """Both in one stream. What a filter of a MapDataset takes out is left out; an IterDataset has its own order."""
    numbers = grain.MapDataset.range(size).filter(lambda number: number % 3 != 0).map(lambda number: {"n": number})
    stream = grain.MapDataset.range(size).shuffle(seed=7).map(lambda number: {"n": -number}).to_iter_dataset()
    sources = named(numbers, name="numbers", percent=0.7), named(stream, name="stream", percent=0.3, lanes="stride")
    return MergedDataset(list(sources), seed=7)


if __name__ == "__main__":
    for batch in islice(DataLoader(mixture_of(100), batch_size=4, collate_fn=mixed_collate), 3):
        print([sample["n"] for sample in batch])
