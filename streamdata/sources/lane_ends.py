"""Where the lanes of a topology ended in a source: what they had begun of it, and what of that is not finished."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from streamdata.errors import StateError, shown
from streamdata.progress import Finals

if TYPE_CHECKING:
    from streamdata.sources.deal import Deal

PIECE = np.dtype(
    [
        # Who began it: which topology, and which of its lanes.
        ("deal", np.int32),
        ("lane", np.int32),
        ("is_burst", np.bool_),
        ("start", np.int64, 4),  # the position of its first record, as that lane counts
        ("end", np.int64, 4),  # of a burst: the position after its last one
        ("given", np.int64),  # of a burst: how many of its outputs were delivered
        # Who goes on with it, and how that lane counts it.
        ("to", np.int32),
        ("epoch", np.int64),
        ("number", np.int64),
    ]
)
EPOCH, WINDOW, TAKEN, PART = range(4)


class LaneEnds:
    """Where the lanes of a deal stood at its end.

    Raises:
        StateError: An entry does not say what its open burst has pulled.
    """

    def __init__(self, deal: "Deal", finals: Finals) -> None:
        self._deal, self._finals = deal, finals
        lanes, pieces = np.arange(deal.lanes), deal.pieces
        position, given = finals.position, finals.given
        # Whether a lane stood in a burst that it had been dealt: then it has read nothing after that.
        bursts = {(int(p["to"]), int(p["epoch"]), int(p["number"])) for p in pieces[pieces["is_burst"]]}
        keys = zip(lanes.tolist(), position[:, EPOCH].tolist(), position[:, WINDOW].tolist(), strict=True)
        in_burst = (
            np.fromiter((key in bursts for key in keys), np.bool_, deal.lanes)
            if bursts
            else np.zeros(deal.lanes, np.bool_)
        )
        self._is_open = finals.is_held & (given > 0) & ~in_burst & deal.dealt.has_stream_fn
        unsaid = np.flatnonzero(self._is_open & (finals.pulled[:, EPOCH] < 0))
        if len(unsaid):
            raise StateError(
                f"source {shown(deal.dealt.name)}: the states of lane {int(unsaid[0])} were written by an earlier "
                "version of streamdata, and do not say what its process_fn has pulled\n"
                "  Resume with the number of ranks and workers that wrote them, until each source was drawn."
            )
        # All that comes before this position, a lane has finished or keeps as its open burst.
        self._until = np.where(self._is_open[:, None], finals.pulled, position)
        self._lanes = lanes

    def begun(self) -> npt.NDArray[np.int64]:
        """How many of its blocks each lane has begun, int64 (L,)."""
        deal, until = self._deal, self._until
        source = deal.dealt.source
        before, after = (self._blocks_before(until[:, EPOCH] + more) for more in (0, 1))
        windows = until[:, WINDOW] + self._is_within()
        size = source.blocks_per_window
        _check_windows(self._deal.dealt.name, until, -(-(after - before) // size), self._finals.is_held)
        # Clipped to its epoch: the last window of one may be short, and the next epoch begins with a window of its own.
        begun = before + np.clip(windows * size, 0, after - before)
        return np.where(self._finals.is_held, begun, 0)

    def first_epochs(self) -> npt.NDArray[np.int64]:
        """The epoch of the first record that each lane has not finished, int64 (L,)."""
        return np.where(self._finals.is_held, self._finals.position[:, EPOCH], self._deal.first_epoch)

    def first_rows(self) -> npt.NDArray[np.int64]:
        """The row of the window in which that record lies, int64 (L,)."""
        # Of the position, not of what a burst has pulled beyond it: the burst is fed again from there.
        position = self._finals.position
        before = self._blocks_before(position[:, EPOCH])
        rows = before + np.maximum(position[:, WINDOW], 0) * self._deal.dealt.source.blocks_per_window
        return np.where(self._finals.is_held, rows, 0)

    def tails(self) -> npt.NDArray[Any]:
        """The windows that lanes had begun of the rest."""
        begins = self._finals.is_held & (self._until[:, WINDOW] >= 0) & self._is_within()
        return self._pieces(begins, self._until)

    def bursts(self) -> npt.NDArray[Any]:
        """The open bursts of stream functions."""
        pieces = self._pieces(self._is_open, self._finals.position)
        pieces["is_burst"] = True
        pieces["end"], pieces["given"] = self._until[self._is_open], self._finals.given[self._is_open]
        return pieces

    def carried(self) -> npt.NDArray[Any]:
        """The pieces that are not finished, as far as their lanes had come in them."""
        pieces, lane = self._deal.pieces, self._deal.pieces["to"]
        until, held = self._until[lane], self._finals.is_held[lane]
        number, epoch = pieces["number"], pieces["epoch"]
        is_at = held & (until[:, EPOCH] == epoch) & (until[:, WINDOW] == number)
        is_later = (epoch > until[:, EPOCH]) | ((epoch == until[:, EPOCH]) & (number > until[:, WINDOW]))
        left: npt.NDArray[Any] = pieces[~held | is_at | is_later].copy()
        is_at, lane = is_at[~held | is_at | is_later], left["to"]
        given = self._finals.given[lane]
        # Not less than before: a lane may have an entry there, and have been given nothing of it yet.
        left["given"] = np.where(is_at & left["is_burst"], np.maximum(given, left["given"]), left["given"])
        # Where nothing was taken of a tail, it still begins where it began.
        taken = self._until[lane][:, TAKEN:]
        moves = is_at & ~left["is_burst"] & taken.any(axis=1)
        left["start"][moves, TAKEN:] = taken[moves]
        return left

    def _is_within(self) -> npt.NDArray[np.bool_]:
        """Whether a lane stood within a window: something was taken of it."""
        return (self._until[:, TAKEN] > 0) | (self._until[:, PART] > 0)

    def _blocks_before(self, epochs: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """How many of each lane's blocks come before an epoch."""
        different, where = np.unique(epochs, return_inverse=True)
        begins = self._deal.rest.rank(different * self._deal.dealt.source.num_blocks)[where.ravel()]
        return -((self._lanes - begins) // self._deal.lanes)

    def _pieces(self, which: npt.NDArray[np.bool_], starts: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        pieces = np.zeros(int(which.sum()), PIECE)
        pieces["deal"], pieces["lane"], pieces["start"] = self._deal.number, self._lanes[which], starts[which]
        return pieces


def _check_windows(
    name: str, until: npt.NDArray[np.int64], windows: npt.NDArray[np.int64], is_held: npt.NDArray[np.bool_]
) -> None:
    beyond = np.flatnonzero(is_held & (until[:, WINDOW] > windows))
    if len(beyond):
        lane = int(beyond[0])
        raise StateError(
            f"source {shown(name)}: states of lane {lane} in window {int(until[lane, WINDOW])} of epoch "
            f"{int(until[lane, EPOCH])}, expected at most {int(windows[lane])}\n"
            "  Restore the states as they were saved."
        )
