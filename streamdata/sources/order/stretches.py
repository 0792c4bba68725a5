"""Stretches of a source's order, many at a time: where their windows lie, how long they are, which are neighbours.

Windows end with their epoch: of each epoch a lane has some blocks, and cuts these into windows. So the windows of a
stretch that spans epochs are those of its first one, of the whole ones after it, and of the last, each cut by itself.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.states.headers import BlockCut, Numbers

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


def blocks_before(stretches: Stretches, epoch: Any, cut: BlockCut) -> Numbers:
    """How many blocks of each stretch come before an epoch, if it goes on up to there."""
    found: Numbers = np.maximum(0, -((stretches["first"] - epoch * cut.blocks) // stretches["stride"]))
    return found


def windows_before(stretches: Stretches, epoch: Numbers, cut: BlockCut) -> Numbers:
    """How many windows of each stretch come before an epoch, if it goes on up to there."""
    second = stretches["first"] // cut.blocks + 1
    in_first, later = blocks_before(stretches, second, cut), epoch - second
    # A stretch has `least` blocks of a whole epoch or one more; a tiny source may have thousands of epochs.
    least = cut.blocks // stretches["stride"]
    longer = blocks_before(stretches, epoch, cut) - in_first - later * least
    of_later = later * -(-least // cut.window) + longer * (least % cut.window == 0)
    return np.where(later < 0, 0, -(-in_first // cut.window) + of_later)


def window_of_block(stretches: Stretches, block: Numbers, cut: BlockCut) -> WindowPlace:
    """The window in which block number `block` of each stretch lies; of one at its end the last window."""
    block = np.minimum(block, stretches["blocks"] - 1)
    epoch = (stretches["first"] + block * stretches["stride"]) // cut.blocks
    before, end = blocks_before(stretches, epoch, cut), blocks_before(stretches, epoch + 1, cut)
    within = (block - before) // cut.window
    begin = before + within * cut.window
    end = np.minimum(np.minimum(begin + cut.window, end), stretches["blocks"])
    return WindowPlace(windows_before(stretches, epoch, cut) + within, begin, end)


def begin_of_window(stretches: Stretches, number: Numbers, cut: BlockCut) -> Numbers:
    """The block with which window number `number` of each stretch begins; of one after its last, its end."""
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
    """How many windows each has."""
    return window_of_block(stretches, stretches["blocks"], cut).number + 1


def num_records(stretches: Stretches, cut: BlockCut) -> Numbers:
    """How many records each has, by the mean of a block."""
    last = window_of_block(stretches, stretches["blocks"], cut)
    beyond = np.where(stretches["stop"] < 0, 0, cut.records(last.end - last.begin) - stretches["stop"])
    whole: Numbers = cut.records(stretches["blocks"]) - stretches["start"]
    return np.maximum(whole - np.maximum(beyond, 0), 0)


def joined(stretches: Stretches, cut: BlockCut) -> Stretches:
    """The same records in fewer stretches, sorted: those that follow one another in one lane's windows become one."""
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
