"""The tree of sources: the share of each node, its functions, and all of it as a table; text that fits the terminal."""

import functools
import shutil
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from streamdata.errors import counted, one_line, shortened
from streamdata.mixing import MergedDataset
from streamdata.mixing.merged import top_of
from streamdata.mixing.tree import Node, NodeShare, node_shares, tree_of
from streamdata.recipe.named_source import STEPS
from streamdata.sources.files.sequential_source import SequentialSource
from streamdata.sources.foreign.own_stream import OwnStreamSource
from streamdata.sources.order.blocks import selection_of

_LEAST: Final = 6
"""Columns that a shortened cell keeps."""


def table(rows: Sequence[Sequence[str]], flexible: Collection[int] = ()) -> str:
    """Align rows of cells: the first and last column to the left, those between, which are numbers, to the right.

    Where that is too wide for the terminal, cells below the titles of `flexible` columns are shortened.
    """
    rows = [list(map(one_line, row)) for row in rows]  # a line end in a name would end the row
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    excess = sum(widths) + 2 * (len(widths) - 1 - (not widths[-1])) - shutil.get_terminal_size().columns
    for _ in range(excess if flexible else 0):
        widest = max(flexible, key=widths.__getitem__)
        widths[widest] = min(widths[widest], max(_LEAST, len(rows[0][widest]), widths[widest] - 1))
    last = len(widths) - 1
    lines = (
        "  ".join((str.rjust if 0 < i < last else str.ljust)(shortened(cell, widths[i]), widths[i]) for i, cell in row)
        for row in map(enumerate, rows)
    )
    return "\n".join(line.rstrip() for line in lines)


def paragraph(text: str) -> str:
    """Wrap a text on one line, whatever is in it, to the terminal's width; further lines are indented."""
    width = shutil.get_terminal_size().columns  # or what COLUMNS says; 80 where there is neither
    return textwrap.fill(one_line(text), width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def bytes_text(number: float) -> str:
    """A number of bytes to three digits, in the unit that suits it: 1,230,000 is "1.23 MB"."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"


def percent_text(share: float | None) -> str:
    """A share in percent, to three digits: 0.75 is "75 %"; "not known" for None."""
    return "not known" if share is None else f"{100 * share:.3g} %"


def shares_of(dataset: Any) -> dict[str, NodeShare]:
    """Return the nodes of a dataset's tree by path, parents first, with their shares.

    Args:
        dataset: A mixture, or a source alone; where shares follow schedules, they are those at the start of a pass.

    Raises:
        ValueError: It is neither.
        SourceError: A source has no records.
    """
    return node_shares(tree_of(top_of(dataset, "describe")))


def functions_of(dataset: Any) -> dict[str, str]:
    """Return the names of the functions that a dataset's samples pass, by attribute."""
    attributes = ("single_process_fn", "process_fn", "customized_yield_fn", "cost")
    found = {attribute: getattr(dataset, attribute, None) for attribute in attributes}
    return {
        attribute: function if isinstance(function, str) else _name_of(function)  # a cost may name a field
        for attribute, function in found.items()
        if function is not None
    }


def _name_of(function: Callable[..., Any] | list[Any]) -> str:
    if isinstance(function, list):
        return " + ".join(map(_name_of, function))
    if isinstance(function, functools.partial):
        return f"partial of {_name_of(function.func)}"
    return getattr(function, "__qualname__", None) or type(function).__qualname__


_MAX_PERCENTS = 3
_HEADER = ["source", "percent", "share", "of all", "records", "blocks", "kind and options"]


def describe(dataset: Any) -> str:
    """Draw the tree of sources of a mixture, or of a source alone, a line for each.

    It has weight, shares, sizes, functions and options.

    `share` is that among the sources of the same mixture, `of all` that of the whole stream; where they follow
    schedules, those at the start of a pass. Where shards are read from their start, records have not been counted, and
    the number of shards stands in their place. Of a source with a holdout the records of both parts are counted. No
    data is read.

    Raises:
        ValueError: It is neither.
        SourceError: A source has no records.
    """
    return table(tree_rows(dataset))


def tree_rows(dataset: MergedDataset) -> list[list[str]]:
    """The lines of `describe` in cells, the first of them the header."""
    shares = shares_of(dataset)
    return [_HEADER, *(_row(shares, path, drawn) for path, drawn in _drawn(shares[""].node, "", ""))]


def _drawn(node: Node, branch: str, margin: str) -> Iterator[tuple[str, str]]:
    """Yield the path of each node, and its name behind the branches that lead to it."""
    yield node.path, branch + (node.path.rpartition(".")[2] or "the top")
    for child in node.children:
        is_last = child is node.children[-1]
        yield from _drawn(child, margin + ("└─ " if is_last else "├─ "), margin + ("   " if is_last else "│  "))


def _row(shares: Mapping[str, NodeShare], path: str, drawn: str) -> list[str]:
    share = shares[path]
    node, dataset = share.node, share.node.dataset
    weights = ["", "", ""]
    if share.parent is not None:
        weights = [_weight(shares, path), percent_text(share.share), percent_text(share.overall)]
    records, blocks, options = _sizes_and_options(node)
    # How many epochs it has and how many failures are forgiven; what in the shards is not a record, or less.
    counts = {name: getattr(dataset, name, None) or 0 for name in ("max_epochs", "max_bad")}
    counts |= {} if node.source is None else node.source.anomalies()
    options += [f"{what} {count:,}" for what, count in counts.items() if count]
    options += [f"{attribute} {name}" for attribute, name in functions_of(dataset).items()]
    return [drawn, *weights, records, blocks, ", ".join([type(dataset).__name__, *options])]


def _weight(shares: Mapping[str, NodeShare], path: str) -> str:
    """The weight of a node; of a schedule its percents, or the first and the last where there are many."""
    weight = shares[path.rpartition(".")[0]].node.weights[path]
    if isinstance(weight, int | float):
        return f"{weight:g}"
    points = weight[STEPS] if isinstance(weight, dict) else weight
    percents = [f"{percent:g}" for _, percent in points]
    shown = percents if len(percents) <= _MAX_PERCENTS else [percents[0], "…", percents[-1]]
    return (" then " if isinstance(weight, dict) else " to ").join(shown)


def _sizes_and_options(node: Node) -> tuple[str, str, list[str]]:
    """The numbers of records and of blocks, as texts, and how it is read."""
    source = node.source
    if source is None:
        mixture: MergedDataset = node.dataset
        ends = "cyclic" if mixture.cyclic else f"ends when {mixture.stop.replace('_', ' ')}"
        counts = [getattr(leaf.source, "num_records", None) for leaf in node.walk() if leaf.source is not None]
        records = "" if None in counts else f"{sum(filter(None, counts)):,}"
        return records, "", [f"seed {mixture.seed}", ends]
    if isinstance(source, OwnStreamSource):
        return "", "", [source.describe(node.shuffle)]
    part = selection_of(node.dataset)
    options = ["shuffled" if node.shuffle else "not shuffled", *([str(part)] if part else [])]
    if isinstance(source, SequentialSource):
        return counted(source.num_blocks, "shard"), f"{source.num_blocks:,}", ["read from the start", *options]
    shards, number = getattr(source, "shards", None), getattr(source, "num_records", None)  # of both parts of a holdout
    options = options if shards is None else [counted(len(shards.urls), "shard"), *options]
    return "" if number is None else f"{number:,}", f"{source.num_blocks:,}", options
