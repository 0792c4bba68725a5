"""How often a run of so many samples reads each source: `its share of them ÷ its length → epochs, and advice`."""

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, Final

from streamdata.errors import shown
from streamdata.mixing.node_shares import mean_node_shares, node_shares
from streamdata.mixing.tree import Node, in_recipe
from streamdata.mixing.weights import num_in

FACTORS: Final = ("length", "length_multiplier", "length_divisor")
"""The attributes of a source that say how many samples an epoch of it has."""

MANY_EPOCHS: Final = 4.0
"""From which on there is something to say: text that repeats so often is still worth nearly what new text is."""
_FEW: Final = 0.5
"""Below which there is."""


def check_factors(dataset: Any, who: str) -> None:
    """Refuse attributes of a source that are not what a length can be.

    Raises:
        ValueError: One of them is no number above 0.
    """
    for name in FACTORS:
        value: Any = getattr(dataset, name, None)
        # webdataset's pipelines say -1 where they do not know; others have a method of that name.
        if value is None or callable(value) or (name == "length" and value == -1):
            continue
        if not _is_positive(value):
            raise ValueError(
                f"{who}: expected a number above 0 as {name}, got {shown(value)}\n"
                "  An epoch has length * length_multiplier / length_divisor samples; without length, its records count."
            )


def check_lengths(top: Node, required: float | None) -> list[dict[str, Any]]:
    """What a run reads of each source of records.

    Args:
        top: The tree.
        required: How many samples the run takes of the top mixture, before its yield function; None where that is open.

    Returns:
        For each source `name` (its path), `share` (of the whole stream, on average over the run), `length` (what it
        says, or its records), `multiplier`, `divisor`, `epochs` (None where `required` is) and `advice`.

    Raises:
        ValueError: `required` is no number above 0; or a source neither has a number of records that is known, nor says
            its length.
    """
    if required is not None and not _is_positive(required):
        raise ValueError(f"check_length: expected the number of samples of a run, above 0, got {shown(required)}")
    # Of schedules the shares at the start, where it is open until when they count.
    if required is None:
        shares = {path: share.overall for path, share in node_shares(top).items()}
    else:
        shares = mean_node_shares(top, float(required))
    taken = None if required is None else {path: required * share for path, share in shares.items()}
    lengths = lengths_by(top, shares, taken)
    for node, each in zip(_sources(top), lengths, strict=True):
        if each["length"] is None:
            raise ValueError(
                f"source {shown(node.path)} ({type(node.dataset).__name__}){in_recipe(node.dataset)}: expected "
                "a length, "
                "got a source whose records nobody has counted\n"
                "  Set its attribute `length` to how many samples an epoch has."
            )
    return lengths


def lengths_by(top: Node, shares: Mapping[str, float], taken: Mapping[str, float] | None) -> list[dict[str, Any]]:
    """The same, where what a run takes of each source is known already.

    Args:
        top: The tree.
        shares: Of the whole stream, by path.
        taken: How many samples, or of a source without `length` records, the run takes; None where that is open.

    Returns:
        As `check_lengths`; `length` and `epochs` are None where nobody has counted the records.
    """
    parents = {child.path: node for node in top.walk() for child in node.children}
    return [
        _of_source(node, parents[node.path], shares[node.path], None if taken is None else taken[node.path])
        for node in _sources(top)
    ]


def _sources(top: Node) -> list[Node]:
    return [node for node in top.walk() if not node.is_mixture]


def _of_source(node: Node, parent: Node, share: float, taken: float | None) -> dict[str, Any]:
    multiplier, divisor = (_factor(node.dataset, name, 1) for name in FACTORS[1:])
    length = _length(node)
    epochs = None if taken is None or length is None else taken / (length * multiplier / divisor)
    return {
        "name": node.path,
        "share": share,
        "length": length,
        "multiplier": multiplier,
        "divisor": divisor,
        "epochs": epochs,
        "advice": "" if epochs is None else _advice(node, parent, length, epochs),
    }


def _is_positive(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, Real) and 0 < float(value) < math.inf


def _factor(dataset: Any, name: str, default: Any) -> Any:
    value = getattr(dataset, name, None)
    return value if _is_positive(value) else default


def _length(node: Node) -> Any:
    # Before the records: a packer makes other samples of them, which only who wrote the recipe has counted.
    length = _factor(node.dataset, FACTORS[0], None)
    return num_in(node, "records") if length is None else length


def _advice(node: Node, parent: Node, length: float, epochs: float) -> str:
    if node.max_epochs is not None and epochs > node.max_epochs:
        return f"ends before, after max_epochs={node.max_epochs}: lower its percent, or raise max_epochs"
    if epochs > MANY_EPOCHS:
        lacking = math.ceil(length * (epochs / MANY_EPOCHS - 1))
        more = f"{count_text(lacking)} record{'' if lacking == 1 else 's'}"
        lower = _lower_weight(node, parent, MANY_EPOCHS / epochs)
        what = f"lower its weight to {lower:.2g} or add" if lower else "add"
        return f"repeats {epochs:.3g} times: for {MANY_EPOCHS:.0f} times {what} {more}"
    if epochs < _FEW:
        return f"{100 * epochs:.3g} % of it is read: raise its percent, or leave it so if that is meant"
    return ""


def _lower_weight(node: Node, parent: Node, factor: float) -> float | None:
    """The weight that gives it so much less of its mixture; None where no number does."""
    weights = parent.weights
    own, others = weights[node.path], [weight for path, weight in weights.items() if path != node.path]
    # What follows a schedule or a size has no one number to be set.
    if not others or not all(type(child.dataset.percent) in (int, float) for child in parent.children):
        return None
    rest = math.fsum(weight for weight in others if isinstance(weight, int | float))
    share = factor * own / (own + rest) if isinstance(own, int | float) else 0.0
    return rest * share / (1 - share)


def count_text(number: float) -> str:
    """A number to three digits: 1,200,000 is "1.2 M"."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if number >= size:
            return f"{number / size:.3g} {unit}" if number < 1000 * size else f"{number / size:,.0f} {unit}"
    return f"{number:,.0f}"


def lengths_text(lengths: list[dict[str, Any]]) -> str:
    """What `check_lengths` gives, as a table."""
    header = ["source", "share", "length", "multiplier", "divisor", "epochs", "advice"]
    rows = [header, *(_cells(each) for each in lengths)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.rjust(width) if 0 < column < len(header) - 1 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _cells(each: dict[str, Any]) -> list[str]:
    epochs = "" if each["epochs"] is None else f"{each['epochs']:.3g}"
    factors = [f"{each[name]:,}" for name in ("length", "multiplier", "divisor")]
    return [each["name"], f"{100 * each['share']:.3g} %", *factors, epochs, each["advice"]]
