import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdata.fields import IGNORED_LABEL
from streamdata.text.packing import PackedRow, RowPacker

END = 0

documents_of = st.lists(st.lists(st.integers(1, 99), max_size=12), max_size=12)


def pack(documents: list[list[int]], row_length: int) -> list[PackedRow]:
    """All rows of a finite stream."""
    packer = RowPacker(row_length, END)
    rows = []
    for document in documents:
        packer.add(np.array(document, dtype=np.int64))
        while (row := packer.next_row()) is not None:
            rows.append(row)
    last = packer.next_row(is_end=True)
    return rows if last is None else [*rows, last]


def stream(documents: list[list[int]]) -> list[int]:
    """The documents one after the other, each with its end."""
    return [token for document in documents if document for token in [*document, END]]


@given(documents_of, st.integers(1, 9))
def test_every_token_is_in_exactly_one_row(documents: list[list[int]], row_length: int) -> None:
    """The rows side by side are the stream, then padding that is less than a row."""
    rows = pack(documents, row_length)
    expected = stream(documents)
    tokens = np.concatenate([row.tokens for row in rows]).tolist() if rows else []
    assert tokens[: len(expected)] == expected
    assert len(rows) == -(-len(expected) // row_length)
    assert set(tokens[len(expected) :]) <= {END}
    assert all(array.shape == (row_length,) for row in rows for array in row[:4])
    assert sum(row.num_tokens for row in rows) == len(expected)
    assert sum(row.num_documents for row in rows) == (len(documents) if expected else 0)


@given(documents_of, st.integers(1, 9))
def test_targets_are_the_stream_shifted_by_one(documents: list[list[int]], row_length: int) -> None:
    """Beyond the row's end too; only the last token and the padding have none, and are not trained."""
    rows = pack(documents, row_length)
    targets = np.concatenate([row.target_ids for row in rows]).tolist() if rows else []
    mask = np.concatenate([row.loss_mask for row in rows]).tolist() if rows else []
    successors = stream(documents)[1:]
    assert targets == successors + [IGNORED_LABEL] * (len(targets) - len(successors))
    assert mask == [True] * len(successors) + [False] * (len(targets) - len(successors))


@given(documents_of, st.integers(1, 9))
def test_positions_restart_with_row_and_document(documents: list[list[int]], row_length: int) -> None:
    """A position counts from where the row's part of its document begins; padding is one document."""
    rows = pack(documents, row_length)
    owners = [index for index, document in enumerate(documents) if document for _ in [*document, END]]
    owners += [-1] * (len(rows) * row_length - len(owners))
    for start, row in zip(range(0, len(owners), row_length), rows, strict=True):
        inside = owners[start : start + row_length]
        assert row.position_ids.tolist() == [column - inside.index(owner) for column, owner in enumerate(inside)]


def test_rows_look_as_documented() -> None:
    """Three documents of 3, 5 and 1 tokens in rows of 4."""
    rows = pack([[1, 1, 1], [2, 2, 2, 2, 2], [3]], 4)
    assert [row.tokens.tolist() for row in rows] == [[1, 1, 1, 0], [2, 2, 2, 2], [2, 0, 3, 0]]
    assert [row.target_ids.tolist() for row in rows] == [[1, 1, 0, 2], [2, 2, 2, 2], [0, 3, 0, -100]]
    assert [row.position_ids.tolist() for row in rows] == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 0, 1]]


def test_the_last_row_is_padded_and_its_padding_is_not_trained() -> None:
    """Two tokens and their end in a row of 5."""
    (row,) = pack([[1, 2]], 5)
    assert row.tokens.tolist() == [1, 2, END, END, END]
    assert row.target_ids.tolist() == [2, END, -100, -100, -100]
    assert row.num_tokens == 3
    assert row.loss_mask.tolist() == [True, True, False, False, False]


def test_a_packer_goes_on_in_the_middle_of_a_document() -> None:
    """With `skip`, the first document's tokens that were in rows before are not packed again."""
    packer = RowPacker(2, END, skip=3)
    packer.add(np.array([1, 2, 3, 4, 5]))
    row = packer.next_row()
    assert row is not None
    assert row.tokens.tolist() == [4, 5]
    assert packer.state["offset"] == 5


@pytest.mark.parametrize("document", [[], [1, 2]])
def test_a_packer_refuses_a_document_shorter_than_what_it_skips(document: list[int]) -> None:
    """Other documents than before are an error, not a quietly shifted stream."""
    with pytest.raises(ValueError, match="more than 3 tokens"):
        RowPacker(2, END, skip=3).add(np.array(document, dtype=np.int64))


@given(documents_of, st.integers(1, 9))
def test_a_packer_holds_no_more_than_it_needs(documents: list[list[int]], row_length: int) -> None:
    """Between rows the documents held begin with an unfinished one, and hold at most one row."""
    packer = RowPacker(row_length, END)
    for document in documents:
        packer.add(np.array(document, dtype=np.int64))
        while packer.next_row() is not None:
            pass
        held = [len(tokens) for tokens in packer._held]
        assert sum(held) - packer.state["offset"] <= row_length
        assert not held or packer.state["offset"] < held[0]
