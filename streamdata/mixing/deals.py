"""How the sources of a tree are dealt out to the lanes of a run, in one pass."""

from streamdata.mixing.tree import Node
from streamdata.sources import Deal, DealtLane, DealtSource
from streamdata.sources.foreign.own_stream import OwnStreamSource
from streamdata.states.headers import Leftovers
from streamdata.states.progress import Progress, share_out
from streamdata.states.table import COUNTS


class Deals:
    """How the sources of a tree are dealt out to the lanes, in one pass.

    Args:
        progress: The states, showing the present size.
        epoch_pass: The pass.
        lanes: How many lanes there are.
    """

    def __init__(self, progress: Progress, epoch_pass: int, lanes: int) -> None:
        self._progress, self._pass, self._lanes = progress, epoch_pass, lanes
        self._base = progress.base(epoch_pass)
        self._deals: dict[str, tuple[DealtSource, Deal]] = {}

    def lane(self, node: Node, index: int) -> DealtLane:
        """What one of the lanes reads of a source of records."""
        if node.path not in self._deals:
            source = node.source
            assert source is not None, "a mixture has no blocks to deal out"
            # What earlier sizes had of an iterable is refused before.
            if isinstance(source, OwnStreamSource):
                source = source.over(self._lanes)
            dealt = DealtSource(
                name=node.path,
                source=source,
                seeds=(*node.seeds, self._pass),
                shuffle=node.shuffle,
                epochs=node.epochs,
                part=node.part,
            )
            left = self._base.left.get(node.path, Leftovers())
            cut = node.cut._replace(blocks=source.num_blocks)
            self._deals[node.path] = dealt, Deal(node.path, cut, self._pass, self._lanes, left)
        return DealtLane(*self._deals[node.path], index)

    def has_share(self, node: Node, lane: int) -> bool:
        """Whether the lane has a share of a node."""
        if node.is_endless:
            return True
        if node.is_mixture:
            return any(self.has_share(child, lane) for child in node.children)
        return self.lane(node, lane).has_records()

    def num_blocks(self, lane: int, node: Node) -> int | None:
        """How many blocks of a source are dealt to the lane, leftovers left out; None where it has no share.

        0 where, of what a size left, they may all give nothing, and of an iterable; of a part at most 1, if it has
        a record in them.
        """
        if isinstance(node.source, OwnStreamSource):
            return 0
        dealt = self.lane(node, lane)
        if not dealt.has_records():
            return None
        if self._progress.before.number and node.may_leave_out:
            return 0
        if node.part is None:
            return dealt.order.share(0)
        counts = dealt.counts(dealt.start)
        return int(counts is not None and any(counts))

    def counts(self, path: str, lane: int) -> list[int]:
        """What a lane begins to count a node's `COUNTS` from, so that all lanes together go on from the same sums."""
        counted = self._base.counts.get(path)
        return [share_out(total, self._lanes, lane) for total in counted] if counted else [0] * len(COUNTS)


def left_of(progress: Progress, epoch_pass: int, path: str, lanes: int) -> Leftovers:
    """What the lanes have left of a source in a pass, which need not be there any more."""
    left = progress.base(epoch_pass).left.get(path, Leftovers())
    last, is_over = progress.last(epoch_pass, path), progress.is_over(epoch_pass, path)
    if not (last.is_held | is_over).any():  # absent, or not drawn: as it was
        return left
    return Deal(path, progress.cuts()[path], epoch_pass, lanes, left).left_by(last, is_over)
