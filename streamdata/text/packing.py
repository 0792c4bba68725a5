"""Packing: documents of any length become rows of one length, without a gap.

documents   a a a   b b b b b   c
stream      a a a E b b b b b E c E         E ends a document
tokens      a a a E | b b b b | b E c E     each token once
target_ids  a a E b | b b b b | E c E -     the stream shifted by one
positions   0 1 2 3 | 0 1 2 3 | 0 1 0 1     from 0 in each row and each document
"""

from collections import deque
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

IGNORED_LABEL: Final = -100
"""The target where there is nothing to predict: what `torch.nn.functional.cross_entropy` ignores by default."""

Int64s = npt.NDArray[np.int64]


class PackedRow(NamedTuple):
    """One row; every array has shape (row_length,)."""

    tokens: Int64s
    target_ids: Int64s
    loss_mask: npt.NDArray[np.bool_]
    position_ids: Int64s
    num_tokens: int
    """How many of `tokens` are the stream's; padding follows."""


class RowPacker:
    """Cuts the stream of documents into rows. It holds less than one row and one token between two rows.

    A row is complete with the first token after it, its last target. Each document ends with the end token, the last
    one too; a document without tokens adds nothing.

    Args:
        row_length: Int64s per row.
        end_token: The token that ends a document, and fills up the last row.
        skip: How many tokens of the first document (its end token included) were in rows before.
    """

    def __init__(self, row_length: int, end_token: int, skip: int = 0) -> None:
        self._row_length = row_length
        self._end_token = end_token
        self._held: deque[Int64s] = deque()
        self._num_tokens = -skip
        self._taken = skip

    @property
    def num_held(self) -> int:
        """How many of the last documents are still needed, empty ones among them counted."""
        return len(self._held)

    @property
    def taken(self) -> int:
        """How many tokens of the first document held were already in rows."""
        return self._taken

    def add(self, tokens: Int64s) -> None:
        """Appends a document.

        Args:
            tokens: Shape (n,), n ≥ 0, without an end token.

        Raises:
            ValueError: It is the first one and shorter than what was to be skipped.
        """
        document = np.append(tokens, self._end_token) if len(tokens) else tokens
        if not self._held and self._taken >= max(len(document), 1):
            raise ValueError(
                f"packing: expected a first document of more than {self._taken} tokens, got {len(document)}\n"
                "  The documents differ from those that were packed before; start afresh."
            )
        self._held.append(document)
        self._num_tokens += len(document)
        self._release()

    def next_row(self) -> PackedRow | None:
        """Takes a row off the stream, or nothing while its last target has not come."""
        return self._take(self._row_length) if self._num_tokens > self._row_length else None

    def last_row(self) -> PackedRow | None:
        """Takes what is left, after the last document, filled up with padding; nothing if nothing is left."""
        return self._take(self._num_tokens) if self._num_tokens > 0 else None

    def _take(self, num_tokens: int) -> PackedRow:
        pieces = self._cut(num_tokens)
        lengths = [len(piece) for piece in pieces] + [self._row_length - num_tokens]
        missing = np.full(lengths[-1], self._end_token, dtype=np.int64)
        tokens = np.concatenate([*pieces, missing])
        targets = np.full(self._row_length, IGNORED_LABEL, dtype=np.int64)
        targets[: num_tokens - 1] = tokens[1:num_tokens]
        if self._held:
            targets[num_tokens - 1] = self._held[0][self._taken]
        position_ids = positions(np.array(lengths))
        return PackedRow(tokens, targets, targets != IGNORED_LABEL, position_ids, num_tokens)

    def _cut(self, num_tokens: int) -> list[Int64s]:
        """Removes the next tokens, as one piece per document."""
        self._num_tokens -= num_tokens
        pieces = []
        while num_tokens:
            piece = self._held[0][self._taken : self._taken + num_tokens]
            pieces.append(piece)
            num_tokens -= len(piece)
            self._taken += len(piece)
            self._release()
        return pieces

    def _release(self) -> None:
        while self._held and self._taken >= len(self._held[0]):
            self._taken -= len(self._held.popleft())


def positions(lengths: Int64s) -> Int64s:
    """0 to n - 1 for each of the lengths n, joined."""
    ends = np.cumsum(lengths)
    found: Int64s = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    return found
