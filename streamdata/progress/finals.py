"""Where the lanes of a topology stood in a node, as columns: what a change of topology deals out anew."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from streamdata.progress.cursor import FunctionState
from streamdata.progress.states_table import Rows, empty_rows

Column = npt.NDArray[np.int64]

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


def finals_of(lanes: int, groups: Iterable[tuple[Column, Rows]], over: Sequence[int] = ()) -> Finals:
    """Put the cursors of some lanes into columns for all.

    Args:
        lanes: How many there are.
        groups: The cursors of each generation, oldest first, with the numbers of their lanes.
        over: The lanes that have ended the pass.
    """
    is_held, is_over = np.zeros((2, lanes), np.bool_)
    is_over[list(over)] = True  # such a lane may have entries or none
    rows = empty_rows(lanes)
    for numbers, found in groups:
        rows[numbers], is_held[numbers] = found, True
    columns: dict[str, Any] = {name: rows[name] for name in ("draws", "tokens", "given", "cost", "pulled")}
    return Finals(
        is_held=is_held,
        is_over=is_over,
        position=np.stack([rows[name] for name in ("epoch", "window", "taken", "part")], axis=1),
        counts={name: rows[name] for name in COUNTS},
        functions={
            lane: (rare.get("function"), rare.get("left_out", ""))
            for lane, rare in enumerate(rows["rare"].tolist())
            if rare
        },
        **columns,
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
