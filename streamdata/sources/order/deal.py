"""How one size of a run deals a source out to its lanes, and what it leaves to the next: arithmetic on numbers alone.

`Leftovers, number of lanes → Deal → which lane reads which stretch`
`where the lanes stood → left_by → Leftovers`

A lane reads its share of the leftovers first, then every L-th number from the offset on. What lanes have begun when the
size changes ends in the leftovers of the next: the new offset comes after all that the furthest lane has begun.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.errors import StateError, shown
from streamdata.run import shuffled, stable_seed
from streamdata.states.headers import BURST, STRETCH, UNIT, BlockCut, Leftovers, Numbers
from streamdata.states.progress import LastCursors

Stretches = npt.NDArray[Any]
"""Rows of `STRETCH`."""


class WindowPlace(NamedTuple):
    """The windows that contain some blocks, as int64 (n,) columns."""

    number: Numbers
    """Number of the window in its stretch."""
    begin: Numbers
    """Number of its first block in the stretch."""
    end: Numbers
    """Number of the block after its last one."""


def blocks_before(stretches: Stretches, epoch: Any, cut: BlockCut) -> Numbers:
    """The number of blocks of each stretch before an epoch, if the stretch reaches that far."""
    found: Numbers = np.maximum(0, -((stretches["first"] - epoch * cut.blocks) // stretches["stride"]))
    return found


def windows_before(stretches: Stretches, epoch: Numbers, cut: BlockCut) -> Numbers:
    """The number of windows of each stretch before an epoch, if the stretch reaches that far."""
    second = stretches["first"] // cut.blocks + 1
    in_first, later = blocks_before(stretches, second, cut), epoch - second
    # A stretch has `least` blocks of a whole epoch or one more; a tiny source may have thousands of epochs.
    least = cut.blocks // stretches["stride"]
    longer = blocks_before(stretches, epoch, cut) - in_first - later * least
    of_later = later * -(-least // cut.window) + longer * (least % cut.window == 0)
    return np.where(later < 0, 0, -(-in_first // cut.window) + of_later)


def window_of_block(stretches: Stretches, block: Numbers, cut: BlockCut) -> WindowPlace:
    """The window that contains block number `block` of each stretch; at the stretch's end, its last window."""
    block = np.minimum(block, stretches["blocks"] - 1)
    epoch = (stretches["first"] + block * stretches["stride"]) // cut.blocks
    before, end = blocks_before(stretches, epoch, cut), blocks_before(stretches, epoch + 1, cut)
    within = (block - before) // cut.window
    begin = before + within * cut.window
    end = np.minimum(np.minimum(begin + cut.window, end), stretches["blocks"])
    return WindowPlace(windows_before(stretches, epoch, cut) + within, begin, end)


def begin_of_window(stretches: Stretches, number: Numbers, cut: BlockCut) -> Numbers:
    """The first block of window number `number` of each stretch; beyond the last window, the stretch's end."""
    blocks: Numbers = stretches["blocks"]
    if cut.window == 1:  # as of most sources
        return np.minimum(number, blocks)
    # The last epoch before which there are no more windows.
    low = stretches["first"] // cut.blocks
    high = (stretches["first"] + (blocks - 1) * stretches["stride"]) // cut.blocks
    while (low < high).any():
        middle = (low + high + 1) // 2
        is_later = windows_before(stretches, middle, cut) <= number
        low, high = np.where(is_later, middle, low), np.where(is_later, high, middle - 1)
    within = number - windows_before(stretches, low, cut)
    return np.minimum(blocks_before(stretches, low, cut) + within * cut.window, blocks)


def num_windows(stretches: Stretches, cut: BlockCut) -> Numbers:
    """The number of windows of each stretch."""
    return window_of_block(stretches, stretches["blocks"], cut).number + 1


def num_records(stretches: Stretches, cut: BlockCut) -> Numbers:
    """The number of records of each stretch, computed with the mean block."""
    last = window_of_block(stretches, stretches["blocks"], cut)
    beyond = np.where(stretches["stop"] < 0, 0, cut.records(last.end - last.begin) - stretches["stop"])
    whole: Numbers = cut.records(stretches["blocks"]) - stretches["start"]
    return np.maximum(whole - np.maximum(beyond, 0), 0)


