"""Samples in the order of delivery → what there is to show of their mixture: shares, lengths, epochs, the tree, charts.

Charts are numbers in units of a drawing; the template `mixture.html.jinja` makes SVG of them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from streamdata.mixing import MergedDataset
from streamdata.tools.show.model import ShownSample
from streamdata.tools.view.tree import shares_of, tree_rows

WIDTH: Final = 600
HEIGHT: Final = 220
_MAX_LINES: Final = 8
_MAX_POINTS: Final = 200
_BINS: Final = 16
_BAR_HEIGHT: Final = 28


class SourceCurve(NamedTuple):
    """A source's share over the draws.

    Attributes:
        name: The source's.
        points: Of its achieved share, as SVG writes them.
        wanted: The height of its wanted share.
        text: Both shares in words.
    """

    name: str
    points: str
    wanted: float
    text: str


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
        curves: Shares over the draws, of the sources with the largest shares.
        top_share: The share at the upper edge of their chart.
    """

    num_draws: int
    sources: tuple[SourceShown, ...]
    tree: Sequence[Sequence[str]]
    curves: tuple[SourceCurve, ...]
    top_share: float


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
        drawn = [sample.source for sample in samples]
        of_sources = {path: [each for each in samples if each.source == path] for path in self._leaves}
        sources = tuple(self._source(path, of_source, len(samples)) for path, of_source in of_sources.items())
        largest = sorted(sources, key=lambda source: -source.wanted)[:_MAX_LINES]
        top_share = min(1.0, 1.25 * max(0.1, *(max(source.wanted, source.achieved) for source in sources)))
        curves = []
        for source in largest:
            text = f"{source.wanted:.1%} wanted, {source.achieved:.1%} achieved"
            wanted = _height(source.wanted, top_share)
            curves.append(SourceCurve(source.name, _points(source.name, drawn, top_share), wanted, text))
        return ShownMixture(
            num_draws=len(samples), sources=sources, tree=self._tree, curves=tuple(curves), top_share=top_share
        )

    def _source(self, path: str, samples: Sequence[ShownSample], num_draws: int) -> SourceShown:
        share = self._leaves[path]
        num_read = sum(sample.num_records or 1 for sample in samples)
        records: int | None = getattr(share.node.source, "num_records", None)
        epochs = num_read / records if records else None
        wanted_draws = len(samples) / share.overall if share.overall else 0
        return SourceShown(
            name=path,
            wanted=share.overall,
            achieved=len(samples) / max(1, num_draws),
            num_drawn=len(samples),
            num_records=records,
            epochs=epochs,
            draws_per_epoch=wanted_draws / epochs if epochs and wanted_draws else None,
            lengths=_lengths(samples),
        )


def _height(share: float, top_share: float) -> float:
    return round(HEIGHT * (1 - min(1.0, share / top_share)), 1)


def _points(name: str, drawn: Sequence[str], top_share: float) -> str:
    every = max(1, len(drawn) // _MAX_POINTS)
    points, count = [], 0
    for number, source in enumerate(drawn, 1):
        count += source == name
        if number % every == 0 or number == len(drawn):
            points.append(f"{round(WIDTH * number / len(drawn), 1)},{_height(count / number, top_share)}")
    return " ".join(points)


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
    counts = Counter((length - least) // size for length in lengths)
    tallest, bars = max(counts.values()), []
    for number in range(max(counts) + 1):
        begin, count = least + number * size, counts[number]
        span = f"{begin:,} to {begin + size - 1:,}" if size > 1 else f"{begin:,}"
        bars.append((round(_BAR_HEIGHT * count / tallest, 1), f"{span} {unit}: {count:,}"))
    spread = f"{least:,} to {most:,} {unit}, half of them up to {half:,}"
    return Histogram(tuple(bars), f"all {most:,} {unit}" if least == most else spread)
