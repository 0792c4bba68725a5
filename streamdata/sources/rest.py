"""What is left of a source's blocks when the topology changes: the numbers that no lane had begun."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


class Rest(Protocol):
    """An increasing, endless sequence of block numbers."""

    def select(self, indices: Numbers) -> Numbers:
        """The numbers at these indices, int64 (n,)."""

    def rank(self, numbers: Numbers) -> Numbers:
        """How many numbers of the sequence lie below each of these, int64 (n,)."""

    # One at a time, too: what NumPy needs for one would be half of what a small source's epoch takes.
    def number(self, index: int) -> int:
        """The number at this index."""

    def index(self, number: int) -> int:
        """How many numbers of the sequence lie below this one."""

    def tail(self) -> tuple[int, int]:
        """(index, shift): from the index on, each number is its index plus the shift."""


class AllBlocks:
    """All numbers from `shift` on: the rest when a run begins, and what one becomes when it is nothing but shifted."""

    def __init__(self, shift: int = 0) -> None:
        self._shift = shift

    def select(self, indices: Numbers) -> Numbers:
        return indices + self._shift if self._shift else indices

    def rank(self, numbers: Numbers) -> Numbers:
        return np.maximum(numbers - self._shift, 0) if self._shift else numbers

    def number(self, index: int) -> int:
        return index + self._shift

    def index(self, number: int) -> int:
        return max(number - self._shift, 0)

    def tail(self) -> tuple[int, int]:
        return 0, self._shift


class Remaining:
    """What several lanes had left of a rest.

    Index j of the rest before is row · L + lane: each row deals one block to each of the L lanes. A lane has begun its
    first rows, so that what is left are the indices whose row is not below their lane's. Ordered by rows, the same
    lanes are left in all rows between two of the numbers of rows begun; so a number is found by a binary search over
    these, and beyond the highest the sequence is the one before, shifted.

    Args:
        before: The rest that these lanes were dealt.
        begun: How many rows each lane has begun, int64 (L,).
    """

    def __init__(self, before: Rest, begun: Numbers) -> None:
        self._before, self._begun = before, begun
        levels, counts = np.unique(begun, return_counts=True)
        self._levels: Numbers = levels
        self._widths: Numbers = np.cumsum(counts)  # how many lanes are left in the rows from each level on
        heights = np.diff(levels)
        self._starts: Numbers = np.concatenate([[0], np.cumsum(heights * self._widths[:-1])])
        self._lanes_of_level = (-1, begun)

    def select(self, indices: Numbers) -> Numbers:
        levels = np.searchsorted(self._starts, indices, side="right") - 1
        rows, positions = np.divmod(indices - self._starts[levels], self._widths[levels])
        lanes = np.empty_like(positions)
        for level in np.unique(levels).tolist():
            at = levels == level
            lanes[at] = self._lanes(level)[positions[at]]
        return self._before.select((self._levels[levels] + rows) * len(self._begun) + lanes)

    def rank(self, numbers: Numbers) -> Numbers:
        rows, lanes = np.divmod(self._before.rank(numbers), len(self._begun))
        levels = np.searchsorted(self._levels, rows, side="right") - 1
        ranks = np.zeros_like(rows)
        for level in np.unique(levels[levels >= 0]).tolist():
            at = levels == level
            below = np.searchsorted(self._lanes(level), lanes[at])
            ranks[at] = self._starts[level] + (rows[at] - self._levels[level]) * self._widths[level] + below
        return ranks

    def number(self, index: int) -> int:
        return int(self.select(np.array([index]))[0])

    def index(self, number: int) -> int:
        return int(self.rank(np.array([number]))[0])

    def tail(self) -> tuple[int, int]:
        start, shift = self._before.tail()
        before = int(self._levels[-1]) * len(self._begun) - int(self._starts[-1])
        return max(int(self._starts[-1]), start - before), before + shift

    def _lanes(self, level: int) -> Numbers:
        """The lanes that are left in the rows of a level, ascending."""
        # One level is kept, since numbers are asked for in ascending order; all of them could be L lists of L lanes.
        if self._lanes_of_level[0] != level:
            self._lanes_of_level = (level, np.flatnonzero(self._begun <= self._levels[level]))
        return self._lanes_of_level[1]
