"""Batches as reinforcement learning takes them: `list of dicts → dict of tensors and object arrays`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from streamdata.errors import names_text, shown


def prompt_collate(data_list: Sequence[Mapping[str, Any]], fill: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Make one dict of a batch: tensors of one shape and dtype are stacked, all else becomes an object array.

    Args:
        data_list: The samples.
        fill: Keys that a sample may lack, and what it has instead.

    Returns:
        By key a tensor (batch, …) or an array of objects (batch,); row i of each belongs to sample i.

    Raises:
        ValueError: The batch is empty, or a sample lacks a key that another has and `fill` does not name.
    """
    if not data_list:
        raise ValueError("prompt_collate: expected at least one sample, got none\n  Drop empty batches.")
    fill = fill or {}
    keys = list(dict.fromkeys(key for sample in data_list for key in sample))
    return {key: _column([_value(sample, key, fill, at) for at, sample in enumerate(data_list)]) for key in keys}


def _value(sample: Mapping[str, Any], key: str, fill: Mapping[str, Any], number: int) -> Any:
    if key in sample:
        return sample[key]
    if key not in fill:
        raise ValueError(
            f"prompt_collate: expected the key {shown(key)} in every sample, got sample {number} without it; it has "
            f"{names_text(sample)}\n  Give such rows the column, or say what they have instead: "
            f"fill={{{shown(key)}: …}}."
        )
    return fill[key]


def _column(values: list[Any]) -> Any:
    if all(isinstance(value, torch.Tensor) for value in values):
        # Tensors of other shapes (pixel values of another image size) go on as they are; the trainer joins them itself.
        kinds = {(value.shape, value.dtype) for value in values}
        if len(kinds) == 1:
            return torch.stack(values)
    column = np.empty(len(values), dtype=object)
    # One by one: given all at once, numpy would make a matrix of lists of one length.
    for number, value in enumerate(values):
        column[number] = value
    return column


collate_fn = prompt_collate
"""The name that earlier versions had for it."""
