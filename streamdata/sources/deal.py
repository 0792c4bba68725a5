"""How each topology of a run deals a source's blocks out to its lanes, so that each record is read exactly once.

`a deal, where its lanes stood at the end → next_deal → the deal of the next topology → DealtLane → its records`

A deal is the rest, whose blocks lanes take in turn, and the pieces: what lanes of earlier topologies had begun and not
finished. A piece is the tail of a window, or the open burst of a stream function. A lane reads its pieces first; they
are the windows -m … -1 of an epoch.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from streamdata.progress import Finals, FunctionState
from streamdata.run import Lane, shuffled, stable_seed
from streamdata.sources.dealt_lane import DealtLane, DealtPiece, DealtSource
from streamdata.sources.lane_ends import EPOCH, PIECE, WINDOW, LaneEnds
from streamdata.sources.order import ALL_EPOCHS, BlockOrder, Epochs
from streamdata.sources.rest import AllBlocks, Remaining, Rest

_NO_PIECES = np.zeros(0, PIECE)


class Deal:
    """A source under one topology, in one pass.

    Args:
        dealt: The source.
        number: The generation with which the topology began.
        lanes: How many lanes it has.
        rest: The blocks that nobody had begun.
        pieces: What had been begun, dealt out.
        earlier: The deals before it, by their numbers.
        functions: Of open bursts, by deal and lane: the function's state, and the code of what was left out.
    """

    def __init__(
        self,
        dealt: DealtSource,
        number: int,
        lanes: int,
        rest: Rest | None = None,
        pieces: npt.NDArray[Any] | None = None,
        earlier: Mapping[int, "Deal"] | None = None,
        functions: Mapping[tuple[int, int], tuple[FunctionState | None, str]] | None = None,
    ) -> None:
        self.dealt, self.number, self.lanes = dealt, number, lanes
        self.rest: Rest = rest or AllBlocks()
        self.pieces = _NO_PIECES if pieces is None else pieces
        self.earlier, self.functions = earlier or {}, functions or {}
        self.first_epoch = self.rest.number(0) // dealt.source.num_blocks
        if not len(self.pieces):  # most have none, and a mixture may have thousands of sources
            return
        # Bursts do not count: they are read in whichever epoch the lane begins with.
        tails = self.pieces["start"][~self.pieces["is_burst"], EPOCH]
        if len(tails):
            self.first_epoch = min(self.first_epoch, int(tails.min()))
        self._number_pieces()

    def lane(self, index: int, epochs: Epochs = ALL_EPOCHS) -> DealtLane:
        """What one of the lanes reads, of these epochs."""
        return DealtLane(self.dealt, self.order(index, epochs), self._pieces_of(index, epochs), self.first_epoch)

    def order(self, index: int, epochs: Epochs = ALL_EPOCHS) -> BlockOrder:
        """The blocks of the rest that one of the lanes reads."""
        lane, dealt = Lane(dp_size=self.lanes, dp_rank=index, num_workers=1, worker=0), self.dealt
        return BlockOrder(dealt.source.num_blocks, lane, dealt.seeds, dealt.shuffle, epochs, self.rest)

    def _pieces_of(self, index: int, epochs: Epochs) -> tuple[DealtPiece, ...]:
        if not len(self.pieces):
            return ()
        of_lane = self.pieces[self.pieces["to"] == index]
        is_read = (of_lane["epoch"] >= epochs.first) & (of_lane["epoch"] < epochs.end)
        return tuple(map(self._piece, of_lane[is_read]))

    def _piece(self, row: np.void) -> DealtPiece:
        deal, lane = self.earlier[int(row["deal"])], int(row["lane"])
        start, end = (tuple(map(int, row[name])) for name in ("start", "end"))
        function, left_out = self.functions.get((deal.number, lane), (None, ""))
        is_burst = bool(row["is_burst"])
        return DealtPiece(
            int(row["epoch"]),
            int(row["number"]),
            deal.order(lane),
            partial(deal.lane, lane),
            start,  # type: ignore[arg-type]  # of four numbers
            end if is_burst else None,  # type: ignore[arg-type]
            int(row["given"]),
            function if is_burst else None,
            left_out,
        )

    def _number_pieces(self) -> None:
        """Deal the pieces out, and number them within each lane and epoch, so that the last one is -1."""
        pieces, dealt = self.pieces, self.dealt
        # Like cards: as many for each lane, to one, and to other lanes for each source.
        order = shuffled(len(pieces), stable_seed("pieces", dealt.seeds, self.number))
        pieces["to"][order] = np.arange(len(pieces)) % self.lanes
        # A burst is fed to the function alone, so before the call that reads all else.
        of_bursts = int(min(self.first_epoch, dealt.epochs.end - 1))
        pieces["epoch"] = np.where(pieces["is_burst"], of_bursts, pieces["start"][:, EPOCH])
        pieces = pieces[np.lexsort((~pieces["is_burst"], pieces["epoch"], pieces["to"]))]
        # Of one lane and epoch, bursts first: a call of the stream function may not be interrupted by them.
        groups = np.stack([pieces["to"], pieces["epoch"]], axis=1)
        _, groups, sizes = np.unique(groups, axis=0, return_inverse=True, return_counts=True)
        ends = np.cumsum(sizes)[groups.ravel()]
        pieces["number"] = np.arange(len(pieces)) - ends
        self.pieces = pieces


def shift_of(deal: Deal, finals: Finals) -> int | None:
    """By how much the rest of a deal is shifted, if nothing that its lanes left is told otherwise; else None.

    Then the deals before it are not needed any more.
    """
    mine = LaneEnds(deal, finals)
    # An open burst may begin in a piece that its lane has read to the end since.
    if len(mine.carried()) or (mine.bursts()["start"][:, WINDOW] < 0).any():
        return None
    begins, shift = deal.rest.tail()
    # The first epoch of which something is left: from its beginning on, indices are counted in both.
    first, epochs = deal.rest.number(0), mine.first_epochs()
    size = deal.dealt.source.num_blocks
    boundary, shifted = int(epochs.min()) * size, begins + shift
    # Its end must be the same in both, too: one that ends before that has blocks in the one that it lacks in the other.
    is_counted_alike = (boundary <= first and boundary + size >= shifted) or boundary >= shifted
    return shift if is_counted_alike and int(mine.first_rows().min()) * deal.lanes >= begins else None


def next_deal(deal: Deal, finals: Finals, number: int, lanes: int) -> Deal:
    """Deal out to other lanes what is left.

    Args:
        deal: The deal that ends.
        finals: Where its lanes stood.
        number: Of the next one.
        lanes: How many lanes that has.

    Raises:
        StateError: An entry stands where the lane has nothing, or does not say what its open burst has pulled.
    """
    mine = LaneEnds(deal, finals)
    carried, tails, bursts = mine.carried(), mine.tails(), mine.bursts()
    functions = {(piece_deal, lane): state for (piece_deal, lane), state in deal.functions.items()} | {
        (deal.number, int(lane)): finals.functions[int(lane)]
        for lane in bursts["lane"]
        if int(lane) in finals.functions
    }
    pieces = np.concatenate([carried, tails, bursts])
    # Whatever was dealt to whom before, the same pieces are dealt in the same sequence.
    pieces = pieces[np.lexsort((pieces["is_burst"], pieces["lane"], pieces["deal"]))]
    earlier = {**deal.earlier, deal.number: deal}
    return Deal(deal.dealt, number, lanes, Remaining(deal.rest, mine.begun()), pieces, earlier, functions)
