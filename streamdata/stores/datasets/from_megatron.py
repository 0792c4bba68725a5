"""A blend as a Megatron command line names it: `weights and prefixes, split → datasets and weights`.

`--data-path 0.3 a 0.7 b --split 969,30,1` cuts each pair into ranges of its sequences, and blends the ranges of one
part. With `compat="megatron"` the samples, the weights and the number of samples of each pair are those of
Megatron-Core's builder, too: `megatron/core/datasets/blended_megatron_dataset_builder.py` of version 0.16.1. The
exception: given weights that are nearly equal count as equal (`NEARLY_EQUAL`).
"""

import math
import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np

from streamdata.errors import StoreError, positive, shown
from streamdata.recipe.named_source import PartRange, read_parts
from streamdata.stores.datasets.blend_rule import NEARLY_EQUAL, BlendWeights, blend_weights
from streamdata.stores.datasets.window_datasets import SeqDataset

_WHO: Final = "BlendableDataset.from_megatron"
_SURPLUS: Final = 0.005
"""By how much more samples Megatron-Core builds of each pair than the blend should need."""


def megatron_blend(
    paths: str | os.PathLike[str] | Sequence[Any], parts: Any, part: str, size: int | None, options: dict[str, Any]
) -> tuple[list[SeqDataset], list[Any] | BlendWeights, int | None]:
    """The datasets of a command line, and their weights.

    Args:
        paths: See `BlendableDataset.from_megatron`.
        parts: Shares of train, valid and test; None for one part that is everything.
        part: Which of them.
        size: How many samples are asked for.
        options: What `SeqDataset` takes, among them `window_size` and `compat`.

    Returns:
        A dataset for each pair, their weights, and the number of samples; None where that follows from the datasets.

    Raises:
        FileNotFoundError: There is no such pair.
        ValueError: Something is not valid, or a part is empty.
    """
    prefixes, weights = _terms(paths)
    if parts is None and part != "train":
        raise ValueError(f"{_WHO}: expected parts, such as '969,30,1', for part {shown(part)}, got None")
    try:
        chosen = None if parts is None else read_parts(parts, part, "tail")
    except ValueError as error:
        raise ValueError(f"{_WHO}: {error}") from None
    if options["compat"] is None:
        datasets = [_dataset(prefix, chosen, options) for prefix in prefixes]
        return datasets, weights or [len(dataset) for dataset in datasets], size
    if size is not None:
        positive(f"{_WHO}: size", size)
    if weights is None:
        # A pair alone goes round as often as is asked for; of several each is read once, in proportion to its length.
        is_alone = len(prefixes) == 1
        datasets = [_dataset(prefix, chosen, options, num_samples=size if is_alone else None) for prefix in prefixes]
        lengths = [len(dataset) for dataset in datasets]
        size = sum(lengths) if size is None or is_alone else min(size, sum(lengths))
        # Without a tolerance: of pairs that are nearly equally long each sample still comes once.
        return datasets, blend_weights(lengths, len(lengths), exact=False), size
    if size is None:
        raise ValueError(f"{_WHO}: compat='megatron' with weights needs size, got None\n  Or leave the weights out.")
    checked = blend_weights(weights, len(prefixes), exact=False, tolerance=NEARLY_EQUAL)
    given = np.array([float(weight) for weight in weights])
    if checked.exact and np.ptp(given):
        given[:] = 1
    # Megatron-Core divides by the sum here and once more in the blend: the last bits of these shares decide ties.
    shares = (given / given.sum()).tolist()
    # Rounded up for each pair, so that the blend has some samples more than were asked for.
    targets = [math.ceil(size * share) for share in shares]
    built = [math.ceil(target * (1 + _SURPLUS)) for target in targets]
    datasets = [_dataset(pair, chosen, options, num_samples=count) for pair, count in zip(prefixes, built, strict=True)]
    return datasets, blend_weights(shares, len(shares), exact=False), sum(targets)


def _terms(paths: str | os.PathLike[str] | Sequence[Any]) -> tuple[list[str], list[Any] | None]:
    why = ""
    try:
        whole = [paths] if isinstance(paths, os.PathLike) else paths
        given = shlex.split(whole) if isinstance(whole, str) else list(whole)
    except (TypeError, ValueError) as error:  # of no list; of quotes that do not close
        given, why = [], f": {error}"
    if not given:
        raise ValueError(
            f"{_WHO}: expected weights and prefixes, or prefixes, as paths, got {shown(paths)}{why}\n"
            "  Such as '0.3 a 0.7 b', or a list; in text, quotes go around a prefix with spaces."
        )
    numbers = set()  # the places of what reads as a number
    for place, term in enumerate(given):
        with suppress(TypeError, ValueError):
            float(term)
            numbers.add(place)
    # As Megatron tells the two forms apart: by what stands at even places, not by what lies on disk.
    if len(given) % 2 == 0 and numbers.issuperset(range(0, len(given), 2)):
        return [str(prefix).strip() for prefix in given[1::2]], given[::2]
    if numbers and len(given) > 1:
        number = given[min(numbers)]
        raise ValueError(
            f"{_WHO}: expected a weight before each prefix, or none at all, got {given}\n"
            f"  If {shown(number)} is a prefix, write './{number}'."
        )
    return [str(prefix).strip() for prefix in given], None


def _dataset(prefix: str, part: PartRange | None, options: dict[str, Any], **more: Any) -> SeqDataset:
    try:
        return SeqDataset(prefix, records=part, **options, **more)
    except StoreError as error:
        if part is not None:
            error.add_note(f"  in part {shown(part.name)} of {part.text}, for {_WHO}")
        raise
