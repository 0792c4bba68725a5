"""A class for verl's trainer: `data.custom_cls.path=examples/moving_over/verl.py data.custom_cls.name=Prompts`.

verl 0.9.1 also wants `+data.mode=raw`: its agent loops apply the chat template.
"""

from typing import Any

import torch

from streamdata import RLHFDataset


class Prompts(RLHFDataset):
    """With a system message of one's own, and a tensor, which verl's batches need."""

    def _build_messages(self, example: dict[str, Any], key: str) -> list[dict[str, Any]]:
        messages = super()._build_messages(example, key)
        return [{"role": "system", "content": "Reason step by step."}, *messages]

    def __getitem__(self, item: int) -> dict[str, Any]:
        """One prompt."""
        return {**super().__getitem__(item), "dummy_tensor": torch.zeros(1, dtype=torch.uint8)}
