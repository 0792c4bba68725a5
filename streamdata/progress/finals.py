"""Where the lanes of a topology stood in a node, as columns: what a change of topology deals out anew."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from streamdata.progress.columns import CursorColumns
from streamdata.progress.cursor import FunctionState

Column = npt.NDArray[np.int64]

_POSITION = ("epoch", "window", "taken", "part")
COUNTS = ("dropped", "bad", "skipped", "records")
"""What goes on over changes of topology: of these the new lanes get their parts."""


@dataclass(frozen=True, kw_only=True)
class Finals:
    """The last entry of each lane of a topology in a node and a pass; a column has one row per lane, int64 (L,)."""

    is_held: npt.NDArray[np.bool_]
    """Whether there is an entry: the rows of other lanes are 0."""
    is_over: npt.NDArray[np.bool_]
    """Whether the lane has ended the pass: nothing of its share is left, whether it has read all of it or not."""
    position: Column
    """(L, 4): epoch, window, taken, part."""
    pulled: Column
    """(L, 4): the position after what the open burst of a stream function has pulled; -1 where the entry says none."""
    draws: Column
    tokens: Column
    given: Column
    counts: Mapping[str, Column]
    """By the names of `COUNTS`."""
    cost: npt.NDArray[np.float64]
    functions: Mapping[int, tuple[FunctionState | None, str]] = field(default_factory=dict)
    """By lane, where there is one: the state of its stream function at the start of the open burst, and the code of
    what was left out of that."""


def finals_of(lanes: int, groups: Iterable[tuple[Column, CursorColumns]], over: Sequence[int] = ()) -> Finals:
    """Put the cursors of some lanes into columns for all.

    Args:
        lanes: How many there are.
        groups: The cursors of each generation, oldest first, with the numbers of their lanes.
        over: The lanes that have ended the pass.
    """
    # Beside `is_held`: such a lane may have entries or none.
    is_over = np.zeros(lanes, np.bool_)
    is_over[list(over)] = True
    is_held = np.zeros(lanes, np.bool_)
    columns = {name: np.zeros(lanes, np.int64) for name in (*_POSITION, *COUNTS, "draws", "tokens", "given")}
    cost = np.zeros(lanes, np.float64)
    pulled = np.full((lanes, len(_POSITION)), -1, np.int64)
    functions: dict[int, tuple[FunctionState | None, str]] = {}
    for numbers, cursors in groups:
        is_held[numbers] = True
        for name, column in columns.items():
            column[numbers] = cursors[name]
        pulled[numbers], cost[numbers] = cursors["pulled"], cursors["cost"]
        for lane in functions.keys() & set(numbers.tolist()):
            del functions[lane]
        for row, fields in cursors.rare().items():
            functions[int(numbers[row])] = fields.get("function"), fields.get("left_out", "")
    return Finals(
        is_held=is_held,
        is_over=is_over,
        position=np.stack([columns[name] for name in _POSITION], axis=1),
        pulled=pulled,
        draws=columns["draws"],
        tokens=columns["tokens"],
        given=columns["given"],
        counts={name: columns[name] for name in COUNTS},
        cost=cost,
        functions=functions,
    )


def share_out(total: int, parts: int, part: int) -> int:
    """One of so many whole numbers that differ by 1 at most and add up to the total."""
    return total // parts + (part < total % parts)


def sums(before: Sequence[int], finals: Finals) -> list[int]:
    """Sum up the `COUNTS` over all lanes: of each what its entry says, else its part of what was there before."""
    lanes = len(finals.is_held)
    without = np.flatnonzero(~finals.is_held).tolist()
    dealt = [sum(share_out(total, lanes, lane) for lane in without) if total else 0 for total in before]
    return [int(finals.counts[name].sum()) + parts for name, parts in zip(COUNTS, dealt, strict=True)]
