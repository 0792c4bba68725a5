"""How one size of a run deals a source out to its lanes, and what it leaves to the next: arithmetic on numbers alone.

`Leftovers, number of lanes → Dealing → which lane reads which stretch`
`where the lanes stood → left_by → Leftovers`

A lane reads its share of the leftovers first, then every L-th number from the offset on. What lanes have begun when the
size changes ends in the leftovers of the next: the new offset lies behind the lane that is furthest.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.errors import StateError, shown
from streamdata.progress import Finals
from streamdata.progress.leftovers import BURST, NO_STRETCHES, STRETCH, UNIT, BlockCut, Leftovers, Numbers
from streamdata.run import shuffled, stable_seed
from streamdata.sources.stretches import (
    Stretches,
    begin_of_window,
    joined,
    num_records,
    num_windows,
    window_of_block,
)

EPOCH, WINDOW, TAKEN, PART = range(4)
_NEAR = 16
"""A window is divided only where none ends within this part of a lane's stretch of the cut."""


class Assignment(NamedTuple):
    """Stretches, or bursts, by lane in the sequence in which they are read."""

    lanes: Numbers
    numbers: Numbers
    """Of the first window of each, below 0."""


NOTHING = Assignment(np.zeros(0, np.int64), np.zeros(0, np.int64))


