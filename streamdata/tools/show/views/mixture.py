"""Samples in the order of delivery → what there is to show of their mixture: shares, lengths, epochs, the tree."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from streamdata.mixing import MergedDataset
from streamdata.mixing.tree import NodeShare
from streamdata.tools.show.charts import Histogram, LinesChart, histogram, lines_chart
from streamdata.tools.show.views.model import SampleView, TextView, TokensView
from streamdata.tools.view.tree import shares_of, tree_rows


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
    """What is known of a mixture before it is read: its leaves with their shares, and its tree."""

    leaves: dict[str, NodeShare]
    tree: tuple[tuple[str, ...], ...]


def mixture_facts(dataset: MergedDataset) -> MixtureFacts:
    """What is known of a mixture. Ask before its functions are watched: the tree names them.

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
    drawn = Counter(view.source for view in views)
    read = Counter(dict.fromkeys(facts.leaves, 0))
    for view in views:
        read[view.source] += view.num_records or 1
    sources = [
        _source(path, share, [view for view in views if view.source == path], len(views), read[path])
        for path, share in facts.leaves.items()
    ]
    wanted = {source.name: source.wanted for source in sources}
    chart = lines_chart(wanted, [view.source for view in views])
    return MixtureView(num_draws=drawn.total(), sources=tuple(sources), tree=facts.tree, shares=chart)


def _source(path: str, share: NodeShare, views: Sequence[SampleView], num_draws: int, num_read: int) -> SourceView:
    records: int | None = getattr(share.node.source, "num_records", None)
    per_draw = num_read / max(1, len(views))
    one_epoch = None if records is None or not views or not share.overall else records / per_draw / share.overall
    lengths = [length for view in views if (length := length_of(view)) is not None]
    return SourceView(
        name=path,
        wanted=share.overall,
        achieved=len(views) / max(1, num_draws),
        num_drawn=len(views),
        num_records=records,
        epochs=None if not records else num_read * bool(views) / records,
        draws_per_epoch=one_epoch,
        lengths=histogram([length.number for length in lengths], lengths[0].unit) if lengths else None,
    )


class Length(NamedTuple):
    """How long a sample is."""

    number: int
    unit: str


def length_of(view: SampleView) -> Length | None:
    """The tokens of the first field that has some, padding left out; else the characters of the longest text."""
    for field in view.fields:
        if isinstance(field.value, TokensView):
            return Length(field.value.num_tokens - field.value.num_padding, "tokens")
    texts = [field.value for field in view.fields if isinstance(field.value, TextView)]
    if not texts:
        return None
    return Length(max(len(text.text) + text.num_cut for text in texts), "characters")
