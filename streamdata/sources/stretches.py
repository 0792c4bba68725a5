"""Stretches of a source's order, many at a time: where their windows lie, how long they are, which are neighbours.

Windows end with their epoch: of each epoch a lane has some blocks, and cuts these into windows. So the windows of a
stretch that spans epochs are counted epoch by epoch, for all stretches together.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.progress.leftovers import BlockCut, Numbers

Stretches = npt.NDArray[Any]
"""Rows of `STRETCH`."""


class WindowPlace(NamedTuple):
    """The windows in which some blocks lie; int64 (n,) each."""

    number: Numbers
    """Of the window in its stretch."""
    begin: Numbers
    """Of its first block in the stretch."""
    end: Numbers
    """Of the block after its last one."""


def window_of_block(stretches: Stretches, block: Numbers, cut: BlockCut) -> WindowPlace:
    """The window in which block number `block` of each stretch lies; of one at its end the last window."""
    block = np.minimum(block, stretches["blocks"] - 1)
    # Of most sources windows are blocks; and of tiny ones a stretch may span thousands of epochs.
    if cut.window == 1:
        return WindowPlace(block, block, block + 1)
    number, begin, stop = np.zeros_like(block), np.zeros_like(block), _epoch_end(stretches, np.zeros_like(block), cut)
    while (is_later := block >= stop).any():
        number += np.where(is_later, -(-(stop - begin) // cut.window), 0)
        begin = np.where(is_later, stop, begin)
        stop = _epoch_end(stretches, begin, cut)
    within = (block - begin) // cut.window
    begin = begin + within * cut.window
    return WindowPlace(number + within, begin, np.minimum(begin + cut.window, stop))


def begin_of_window(stretches: Stretches, number: Numbers, cut: BlockCut) -> Numbers:
    """The block with which window number `number` of each stretch begins."""
    if cut.window == 1:
        return number
    left, begin = number.copy(), np.zeros_like(number)
    stop = _epoch_end(stretches, begin, cut)
    while (is_later := (left >= (windows := -(-(stop - begin) // cut.window))) & (stop < stretches["blocks"])).any():
        left -= np.where(is_later, windows, 0)
        begin = np.where(is_later, stop, begin)
        stop = _epoch_end(stretches, begin, cut)
    found: Numbers = begin + left * cut.window
    return found


def num_windows(stretches: Stretches, cut: BlockCut) -> Numbers:
    """How many windows each has."""
    number: Numbers = window_of_block(stretches, stretches["blocks"], cut).number
    return number + 1


def num_records(stretches: Stretches, cut: BlockCut) -> Numbers:
    """How many records each has, by the mean of a block."""
    last = window_of_block(stretches, stretches["blocks"], cut)
    beyond = np.maximum(cut.records(last.end - last.begin) - stretches["stop"], 0)
    whole = cut.records(stretches["blocks"]) - stretches["start"]
    found: Numbers = np.maximum(np.where(stretches["stop"] < 0, whole, whole - beyond), 0)
    return found


def joined(stretches: Stretches, cut: BlockCut) -> Stretches:
    """The same records in fewer stretches, sorted: those that follow one another in one lane's windows become one."""
    # Numbers of one lane differ by multiples of its stride, so that its stretches stand together by their residues.
    names = ("start", "first", "stride")
    residue = stretches["first"] % stretches["stride"]
    rows = stretches[np.lexsort((*(stretches[name] for name in names[:2]), residue, stretches["stride"]))]
    before, after = rows[:-1], rows[1:]
    last = window_of_block(before, before["blocks"], cut)
    # A window that was divided goes on where it was, the next one where its epoch or a whole window ends.
    follows = before["first"] + before["blocks"] * before["stride"] == after["first"]
    is_full = (last.end - last.begin == cut.window) | (
        after["first"] // cut.blocks > (before["first"] + last.begin * before["stride"]) // cut.blocks
    )
    is_next = follows & is_full & (before["stop"] < 0) & (after["start"] == 0)
    is_rest = (before["first"] + last.begin * before["stride"] == after["first"]) & (before["stop"] == after["start"])
    is_rest &= before["stop"] >= 0
    is_same = (before["stride"] == after["stride"]) & (after["outputs"] == 0) & (is_next | is_rest)
    first = np.flatnonzero(np.append(True, ~is_same)) if len(rows) else np.zeros(0, np.int64)
    final = np.append(first[1:], len(rows)) - 1 if len(rows) else first
    # Windows that were divided are in several of them, and count once.
    found = rows[first].copy()
    found["blocks"] = (rows["first"][final] - found["first"]) // found["stride"] + rows["blocks"][final]
    found["stop"] = rows["stop"][final]
    return found[np.lexsort((found["start"], found["first"]))]


def _epoch_end(stretches: Stretches, block: Numbers, cut: BlockCut) -> Numbers:
    """The first block of each stretch that lies in a later epoch than `block`, at most the stretch's end."""
    epoch = (stretches["first"] + block * stretches["stride"]) // cut.blocks
    end = -((stretches["first"] - (epoch + 1) * cut.blocks) // stretches["stride"])
    found: Numbers = np.minimum(end, stretches["blocks"])
    return found
