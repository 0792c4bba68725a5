"""Sequences and documents as Megatron's index has them."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np

from streamdata.errors import StoreError
from streamdata.stores.bounds import Open, StoredArray, damaged, rising
from streamdata.stores.dtypes import Int64s


@dataclass(frozen=True, eq=False, slots=True)
class Sequences:
    """Sequences by pointer and length.

    Attributes:
        count: How many.
        lengths: int32 (count,), in tokens.
        pointers: int64 (count,), in bytes.
        token_bytes: Of one token.
        end: The number of tokens.
    """

    count: int
    lengths: StoredArray
    pointers: StoredArray
    token_bytes: int
    end: int

    @property
    def arrays(self) -> tuple[StoredArray, ...]:
        return self.lengths, self.pointers

    def span(self, index: int, open_: Open) -> tuple[int, int]:
        pointer, length = int(open_(self.pointers)[index]), int(open_(self.lengths)[index])
        begin, rest = divmod(pointer, self.token_bytes)
        end = begin + length
        if rest or length < 0 or not 0 <= begin <= end <= self.end or end != self._next(index, open_):
            raise damaged(f"index '{self.lengths.file}', pointer {pointer}", index, begin, end, self.end)
        return begin, end

    def start(self, index: int, open_: Open) -> int:
        """Where a sequence begins, in tokens; for `count` the end."""
        return self.end if index >= self.count else int(open_(self.pointers)[index]) // self.token_bytes

    def starts(self, begin: int, end: int, open_: Open) -> Int64s:
        pointers = open_(self.pointers)
        first = bisect_right(pointers, begin * self.token_bytes)
        last = bisect_left(pointers, end * self.token_bytes, first)
        return rising(np.asarray(pointers[first:last]) // self.token_bytes, begin, end, f"index '{self.lengths.file}'")

    def _next(self, index: int, open_: Open) -> int:
        """Where the next sequence must begin: they lie one after another, without gaps and overlaps."""
        return self.start(index + 1, open_)


@dataclass(frozen=True, eq=False, slots=True)
class Documents:
    """Documents as runs of sequences.

    Attributes:
        count: How many.
        firsts: int64 (count + 1,), the sequence with which each begins, and the number of sequences.
        sequences: What they consist of.
    """

    count: int
    firsts: StoredArray
    sequences: Sequences

    @property
    def arrays(self) -> tuple[StoredArray, ...]:
        return self.firsts, *self.sequences.arrays

    def span(self, index: int, open_: Open) -> tuple[int, int]:
        firsts = open_(self.firsts)
        first, last = int(firsts[index]), int(firsts[index + 1])
        if not 0 <= first <= last <= self.sequences.count:
            raise damaged(f"document index of '{self.firsts.file}'", index, first, last, self.sequences.count)
        return self.sequences.start(first, open_), self.sequences.start(last, open_)

    def starts(self, begin: int, end: int, open_: Open) -> Int64s:
        def position(sequence: int) -> int:
            if not 0 <= sequence <= self.sequences.count:
                raise StoreError(
                    f"document index of '{self.firsts.file}': expected sequences up to {self.sequences.count}, "
                    f"got {sequence}\n  Copy the index again, and check it with `streamdata verify`."
                )
            return self.sequences.start(int(sequence), open_)

        firsts = open_(self.firsts)
        first = bisect_right(firsts, begin, key=position)
        last = bisect_left(firsts, end, first, key=position)
        return rising(
            [position(sequence) for sequence in firsts[first:last]], begin, end, f"index '{self.firsts.file}'"
        )
