import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdata import Cost
from streamdata.text.packing import RowPacker
from streamdata.text.plan import (
    Balance,
    Plan,
    plan_alike,
    plan_alike_head,
    plan_alike_rows,
    plan_bfd,
    plan_bfd_head,
    plan_bfd_rows,
    plan_bfd_split,
    plan_simple,
)

lengths_of = st.lists(st.integers(0, 30), max_size=40)
row_lengths = st.integers(1, 30)
WHOLE = (plan_bfd, plan_alike)
PLANNERS = (plan_simple, plan_bfd, plan_bfd_split, plan_alike)


def rows_of(plan):
    """The pieces (document, begin, end) of each row."""
    pieces = list(zip(plan.document.tolist(), plan.begin.tolist(), plan.end.tolist(), strict=True))
    return [pieces[begin:end] for begin, end in zip(plan.rows[:-1], plan.rows[1:], strict=True)]


def made(planner, lengths, row_length):
    """A plan; documents that are longer than what takes whole ones are shortened."""
    lengths = np.minimum(lengths, row_length) if planner in WHOLE else lengths
    return planner(lengths, row_length), np.asarray(lengths, dtype=np.int64)


def naive_fills(lengths, row_length):
    """Best fit decreasing as it is told: each document into the fullest row that has room."""
    fills = []
    for length in sorted(filter(None, lengths), reverse=True):
        fitting = [index for index, fill in enumerate(fills) if fill + length <= row_length]
        if fitting:
            fills[max(fitting, key=fills.__getitem__)] += length
        else:
            fills.append(length)
    return sorted(fills)


@pytest.mark.parametrize("planner", PLANNERS)
@given(lengths_of, row_lengths)
def test_every_token_is_in_exactly_one_row(planner, lengths, row_length):
    """Of each document, in order, and no row holds more than its length or nothing."""
    plan, lengths = made(planner, lengths, row_length)
    tokens = [(document, at) for document, length in enumerate(lengths) for at in range(length)]
    rows = [[(document, at) for document, *piece in row for at in range(*piece)] for row in rows_of(plan)]
    assert sorted(token for row in rows for token in row) == tokens
    assert all(row == sorted(row) and 0 < len(row) <= row_length for row in rows)
    assert plan.num_tokens == len(tokens)
    assert plan.padding == len(rows) * row_length - len(tokens)


@pytest.mark.parametrize("planner", PLANNERS)
@given(lengths_of, row_lengths)
def test_figures_are_those_of_the_rows(planner, lengths, row_length):
    """Rows, fill, and documents that are in several pieces; arrays have the documented types."""
    plan, _ = made(planner, lengths, row_length)
    rows = rows_of(plan)
    documents = [document for row in rows for document, *_ in row]
    assert plan.num_rows == len(rows)
    assert plan.num_cut == sum(documents.count(document) > 1 for document in set(documents))
    assert plan.fill == (plan.num_tokens / (len(rows) * row_length) if rows else 1.0)
    assert {array.dtype for array in (plan.rows, plan.document, plan.begin, plan.end)} == {np.dtype(np.int64)}
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)  # rows go by their first piece


@given(st.lists(st.integers(0, 30), max_size=60), row_lengths)
def test_bfd_keeps_documents_whole_and_fits_them_best(lengths, row_length):
    """The fills of its rows are those of the naive algorithm."""
    plan, lengths = made(plan_bfd, lengths, row_length)
    assert plan.num_cut == 0
    fills = sorted(sum(end - begin for _, begin, end in row) for row in rows_of(plan))
    assert fills == naive_fills(lengths.tolist(), row_length)