class Dealing:
    """A source under one size, in one pass, by numbers alone: it needs nothing of the source but its cut.

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
        """As they are cut for the lanes, by lane."""
        self.of_stretches, self.of_bursts = NOTHING, NOTHING
        if len(left.stretches) or len(left.bursts):  # most sources have none, and there may be thousands
            self._deal_out(stable_seed("leftovers", name, epoch_pass, left.offset))

    @cached_property
    def pulled(self) -> list[Stretches]:
        """The records of each burst."""
        return np.split(self.left.pulled, np.cumsum(self.left.bursts["stretches"])[:-1])

    def _deal_out(self, seed: int) -> None:
        left, cut = self.left, self.cut
        bursts = len(left.bursts)
        # Where nobody knows how long blocks are, all are taken to be alike, and none can be divided.
        if cut.mean:
            burst_lanes = _as_cards(bursts, self.lanes, seed)
            line = _in_line(left.stretches, cut, seed)
            self.stretches, lanes = _shared_out(line, cut, self._records_of_bursts(burst_lanes))
        else:
            single = _in_line(_single(left.stretches), cut, seed)
            cards = _as_cards(bursts + len(single), self.lanes, seed)
            burst_lanes, lanes = cards[:bursts], cards[bursts:]
            order = np.argsort(lanes, kind="stable")
            self.stretches, lanes = single[order], lanes[order]
        windows = num_windows(self.stretches, cut)
        # From the end, so that the last window of a lane is -1, however many it has.
        of_lane = np.bincount(lanes, windows, self.lanes).astype(np.int64)
        self.of_stretches = Assignment(lanes, _counted(lanes, windows) - of_lane[lanes])
        # Bursts come first: a call of the stream function may not be interrupted by them.
        several = np.bincount(burst_lanes, minlength=self.lanes)
        ones = np.ones(bursts, np.int64)
        order = np.argsort(burst_lanes, kind="stable")
        numbers = np.empty(bursts, np.int64)
        numbers[order] = _counted(burst_lanes[order], ones)
        self.of_bursts = Assignment(burst_lanes, numbers - several[burst_lanes] - of_lane[burst_lanes])

    def _records_of_bursts(self, lanes: Numbers) -> Numbers:
        """How many records the bursts of each lane have."""
        of_burst = np.repeat(lanes, self.left.bursts["stretches"])
        return np.bincount(of_burst, num_records(self.left.pulled, self.cut), self.lanes).astype(np.int64)

    def left_by(self, ends: Finals) -> Leftovers:
        """What is left where the lanes stood.

        Raises:
            StateError: A lane stands where it has nothing.
        """
        if not self.cut.epochs:  # of a source without end nobody has read all
            ends = replace(ends, is_over=np.zeros(self.lanes, np.bool_))
        is_open = ends.is_held & ~ends.is_over & (ends.given > 0) & (ends.pulled[:, PART] >= 0)
        # All that comes before this position, a lane has finished or keeps as its open burst.
        until = np.where(is_open[:, None], ends.pulled, ends.position)
        first = self.left.offset + np.arange(self.lanes)
        begins, begun = (np.where(ends.is_held, rows, 0) for rows in self._rows(first, until))
        most = int(begun.max())
        last = np.full(self.lanes, most)
        if self.cut.epochs:
            all_rows = np.maximum(0, -((first - self.cut.epochs * self.cut.blocks) // self.lanes))
            # A lane that has ended wants nothing more: what it left, such as under `first_exhausted`, is not dealt out.
            most = max(most, int(all_rows[ends.is_over].max(initial=0)))
            last = np.minimum(most, all_rows)
            begins = np.where(ends.is_over, last, begins)
        # One stretch for each lane: what is left of its window, and the windows that it had not begun.
        own = np.zeros(self.lanes, STRETCH)
        own["first"], own["stride"], own["blocks"] = first + begins * self.lanes, self.lanes, last - begins
        own["start"], own["outputs"] = np.where(ends.is_held, _inside(until), 0)
        own["stop"] = -1
        unread = self._unread(until, ends)
        bursts = self._bursts_left(ends, np.flatnonzero(is_open), first)
        return Leftovers(
            offset=self.left.offset + most * self.lanes,
            stretches=joined(np.concatenate([unread, own[own["blocks"] > 0]]), self.cut),
            **bursts,
        )

    def _rows(self, first: Numbers, position: Numbers) -> tuple[Numbers, Numbers]:
        """The block of each lane's share with which its present window begins, and the one after what it has begun."""
        cut, lanes = self.cut, self.lanes
        begin, end = (np.maximum(0, -((first - (position[:, EPOCH] + more) * cut.blocks) // lanes)) for more in (0, 1))
        windows, most = np.maximum(position[:, WINDOW], 0), -(-(end - begin) // cut.window)
        if len(beyond := np.flatnonzero(windows > most)):
            row = beyond[0]
            raise StateError(
                f"source {shown(self.name)}: states of lane {(first[row] - self.left.offset) % lanes} in window "
                f"{windows[row]} of epoch {position[row, EPOCH]}, expected at most {most[row]}\n"
                "  Restore the states as they were saved."
            )
        # Clipped to its epoch: the last window of one may be short, and the next epoch begins with a window of its own.
        rows = [np.minimum(begin + number * cut.window, end) for number in (windows, windows + _is_inside(position))]
        is_there = position[:, WINDOW] >= 0
        return np.where(is_there, rows[0], 0), np.where(is_there, rows[1], 0)

    def _unread(self, until: Numbers, ends: Finals) -> Stretches:
        """The stretches that lanes were dealt and have not finished, as far as they had come in them."""
        lanes, numbers = self.of_stretches
        done = np.where(ends.is_held[lanes], until[lanes, WINDOW] - numbers, -1)
        is_left = (done < num_windows(self.stretches, self.cut)) & ~ends.is_over[lanes]
        return _cut_off(self.stretches[is_left], done[is_left], until[lanes][is_left], self.cut)

    def _bursts_left(self, ends: Finals, opened: Numbers, first: Numbers) -> dict[str, Any]:
        """The bursts that were dealt and are not finished, and those that lanes have begun themselves."""
        lanes, numbers = self.of_bursts
        window = ends.position[lanes, WINDOW]
        is_at = ends.is_held[lanes] & (window == numbers)
        kept = np.flatnonzero((~ends.is_held[lanes] | (window <= numbers)) & ~ends.is_over[lanes]).tolist()
        old = self.left.bursts[kept].copy()
        # Not less than before: a lane may have an entry there, and have been given nothing of it yet.
        given = np.maximum(old["given"], ends.given[lanes[kept]])
        old["given"] = np.where(is_at[kept], given, old["given"])
        new = np.zeros(len(opened), BURST)
        new["given"], new["outputs"] = ends.given[opened], ends.pulled[opened, PART]
        pulled = self._pulled_by(ends, opened, first)
        new["stretches"] = list(map(len, pulled))
        earlier = {number: self.left.functions.get(row) for number, row in enumerate(kept)}
        present = {number: ends.functions.get(lane) for number, lane in enumerate(opened.tolist(), len(kept))}
        return {
            "bursts": np.concatenate([old, new]),
            "pulled": np.concatenate([NO_STRETCHES, *(self.pulled[row] for row in kept), *pulled]),
            "functions": {number: state for number, state in (earlier | present).items() if state is not None},
        }

    def _pulled_by(self, ends: Finals, opened: Numbers, first: Numbers) -> list[Stretches]:
        """What the open burst of each of these lanes has pulled."""
        start, end = ends.position[opened], ends.pulled[opened]
        (begins, _), (_, stops) = (self._rows(first[opened], position) for position in (start, end))
        # Consecutive windows of one lane are one stretch: where nothing came of leftovers, that is all of a burst.
        of_order = np.zeros(len(opened), STRETCH)
        of_order["first"], of_order["stride"] = first[opened] + begins * self.lanes, self.lanes
        of_order["blocks"] = np.where((start == end).all(axis=1), 0, stops - begins)
        of_order["start"], of_order["outputs"] = _inside(start)
        of_order["stop"] = np.where((end[:, WINDOW] >= 0) & (_is_inside(end) > 0), end[:, TAKEN], -1)
        found = []
        for row, lane in enumerate(opened.tolist()):
            pulled = of_order[row : row + 1]
            if start[row, WINDOW] < 0:  # it began in leftovers
                pulled = np.concatenate([self._pulled_of_leftovers(lane, start[row], end[row]), pulled])
            pulled = pulled[pulled["blocks"] > 0]
            if end[row, PART]:  # of the last record some outputs are the burst's: so the record is, too
                pulled["stop"][-1] = end[row, TAKEN] + 1
            found.append(pulled)
        return found

    def _pulled_of_leftovers(self, lane: int, start: Numbers, end: Numbers) -> Stretches:
        """What a lane has pulled of its leftovers from one position to another."""
        own = np.flatnonzero(self.of_stretches.lanes == lane)
        rows, numbers = self.stretches[own], self.of_stretches.numbers[own]
        is_inside = int(_is_inside(end))
        until = end[WINDOW] + is_inside  # all windows before that were begun
        is_pulled = (numbers + num_windows(rows, self.cut) > start[WINDOW]) & (numbers < until)
        rows, numbers = rows[is_pulled], numbers[is_pulled]
        found = _cut_off(rows, start[WINDOW] - numbers, np.tile(start, (len(rows), 1)), self.cut)
        # It may end within the last stretch: at the end of one of its windows, or in it.
        if len(rows) and until < numbers[-1] + num_windows(rows[-1:], self.cut)[0] + is_inside:
            begin = begin_of_window(rows[-1:], until - 1 - numbers[-1:], self.cut)
            cut_off = rows["blocks"][-1] - found["blocks"][-1]
            found["blocks"][-1] = window_of_block(rows[-1:], begin, self.cut).end[0] - cut_off
            found["stop"][-1] = end[TAKEN] if is_inside else -1
        return found


def _is_inside(position: Numbers) -> Any:
    """1 where something of the window was taken."""
    return position[..., TAKEN:].any(axis=-1).astype(np.int64)


def _inside(position: Numbers) -> Numbers:
    """How many records, and outputs of the next one, were taken of the window of each lane's share."""
    return np.where((position[:, WINDOW] >= 0)[:, None], position[:, TAKEN:], 0).T


def _cut_off(stretches: Stretches, done: Numbers, position: Numbers, cut: BlockCut) -> Stretches:
    """The stretches from a position in window number `done` on; whole where that is below 0."""
    found = stretches.copy()
    begin = begin_of_window(stretches, np.maximum(done, 0), cut)
    found["first"] += begin * stretches["stride"]
    found["blocks"] -= begin
    # Where nothing was taken of the first one, it still begins where it began.
    is_moved = (done > 0) | ((done == 0) & (_is_inside(position) > 0))
    for name, value in (("start", position[:, TAKEN]), ("outputs", position[:, PART])):
        found[name] = np.where(is_moved, value, stretches[name])
    return found


def _in_line(stretches: Stretches, cut: BlockCut, seed: int) -> Stretches:
    """Ascending by epoch, and in a seeded order within it."""
    return stretches[np.lexsort((shuffled(len(stretches), seed), stretches["first"] // cut.blocks))]


def _single(stretches: Stretches) -> Stretches:
    """The blocks of the stretches, each by itself."""
    single = np.repeat(stretches, stretches["blocks"])
    number = _counted(np.repeat(np.arange(len(stretches)), stretches["blocks"]), np.ones(len(single), np.int64))
    single["first"] += number * single["stride"]
    single["blocks"] = 1
    for name in ("start", "outputs"):
        single[name] = np.where(number == 0, single[name], 0)
    return single


def _as_cards(count: int, lanes: int, seed: int) -> Numbers:
    """To which lane each of so many is dealt: as many to each, to one, and to other lanes for each source."""
    to = np.empty(count, np.int64)
    to[shuffled(count, seed)] = np.arange(count) % lanes
    return to


def _counted(groups: Numbers, sizes: Numbers) -> Numbers:
    """For each row the sum of the sizes before it in its group; equal groups stand together, ascending."""
    before = np.cumsum(sizes) - sizes
    return before - before[np.searchsorted(groups, groups)] if len(groups) else before


def _shared_out(line: Stretches, cut: BlockCut, held: Numbers) -> tuple[Stretches, Numbers]:
    """BlockCut a line of stretches so that all lanes have as many records, those that they hold already included.

    Returns:
        The stretches, and the lane of each, ascending.
    """
    records = num_records(line, cut)
    # Cuts are counted in records from the beginning of the line; each lies in one stretch, and there in one window.
    ends = np.cumsum(records)
    cuts = np.cumsum(_levelled(int(records.sum()), held))[:-1].astype(np.int64)
    if not len(line) or not len(cuts):
        return line, np.zeros(len(line), np.int64)
    # A cut at the end of the line lies in its last stretch.
    at = np.minimum(np.searchsorted(ends, cuts, "right"), len(line) - 1)
    rows = line[at]
    within = cuts - (ends - records)[at]
    record = rows["start"] + within
    window = window_of_block(rows, record * UNIT // cut.mean, cut)
    low = np.maximum(cut.records(window.begin) - rows["start"], 0)
    high = np.minimum(cut.records(window.end) - rows["start"], records[at])
    is_whole = np.minimum(within - low, high - within) * _NEAR * len(held) <= records.sum() + held.sum()
    is_whole |= not cut.divides
    is_next = is_whole & (high - within < within - low)
    block = np.where(is_next, window.end, window.begin)
    taken = np.where(is_whole, 0, np.maximum(record - cut.records(window.begin), 0))
    return _divided(line, at, block, taken, window.end)


def _divided(line: Stretches, at: Numbers, block: Numbers, taken: Numbers, end: Numbers) -> tuple[Stretches, Numbers]:
    """The line, cut in stretch number `at`, before a block, or after so many records of the window from it to `end`."""
    # Bounds are the beginnings of stretches and the cuts between them.
    item = np.concatenate([np.arange(len(line)), at])
    columns = [np.concatenate([np.zeros(len(line), np.int64), values]) for values in (block, taken, end)]
    is_cut = np.arange(len(item)) >= len(line)
    order = np.lexsort((is_cut, columns[1], columns[0], item))
    item, lanes = item[order], np.cumsum(is_cut[order])
    block, taken, end = (column[order] for column in columns)
    is_last = np.append(item[1:] != item[:-1], True)
    following_block, following_taken, following_end = (np.append(column[1:], 0) for column in (block, taken, end))
    pieces = line[item]
    is_inside = ~is_last & (following_taken > 0)
    until = np.where(is_last, pieces["blocks"], np.where(is_inside, following_end, following_block))
    is_to_its_end = ~is_inside & (until == pieces["blocks"])
    pieces["stop"] = np.where(is_to_its_end, pieces["stop"], np.where(is_inside, following_taken, -1))
    # What follows a cut begins there; only the first piece of a stretch begins where that did.
    is_begin = (block == 0) & (taken == 0)
    pieces["start"] = np.where(is_begin, pieces["start"], taken)
    pieces["outputs"] = np.where(is_begin, pieces["outputs"], 0)
    pieces["first"] += block * pieces["stride"]
    pieces["blocks"] = until - block
    is_empty = (pieces["blocks"] <= 0) | (is_inside & (block == following_block) & (taken == following_taken))
    return pieces[~is_empty], lanes[~is_empty]


def _levelled(total: int, held: Numbers) -> npt.NDArray[np.float64]:
    """What each lane gets of a total, so that all have the same where what they hold allows it."""
    # As water fills basins of different depths: those that hold more than the level get nothing.
    ascending = np.sort(held)
    levels = (total + np.cumsum(ascending)) / np.arange(1, len(held) + 1)
    level = levels[max(0, int(np.count_nonzero(levels > ascending)) - 1)]
    shares: npt.NDArray[np.float64] = np.maximum(level - held, 0)
    return shares
