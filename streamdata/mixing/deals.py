"""What a run under one topology takes over from earlier ones, in one pass."""

from streamdata.mixing.tree import Node
from streamdata.progress import COUNTS, Finals, Progress, share_out
from streamdata.sources import Deal, DealtSource, next_deal, shift_of
from streamdata.sources.own_stream import OwnStreamSource
from streamdata.sources.rest import AllBlocks


class Deals:
    """How the sources of a tree are dealt out to the lanes of a topology, in one pass.

    Args:
        progress: The states, showing the deal of that topology.
        epoch_pass: The pass.
        lanes: How many lanes the topology has.
    """

    def __init__(self, progress: Progress, epoch_pass: int, lanes: int) -> None:
        self._progress, self._pass, self._lanes = progress, epoch_pass, lanes
        self._base = progress.base(epoch_pass)
        self._deals: dict[str, Deal] = {}

    def of(self, node: Node) -> Deal:
        """How a source of records is dealt out."""
        if node.path not in self._deals:
            source = node.source
            assert source is not None, "a mixture has no blocks to deal out"
            earlier, shift = self._progress.earlier_deals(self._pass, node.path)
            # What an earlier topology had of it is refused before; one that was not there begins anew.
            if isinstance(source, OwnStreamSource):
                source, earlier, shift = source.over(self._lanes), [], 0
            dealt = DealtSource(
                name=node.path,
                source=source,
                seeds=(*node.seeds, self._pass),
                shuffle=node.shuffle,
                epochs=node.epochs,
                has_stream_fn=getattr(node.dataset, "process_fn", None) is not None,
                part=node.part,
            )
            numbers = [*earlier, self._progress.deal]
            lanes = [*(self._progress.topology(number).lanes for number in earlier), self._lanes]
            deal = Deal(dealt, numbers[0], lanes[0], AllBlocks(shift))
            for before, number, count in zip(earlier, numbers[1:], lanes[1:], strict=True):
                deal = next_deal(deal, self._finals(before, node.path), number, count)
            self._deals[node.path] = deal
        return self._deals[node.path]

    def has_share(self, node: Node, lane: int) -> bool:
        """Whether the lane has a share of a node."""
        if node.is_endless:
            return True
        if node.is_mixture:
            return any(self.has_share(child, lane) for child in node.children)
        return self.of(node).lane(lane, node.epochs).has_records()

    def num_blocks(self, lane: int, node: Node) -> int:
        """How many blocks of a source are dealt to the lane in its first epoch, pieces left out.

        0 where, of what a topology left, they may all give nothing, and of an iterable; of a part at most 1, if it has
        a record in them.
        """
        if (self._progress.deal and node.may_leave_out) or isinstance(node.source, OwnStreamSource):
            return 0
        dealt = self.of(node).lane(lane, node.epochs)
        if node.part is None:
            return dealt.order.share(0)
        counts = dealt.counts(dealt.start)
        return int(counts is not None and any(counts))

    def counts(self, path: str, lane: int) -> list[int]:
        """What a lane begins to count a node's `COUNTS` from, so that all lanes together go on from the same sums."""
        counted = self._base.counts.get(path)
        return [share_out(total, self._lanes, lane) for total in counted] if counted else [0] * len(COUNTS)

    def shift(self, node: Node) -> int | None:
        """By how much a source's rest is shifted, if no deal before this one counts any more; else None."""
        deal = self.of(node)
        return shift_of(deal, self._finals(deal.number, node.path)) if deal.number else None

    def num_pieces(self, node: Node) -> int:
        """How many pieces of a node were dealt out."""
        if node.is_mixture:
            return sum(self.num_pieces(child) for child in node.children)
        return len(self.of(node).pieces)

    def _finals(self, deal: int, path: str) -> Finals:
        return self._progress.finals(deal, self._pass, path)
