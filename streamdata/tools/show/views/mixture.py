"""Samples in the order of delivery → a view of their mixture: shares, lengths, epochs, the tree, charts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from streamdata.mixing import MergedDataset
from streamdata.mixing.tree import NodeShare
from streamdata.tools.show.views.model import SampleView, TextView, TokensView
from streamdata.tools.view.tree import shares_of, tree_rows

WIDTH: Final = 640
HEIGHT: Final = 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 150, 12, 30
_MAX_LINES: Final = 8
_MAX_POINTS: Final = 200
_LABEL_HEIGHT: Final = 15
_BINS: Final = 16
_MAX_TICKS: Final = 5
BAR_WIDTH: Final = 7
BAR_HEIGHT: Final = 28


class Tick(NamedTuple):
    """A place on an axis, and what it says."""

    at: float
    label: str


class SourceCurve(NamedTuple):
    """A source's share over the draws.

    Attributes:
        name: The source's.
        number: Of its colour.
        points: Of its achieved share, as SVG writes them.
        wanted: The height of its wanted share.
        label: The height of its name.
        text: Both shares in words.
    """

    name: str
    number: int
    points: str
    wanted: float
    label: float
    text: str


class LinesChart(NamedTuple):
    """Shares over draws."""

    lines: tuple[SourceCurve, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    num_left_out: int
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    top: int = _TOP
    bottom: int = HEIGHT - _BOTTOM


class Bar(NamedTuple):
    """A bar of a histogram: its place and height, and what it says."""

    x: float
    y: float
    height: float
    text: str


class Histogram(NamedTuple):
    """A histogram of lengths, and what it says in words."""

    bars: tuple[Bar, ...]
    text: str
    width: int = _BINS * (BAR_WIDTH + 1)
    height: int = BAR_HEIGHT
    bar_width: int = BAR_WIDTH


def _lines_chart(wanted: Mapping[str, float], drawn: Sequence[str]) -> LinesChart:
    """Wanted shares, and the achieved ones after each draw; of the sources with the largest shares.

    Args:
        wanted: The share of each source.
        drawn: The source of each draw.
    """
    names = sorted(wanted, key=lambda name: -wanted[name])[:_MAX_LINES]
    most = max([*wanted.values(), *(count / max(1, len(drawn)) for count in Counter(drawn).values()), 0.1])
    top_share = min(1.0, most * 1.25)
    heights = dict(zip(names, _apart([_y(wanted[name], top_share) for name in names]), strict=True))
    lines = [
        SourceCurve(
            name=name,
            number=number,
            points=_points(name, drawn, top_share),
            wanted=_y(wanted[name], top_share),
            label=heights[name],
            text=f"{wanted[name]:.1%} wanted, {drawn.count(name) / max(1, len(drawn)):.1%} achieved",
        )
        for number, name in enumerate(names)
    ]
    x_ticks = [Tick(at=_x(count, len(drawn)), label=f"{count:,}") for count in _round_steps(len(drawn))]
    y_ticks = [Tick(at=_y(share, top_share), label=f"{share:.0%}") for share in _shares(top_share)]
    return LinesChart(
        lines=tuple(lines), x_ticks=tuple(x_ticks), y_ticks=tuple(y_ticks), num_left_out=len(wanted) - len(names)
    )


def _histogram(lengths: Sequence[int], unit: str) -> Histogram:
    """A histogram of at most 16 bars of one width."""
    ordered = sorted(lengths)
    least, most = ordered[0], ordered[-1]
    size = max(1, -(-(most - least + 1) // _BINS))
    counts = Counter((length - least) // size for length in ordered)
    tallest = max(counts.values())
    bars = []
    for number, count in sorted(counts.items()):
        begin, height = least + number * size, max(1.5, BAR_HEIGHT * count / tallest)
        span = f"{begin:,} to {begin + size - 1:,}" if size > 1 else f"{begin:,}"
        text = f"{span} {unit}: {count:,}"
        bars.append(
            Bar(x=number * (BAR_WIDTH + 1), y=round(BAR_HEIGHT - height, 1), height=round(height, 1), text=text)
        )
    half = ordered[len(ordered) // 2]
    range_text = f"{least:,} to {most:,} {unit}, half of them up to {half:,}"
    return Histogram(bars=tuple(bars), text=f"all {most:,} {unit}" if least == most else range_text)


def _points(name: str, drawn: Sequence[str], top_share: float) -> str:
    every = max(1, len(drawn) // _MAX_POINTS)
    points, count = [], 0
    for number, source in enumerate(drawn, 1):
        count += source == name
        if number % every == 0 or number == len(drawn):
            points.append(f"{_x(number, len(drawn))},{_y(min(count / number, top_share), top_share)}")
    return " ".join(points)


def _x(count: int, num_draws: int) -> float:
    return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * count / max(1, num_draws), 1)


def _y(share: float, top_share: float) -> float:
    return round(HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * share / top_share, 1)


def _apart(heights: Sequence[float]) -> list[float]:
    """Heights of labels, given from the top down, so that none covers another."""
    placed: list[float] = []
    for number, height in enumerate(heights):
        lowest = HEIGHT - _BOTTOM - _LABEL_HEIGHT * (len(heights) - 1 - number)
        placed.append(min(lowest, max(height, placed[-1] + _LABEL_HEIGHT if placed else height)))
    return placed


def _round_steps(most: int) -> list[int]:
    """0 and up to five round numbers."""
    steps = (factor * 10**power for power in range(12) for factor in (1, 2, 5))
    step = next(step for step in steps if most / step <= _MAX_TICKS)
    return list(range(0, most + 1, step))


def _shares(most: float) -> list[float]:
    step = next(step for step in (0.02, 0.05, 0.1, 0.2, 0.25, 1) if most / step <= _MAX_TICKS)
    return [number * step for number in range(int(most / step) + 1)]


@dataclass(frozen=True, kw_only=True)
class SourceView:
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
class MixtureView:
    """A mixture, by the samples of one rank.

    Attributes:
        num_draws: How many samples were looked at.
        sources: In the order of the recipe.
        tree: The rows of `describe`, the first of them the header.
        shares: Wanted and achieved shares, over the draws.
    """

    num_draws: int
    sources: tuple[SourceView, ...]
    tree: tuple[tuple[str, ...], ...]
    shares: LinesChart


class MixtureFacts(NamedTuple):
    """Facts of a mixture before it is read: its leaves with their shares, and its tree."""

    leaves: dict[str, NodeShare]
    tree: tuple[tuple[str, ...], ...]


def mixture_facts(dataset: MergedDataset) -> MixtureFacts:
    """Facts of a mixture. Ask for them before its functions are watched: the tree names them.

    Raises:
        SourceError: A source has no records.
    """
    leaves = {path: share for path, share in shares_of(dataset).items() if not share.node.children}
    return MixtureFacts(leaves, tuple(map(tuple, tree_rows(dataset))))


def mixture_view(facts: MixtureFacts, views: Sequence[SampleView]) -> MixtureView:
    """The view of a mixture.

    Args:
        facts: Of `mixture_facts`.
        views: Its samples, from the first on, none left out.
    """
    sources = [
        _source(path, share, [view for view in views if view.source == path], len(views))
        for path, share in facts.leaves.items()
    ]
    wanted = {source.name: source.wanted for source in sources}
    chart = _lines_chart(wanted, [view.source for view in views])
    return MixtureView(num_draws=len(views), sources=tuple(sources), tree=facts.tree, shares=chart)


def _source(path: str, share: NodeShare, views: Sequence[SampleView], num_draws: int) -> SourceView:
    num_read = sum(view.num_records or 1 for view in views)
    records: int | None = getattr(share.node.source, "num_records", None)
    per_draw = num_read / max(1, len(views))
    one_epoch = None if records is None or not views or not share.overall else records / per_draw / share.overall
    lengths = [length for view in views if (length := _length_of(view)) is not None]
    return SourceView(
        name=path,
        wanted=share.overall,
        achieved=len(views) / max(1, num_draws),
        num_drawn=len(views),
        num_records=records,
        epochs=num_read / records if records else None,
        draws_per_epoch=one_epoch,
        lengths=_histogram([number for number, _ in lengths], lengths[0][1]) if lengths else None,
    )


def _length_of(view: SampleView) -> tuple[int, str] | None:
    """The tokens of the first field that has some, padding left out; else the characters of the longest text."""
    for field in view.fields:
        if isinstance(field.value, TokensView):
            return field.value.num_tokens - field.value.num_padding, "tokens"
    texts = [field.value for field in view.fields if isinstance(field.value, TextView)]
    if not texts:
        return None
    return max(len(text.text) + text.num_cut for text in texts), "characters"
