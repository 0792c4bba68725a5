"""Datasets of other libraries: which kind one is, and `named`, the attributes that a recipe would set."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from torch.utils.data import DataLoader, Dataset, IterableDataset

from streamdata.fields import is_reserved
from streamdata.recipe.named_source import Percent
from streamdata.sources.source import Record, Sample

_ATTRIBUTES: Final = (
    "holdout", "lanes", "length", "length_divisor", "length_multiplier", "max_bad", "max_epochs", "part", "parts",
    "parts_by", "process_fn", "records_per_block", "single_process_fn", "source_identity",
    "weight_field",
)  # fmt: skip


def named(dataset: Any, *, name: str, percent: Percent, **attributes: Any) -> Any:
    """Names and weighs a dataset as a source of a mixture: map-style, or an iterable of torch or Grain.

    Args:
        dataset: A dataset with `__len__` and `__getitem__`, a torch IterableDataset or Grain's IterDataset.
        name: The source's name, without a ".".
        percent: Its weight, as a recipe has it: a number, a schedule or a size; weights need not add to 1.
        attributes: Any of `holdout`, `lanes`, `length`, `length_divisor`, `length_multiplier`, `max_bad`, `max_epochs`,
            `part`, `parts`, `parts_by`, `process_fn`, `records_per_block`, `single_process_fn`, `source_identity` and
            `weight_field`.

    Returns:
        The dataset itself with these attributes; one that takes no attributes, such as a list, is wrapped.

    Raises:
        ValueError: An attribute is unknown, or `dataset` is a dict of splits, a DataLoader or an iterator.
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
    """Raise if `dataset` is not a dataset but a mapping of splits, a DataLoader or an iterator.

    Raises:
        ValueError: The object is a mapping of splits, such as Hugging Face's DatasetDict, a DataLoader, or an iterator.
    """
    if isinstance(dataset, Mapping):
        splits = ", ".join(map(str, dataset)) or "none"
        raise ValueError(
            f"{who}: expected one dataset, got a {type(dataset).__name__} of several: {splits}\n"
            "  Name the split: load_dataset(…, split='train'), or dataset['train']."
        )
    if isinstance(dataset, DataLoader):
        raise ValueError(f"{who}: expected a dataset, got a DataLoader of one\n  Give its dataset.")
    is_stream = isinstance(dataset, IterableDataset) or hasattr(dataset, "__getitem__")
    if isinstance(dataset, Iterator) and not is_stream:
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


def is_own_stream(dataset: Any) -> bool:
    """Whether a dataset can only be iterated, without access by index."""
    # Each of torch's datasets has a `__getitem__`, which raises unless it is another one; Hugging Face's gives columns.
    has_records = hasattr(dataset, "__len__") and type(dataset).__getitem__ is not Dataset.__getitem__
    return (isinstance(dataset, IterableDataset) and not has_records) or is_of_grain(dataset, "IterDataset")


class GrainFilter:
    """The `single_process_fn` for Grain's MapDataset: drops the None that stands for a filtered element.

    Args:
        function: The one that it was given, if any, for the others.
    """

    def __init__(self, function: Callable[[Record], Sample | list[Sample] | None] | None) -> None:
        self._function = function

    def __call__(self, record: Record) -> Sample | list[Sample] | None:
        if record.get("data", record) is None and all(name == "data" or is_reserved(name) for name in record):
            return None
        return record if self._function is None else self._function(record)


def is_of_grain(value: Any, name: str) -> bool:
    """Whether a value is an instance of Grain's class `name`."""
    # By name: Grain need not be installed.
    return any(kind.__name__ == name and kind.__module__.partition(".")[0] == "grain" for kind in type(value).__mro__)


def leave_out_filtered(dataset: Any) -> None:
    """Make elements that Grain's MapDataset filtered be dropped and counted; other datasets stay unchanged."""
    if is_of_grain(dataset, "MapDataset"):
        function = getattr(dataset, "single_process_fn", None)
        dataset.single_process_fn = function if isinstance(function, GrainFilter) else GrainFilter(function)
