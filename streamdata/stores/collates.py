"""From samples of records, which differ in length, to padded batches.

Under a MergedDataset let the DataLoader use `mixed_collate`, take `to_state(batch)`, and call these in the trainer:
a batch of tensors has no room for the state that samples carry.
"""

from collections.abc import Sequence

import torch

from streamdata.errors import shown
from streamdata.stores.base_dataset import Sample

Batch = dict[str, torch.Tensor]
_SIDES = ("left", "right")
_PAIR = ("chosen", "rejected")


def dpo_collate(samples: Sequence[Sample], pad_id: int = 0, side: str = "right", *, joint_width: bool = False) -> Batch:
    """Pads preference pairs.

    Args:
        samples: Of a DPODataset, B of them.
        pad_id: What stands in `chosen` and `rejected` beside the tokens.
        side: Where: `left` or `right`.
        joint_width: Pad both to the longest of all, so that a trainer can stack them.

    Returns:
        `chosen` and `rejected`, int64 (B, longest of them), `chosen_mask` and `rejected_mask`, bool, False in padding,
        and `chosen_attention_mask` and `rejected_attention_mask`, bool, True for every token.

    Raises:
        ValueError: No samples, or another side.
    """
    _check(samples, side, "dpo_collate")
    batch: Batch = {}
    width = max(len(sample[key]) for sample in samples for key in _PAIR) if joint_width else 0
    for key in _PAIR:
        batch |= _padded(key, [sample[key] for sample in samples], pad_id, side, width)
        batch[f"{key}_mask"] = _pad([sample[f"{key}_mask"] for sample in samples], False, side, width)
    return batch


def grpo_collate(
    samples: Sequence[Sample], pad_id: int = 0, prompt_side: str = "left", response_side: str = "right"
) -> Batch:
    """Pads rollouts, so that the end of a prompt meets the begin of its responses.

    Args:
        samples: Of a GRPODataset, B of them with G responses each.
        pad_id: What stands in `prompts` and `responses` beside the tokens.
        prompt_side: Where: `left` or `right`.
        response_side: Where: `left` or `right`.

    Returns:
        `prompts`, int64 (B, longest), `responses`, int64 (B, G, longest), `masks`, bool of that shape, False in
        padding, `prompts_attention_mask` and `responses_attention_mask`, bool, True for every token, and `rewards`,
        float32 (B, G).

    Raises:
        ValueError: No samples, another side, or different numbers of responses.
    """
    for side in (prompt_side, response_side):
        _check(samples, side, "grpo_collate")
    groups = [len(sample["responses"]) for sample in samples]
    if len(set(groups)) > 1:
        raise ValueError(
            f"grpo_collate: expected as many responses in each sample, got {groups}\n"
            "  Batch samples with the same number of responses."
        )
    shape = (len(samples), groups[0], -1) if groups[0] else (len(samples), 0, 0)
    batch = _padded("prompts", [sample["prompts"] for sample in samples], pad_id, prompt_side)
    runs = [run for sample in samples for run in sample["responses"]]
    batch |= {key: value.view(shape) for key, value in _padded("responses", runs, pad_id, response_side).items()}
    masks = [mask for sample in samples for mask in sample["masks"]]
    batch["masks"] = _pad(masks, False, response_side).view(shape)
    batch["rewards"] = torch.stack([sample["rewards"] for sample in samples])
    return batch


def _padded(key: str, runs: Sequence[torch.Tensor], pad_id: int, side: str, width: int = 0) -> Batch:
    """The runs and which of the result they are."""
    ones = [torch.ones(len(run), dtype=torch.bool) for run in runs]
    return {key: _pad(runs, pad_id, side, width), f"{key}_attention_mask": _pad(ones, False, side, width)}


def _pad(runs: Sequence[torch.Tensor], fill: int, side: str, width: int = 0) -> torch.Tensor:
    """Runs of any length, as rows of one, which is at least `width`."""
    longest = max([width, *map(len, runs)])
    dtype = runs[0].dtype if runs else torch.int64
    padded = torch.full((len(runs), longest), fill, dtype=dtype)
    for row, run in zip(padded, runs, strict=True):
        begin = longest - len(run) if side == "left" else 0
        row[begin : begin + len(run)] = run
    return padded


def _check(samples: Sequence[Sample], side: str, who: str) -> None:
    if side not in _SIDES:
        raise ValueError(f"{who}: expected side to be one of {_SIDES}, got {shown(side)}")
    if not samples:
        raise ValueError(f"{who}: expected at least one sample, got none")