def joined(stretches: Stretches, cut: BlockCut) -> Stretches:
    """Join stretches that are adjacent in one lane's windows; returns fewer, sorted, with the same records."""
    # Numbers of one lane differ by multiples of its stride, so that its stretches stand together by their residues.
    residue = stretches["first"] % stretches["stride"]
    rows = stretches[np.lexsort((stretches["start"], stretches["first"], residue, stretches["stride"]))]
    before, after = rows[:-1], rows[1:]
    last = window_of_block(before, before["blocks"], cut)
    # A window that was divided goes on where it was, the next one where its epoch or a whole window ends.
    is_divided = before["stop"] >= 0
    following = before["first"] + np.where(is_divided, last.begin, before["blocks"]) * before["stride"]
    epoch = (before["first"] + last.begin * before["stride"]) // cut.blocks
    is_at_end = is_divided | (last.end - last.begin == cut.window) | (following // cut.blocks > epoch)
    is_next = (after["first"] == following) & (after["start"] == np.maximum(before["stop"], 0)) & is_at_end
    is_next &= (after["outputs"] == 0) & (before["stride"] == after["stride"])
    first = np.flatnonzero(np.append(True, ~is_next)[: len(rows)])
    final = np.append(first[1:], len(rows))[: len(first)] - 1
    # Windows that were divided are in several of them, and count once.
    found = rows[first]
    found["blocks"] = (rows["first"][final] - found["first"]) // found["stride"] + rows["blocks"][final]
    found["stop"] = rows["stop"][final]
    return found[np.lexsort((found["start"], found["first"]))]


EPOCH, WINDOW, TAKEN, OUTPUT = range(4)
_NEAR = 16
"""A cut moves to a window's end if one lies within a 16th of what a lane gets; otherwise it divides the window."""
_NOWHERE = -(1 << 53)
"""A number below those of all windows: of a lane of which nothing is held."""


class Deal:
    """The deal of one source in one pass, in numbers only: it needs the source's cut, not the source.

    Windows of a lane are numbered: those of its share of the leftovers below 0, so that the last one is -1, then those
    from the offset on from 0.

    Args:
        name: The source's path.
        cut: How it is divided.
        epoch_pass: The pass.
        lanes: How many lanes there are.
        left: What earlier sizes left.
    """

    def __init__(self, name: str, cut: BlockCut, epoch_pass: int, lanes: int, left: Leftovers) -> None:
        self.name, self.cut, self.lanes, self.left = name, cut, lanes, left
        self.stretches = left.stretches
        """Stretches as they are cut for the lanes, by lane."""
        self.of_stretches = self.of_bursts = np.zeros((3, 0), np.int64)
        """Lane, number of the first window and number of windows of each stretch, or burst; int64 (3, n)."""
        if len(left.stretches) or len(left.bursts):  # most sources have none, and there may be thousands
            self._deal_out(stable_seed("leftovers", name, epoch_pass, left.offset))

    def _deal_out(self, seed: int) -> None:
        left, cut, bursts = self.left, self.cut, len(self.left.bursts)
        # Where nobody knows how long blocks are, all are taken to be alike, and none can be divided.
        line = left.stretches if cut.mean else _single(left.stretches)
        # Ascending by epoch, and in a seeded order within it.
        line = line[np.lexsort((shuffled(len(line), seed), line["first"] // cut.blocks))]
        # As cards: as many to each lane, to one, and to other lanes for each source.
        cards = np.argsort(shuffled(bursts + (0 if cut.mean else len(line)), seed)) % self.lanes
        burst_lanes, lanes = cards[:bursts], cards[bursts:]
        if cut.mean:
            of_pulled = np.repeat(burst_lanes, left.bursts["stretches"])
            held = np.bincount(of_pulled, num_records(left.pulled, cut), self.lanes).astype(np.int64)
            line, lanes = _shared_out(line, cut, held)
        order = np.argsort(lanes, kind="stable")
        self.stretches = line[order]
        # Bursts come first, and count as one window: a call of the stream function may not be interrupted by them.
        lanes = np.concatenate([burst_lanes, lanes[order]])
        windows = np.concatenate([np.ones(bursts, np.int64), num_windows(self.stretches, cut)])
        order = np.argsort(lanes, kind="stable")
        ends, last = np.cumsum(windows[order]), np.searchsorted(lanes[order], lanes[order], "right") - 1
        numbers = np.empty_like(lanes)
        numbers[order] = ends - windows[order] - ends[last]
        self.of_bursts, self.of_stretches = np.split(np.stack([lanes, numbers, windows]), [bursts], axis=1)

    def left_by(self, last: LastCursors, is_over: npt.NDArray[np.bool_]) -> Leftovers:
        """Compute the leftovers from the cursors of all lanes.

        Args:
            last: The last cursors of the lanes.
            is_over: Which lanes have ended the pass, bool (L,).

        Raises:
            StateError: A lane stands where it has nothing.
        """
        if not self.cut.epochs:  # of a source without end nobody has read all
            is_over = np.zeros(self.lanes, np.bool_)
        position, pulled_to, given, rare = last.position, last["pulled"], last["given"], last["rare"]
        is_open = last.is_held & ~is_over & (pulled_to[:, OUTPUT] >= 0)
        # All that comes before this position, a lane has finished or keeps as its open burst.
        until = np.where(is_open[:, None], pulled_to, position)
        shares = np.zeros(self.lanes, STRETCH)
        shares["first"], shares["stride"], shares["stop"] = self.left.offset + np.arange(self.lanes), self.lanes, -1
        shares["blocks"] = blocks_before(shares, self.cut.epochs or until[:, EPOCH].max() + 1, self.cut)
        start, end = (self._numbers(shares, place, last.is_held) for place in (position, until))
        most = int(begin_of_window(shares, np.maximum(end + _is_inside(until), 0), self.cut).max())
        # A lane that has ended wants nothing more: what it left, such as under `first_exhausted`, is not dealt out.
        most = max(most, int(shares["blocks"][is_over].max(initial=0)))
        shares["blocks"] = np.minimum(most, shares["blocks"]) if self.cut.epochs else most
        # All that the lanes were dealt up to the new offset, of each lane in the sequence in which it is read.
        rows, lanes = np.concatenate([self.stretches, shares]), np.append(self.of_stretches[0], np.arange(self.lanes))
        numbers = np.append(self.of_stretches[1], np.zeros(self.lanes, np.int64))
        unread = _cut_before(rows, end[lanes] - numbers, until[lanes], self.cut)
        # A function may have given something before it pulled anything.
        of_open = np.flatnonzero((is_open & (position != until).any(axis=1))[lanes])
        of_open = of_open[np.argsort(lanes[of_open], kind="stable")]
        pulled_by, numbers = lanes[of_open], numbers[of_open]
        pulled = _cut_after(rows[of_open], end[pulled_by] - numbers, until[pulled_by], self.cut)
        pulled = _cut_before(pulled, start[pulled_by] - numbers, position[pulled_by], self.cut)
        is_pulled = pulled["blocks"] > 0
        new = np.zeros(np.count_nonzero(is_open), BURST)
        new["stretches"] = np.bincount(pulled_by[is_pulled], minlength=self.lanes)[is_open]
        new["given"], new["outputs"] = given[is_open], pulled_to[is_open, OUTPUT] * (new["stretches"] > 0)
        is_kept, old = self._bursts_left(given, is_over, end)
        old_pulled = self.left.pulled[np.repeat(is_kept, self.left.bursts["stretches"])]
        functions = [self.left.functions.get(row) for row in np.flatnonzero(is_kept).tolist()]
        functions += [(said.get("function"), said.get("left_out", "")) if said else None for said in rare[is_open]]
        return Leftovers(
            offset=self.left.offset + most * self.lanes,
            stretches=joined(unread[(unread["blocks"] > 0) & ~is_over[lanes]], self.cut),
            bursts=np.concatenate([old, new]),
            pulled=np.concatenate([old_pulled, pulled[is_pulled]]),
            functions={number: function for number, function in enumerate(functions) if function is not None},
        )

    def _bursts_left(
        self, given: Numbers, is_over: npt.NDArray[np.bool_], number: Numbers
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[Any]]:
        """A mask of the bursts that lanes in window `number` have not finished; and these, with what they gave."""
        lanes, numbers, _ = self.of_bursts
        is_kept = (number[lanes] <= numbers) & ~is_over[lanes]
        found = self.left.bursts.copy()
        # Not less than before: a lane may have an entry there, and have been given nothing of it yet.
        found["given"] = np.maximum(found["given"], np.where(number[lanes] == numbers, given[lanes], 0))
        return is_kept, found[is_kept]

    def _numbers(self, shares: Stretches, position: Numbers, is_held: npt.NDArray[np.bool_]) -> Numbers:
        """The number of the window in which each lane stands."""
        epoch, window = position[:, EPOCH], position[:, WINDOW]
        before = windows_before(shares, epoch, self.cut)
        most = windows_before(shares, epoch + 1, self.cut) - before
        if len(beyond := np.flatnonzero(window > most)):
            lane = beyond[0]
            raise StateError(
                f"source {shown(self.name)}: states of lane {lane} in window {window[lane]} of epoch {epoch[lane]}, "
                f"expected at most {most[lane]}\n  Restore the states as they were saved."
            )
        return np.where(is_held, np.where(window < 0, window, before + window), _NOWHERE)


def _is_inside(position: Numbers) -> Any:
    """1 where something of the window was taken."""
    return position[:, TAKEN:].any(axis=1).astype(np.int64)


def _cut_before(stretches: Stretches, number: Numbers, position: Numbers, cut: BlockCut) -> Stretches:
    """The stretches from a position in window `number` of each on; whole where that is below 0."""
    found = stretches.copy()
    begin = begin_of_window(stretches, np.maximum(number, 0), cut)
    found["first"] += begin * stretches["stride"]
    found["blocks"] -= begin
    # Where nothing was taken of the first one, it still begins where it began.
    is_moved = number + _is_inside(position) > 0
    for name, value in (("start", position[:, TAKEN]), ("outputs", position[:, OUTPUT])):
        found[name] = np.where(is_moved, value, stretches[name])
    return found


def _cut_after(stretches: Stretches, number: Numbers, position: Numbers, cut: BlockCut) -> Stretches:
    """The stretches up to a position in window `number` of each, with the record of which some outputs come before."""
    found = stretches.copy()
    begin, end = (begin_of_window(stretches, np.maximum(n, 0), cut) for n in (number, number + _is_inside(position)))
    found["blocks"] = end
    at_end = np.where(end < stretches["blocks"], -1, stretches["stop"])
    found["stop"] = np.where(begin < end, position[:, TAKEN] + (position[:, OUTPUT] > 0), at_end)
    return found


def _single(stretches: Stretches) -> Stretches:
    """The blocks of the stretches, each by itself."""
    single, blocks = np.repeat(stretches, stretches["blocks"]), stretches["blocks"]
    number = np.arange(len(single)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    single["first"] += number * single["stride"]
    single["blocks"] = 1
    for name in ("start", "outputs"):
        single[name] *= number == 0
    return single


def _shared_out(line: Stretches, cut: BlockCut, held: Numbers) -> tuple[Stretches, Numbers]:
    """Cut a line of stretches so that all lanes have as many records, those that they hold already included.

    Returns:
        The stretches, and the lane of each, ascending.
    """
    records = num_records(line, cut)
    # Cuts are counted in records from the beginning of the line; each lies in one stretch, and there in one window.
    ends = np.cumsum(records)
    # As water fills basins of different depths: lanes that hold more than the level get nothing.
    ascending = np.sort(held)
    levels = (int(records.sum()) + np.cumsum(ascending)) / np.arange(1, len(held) + 1)
    level = levels[max(0, int(np.count_nonzero(levels > ascending)) - 1)]
    cuts = np.cumsum(np.maximum(level - held, 0))[:-1].astype(np.int64)
    if not len(line):
        return line, np.zeros(0, np.int64)
    # A cut at the end of the line lies in its last stretch.
    at = np.minimum(np.searchsorted(ends, cuts, "right"), len(line) - 1)
    within, start = cuts - (ends - records)[at], line["start"][at]
    window = window_of_block(line[at], (start + within) * UNIT // cut.mean, cut)
    low, high = (cut.records(block) - start for block in (window.begin, window.end))
    before, after = within - np.maximum(low, 0), np.minimum(high, records[at]) - within
    is_whole = np.minimum(before, after) * _NEAR * len(held) <= records.sum() + held.sum()
    is_whole |= not cut.divides
    block = np.where(is_whole & (after < before), window.end, window.begin)
    taken = np.where(is_whole, 0, np.maximum(within - low, 0))
    return _divided(line, at, np.stack([block, taken, np.where(taken > 0, window.end, block)], axis=1))


def _divided(line: Stretches, at: Numbers, cuts: Numbers) -> tuple[Stretches, Numbers]:
    """Cut stretches number `at`, ascending, of a line.

    Args:
        line: The stretches.
        at: Of each cut, int64 (n,).
        cuts: Of each, int64 (n, 3): the block with which the second piece begins, how many records of the window from
            it on come before that, and the block before which the first piece ends.

    Returns:
        The pieces, and how many cuts come before each.
    """
    # Pieces begin where stretches do and where they are cut.
    item = np.concatenate([np.arange(len(line)), at])
    order = np.argsort(item, kind="stable")
    item, begin = item[order], np.concatenate([np.zeros((len(line), 3), np.int64), cuts])[order]
    pieces, end = line[item], np.roll(begin, -1, axis=0)
    is_last = np.append(item[1:] != item[:-1], True)
    (block, taken, _), (_, stop, until) = begin.T, end.T
    until = np.where(is_last, pieces["blocks"], until)
    at_end = np.where(until < pieces["blocks"], -1, pieces["stop"])
    pieces["stop"] = np.where(~is_last & (stop > 0), stop, at_end)
    # What follows a cut begins there; only the first piece of a stretch begins where that did.
    is_begin = (block == 0) & (taken == 0)
    pieces["start"] = np.where(is_begin, pieces["start"], taken)
    pieces["outputs"] *= is_begin
    pieces["first"] += block * pieces["stride"]
    pieces["blocks"] = until - block
    is_empty = (pieces["blocks"] <= 0) | (~is_last & (begin == end).all(axis=1))
    return pieces[~is_empty], np.cumsum(order >= len(line))[~is_empty]
