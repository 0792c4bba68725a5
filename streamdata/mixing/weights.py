"""The weights of a mixture's sources: what their `percent` says, or what follows from their sizes."""

import math
from typing import Any

from streamdata.errors import shown
from streamdata.mixing.schedule import Shares
from streamdata.recipe.named_source import LEAST, MOST, SizeWeight, Weight, read_percent
from streamdata.sources.order.part import range_of


def resolved_weights(children: "tuple[Any, ...]") -> dict[str, Weight]:
    """The weight of each child node of a mixture, by its path.

    Raises:
        ValueError: A `percent` is not one, only some follow from sizes, a size is not known, or at some time all are 0.
    """
    read = {child.path: _read(child) for child in children}
    by_size = {path: weight for path, weight in read.items() if isinstance(weight, SizeWeight)}
    # Numbers beside sizes would be weighed against millions of tokens.
    if by_size:
        _check_all_by_size(read, by_size)
    weights = {
        child.path: _of_size(child, weight) if isinstance(weight := read[child.path], SizeWeight) else weight
        for child in children
    }
    shares_of_weights(weights)
    return weights


def shares_of_weights(weights: dict[str, Weight]) -> Shares | None:
    """The shares over time of sources with these weights; None where none has a schedule.

    Raises:
        ValueError: At some time all are 0.
    """
    if not any(isinstance(weight, list | dict) for weight in weights.values()):
        return None
    return Shares(list(weights), list(weights.values()))


def num_in(node: Any, what: str) -> int | None:
    """How many `records` or `tokens` a node of the tree has, as far as that is known without reading them.

    A mixture has what its sources have together.
    """
    if node.is_mixture:
        counts = [num_in(child, what) for child in node.children]
        return None if None in counts else sum(filter(None, counts))
    if what == "tokens":
        count, parts = getattr(node.dataset, "num_tokens", None), range_of(node.dataset)  # what token stores have
        if count is not None and parts is not None:
            return max(1, round(int(count) * parts.share))
    else:
        count = getattr(node.source, "num_records", None)
    if count is None:
        return None
    # As many as a part has on average: to count them, all would be looked at.
    return int(count) if node.part is None else max(1, round(count * node.part.share))


def _read(child: Any) -> Weight | SizeWeight:
    try:
        return read_percent(getattr(child.dataset, "percent", None))
    except ValueError as error:
        raise ValueError(f"source {shown(child.path)}: {error}") from None


def _check_all_by_size(read: dict[str, Weight | SizeWeight], by_size: dict[str, SizeWeight]) -> None:
    first, size = next(iter(by_size.items()))
    for path, weight in read.items():
        if not isinstance(weight, SizeWeight):
            raise ValueError(
                f"source {shown(first)}: percent is by {size.by}, that of source {shown(path)} beside it is "
                f"{shown(weight)}\n"
                "  Give all sources of a mixture a percent by size, or none."
            )
        if weight.by != size.by:
            raise ValueError(
                f"source {shown(first)}: percent is by {size.by}, that of source {shown(path)} beside it by "
                f"{weight.by}\n"
                "  Count one thing in all sources of a mixture."
            )


def _of_size(child: Any, weight: SizeWeight) -> float:
    size = num_in(child, weight.by)
    if not size:
        of_what = "token stores alone" if weight.by == "tokens" else "map-style datasets and of shards with an index"
        raise ValueError(
            f"source {shown(child.path)}: percent is by {weight.by}, and how many it has is "
            f"{'not known' if size is None else 'none'}\n  That is known of {of_what}: give numbers as percent."
        )
    # As logarithms: the power itself may be no float.
    if not math.log(LEAST) <= weight.exponent * math.log(size) <= math.log(MOST):
        raise ValueError(
            f"source {shown(child.path)}: expected a percent from {LEAST:g} to {MOST:g}, got {size} {weight.by} to the "
            f"power of {weight.exponent:g}\n  Give an exponent that is nearer to 0."
        )
    return math.pow(size, weight.exponent)