@given(lengths_of, row_lengths)
def test_bfd_split_cuts_longer_documents_alone(lengths, row_length):
    """Into whole rows and a rest, which is packed as a document of its size would be."""
    plan = plan_bfd_split(lengths, row_length)
    assert plan.num_cut == sum(length > row_length for length in lengths)
    pieces = [size for length in lengths for size in [row_length] * (length // row_length) + [length % row_length]]
    fills = sorted(sum(end - begin for _, begin, end in row) for row in rows_of(plan))
    assert fills == naive_fills(pieces, row_length)


@given(lengths_of, row_lengths)
def test_simple_makes_the_rows_of_a_stream(lengths, row_length):
    """The same rows as packing documents as they come, its end tokens counted among their lengths."""
    plan = plan_simple([length and length + 1 for length in lengths], row_length)
    packer, rows = RowPacker(row_length, 0), []
    for number, length in enumerate(lengths, 1):
        packer.add(np.full(length, number))
        while (row := packer.next_row()) is not None:
            rows.append(row.position_ids)
    if (last := packer.next_row(is_end=True)) is not None:
        rows.append(last.position_ids)
    assert len(rows) == plan.num_rows
    for pieces, positions in zip(rows_of(plan), rows, strict=True):
        sizes = [end - begin for _, begin, end in pieces]
        expected = [at for size in [*sizes, row_length - sum(sizes)] for at in range(size)]
        assert positions.tolist() == expected


def test_plans_look_as_documented():
    """Documents of 3, 5, 2 and 2 tokens in rows of 4 (and of 5)."""
    lengths = [3, 5, 2, 2]
    simple = [[(0, 0, 3), (1, 0, 1)], [(1, 1, 5)], [(2, 0, 2), (3, 0, 2)]]
    assert rows_of(plan_simple(lengths, 4)) == simple
    assert rows_of(plan_bfd(lengths, 5)) == [[(0, 0, 3), (2, 0, 2)], [(1, 0, 5)], [(3, 0, 2)]]
    assert rows_of(plan_bfd_split(lengths, 4)) == [[(0, 0, 3), (1, 4, 5)], [(1, 0, 4)], [(2, 0, 2), (3, 0, 2)]]


def test_bfd_refuses_a_document_longer_than_a_row():
    """It never cuts; the error says what does."""
    with pytest.raises(ValueError, match="at most 4 tokens, 2 are longer, up to 9 tokens\n  Use bfd_split"):
        plan_bfd([3, 5, 9], 4)


@pytest.mark.parametrize("planner", PLANNERS)
def test_settings_that_are_none_are_errors(planner):
    """A row of no tokens, a document of fewer than none."""
    with pytest.raises(ValueError, match="row_length is 0"):
        planner([1], 0)
    with pytest.raises(ValueError, match="document 1 has -2 tokens"):
        planner([1, -2], 4)


@pytest.mark.parametrize("planner", PLANNERS)
def test_no_documents_give_no_rows(planner):
    """Nor do empty ones."""
    for lengths in ([], [0, 0]):
        plan = planner(lengths, 4)
        assert isinstance(plan, Plan)
        assert (plan.num_rows, plan.num_tokens, plan.padding, plan.fill) == (0, 0, 0, 1.0)


def test_many_documents_fill_their_rows():
    """As a corpus: the lengths of texts are lognormal."""
    lengths = np.random.default_rng(0).lognormal(np.log(1000) - 0.5, 1.0, 20_000).astype(np.int64).clip(1, 8192)
    assert plan_bfd(lengths, 8192).fill > 0.99


def longest_times_number(sizes):
    """What a row of documents of alike length takes."""
    return max(sizes) * len(sizes)


HEADS = [(plan_bfd_head, sum), (plan_alike_head, longest_times_number)]


@pytest.mark.parametrize(("planner", "taken"), HEADS)
@given(lengths=lengths_of, row_length=row_lengths)
def test_a_head_leaves_the_last_documents_which_one_row_could_hold(planner, taken, lengths, row_length):
    """Whole documents, each once, in rows that hold them; those that are left fit into one row more."""
    lengths = [min(length, row_length) for length in lengths]
    plan = planner(lengths, row_length)
    present = [document for document, length in enumerate(lengths) if length]
    planned = sorted(plan.document.tolist())
    assert planned == present[: len(planned)]
    left = [lengths[document] for document in present[len(planned) :]]
    assert not left or taken(left) <= row_length
    rows = [[lengths[document] for document, *_ in row] for row in rows_of(plan)]
    assert all(taken(row) <= row_length for row in rows)
    assert (plan.begin.tolist(), plan.end.tolist()) == ([0] * len(planned), [lengths[d] for d in plan.document])


@pytest.mark.parametrize(("planner", "taken"), HEADS)
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=40), row_length=row_lengths)
def test_a_head_of_one_document_more_than_a_row_is_that_row(planner, taken, lengths, row_length):
    """So documents that are planned as soon as they fill a row are packed in their sequence."""
    lengths = [min(length, row_length) for length in lengths]
    held, rows, expected = [], [], [[]]
    for length in lengths:
        held.append(length)
        plan = planner(held, row_length)
        assert plan.num_rows <= 1
        rows += [held[: len(plan.document)]] if plan.num_rows else []
        held = held[len(plan.document) :]
        expected[-1:] = (
            [[*expected[-1], length]] if taken([*expected[-1], length]) <= row_length else [expected[-1], [length]]
        )
    assert [*rows, held] == expected


@given(st.lists(st.integers(1, 30), max_size=60), row_lengths)
def test_alike_documents_go_from_the_longest_down(lengths, row_length):
    """The lengths of a row lie between those of no other, and each but the last takes as many as it can."""
    lengths = [min(length, row_length) for length in lengths]
    rows = [[lengths[document] for document, *_ in row] for row in rows_of(plan_alike(lengths, row_length))]
    rows.sort(key=lambda row: (max(row), min(row)), reverse=True)
    assert [length for row in rows for length in sorted(row, reverse=True)] == sorted(lengths, reverse=True)
    assert all(max(row) * (len(row) + 1) > row_length for row in rows[:-1])


@pytest.mark.parametrize("planner", [plan_bfd_head, plan_alike, plan_alike_head])
def test_planners_of_whole_documents_refuse_longer_ones(planner):
    """Each by its name."""
    with pytest.raises(ValueError, match=f"{planner.__name__}: expected documents of at most 4 tokens, 1 are longer"):
        planner([3, 9], 4)


