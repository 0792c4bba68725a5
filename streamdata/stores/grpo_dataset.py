"""Rollouts: prompts with groups of responses and their rewards."""

import torch

from streamdata.stores.base_dataset import Sample
from streamdata.stores.record_dataset import RecordDataset
from streamdata.stores.store import Record


class GRPODataset(RecordDataset):
    """Samples of train type `grpo`: one prompt with its responses each.

    A sample has `prompts`, int64 (tokens,), `responses`, int64 (responses, tokens), and `masks`, bool of that shape;
    where responses differ in length these two are lists of 1-D tensors. `rewards` is float32 (responses,).
    `window_size` cuts the prompt and each response. See `RecordDataset` for arguments and errors.
    """

    train_type = "grpo"

    def _sample(self, number: int, record: dict[str, Record]) -> Sample:
        responses, masks = self._runs(record, "responses", number), self._runs(record, "masks", number)
        rewards = self._flat(record, "rewards", number)
        sizes, mask_sizes = [len(run) for run in responses], [len(run) for run in masks]
        self._expect(sizes == mask_sizes, number, "masks as long as responses", f"{sizes} and {mask_sizes}")
        self._expect(len(rewards) == len(sizes), number, "a reward per response", f"{len(rewards)} for {len(sizes)}")
        return {
            "prompts": self._flat(record, "prompts", number)[: self.window_size],
            "responses": _joined([run[: self.window_size] for run in responses], torch.int64),
            "masks": _joined([run[: self.window_size].bool() for run in masks], torch.bool),
            "rewards": rewards.float(),
        }

    def _runs(self, record: dict[str, Record], key: str, number: int) -> list[torch.Tensor]:
        value = record[key]
        self._expect(isinstance(value, list) or value.ndim == 2, number, f"a list of {key!r}", "one run")  # noqa: PLR2004
        return list(value)


def _joined(runs: list[torch.Tensor], dtype: torch.dtype) -> Record:
    """One tensor where all are equally long, also if that is for being cut."""
    if len({len(run) for run in runs}) > 1:
        return runs
    return torch.stack(runs) if runs else torch.empty(0, 0, dtype=dtype)
