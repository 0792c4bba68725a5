"""Datasets of other libraries as sources: with the attributes that a recipe would set."""

from typing import Any, Final

from streamdata.recipe.named_source import Percent

_ATTRIBUTES: Final = (
    "holdout", "part", "parts", "parts_by", "single_process_fn", "process_fn", "max_bad", "max_epochs",
    "records_per_block", "source_identity",
)  # fmt: skip


def named(dataset: Any, *, name: str, percent: Percent, **attributes: Any) -> Any:
    """Make any map-style dataset a source of a mixture, from Python as a recipe does it.

    Args:
        dataset: Has `__len__` and `__getitem__`.
        name: Of the source, without a ".".
        percent: Its weight, as a recipe has it: a number, a schedule or a size; weights need not add to 1.
        attributes: Of `holdout`, `part`, `parts`, `parts_by`, `single_process_fn`, `process_fn`, `max_bad`,
            `max_epochs`, `records_per_block` and `source_identity`.

    Returns:
        The dataset itself with these attributes; what takes none, such as a list, is wrapped.

    Raises:
        ValueError: Another attribute is given.
    """
    unknown = sorted(attributes.keys() - set(_ATTRIBUTES))
    if unknown:
        raise ValueError(f"named: expected attributes out of {', '.join(_ATTRIBUTES)}, got {', '.join(unknown)}")
    # Wrapped only where it must be: a wrapper would hide `__getitems__`, and what else the dataset has.
    source = dataset if hasattr(dataset, "__dict__") else _Wrapped(dataset)
    for attribute, value in {"name": name, "percent": percent, **attributes}.items():
        setattr(source, attribute, value)
    return source


class _Wrapped:
    """A dataset that takes no attributes."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]
