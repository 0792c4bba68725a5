"""Datasets of other libraries as sources: with the attributes that a recipe would set."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from torch.utils.data import DataLoader, IterableDataset

from streamdata.recipe.named_source import Percent

_ATTRIBUTES: Final = (
    "holdout", "lanes", "length", "length_divisor", "length_multiplier", "max_bad", "max_epochs", "part", "parts",
    "parts_by", "process_fn", "records_per_block", "single_process_fn", "source_identity",
)  # fmt: skip


def named(dataset: Any, *, name: str, percent: Percent, **attributes: Any) -> Any:
    """Make any map-style dataset, or iterable of torch or Grain, a source of a mixture, from Python as a recipe does.

    Args:
        dataset: Has `__len__` and `__getitem__`, or is a torch IterableDataset or Grain's IterDataset.
        name: Of the source, without a ".".
        percent: Its weight, as a recipe has it: a number, a schedule or a size; weights need not add to 1.
        attributes: Of `holdout`, `lanes`, `length`, `length_divisor`, `length_multiplier`, `max_bad`, `max_epochs`,
            `part`, `parts`, `parts_by`, `process_fn`, `records_per_block`, `single_process_fn` and `source_identity`.

    Returns:
        The dataset itself with these attributes; what takes none, such as a list, is wrapped.

    Raises:
        ValueError: Another attribute is given, or a dict of splits, a DataLoader or an iterator.
    """
    check_dataset(dataset, "named")
    unknown = sorted(attributes.keys() - set(_ATTRIBUTES))
    if unknown:
        raise ValueError(f"named: expected attributes out of {', '.join(_ATTRIBUTES)}, got {', '.join(unknown)}")
    # Wrapped only where it must be: a wrapper would hide `__getitems__`, and what else the dataset has.
    source = dataset if hasattr(dataset, "__dict__") else _Wrapped(dataset)
    for attribute, value in {"name": name, "percent": percent, **attributes}.items():
        setattr(source, attribute, value)
    return source


def check_dataset(dataset: Any, who: str) -> None:
    """Refuse what holds a dataset, or comes of one, in its place.

    Raises:
        ValueError: It is a mapping of splits, such as Hugging Face's DatasetDict, a DataLoader, or an iterator.
    """
    if isinstance(dataset, Mapping):
        splits = ", ".join(map(str, dataset)) or "none"
        raise ValueError(
            f"{who}: expected one dataset, got a {type(dataset).__name__} of several: {splits}\n"
            "  Name the split: load_dataset(…, split='train'), or dataset['train']."
        )
    if isinstance(dataset, DataLoader):
        raise ValueError(f"{who}: expected a dataset, got a DataLoader of one\n  Give its dataset.")
    if (
        isinstance(dataset, Iterator)
        and not isinstance(dataset, IterableDataset)
        and not hasattr(dataset, "__getitem__")
    ):
        raise ValueError(
            f"{who}: expected a dataset, got a {type(dataset).__name__}, which is read once and by one process\n"
            "  Write a torch IterableDataset whose __iter__ makes it."
        )


class _Wrapped:
    """A dataset that takes no attributes."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]
