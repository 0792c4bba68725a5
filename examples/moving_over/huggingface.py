"""Datasets of Hugging Face's as sources: one that is read by index, and one that streams.

python examples/moving_over/huggingface.py demo_data
"""

import sys
from itertools import islice
from pathlib import Path

from datasets import Dataset, load_dataset
from torch.utils.data import DataLoader

from streamdata import MergedDataset, mixed_collate, named


def mixture_of(data: str) -> MergedDataset:
    """Both in one stream. A streaming dataset gives each lane some of its shards, so it needs as many as lanes."""
    files = sorted(map(str, Path(data, "docs").glob("*.jsonl")))
    docs = load_dataset("json", data_files=files, split="train", streaming=True)
    rows = Dataset.from_list([{"text": f"row {number}"} for number in range(100)])
    return MergedDataset([named(docs, name="docs", percent=0.7), named(rows, name="rows", percent=0.3)])


if __name__ == "__main__":
    for batch in islice(DataLoader(mixture_of(sys.argv[1]), batch_size=4, collate_fn=mixed_collate), 3):
        print([sample["text"][:20] for sample in batch])
