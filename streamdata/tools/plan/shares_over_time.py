"""How shares change over a run: `tree, samples → the share of each source at some moments`."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from streamdata.mixing.tree import Node, node_shares

NUM_MOMENTS: Final = 48
_MAX_SOURCES: Final = 32
_BARS: Final = " ▁▂▃▄▅▆▇█"


class SourceShares(NamedTuple):
    """The share of the whole stream that a source has, at moments evenly over the run."""

    name: str
    shares: list[float]


def share_lines(top: Node, samples: float) -> list[SourceShares]:
    """Of each source of records, where some mixture follows a schedule; nothing else. Of up to 32 that change most."""
    if not top.has_schedule:
        return []
    moments = [node_shares(top, samples * (moment + 0.5) / NUM_MOMENTS) for moment in range(NUM_MOMENTS)]
    leaves = [node for node in top.walk() if not node.is_mixture]
    lines = [SourceShares(node.path, [shares[node.path].overall for shares in moments]) for node in leaves]
    most = sorted(lines, key=lambda line: min(line.shares) - max(line.shares))[:_MAX_SOURCES]
    return [line for line in lines if line in most]


def bars(shares: Sequence[float], highest: float) -> str:
    """Shares as bars of one line, the highest as high as it is; what is not 0 is seen."""
    steps = len(_BARS) - 1
    heights = (max(share > 0, round(steps * share / highest)) if highest else 0 for share in shares)
    return "".join(_BARS[height] for height in heights)
