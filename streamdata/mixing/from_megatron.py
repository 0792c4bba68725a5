"""A blend as a Megatron command line names it: `weights and prefixes, split → datasets and weights`.

`--data-path 0.3 a 0.7 b --split 969,30,1` cuts each pair into ranges of its sequences, and blends the ranges of one
part. With `compat="megatron"` the samples, the weights and the number of samples of each pair are those of
Megatron-Core's builder, too: `megatron/core/datasets/blended_megatron_dataset_builder.py` of version 0.16.1.
"""

import math
import os
import shlex
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from streamdata.errors import StoreError, shown
from streamdata.mixing.blend_weights import blend_weights
from streamdata.recipe.parts import PartRange, Span, read_parts
from streamdata.stores.base_dataset import positive
from streamdata.stores.factory import open_store
from streamdata.stores.store import Store
from streamdata.stores.window_datasets import TOKENS, SeqDataset

_WHO: Final = "BlendableDataset.from_megatron"
_SURPLUS: Final = 0.005
"""By how much more samples Megatron-Core builds of each pair than the blend should need."""


class Blend(NamedTuple):
    """What a blend is made of, and how many samples it has; None where that follows from the datasets."""

    datasets: list[SeqDataset]
    weights: list[Any]
    size: int | None


class Wanted(NamedTuple):
    """What is wanted of each pair.

    Attributes:
        window_size: Tokens of a sample.
        stride: From one to the next.
        part: The range of its sequences; None for all.
        seed: Of `compat="megatron"`.
        compat: That, or None.
        options: What else `SeqDataset` takes.
    """

    window_size: int
    stride: int | None
    part: PartRange | None
    seed: int | None
    compat: str | None
    options: dict[str, Any]


def megatron_blend(
    paths: str | os.PathLike[str] | Sequence[Any], parts: Any, part: str, size: int | None, wanted: Wanted
) -> Blend:
    """The datasets of a command line, and their weights.

    Args:
        paths: See `BlendableDataset.from_megatron`.
        parts: Shares of train, valid and test; None for one part that is everything.
        part: Which of them.
        size: How many samples are asked for.
        wanted: What else is; its `part` is not looked at.

    Raises:
        FileNotFoundError: There is no such pair.
        ValueError: Something is not valid, or a part is empty.
    """
    prefixes, weights = _terms(paths)
    if parts is None and part != "train":
        raise ValueError(f"{_WHO}: expected parts, such as '969,30,1', for part {shown(part)}, got None")
    try:
        wanted = wanted._replace(part=None if parts is None else read_parts(parts, part, "tail"))
    except ValueError as error:
        raise ValueError(f"{_WHO}: {error}") from None
    if wanted.compat is None:
        datasets = [_dataset(prefix, None, wanted) for prefix in prefixes]
        return Blend(datasets, weights or [len(dataset) for dataset in datasets], size)
    return _megatron(prefixes, weights, size, wanted)


def _terms(paths: str | os.PathLike[str] | Sequence[Any]) -> tuple[list[str], list[Any] | None]:
    given, why = _listed(paths)
    if not given:
        raise ValueError(
            f"{_WHO}: expected weights and prefixes, or prefixes, as paths, got {shown(paths)}{why}\n"
            "  Such as '0.3 a 0.7 b', or a list; in text, quotes go around a prefix with spaces."
        )
    are_numbers = [_is_number(term) for term in given]
    # As Megatron tells the two forms apart: by what stands at even places, not by what lies on disk.
    if len(given) % 2 == 0 and all(are_numbers[::2]):
        return [str(prefix).strip() for prefix in given[1::2]], given[::2]
    if any(are_numbers) and len(given) > 1:
        number = are_numbers.index(True)
        raise ValueError(
            f"{_WHO}: expected a weight before each prefix, or none at all, got {given}\n"
            f"  If {shown(given[number])} is a prefix, write './{given[number]}'."
        )
    return [str(prefix).strip() for prefix in given], None


def _listed(paths: Any) -> tuple[list[Any], str]:
    """The terms one by one, or none and why."""
    if isinstance(paths, os.PathLike):
        return [paths], ""
    try:
        return (shlex.split(paths) if isinstance(paths, str) else list(paths)), ""
    except (TypeError, ValueError) as error:  # of no list; of quotes that do not close
        return [], f": {error}"


def _is_number(term: Any) -> bool:
    try:
        float(term)
    except (TypeError, ValueError):
        return False
    return True


def _dataset(prefix: str, num_samples: int | None, wanted: Wanted) -> SeqDataset:
    options = dict(wanted.options)
    loading = {name: options.pop(name) for name in ("verify", "mapped", "dtype") if name in options}
    # Opened before the dataset is: a part is a range of what the store turns out to hold.
    store = open_store(prefix, **loading)
    if wanted.compat is not None:
        options |= {"compat": wanted.compat, "seed": wanted.seed, "num_samples": num_samples}
    records = None if wanted.part is None else _records(store, wanted.part, prefix)
    try:
        return SeqDataset(window_size=wanted.window_size, stride=wanted.stride, store=store, records=records, **options)
    except StoreError as error:
        if wanted.part is not None:
            error.add_note(f"  in part {shown(wanted.part.name)} of {wanted.part.text}")
        raise


def _records(store: Store, part: PartRange, prefix: str) -> Span:
    count = store.column(TOKENS).num_records
    span = part.span(count)
    if span.first == span.last:
        raise StoreError(
            f"{_WHO}, '{prefix}': expected sequences for part {shown(part.name)} of {part.text}, got none of {count}\n"
            "  Give it a larger share, or leave this pair out."
        )
    return span


def _megatron(prefixes: list[str], weights: list[Any] | None, size: int | None, wanted: Wanted) -> Blend:
    if weights is not None and size is None:
        raise ValueError(f"{_WHO}: compat='megatron' with weights needs size, got None\n  Or leave the weights out.")
    if size is not None:
        positive(size, "size", _WHO)
    if weights is None:
        # A pair alone goes round as often as is asked for; of several each is read once, in proportion to its length.
        datasets = [_dataset(prefix, size if len(prefixes) == 1 else None, wanted) for prefix in prefixes]
        lengths = [len(dataset) for dataset in datasets]
        return Blend(datasets, lengths, sum(lengths) if size is None or len(prefixes) == 1 else min(size, sum(lengths)))
    assert size is not None, "weights without a size"
    blend_weights(weights, len(prefixes), exact=False)  # the checks of the blend, before sizes are made of weights
    # Megatron-Core divides by the sum here and once more in the blend: the last bits of these shares decide ties.
    shares = np.array([float(weight) for weight in weights])
    shares = (shares / shares.sum()).tolist()
    # Rounded up for each pair, so that the blend has some samples more than were asked for.
    targets = [math.ceil(size * share) for share in shares]
    datasets = [
        _dataset(prefix, math.ceil(target * (1 + _SURPLUS)), wanted)
        for prefix, target in zip(prefixes, targets, strict=True)
    ]
    return Blend(datasets, shares, sum(targets))
