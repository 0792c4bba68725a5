"""Packing plans: which documents, or pieces of them, make up which rows of one length.

Lengths of all documents are known beforehand (see `packing` for a stream without a gap).

simple      documents one after the other, cut where a row ends
bfd         best fit decreasing: whole documents, the longest first, each in the fullest row that still has room
bfd_split   the same, after documents longer than a row were cut into whole rows and a rest
alike       whole documents of alike length, a row of which counts as if all were as long as its longest

Of a stream, documents are planned a stretch at a time. `bfd_head` and `alike_head` leave the last ones of a stretch
out, at most as many as one row can hold: the next stretch fills that row. `bfd_rows` and `alike_rows` fill a number of
rows, and leave out what does not fit: a `Balance` gives these in a sequence in which all lanes cost alike.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamdata.errors import positive, shown

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


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


@dataclass(frozen=True)
class Cost:
    """How much work a document is to a model: `linear` for each token, and `quadratic` times its length squared.

    In any unit, such as FLOPs: what counts is how the two compare.

    Args:
        linear: Cost of a token, whatever it attends to.
        quadratic: Cost of attention in a document, divided by its length squared.

    Raises:
        ValueError: One is negative or not finite, or both are 0.
    """

    linear: float = 0.0
    quadratic: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("linear", self.linear), ("quadratic", self.quadratic)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ValueError(
                    f"Cost: {name} is {shown(value)}, expected a finite number from 0 on\n"
                    "  Cost.of_model(num_params, hidden, layers) computes both; YAML reads 4.2e+10 as a number."
                )
        if not self.linear and not self.quadratic:
            raise ValueError("Cost: linear and quadratic are both 0, expected a positive number as one of them")

    @classmethod
    def of_model(cls, num_params: float, hidden: int, layers: int) -> "Cost":
        """FLOPs of training a transformer with causal attention, forward and backward.

        Args:
            num_params: Parameters that a token passes through; of a mixture of experts, the active ones.
            hidden: Width of attention: heads times the size of each.
            layers: Layers with causal attention over the whole document; of others, give `Cost` the numbers.
        """
        return cls(6 * num_params, 6 * hidden * layers)

    def of_rows(self, plan: "Plan", *, is_padded: bool = False) -> Floats:
        """Costs of a plan's rows, shape (num_rows,).

        Args:
            plan: The rows.
            is_padded: A row's documents are padded to its longest one, each of which then costs as much.
        """
        sizes, begins = plan.end - plan.begin, plan.rows[:-1]
        # Sums of integers are exact, so that no machine sorts otherwise than another.
        tokens, squares = np.add.reduceat(sizes, begins), np.add.reduceat(sizes**2, begins)
        if is_padded:
            longest = np.maximum.reduceat(sizes, begins)
            tokens, squares = (np.diff(plan.rows) * longest**power for power in (1, 2))
        found: Floats = self.linear * tokens + self.quadratic * squares
        return found


@dataclass(frozen=True)
class Balance:
    """Bursts of a fixed number of rows, which each lane gives in the same sequence of quantiles of their cost.

    Attributes:
        what: Whose rows they are and how they are called, for messages.
        cost: Of a row.
        num_rows: Rows of a burst.
        row_length: Tokens per row.
        is_padded: Rows are of documents of alike length, each padded to the longest: groups.

    Raises:
        ValueError: A setting is out of range.
    """

    what: str
    cost: Cost
    num_rows: int
    row_length: int
    is_padded: bool = False

    def __post_init__(self) -> None:
        positive(self.what, self.num_rows, "So many are planned at once, and sorted by cost.")
        if not isinstance(self.cost, Cost):
            raise ValueError(
                f"{self.what}: expected a Cost as balance, got {shown(self.cost)}\n"
                "  Write balance=Cost.of_model(num_params, hidden, layers)."
            )

    @property
    def num_tokens(self) -> int:
        """Tokens that a burst has room for; documents of more fill it."""
        return self.num_rows * self.row_length

    def lacks_room(self, num_tokens: int, num_bytes: int, most_bytes: int) -> ValueError:
        """The error where documents of so many tokens, which are no burst, have more bytes than may be held."""
        # Later ones may be larger.
        needed = math.ceil(1.25 * num_bytes * (self.num_tokens + self.row_length) / num_tokens)
        return ValueError(
            f"{self.what} is {self.num_rows}, expected their {self.num_tokens:,} tokens within "
            f"lookahead_bytes={most_bytes}, got {num_tokens:,} in as many bytes\n"
            f"  Set lookahead_bytes to about {needed}, or balance over fewer."
        )

    def plan(self, lengths: npt.ArrayLike) -> "Plan":
        """The plan of a burst of the first documents."""
        return (plan_alike_rows if self.is_padded else plan_bfd_rows)(lengths, self.row_length, self.num_rows)

    def aligned(self, plan: "Plan") -> list[tuple[int, int, float]]:
        """The rows of a plan in the sequence in which they are given: first piece, piece after the last, and cost.

        They are sorted by cost; which of them is next follows from their number alone, so that all lanes are at the
        same quantile. Successive ones lie far apart (the golden ratio): sums over a few steps are alike, too.
        """
        costs = self.cost.of_rows(plan, is_padded=self.is_padded)
        turn = np.argsort((math.sqrt(5) - 1) / 2 * np.arange(plan.num_rows) % 1, kind="stable")
        order = np.argsort(costs, kind="stable")[turn]
        begins, ends = plan.rows[:-1][order], plan.rows[1:][order]
        return list(zip(begins.tolist(), ends.tolist(), costs[order].tolist(), strict=True))


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
    return _whole(row_length, *_fitting(lengths, row_length, "plan_bfd"), _best_rows)


def plan_bfd_head(lengths: npt.ArrayLike, row_length: int) -> Plan:
    """Plans rows of the first documents, by best fit decreasing; those after them are left for the next stretch.

    The last documents, as many as fit into one row, are put aside, and the others are planned. Then those put aside
    follow one another into the emptiest row, until one does not fit: that one and all after it are left.

    Args:
        lengths: As for `plan_bfd`. If all documents fit into one row, the plan has none.
        row_length: Tokens per row.

    Raises:
        ValueError: As `plan_bfd`.
    """
    document, sizes = _fitting(lengths, row_length, "plan_bfd_head")
    first = len(sizes) - int(np.searchsorted(np.cumsum(sizes[::-1]), row_length, side="right"))
    row = _best_rows(sizes[:first], row_length)
    if first:
        filled = np.bincount(row, weights=sizes[:first]).astype(np.int64)
        emptiest = int(filled.argmin())
        ends = filled[emptiest] + np.cumsum(sizes[first:])
        row = np.append(row, np.full(np.searchsorted(ends, row_length, side="right"), emptiest))
    return _whole(row_length, document[: len(row)], sizes[: len(row)], lambda *_: row)


def plan_alike(lengths: npt.ArrayLike, row_length: int) -> Plan:
    """Plans rows of documents of alike length: the longest one of a row, times their number, is at most `row_length`.

    Args:
        lengths: As for `plan_bfd`.
        row_length: Tokens per row, once its documents are padded to the longest.

    Raises:
        ValueError: As `plan_bfd`.
    """
    return _whole(row_length, *_fitting(lengths, row_length, "plan_alike"), _alike_rows)


def plan_alike_head(lengths: npt.ArrayLike, row_length: int) -> Plan:
    """Plans rows of the first documents, as `plan_alike`; those after them are left for the next stretch.

    As in `plan_bfd_head`, the last documents that fit into one row are put aside. They then follow one another into the
    row of the shortest; where there are several rows, until one is longer than these.

    Args:
        lengths: As for `plan_bfd`. If all documents fit into one row, the plan has none.
        row_length: Tokens per row, once its documents are padded to the longest.

    Raises:
        ValueError: As `plan_bfd`.
    """
    document, sizes = _fitting(lengths, row_length, "plan_alike_head")
    first = len(sizes) - _num_alike(sizes[::-1], row_length)
    row = _alike_rows(sizes[:first], row_length)
    if first:
        shortest = int(row.max())
        members, others = sizes[:first][row == shortest], sizes[first:]
        # A long one would lengthen all of the shortest. But where there is one row, documents come in their sequence.
        if shortest:
            others = others[: int(np.append(others > members.max(), True).argmax())]
        more = _num_alike(np.append(members, others), row_length) - len(members)
        row = np.append(row, np.full(more, shortest))
    return _whole(row_length, document[: len(row)], sizes[: len(row)], lambda *_: row)


def plan_bfd_rows(lengths: npt.ArrayLike, row_length: int, num_rows: int) -> Plan:
    """Plans so many rows of the first documents, by best fit decreasing; those after them are left.

    The last documents, half a row of what could be full, are put aside, and the others are planned; twice as many while
    these do not fit. Then those put aside follow one another, each into the emptiest row, until one does not fit.

    Args:
        lengths: As for `plan_bfd`. Where all fit into fewer rows, there may be fewer.
        row_length: Tokens per row.
        num_rows: How many rows.

    Raises:
        ValueError: As `plan_bfd`.
    """
    document, sizes = _fitting(lengths, row_length, "plan_bfd_rows")
    ends, aside, row = np.cumsum(sizes), -(-row_length // 2), np.full(1, num_rows)
    while row.max(initial=-1) >= num_rows:
        first = int(np.searchsorted(ends, num_rows * row_length - aside, side="right"))
        row = _best_rows(sizes[: max(first, min(num_rows, len(sizes)))], row_length)  # each may have a row of its own
        aside *= 2
    first, room = len(row), np.full(num_rows, row_length)
    np.subtract.at(room, row, sizes[:first])
    for size in sizes[first:].tolist():
        emptiest = int(room.argmax())
        if room[emptiest] < size:
            break
        room[emptiest] -= size
        row = np.append(row, emptiest)
    return _whole(row_length, document[: len(row)], sizes[: len(row)], lambda *_: row)


def plan_alike_rows(lengths: npt.ArrayLike, row_length: int, num_rows: int) -> Plan:
    """Plans so many rows of the first documents, as `plan_alike`: of as many documents as fit into them.

    Args:
        lengths: As for `plan_bfd`. Where all fit into fewer rows, there are fewer.
        row_length: Tokens per row, once its documents are padded to the longest.
        num_rows: How many rows.

    Raises:
        ValueError: As `plan_bfd`.
    """
    document, sizes = _fitting(lengths, row_length, "plan_alike_rows")
    # One document more needs at most one row more, and never fewer rows.
    numbers = range(1, len(sizes) + 1)
    count = bisect_right(numbers, num_rows, key=lambda n: int(_alike_rows(sizes[:n], row_length).max()) + 1)
    return _whole(row_length, document[:count], sizes[:count], _alike_rows)


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
    end = np.minimum(begin + row_length, checked[document])
    return _plan(row_length, _best_rows(end - begin, row_length), document, begin, end)


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


def _fitting(lengths: npt.ArrayLike, row_length: int, who: str) -> tuple[Integers, Integers]:
    """Returns the numbers and lengths of the documents that are not empty, none of which is longer than a row."""
    checked = _checked(lengths, row_length)
    longest = int(checked.max(initial=0))
    if longest > row_length:
        count = int(np.count_nonzero(checked > row_length))
        raise ValueError(
            f"{who}: expected documents of at most {row_length} tokens, {count} are longer, up to {longest} tokens\n"
            "  Use bfd_split, which cuts them, or limit max_seq_len before."
        )
    document = np.flatnonzero(checked)
    return document, checked[document]


def _whole(row_length: int, document: Integers, sizes: Integers, rows: Callable[[Integers, int], Integers]) -> Plan:
    """The plan for whole documents."""
    return _plan(row_length, rows(sizes, row_length), document, np.zeros(len(document), dtype=np.int64), sizes)


def _plan(row_length: int, row: Integers, document: Integers, begin: Integers, end: Integers) -> Plan:
    """The plan for pieces that come in the order of documents, by the row of each, whichever number that has."""
    _, first = np.unique(row, return_index=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    row = rank[row]
    order = np.argsort(row, kind="stable")
    rows = np.searchsorted(row[order], np.arange(len(first) + 1))
    return Plan(row_length, rows, document[order], begin[order], end[order])


def _best_rows(sizes: Integers, row_length: int) -> Integers:
    """A row for each of some pieces of 1 to `row_length` tokens, by best fit decreasing; rows count from 0."""
    row = np.empty(len(sizes), dtype=np.int64)
    row[np.argsort(-sizes, kind="stable")] = _best_fit(np.bincount(sizes), row_length)
    return row


def _alike_rows(sizes: Integers, row_length: int) -> Integers:
    """A row for each piece, the longest first; the last row is that of the shortest."""
    order = np.argsort(-sizes, kind="stable")
    row, falling = np.empty(len(sizes), dtype=np.int64), sizes[order].tolist()
    begin = number = 0
    while begin < len(falling):
        end = begin + row_length // falling[begin]
        row[order[begin:end]] = number
        begin, number = end, number + 1
    return row


def _num_alike(sizes: Integers, row_length: int) -> int:
    """How many of the first pieces make up one row, if all are padded to the longest of them."""
    padded = np.maximum.accumulate(sizes) * np.arange(1, len(sizes) + 1)
    return int(np.searchsorted(padded, row_length, side="right"))


def _best_fit(counts: Integers, row_length: int) -> list[int]:
    """Returns a row for each piece, the longest piece first, given how many pieces there are of each size.

    Pieces of one size are placed together: the fullest row with enough room takes as many of them as it can, since
    after each it is still the fullest with room, and so do all rows with as much room. The rooms in use are a sorted
    list, each once, so that it is short where there are few rows, and where there are few sizes.
    """
    placed: list[int] = []
    rows_with: dict[int, list[int]] = {}  # by room
    rooms: list[int] = []
    num_rows = 0
    for size in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[size])
        while left:
            at = bisect_left(rooms, size)
            if at == len(rooms):  # open as many rows as the rest needs
                opened = -(-left // (row_length // size))
                rows_with[row_length] = list(range(num_rows, num_rows + opened))
                num_rows += opened
                rooms.append(row_length)
            room = rooms[at]
            each = 1 if left == 1 else min(room // size, left)
            rows, most = rows_with.pop(room), left // each
            if len(rows) > most:
                rows, rows_with[room] = rows[:most], rows[most:]
            else:
                del rooms[at]
            placed += rows * each
            left -= len(rows) * each
            room -= each * size
            if room not in rows_with:
                insort(rooms, room)
            rows_with.setdefault(room, []).extend(rows)
    return placed
