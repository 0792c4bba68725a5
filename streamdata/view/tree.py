"""The tree of sources as text."""

from collections.abc import Iterator
from typing import Any

from streamdata.mixing import MergedDataset
from streamdata.sources.shard_source import SequentialSource
from streamdata.view.nodes import Node
from streamdata.view.table import percent_text, table

_HEADER = ["source", "percent", "share", "of all", "records", "blocks", "kind and options"]


def describe(dataset: MergedDataset) -> str:
    """Draw the tree of sources of a dataset, a line for each: weight, shares, sizes, functions and options.

    `share` is that among the sources of the same mixture, `of all` that of the whole stream. Where shards are read from
    their start, records have not been counted, and the number of shards stands in their place. No data is read.

    Raises:
        ValueError: It is no MergedDataset.
    """
    top = Node.of(dataset)
    rows = [_row(node, drawn) for node, drawn in _drawn(top, "", "")]
    return table([_HEADER, *rows])


def _drawn(node: Node, branch: str, margin: str) -> Iterator[tuple[Node, str]]:
    """Yield each node with its name behind the branches that lead to it."""
    yield node, branch + (node.name or "the top")
    for child in node.children:
        is_last = child is node.children[-1]
        yield from _drawn(child, margin + ("└─ " if is_last else "├─ "), margin + ("   " if is_last else "│  "))


def _row(node: Node, drawn: str) -> list[str]:
    mixture = isinstance(node.dataset, MergedDataset)
    records, blocks = _mixture_sizes(node) if mixture else _source_sizes(node.dataset)
    options = _mixture_options(node.dataset) if mixture else _source_options(node)
    functions = [f"{attribute} {name}" for attribute, name in node.functions().items()]
    weights = ["", "", ""] if node.parent is None else [f"{node.dataset.percent:g}", *_shares(node)]
    kind = ", ".join([type(node.dataset).__name__, *options, *_counts(node.dataset), *functions])
    return [drawn, *weights, records, blocks, kind]


def _shares(node: Node) -> list[str]:
    return [percent_text(node.share), percent_text(node.overall)]


def _mixture_sizes(node: Node) -> tuple[str, str]:
    counts = [_num_records(leaf.dataset) for leaf in node.leaves()]
    known = [count for count in counts if count is not None]
    return (f"{sum(known):,}" if len(known) == len(counts) else ""), ""


def _source_sizes(dataset: Any) -> tuple[str, str]:
    source, records = getattr(dataset, "source", None), _num_records(dataset)
    if source is None:
        return f"{records:,}", f"{records:,}"
    if isinstance(source, SequentialSource):
        return _counted(source.num_blocks, "shard"), f"{source.num_blocks:,}"
    return "" if records is None else f"{records:,}", f"{source.num_blocks:,}"


def _num_records(dataset: Any) -> int | None:
    """How many records, as far as that is known without reading them."""
    source = getattr(dataset, "source", None)
    count: int | None = len(dataset) if source is None else getattr(source, "num_records", None)
    return count


def _mixture_options(dataset: MergedDataset) -> list[str]:
    return [f"seed {dataset.seed}", "cyclic" if dataset.cyclic else f"ends when {dataset.stop.replace('_', ' ')}"]


def _source_options(node: Node) -> list[str]:
    source, parent, options = getattr(node.dataset, "source", None), node.parent, []
    assert parent is not None, "a source has a parent"
    shards = getattr(source, "shards", None)
    if isinstance(source, SequentialSource):
        options.append("read from the start")
    elif shards is not None:
        options.append(_counted(len(shards.urls), "shard"))
    shuffled = parent.shuffle_unstreaming_subsets if source is None else parent.shuffle_streaming_subsets
    return [*options, "shuffled" if shuffled else "not shuffled"]


def _counts(dataset: Any) -> list[str]:
    """How many failures are forgiven, and what in the shards is no record, or less than one."""
    shards = getattr(getattr(dataset, "source", None), "shards", None)
    counts = {"max_bad": getattr(dataset, "max_bad", 0), **(shards.anomalies() if shards is not None else {})}
    return [f"{what} {count:,}" for what, count in counts.items() if count]


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
