"""Packing plans: which documents, or pieces of them, make up which rows of one length.

Lengths of all documents are known beforehand (see `packing` for a stream).

simple      documents one after the other, cut where a row ends
bfd         best fit decreasing: whole documents, the longest first, each in the fullest row that still has room
bfd_split   the same, after documents longer than a row were cut into whole rows and a rest
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Plan:
    """Rows of pieces of documents. A row's pieces fill it from the left, by number of document.

    Attributes:
        row_length: Tokens per row.
        rows: Shape (num_rows + 1,): row r has the pieces `rows[r]` to `rows[r + 1]`; rows go by their first piece.
        document: Whose piece it is, shape (pieces,).
        begin: The piece's first token in its document, shape (pieces,).
        end: The token after its last, shape (pieces,).
    """

    row_length: int
    rows: Integers
    document: Integers
    begin: Integers
    end: Integers

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return len(self.rows) - 1

    @property
    def num_tokens(self) -> int:
        """How many tokens are in them."""
        return int((self.end - self.begin).sum())

    @property
    def padding(self) -> int:
        """How many positions are left empty."""
        return self.num_rows * self.row_length - self.num_tokens

    @property
    def fill(self) -> float:
        """The share of positions that hold a token; 1 if there is no row."""
        return self.num_tokens / (self.num_rows * self.row_length) if self.num_rows else 1.0

    @property
    def num_cut(self) -> int:
        """How many documents are in more than one piece."""
        return int(np.count_nonzero(np.bincount(self.document) > 1)) if len(self.document) else 0


def plan_simple(lengths: npt.ArrayLike, row_length: int) -> Plan:
    """Plans rows without a gap: the last one alone may have padding.

    Args:
        lengths: Tokens of each document, shape (documents,); an empty document is in no row.
        row_length: Tokens per row.

    Raises:
        ValueError: A length is negative or `row_length` is not positive.
    """
    checked = _checked(lengths, row_length)
    ends = np.cumsum(checked)
    total = int(ends[-1]) if len(ends) else 0
    row_begins = np.arange(0, total, row_length, dtype=np.int64)
    edges = np.union1d(np.append(ends, 0), row_begins)  # every piece lies between two of them
    begin, end = edges[:-1], edges[1:]
    document = np.searchsorted(ends, begin, side="right")
    offsets = (ends - checked)[document]
    rows = np.append(np.searchsorted(begin, row_begins), len(begin))
    return Plan(row_length, rows, document, begin - offsets, end - offsets)


def plan_bfd(lengths: npt.ArrayLike, row_length: int) -> Plan:
    """Plans rows of whole documents, by best fit decreasing.

    Args:
        lengths: Tokens of each document, shape (documents,), at most `row_length`; an empty one is in no row.
        row_length: Tokens per row.

    Raises:
        ValueError: A document is longer than a row, a length is negative or `row_length` is not positive.
    """
    checked = _checked(lengths, row_length)
    longest = int(checked.max(initial=0))
    if longest > row_length:
        count = int(np.count_nonzero(checked > row_length))
        raise ValueError(
            f"plan_bfd: expected documents of at most {row_length} tokens, {count} are longer, up to {longest} tokens\n"
            "  Use bfd_split, which cuts them, or limit max_seq_len before."
        )
    document = np.flatnonzero(checked)
    return _fitted(row_length, document, np.zeros(len(document), dtype=np.int64), checked[document])


def plan_bfd_split(lengths: npt.ArrayLike, row_length: int) -> Plan:
    """Plans rows by best fit decreasing, after cutting documents longer than a row into whole rows and a rest.

    Args:
        lengths: Tokens of each document, shape (documents,); an empty one is in no row.
        row_length: Tokens per row.

    Raises:
        ValueError: A length is negative or `row_length` is not positive.
    """
    checked = _checked(lengths, row_length)
    counts = -(-checked // row_length)
    document = np.repeat(np.arange(len(checked)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)  # of the piece in its document
    begin = number * row_length
    return _fitted(row_length, document, begin, np.minimum(begin + row_length, checked[document]))


def _checked(lengths: npt.ArrayLike, row_length: int) -> Integers:
    if row_length < 1:
        raise ValueError(
            f"packing: row_length is {row_length}, expected at least 1\n  Set it to the number of tokens in a row."
        )
    checked = np.asarray(lengths, dtype=np.int64)
    if checked.min(initial=0) < 0:
        raise ValueError(
            f"packing: document {int(checked.argmin())} has {int(checked.min())} tokens, expected none or more\n"
            "  Give the length of each document in tokens."
        )
    return checked


def _fitted(row_length: int, document: Integers, begin: Integers, end: Integers) -> Plan:
    """The plan for pieces of 1 to `row_length` tokens, which come in the order of documents."""
    sizes = end - begin
    row = np.empty(len(sizes), dtype=np.int64)
    row[np.argsort(-sizes, kind="stable")] = _best_fit(np.bincount(sizes), row_length)
    _, first = np.unique(row, return_index=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    row = rank[row]
    order = np.argsort(row, kind="stable")
    rows = np.searchsorted(row[order], np.arange(len(first) + 1))
    return Plan(row_length, rows, document[order], begin[order], end[order])


def _best_fit(counts: Integers, row_length: int) -> list[int]:
    """Returns a row for each piece, the longest piece first, given how many pieces there are of each size.

    Pieces of one size are placed together: the fullest row with enough room takes as many of them as it can, since
    after each it is still the fullest with room, and so do all rows with as much room. The rooms in use are the bits of
    one number, so that the smallest that is enough is found without a search.
    """
    placed: list[int] = []
    rows_with: list[list[int]] = [[] for _ in range(row_length + 1)]  # by room
    rooms = num_rows = 0
    for size in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[size])
        while left:
            enough = rooms >> size
            if not enough:  # open as many rows as the rest needs
                opened = -(-left // (row_length // size))
                rows_with[row_length] += range(num_rows, num_rows + opened)
                num_rows += opened
                rooms |= 1 << row_length
                continue
            room = size + (enough & -enough).bit_length() - 1
            each = min(room // size, left)
            rows = rows_with[room][: left // each]
            del rows_with[room][: len(rows)]
            if not rows_with[room]:
                rooms ^= 1 << room
            placed += rows * each
            left -= len(rows) * each
            rows_with[room - each * size] += rows
            rooms |= 1 << (room - each * size)
    return placed