def test_heads_look_as_documented():
    """Documents of 3, 5, 2, 2 and 4 tokens: the last two stay out of rows of 6, the last one of rows padded to 6."""
    assert rows_of(plan_bfd_head([3, 5, 2, 2, 4], 6)) == [[(0, 0, 3), (2, 0, 2)], [(1, 0, 5)]]
    assert rows_of(plan_alike_head([3, 5, 2, 2, 4], 6)) == [[(0, 0, 3), (2, 0, 2)], [(1, 0, 5)], [(3, 0, 2)]]
    assert rows_of(plan_alike([3, 5, 2, 2, 4], 6)) == [[(0, 0, 3), (2, 0, 2)], [(1, 0, 5)], [(3, 0, 2)], [(4, 0, 4)]]


def test_heads_one_after_another_fill_their_rows():
    """Stretches of 1,000 documents of a corpus, each with what the one before left."""
    lengths = np.random.default_rng(0).lognormal(np.log(400), 1.2, 10_000).astype(np.int64).clip(1, 8192)
    held, num_rows, num_tokens = lengths[:0], 0, 0
    for begin in range(0, len(lengths), 1000):
        stretch = np.append(held, lengths[begin : begin + 1000])
        plan = plan_bfd_head(stretch, 8192)
        held = stretch[len(plan.document) :]
        num_rows, num_tokens = num_rows + plan.num_rows, num_tokens + plan.num_tokens
    assert num_tokens / (num_rows * 8192) > 0.995


@pytest.mark.parametrize("planner", [plan_bfd_rows, plan_alike_rows])
@given(lengths_of, row_lengths, st.integers(1, 6))
def test_a_number_of_rows_is_of_the_first_documents(planner, lengths, row_length, num_rows):
    """Exactly so many rows if the tokens are more than fit into them; each document is in one."""
    lengths = np.minimum(lengths, row_length)
    plan = planner(lengths, row_length, num_rows)
    assert plan.num_rows == num_rows if lengths.sum() > num_rows * row_length else plan.num_rows <= num_rows
    assert sorted(plan.document.tolist()) == np.flatnonzero(lengths)[: len(plan.document)].tolist()


@given(lengths_of, row_lengths, st.integers(1, 6))
def test_a_number_of_rows_by_best_fit_leaves_no_room_for_the_next_document(lengths, row_length, num_rows):
    """No row of them has it."""
    lengths = np.minimum([length for length in lengths if length], row_length)
    plan = plan_bfd_rows(lengths, row_length, num_rows)
    if len(plan.document) < len(lengths):
        assert all(sum(e - b for _, b, e in row) + lengths[len(plan.document)] > row_length for row in rows_of(plan))
    assert plan.padding >= 0


@given(lengths_of, row_lengths, st.integers(1, 6))
def test_a_number_of_alike_rows_holds_as_many_documents_as_can_be(lengths, row_length, num_rows):
    """All that `plan_alike` puts into so many."""
    lengths = np.minimum([length for length in lengths if length], row_length)
    plan = plan_alike_rows(lengths, row_length, num_rows)
    fitting = [n for n in range(len(lengths) + 1) if plan_alike(lengths[:n], row_length).num_rows <= num_rows]
    assert len(plan.document) == fitting[-1] == len(fitting) - 1
    assert all(max(e - b for _, b, e in row) * len(row) <= row_length for row in rows_of(plan))


def test_a_cost_is_of_tokens_and_of_squared_lengths():
    """Of each document; of groups, of each as long as the longest."""
    plan = Plan(10, *(np.array(values) for values in ([0, 2, 3], [0, 1, 2], [0, 0, 0], [3, 4, 5])))
    assert Cost(10, 1).of_rows(plan).tolist() == [70 + 25, 50 + 25]
    assert Cost(10, 1).of_rows(plan, is_padded=True).tolist() == [80 + 32, 50 + 25]
    assert Cost.of_model(7e9, 4096, 32) == Cost(4.2e10, 6 * 4096 * 32)


@pytest.mark.parametrize("values", [(-1, 1), (1, float("inf")), (1, float("nan")), (0, 0), ("4e10", 0), (True, 1)])
def test_a_cost_that_is_none_is_refused(values):
    """Negative, not finite, no number, or nothing at all."""
    with pytest.raises(ValueError, match=r"Cost: .*, expected a (finite|positive) number"):
        Cost(*values)


def test_aligned_rows_go_by_the_golden_ratio():
    """Sorted by cost, each place has the same quantile in all lanes; pinned, since orders depend on it."""
    plan = Plan(9, *(np.array(values) for values in (range(9), range(8), [0] * 8, [5, 3, 8, 1, 6, 2, 7, 4])))
    found = Balance("rows", Cost(1), 8, 9).aligned(plan)
    assert [cost for *_, cost in found] == [1, 6, 3, 8, 5, 2, 7, 4]
    assert [(begin, end) for begin, end, _ in found] == [(n, n + 1) for n in (3, 4, 1, 2, 0, 5, 6, 7)]
