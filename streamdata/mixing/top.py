"""What is streamed: a mixture, or a source alone as the mixture of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from streamdata.mixing.merged import MergedDataset
from streamdata.sources.alone import Alone
from streamdata.sources.foreign.named import check_dataset, named
from streamdata.sources.foreign.own_stream import is_own_stream


def top_of(dataset: Any, who: str) -> MergedDataset:
    """Return a mixture as it is, and a source as `MergedDataset([source], cyclic=False)`.

    A source without a name has that of its class, and without a percent 1.

    Args:
        dataset: A mixture or a source of any kind.
        who: Who asks, for the message.

    Raises:
        ValueError: It is neither, or the mixture of it is refused.
    """
    if not isinstance(dataset, Mapping):  # whose message below is of mixtures too
        check_dataset(dataset, who)
    match dataset:
        case MergedDataset():
            return dataset
        case Alone():
            mixture: MergedDataset = dataset.mixture()  # the one that it has, whose states and passes are its own
            return mixture
        case _ if _is_source(dataset):
            name, percent = getattr(dataset, "name", type(dataset).__name__), getattr(dataset, "percent", 1.0)
            return MergedDataset([named(dataset, name=name, percent=percent)], cyclic=False)
    raise ValueError(
        f"{who}: expected a MergedDataset or a source, got {type(dataset).__name__}\n"
        "  A source has __len__ and __getitem__, or is a torch IterableDataset."
    )


def _is_source(dataset: Any) -> bool:
    # Texts, lists and dicts have those too: more likely a path, several sources, or splits of which one must be named.
    has_records = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    return is_own_stream(dataset) or (has_records and not isinstance(dataset, Sequence | Mapping))
