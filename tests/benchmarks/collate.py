"""Batches of tensors from workers, beside a DataLoader that is left alone with them."""

from collections.abc import Iterator
from pathlib import Path

import torch

from streamdata import MergedDataset, TensorCollate, mixed_collate
from tests.benchmarks.measure import BATCH_SIZE, Row, Scale, anew, by_turns, identity, loading_time, per_second


class TokenRows:
    """Three int64 tensors of 2,048 per record, fresh each time: a tensor once sent stays in shared memory."""

    name, percent = "tokens", 1.0

    def __init__(self) -> None:
        self.row = torch.arange(2048)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"tokens": self.row.clone(), "target_ids": self.row.clone(), "position_ids": self.row.clone()}


def rows(directory: Path, scale: Scale) -> Iterator[Row]:
    """Two workers, the same dataset, three collate functions."""
    dataset = MergedDataset([TokenRows()])
    batches = scale.collated_batches
    best = by_turns(
        min(scale.repetitions, 5),
        ours=lambda: loading_time(anew(dataset), mixed_collate, batches) / batches,
        tensors=lambda: loading_time(anew(dataset), TensorCollate(), batches) / batches,
        alone=lambda: loading_time(anew(dataset), identity, batches // 2) / (batches // 2),
    )
    ratio, to_lists = best["alone"] / best["ours"], best["ours"] / best["tensors"]
    rates = {name: per_second(BATCH_SIZE, seconds) for name, seconds in best.items()}
    yield Row(
        work=f"three int64 tensors of 2,048 per sample, batches of {BATCH_SIZE}, two workers",
        reach="≥ 6 x identity collate",
        got=f"{ratio:.1f} x",
        ok=ratio >= 6,
        from_=f"mixed_collate {rates['ours']}; identity collate {rates['alone']}",
    )
    yield Row(
        work="the same as a dict of tensors, by TensorCollate",
        reach="≥ 1 x mixed_collate",
        got=f"{to_lists:.1f} x",
        ok=to_lists >= 1,
        from_=f"TensorCollate {rates['tensors']}; mixed_collate {rates['ours']}",
    )
