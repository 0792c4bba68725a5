"""Samples in the order of delivery → what there is to show of their mixture: shares, lengths, epochs, the tree.

Histograms are numbers in units of a drawing; the template `mixture.html.jinja` makes SVG of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from streamdata.mixing import MergedDataset
from streamdata.tools.show.model import ShownSample
from streamdata.tools.view.tree import shares_of, tree_rows

_BINS: Final = 16
_BAR_HEIGHT: Final = 28


class Histogram(NamedTuple):
    """A histogram of lengths: the height of each bar and what it says; and what all of it says in words."""

    bars: tuple[tuple[float, str], ...]
    text: str


@dataclass(frozen=True, kw_only=True)
class SourceShown:
    """A source in the mixture.

    Attributes:
        name: Its path of names.
        wanted: Its share by the recipe, at the start of a pass.
        achieved: Its share of the samples that were drawn.
        num_drawn: How many those are.
        num_records: How many records it has; None where nobody has counted them.
        epochs: How often its records were read, by what was drawn; None where that is not known.
        draws_per_epoch: After how many samples of the mixture all its records were read once; None as above.
        lengths: Of its samples; None where they have none.
    """

    name: str
    wanted: float
    achieved: float
    num_drawn: int
    num_records: int | None
    epochs: float | None
    draws_per_epoch: float | None
    lengths: Histogram | None


@dataclass(frozen=True, kw_only=True)
class ShownMixture:
    """A mixture, by the samples of one rank.

    Attributes:
        num_draws: How many samples were looked at.
        sources: In the order of the recipe.
        tree: The rows of `describe`, the first of them the header.
    """

    num_draws: int
    sources: Sequence[SourceShown]
    tree: Sequence[Sequence[str]]


class MixtureFacts:
    """Facts of a mixture before it is read. Make them before its functions are watched: the tree names them.

    Args:
        dataset: The top.

    Raises:
        SourceError: A source has no records.
    """

    def __init__(self, dataset: MergedDataset) -> None:
        self._leaves = {path: share for path, share in shares_of(dataset).items() if not share.node.children}
        self._tree = tree_rows(dataset)

    def shown(self, samples: Sequence[ShownSample]) -> ShownMixture:
        """The mixture, by its samples, from the first on, none left out."""
        sources = [self._source(path, samples) for path in self._leaves]
        return ShownMixture(num_draws=len(samples), sources=sources, tree=self._tree)

    def _source(self, path: str, samples: Sequence[ShownSample]) -> SourceShown:
        share, own = self._leaves[path], [sample for sample in samples if sample.source == path]
        records: int | None = getattr(share.node.source, "num_records", None)
        epochs = sum(sample.num_records or 1 for sample in own) / records if records else None
        return SourceShown(
            name=path,
            wanted=share.overall,
            achieved=len(own) / max(1, len(samples)),
            num_drawn=len(own),
            num_records=records,
            epochs=epochs,
            draws_per_epoch=len(own) / share.overall / epochs if epochs and share.overall else None,
            lengths=_lengths(own),
        )


def _lengths(samples: Sequence[ShownSample]) -> Histogram | None:
    """A histogram of at most 16 bars of one width: of tokens without padding, or characters of the longest text."""
    lengths, unit = list[int](), "tokens"
    for sample in samples:
        tokens = [field.counts["tokens"] - field.counts["padding"] for field in sample.fields if field.kind == "tokens"]
        texts = [field.counts["characters"] for field in sample.fields if field.kind == "text"]
        unit = "tokens" if tokens else "characters"
        lengths += tokens[:1] or sorted(texts)[-1:]
    if not lengths:
        return None
    lengths.sort()
    least, most, half = lengths[0], lengths[-1], lengths[len(lengths) // 2]
    size = -(-(most - least + 1) // _BINS)
    counts = np.bincount([(length - least) // size for length in lengths])
    bars = []
    for number, count in enumerate(counts.tolist()):
        begin = least + number * size
        span = f"{begin:,} to {begin + size - 1:,}" if size > 1 else f"{begin:,}"
        bars.append((round(_BAR_HEIGHT * count / counts.max(), 1), f"{span} {unit}: {count:,}"))
    spread = f"{least:,} to {most:,} {unit}, half of them up to {half:,}"
    return Histogram(tuple(bars), f"all {most:,} {unit}" if least == most else spread)
